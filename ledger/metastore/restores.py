"""Restores of the metadata: histories that were lost when the store was put back to an older state.

A ledger that was created after the backup is on the disks of bookies and in no metadata. Its id is
in the range of a restore: it is never generated again, and bookies do not collect the ledger. A
client that numbers things by what the metadata shows leaves a gap. Ranges are only added, or
released by an operator, which gives up the ledgers in them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from ledger.core.bounded_json import parse_json
from ledger.errors import MetadataCorrupt, NoSuchNode
from ledger.metastore.base import MetadataStore, update_node

PATH = "/ledgerstream/restores"


@dataclass(frozen=True, slots=True)
class Restore:
    """A restore, noticed by a bookie that holds ledgers the metadata has never heard of.

    Their ids are in `first_id`..`end_id` - 1. Once it `is_released`, bookies may collect them.
    """

    first_id: int
    end_id: int
    noticed_ms: int
    bookie: str
    is_released: bool = False

    def __contains__(self, ledger_id: int) -> bool:
        return self.first_id <= ledger_id < self.end_id


def is_protected(restores: Sequence[Restore], ledger_id: int) -> bool:
    """Whether a ledger that the metadata does not list must be kept all the same."""
    return any(ledger_id in restore and not restore.is_released for restore in restores)


class RestoreLog:
    """The restores of one metadata store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read(self) -> tuple[Restore, ...]:
        """Returns all restores, oldest first. Raises MetadataCorrupt, MetadataUnavailable."""
        try:
            return _decode((await self._store.get(PATH)).data)
        except NoSuchNode:
            return ()

    async def add(self, *restores: Restore) -> tuple[Restore, ...]:
        """Adds restores, except those whose range is in one that is not released. Returns all.

        Bookies that notice one restore at the same time may add several ranges that overlap, since
        each has taken an id from the counter.
        """

        def added(present: tuple[Restore, ...]) -> tuple[Restore, ...]:
            for one in restores:
                ends = one.first_id, one.end_id - 1
                if not all(is_protected(present, ledger_id) for ledger_id in ends):
                    present = (*present, one)
            return present

        return await self._update(added)

    async def release(self, count: int) -> tuple[Restore, ...]:
        """Releases the first `count` restores: bookies may collect their ledgers. Returns all."""
        return await self._update(
            lambda present: tuple(
                replace(restore, is_released=restore.is_released or number < count)
                for number, restore in enumerate(present)
            )
        )

    async def _update(
        self, change: Callable[[tuple[Restore, ...]], tuple[Restore, ...]]
    ) -> tuple[Restore, ...]:
        return await update_node(self._store, PATH, change, none=(), decode=_decode, encode=_encode)


def _encode(restores: Sequence[Restore]) -> bytes:
    return json.dumps({"version": 1, "restores": [asdict(each) for each in restores]}).encode()


def _decode(data: bytes) -> tuple[Restore, ...]:
    try:
        document = parse_json(data)
        if document["version"] != 1:
            raise ValueError(f"version {document['version']}; this release reads version 1")
        return tuple(Restore(**each) for each in document["restores"])
    except (KeyError, TypeError, ValueError) as error:
        raise MetadataCorrupt(f"{PATH} cannot be read: {error}") from error
