"""Ledger metadata in the metadata store: the only ways to find and to change it.

Paths are those of the cluster's layout (`ledger.metastore.layout`), so Apache's programs see the
same ledgers. Every change compares versions. Absence is reported only when the store said so:
doubt raises.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import trio

from ledger.core.metadata import LedgerMetadata
from ledger.core.metadata_format import decode, encode
from ledger.errors import (
    InvalidArgument,
    LedgerError,
    LedgerExists,
    MetadataConflict,
    MetadataUnavailable,
    NodeExists,
    NoSuchLedger,
    NoSuchNode,
    SessionLost,
)
from ledger.metastore.base import ANY_VERSION, Check, MetadataStore, Node, Put
from ledger.metastore.layout import Layout, decode_layout
from ledger.metastore.ledger_ids import LedgerIds

UPDATE_TRIES_MAX = 100
"""Each lost try means that another process changed the ledger; more than a few are a bug."""

_BRANCH = re.compile(r"[0-9]{4}\Z")
_LEAF = re.compile(r"L[0-9]{4}\Z")


_DOUBT_S = 1.0
"""Whoever follows a ledger waits no longer to learn whether its writer is gone."""

CLIENT_TAG = "ledgerstream-client"
"""Key in a ledger's custom metadata: the id of the client that writes it."""


def client_path(client_id: str) -> str:
    """The ephemeral node of a living client."""
    return f"/ledgerstream/clients/{client_id}"


class LedgerStore:
    """Ledger metadata below `root`. Any number may share one store.

    All it remembers is the layout, which never changes while there is a cluster. Every call
    raises MetadataCorrupt if the cluster has a layout that is not known.

    Args:
        layout: what the cluster address asks for; another one found raises InvalidArgument.
    """

    def __init__(
        self, store: MetadataStore, root: str = "/ledgers", *, layout: Layout | None = None
    ) -> None:
        self._store = store
        self.root = root
        self._wanted_layout = layout
        self._layout: Layout | None = None
        self._ids = LedgerIds(store, root)

    async def layout(self) -> Layout:
        """How the ledgers are laid out. Where nothing says it, as Apache's default, which
        Pulsar's driver takes for granted."""
        return await self._find_layout() or self._wanted_layout or Layout.HIERARCHICAL

    async def path(self, ledger_id: int) -> str:
        """Where the metadata of a ledger lies, whether it exists or not."""
        layout = self._layout or await self.layout()
        return layout.path(self.root, ledger_id)

    async def next_ledger_id(self) -> int:
        """An id no generator call returned before. A ledger with a chosen id may have it."""
        return await self._ids.next_id(await self.layout())

    async def create(self, metadata: LedgerMetadata) -> None:
        """Writes the first metadata of a ledger. Raises LedgerExists.

        A retry of a create whose answer was lost succeeds: it finds its own `c_token`.
        """
        try:
            await self._store.create(await self.path(metadata.ledger_id), encode(metadata))
        except NodeExists:
            if metadata.c_token and await self._has_token(metadata):
                return
            raise LedgerExists(f"ledger {metadata.ledger_id} exists already") from None

    async def read(self, ledger_id: int) -> tuple[LedgerMetadata, int]:
        """Metadata and its version. Raises NoSuchLedger, MetadataCorrupt."""
        try:
            node = await self._store.get(await self.path(ledger_id))
        except NoSuchNode:
            raise _no_such(ledger_id) from None
        return _decode(ledger_id, node), node.version

    async def exists(self, ledger_id: int) -> bool:
        """False only if the store says that there is no such ledger; doubt raises.

        Garbage collection deletes entries on this answer. Unreadable metadata still exists.
        """
        if self._layout is None and await self._find_layout() is None:
            raise MetadataUnavailable(
                f"{self.root} has no LAYOUT: this is no cluster, or it is being made or removed, "
                f"and nobody can say whether it has ledger {ledger_id}"
            )
        try:
            await self._store.get(await self.path(ledger_id))
        except NoSuchNode:
            return False
        return True

    async def compare_and_put(self, metadata: LedgerMetadata, version: int) -> int:
        """Replaces metadata that has `version`; returns the new version.

        Raises MetadataConflict if it has another, NoSuchLedger.
        """
        assert version != ANY_VERSION, "ledger metadata is never overwritten blindly"
        try:
            path = await self.path(metadata.ledger_id)
            return await self._store.put(path, encode(metadata), version)
        except NoSuchNode:
            raise _no_such(metadata.ledger_id) from None

    async def update(
        self,
        ledger_id: int,
        transform: Callable[[LedgerMetadata], LedgerMetadata | None],
        *,
        while_exists: str | None = None,
    ) -> LedgerMetadata:
        """Reads, transforms and writes until no other process came between.

        `while_exists`: path of a node; once it is gone nothing is written any more, and
        SessionLost is raised.

        `transform` is pure, may be called several times, and returns None (or its argument)
        to leave the metadata as it is; what it raises leaves here. Returns what is now stored.
        """
        for _ in range(UPDATE_TRIES_MAX):
            present, version = await self.read(ledger_id)
            wanted = transform(present)
            if wanted is None or wanted == present:
                return present
            assert wanted.ledger_id == ledger_id, f"{wanted.ledger_id} is not ledger {ledger_id}"
            try:
                if while_exists is None:
                    await self.compare_and_put(wanted, version)
                else:
                    await self._put_while(wanted, version, while_exists)
            except MetadataConflict:
                continue
            return wanted
        raise MetadataConflict(
            f"ledger {ledger_id}: others changed the metadata first {UPDATE_TRIES_MAX} times"
        )

    async def _put_while(self, metadata: LedgerMetadata, version: int, path: str) -> None:
        put = Put(await self.path(metadata.ledger_id), encode(metadata), version)
        try:
            await self._store.transaction([Check(path, ANY_VERSION), put])
        except NoSuchNode:
            if await self.exists(metadata.ledger_id):
                raise SessionLost(
                    f"ledger {metadata.ledger_id}: the metadata session of its writer ended, and "
                    "readers may have counted on the ensemble as it is. Cure: recover it, and "
                    "go on in a new ledger"
                ) from None
            raise _no_such(metadata.ledger_id) from None

    async def delete(self, ledger_id: int) -> None:
        """Removes the metadata; bookies collect the entries later. Raises NoSuchLedger."""
        path = await self.path(ledger_id)
        try:
            await self._store.delete(path)
        except NoSuchNode:
            raise _no_such(ledger_id) from None
        # Empty parents would pile up over the years. Anyone may be using them again: try only.
        while (path := path.rpartition("/")[0]) != self.root:
            try:
                await self._store.delete(path)
            except LedgerError:
                return  # the ledger is deleted, whatever this is

    async def list(self) -> builtins.list[int]:
        """All ledger ids, ascending. Not a snapshot: the tree may change meanwhile."""
        layout = await self.layout()
        found: builtins.list[int] = []
        for name in await self._store.children(self.root):
            depth = layout.depth_below(name)
            if depth == 0:
                found.append(int(name[1:]))
            elif depth is not None:  # else LAYOUT, available, cookies, idgen, ...
                found += await _list_below(self._store, f"{self.root}/{name}", name, depth)
        return sorted(found)

    async def watch(self, ledger_id: int) -> AsyncGenerator[LedgerMetadata | None, None]:
        """The metadata now and after each change; None while the ledger does not exist.

        Close it: `async with aclosing(ledgers.watch(i)) as versions`.
        """
        path = await self.path(ledger_id)
        async with aclosing(self._store.watch(path)) as nodes:
            async for node in nodes:
                yield None if node is None else _decode(ledger_id, node)

    async def is_writer_gone(self, metadata: LedgerMetadata) -> bool:
        """True only if the ledger names the client that writes it, and that name is gone: from
        then on the client can change no ensemble of it (see `update`). Doubt, a store that does
        not answer at once, or a ledger of another program, is False."""
        client_id = metadata.custom.get(CLIENT_TAG)
        if client_id is None:
            return False
        with trio.move_on_after(_DOUBT_S):
            try:
                await self._store.get(client_path(client_id.decode("ascii", "replace")))
            except NoSuchNode:
                return True
            except (MetadataUnavailable, InvalidArgument):
                return False
        return False

    async def _has_token(self, metadata: LedgerMetadata) -> bool:
        try:
            present, _ = await self.read(metadata.ledger_id)
        except NoSuchLedger:
            return False
        return present.c_token == metadata.c_token

    async def _find_layout(self) -> Layout | None:
        """None while there is no LAYOUT; that is not remembered."""
        if self._layout is None:
            try:
                node = await self._store.get(f"{self.root}/LAYOUT")
            except NoSuchNode:
                return None
            layout = decode_layout(node.data)
            if self._wanted_layout not in (None, layout):
                assert self._wanted_layout is not None
                raise InvalidArgument(
                    f"the cluster at {self.root} has the layout {layout.value}, and its address "
                    f"asks for {self._wanted_layout.value}. Cure: zk:// or zk+null:// takes "
                    "what is there"
                )
            self._layout = layout
        return self._layout


def _decode(ledger_id: int, node: Node) -> LedgerMetadata:
    return decode(ledger_id, node.data, node.created_ms)


def _no_such(ledger_id: int) -> NoSuchLedger:
    return NoSuchLedger(f"ledger {ledger_id} is not in the metadata store")


async def _list_below(store: MetadataStore, path: str, digits: str, depth: int) -> list[int]:
    """`depth` levels of directories from `path` on, itself counted."""
    found: list[int] = []
    for name in await store.children(path):
        if depth == 1:
            if _LEAF.match(name):
                found.append(int(digits + name[1:]))
        elif _BRANCH.match(name):
            found += await _list_below(store, f"{path}/{name}", digits + name, depth - 1)
    return found
