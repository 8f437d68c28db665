"""Decommissions: the bookies that an operator wants to be emptied, and how far that has come.

One node of JSON for each such bookie. While it exists, the bookie accepts no new entries, no
ensemble is chosen with it, and its copies are made elsewhere. The worker that makes them updates
the node; fields that a later release added are kept.
"""

from __future__ import annotations

import builtins
import json
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal

from ledger.core.bounded_json import parse_json
from ledger.errors import (
    InvalidArgument,
    MetadataConflict,
    MetadataCorrupt,
    NodeExists,
    NoSuchNode,
)
from ledger.metastore.base import Change, Create, Delete, MetadataStore, Node, Put
from ledger.metastore.paths import check_bookie_id

PATH: Final = "/ledgerstream/decommissions"
FORMAT_VERSION: Final = 1
REASONS_MAX: Final = 100
REASON_CHARS_MAX: Final = 1000
_NUMBER_MAX: Final = 2**63 - 1
_COUNTS: Final = ("ledgers_total", "ledgers_left", "bytes_total", "bytes_left")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decommission:
    """A bookie that is to be emptied. Times are milliseconds since 1970.

    Raises InvalidArgument for ids that no bookie can have, a bookie that replaces itself, and
    numbers below 0.
    """

    bookie: str
    begun_ms: int
    replacement: str | None = None
    """Every copy is made at this bookie, if one is named."""
    state: Literal["draining", "emptied"] = "draining"
    """`emptied`: no ledger's metadata names the bookie any more."""
    ledgers_total: int | None = None
    """Ledgers that named the bookie when it began; None until they were counted."""
    ledgers_left: int | None = None
    bytes_total: int | None = None
    bytes_left: int | None = None
    updated_ms: int = 0
    waits_for: tuple[str, ...] = ()
    """What holds it up, one sentence each. The first REASONS_MAX are stored, with at most
    REASON_CHARS_MAX characters each."""
    version: int = -1
    """The version of the node that this was read from."""

    def __post_init__(self) -> None:
        check_bookie_id(self.bookie)
        if self.replacement is not None and check_bookie_id(self.replacement) == self.bookie:
            raise InvalidArgument(f"bookie {self.bookie} cannot be replaced by itself")
        if self.state not in ("draining", "emptied"):
            raise InvalidArgument(f"a decommission is draining or emptied, not {self.state!r}")
        for name in ("begun_ms", "updated_ms", *_COUNTS):
            number = getattr(self, name)
            if number is None and name in _COUNTS:
                continue
            if type(number) is not int or not 0 <= number <= _NUMBER_MAX:
                raise InvalidArgument(
                    f"{name} of a decommission must be from 0 to 2^63-1, not {number!r}"
                )


class Decommissions:
    """The decommissions of one metadata store. All methods raise MetadataUnavailable, and
    InvalidArgument for an id that no bookie can have."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def begin(self, one: Decommission) -> None:
        """Records that a bookie is to be emptied. Raises NodeExists if that is recorded."""
        try:
            await self._store.create(path_of(one.bookie), _encode(one, {}))
        except NodeExists:
            raise NodeExists(f"bookie {one.bookie} is being decommissioned already") from None

    async def read(self, bookie: str) -> Decommission | None:
        """Returns the decommission of a bookie, None if there is none. Raises MetadataCorrupt."""
        try:
            node = await self._store.get(path_of(bookie))
        except NoSuchNode:
            return None
        return _decode(bookie, node)

    async def list(self) -> list[Decommission]:
        """Returns all that can be read, sorted by bookie; damaged ones are logged."""
        found = []
        for name in await self._store.children(PATH):
            try:
                one = await self.read(name)
            except (InvalidArgument, MetadataCorrupt) as error:
                # One damaged node must not hide the others.
                log.warning("decommission_ignored bookie=%s error=%r", name, str(error))
                continue
            if one is not None:  # otherwise it was cancelled after the listing
                found.append(one)
        return found

    async def names(self) -> frozenset[str]:
        """Returns the bookies that are to be emptied, also those whose nodes are damaged: that a
        node exists is enough to choose the bookie for no new copy."""
        return frozenset(await self._store.children(PATH))

    async def update(self, one: Decommission, *, also: Sequence[Change] = ()) -> Decommission:
        """Replaces the node that has `one.version`, and returns what is stored then. Fields that
        this release does not know are kept. The changes `also` are made in the same transaction.

        Raises MetadataConflict if it has another version, NoSuchNode if it was cancelled, and
        MetadataCorrupt.
        """
        path = path_of(one.bookie)
        try:
            node = await self._store.get(path)
        except NoSuchNode:
            raise NoSuchNode(f"the decommission of bookie {one.bookie} was cancelled") from None
        if node.version != one.version:
            raise MetadataConflict(
                f"{path} has version {node.version}, not {one.version}: it was changed meanwhile"
            )
        put = Put(path, _encode(one, _document(path, node.data)), one.version)
        await self._store.transaction([put, *also])
        return replace(one, version=one.version + 1, waits_for=_bounded(one.waits_for))

    async def cancel(self, bookie: str) -> bool:
        """Removes the node, also a damaged one. Returns False if there was none."""
        try:
            await self._store.delete(path_of(bookie))
        except NoSuchNode:
            return False
        return True

    async def renaming(self, old: str, new: str) -> builtins.list[Change]:
        """Returns the changes that give the decommission of a bookie to its new id, whose ledgers
        are yet to be counted, and name that as the replacement where the old one is. Raises
        MetadataCorrupt if its own is damaged."""
        changes: builtins.list[Change] = []
        for one in [await self.read(old), *await self.list()]:
            if one is None:
                continue
            if one.bookie == old and not changes:
                moved = replace(
                    one, bookie=new, state="draining", ledgers_left=None, bytes_left=None
                )
                data = _encode(moved, await self._stored(one))
                changes += [Delete(path_of(old), one.version), Create(path_of(new), data)]
            elif one.bookie != old and one.replacement == old:
                data = _encode(replace(one, replacement=new), await self._stored(one))
                changes.append(Put(path_of(one.bookie), data, one.version))
        return changes

    async def _stored(self, one: Decommission) -> dict[str, Any]:
        path = path_of(one.bookie)
        try:
            return _document(path, (await self._store.get(path)).data)
        except NoSuchNode:
            return {}  # it was cancelled: the version that was read will not be found

    async def watch(self, bookie: str) -> AsyncGenerator[Decommission | None, None]:
        """Yields the decommission now and after each change, None while there is none. Close it:
        `async with aclosing(decommissions.watch(b)) as states`. Raises MetadataCorrupt."""
        async with aclosing(self._store.watch(path_of(bookie))) as nodes:
            async for node in nodes:
                yield None if node is None else _decode(bookie, node)

    async def watch_begun(self, bookie: str) -> AsyncGenerator[bool, None]:
        """Yields whether the bookie is to be emptied, now and after each change, also if its node
        is damaged: the operator wanted it when the node was made. Close it with `aclosing`."""
        async with aclosing(self._store.watch(path_of(bookie))) as nodes:
            async for node in nodes:
                yield node is not None


def path_of(bookie: str) -> str:
    """Returns the path of a bookie's node. Raises InvalidArgument."""
    return f"{PATH}/{check_bookie_id(bookie)}"


def _bounded(reasons: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(reason[:REASON_CHARS_MAX] for reason in reasons[:REASONS_MAX])


_FIELDS: Final = tuple(one.name for one in fields(Decommission) if one.name != "version")


def _encode(one: Decommission, before: Mapping[str, Any]) -> bytes:
    known = {name: getattr(one, name) for name in _FIELDS} | {"waits_for": _bounded(one.waits_for)}
    return json.dumps({**before, "version": FORMAT_VERSION, **known}).encode()


def _document(path: str, data: bytes) -> dict[str, Any]:
    try:
        document = parse_json(data)
        if not isinstance(document, dict):
            raise TypeError("it is not a JSON object")
        if document.get("version") != FORMAT_VERSION:
            raise ValueError(
                f"version {document.get('version')!r}; this release reads {FORMAT_VERSION}"
            )
    except (TypeError, ValueError) as error:
        raise _corrupt(path, error) from None
    return document


def _decode(bookie: str, node: Node) -> Decommission:
    path = path_of(bookie)
    document = _document(path, node.data)
    known = {name: document[name] for name in _FIELDS if name in document}
    try:
        reasons = known.get("waits_for", [])
        if not isinstance(reasons, list) or not all(isinstance(one, str) for one in reasons):
            raise ValueError("waits_for is not a list of sentences")
        for name in ("bookie", "replacement"):
            if not isinstance(known.get(name), str | None):
                raise TypeError(f"{name} is not the id of a bookie")
        one = Decommission(**(known | {"waits_for": tuple(reasons), "version": node.version}))
    except (TypeError, ValueError) as error:
        raise _corrupt(path, error) from None
    if one.bookie != bookie:
        raise _corrupt(path, f"it is of bookie {one.bookie!r}")
    return one


def _corrupt(path: str, why: object) -> MetadataCorrupt:
    return MetadataCorrupt(
        f"{path} cannot be read: {why}. Cure: cancel the decommission, and begin it again"
    )
