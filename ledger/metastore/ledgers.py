"""Ledger metadata in the metadata store: the only module that finds and changes it.

Paths are those of the cluster's layout (`ledger.metastore.layout`), so Apache's programs see the
same ledgers. Every change compares versions. A ledger is reported as absent only if the store said
so; otherwise an error is raised.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import trio

from ledger.core.ledger_keys import NO_KEYS, LedgerKeys
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
from ledger.metastore.base import ANY_VERSION, Check, Create, MetadataStore, Node, Put
from ledger.metastore.layout import Layout, decode_layout
from ledger.metastore.ledger_ids import LedgerIds

UPDATE_TRIES_MAX = 100
"""Each lost try means that another process changed the ledger; many of them are a bug."""

_BRANCH = re.compile(r"[0-9]{4}\Z")
_LEAF = re.compile(r"L[0-9]{4}\Z")


_WRITER_CHECK_S = 1.0
"""How long a reader waits for the answer whether a ledger's writer is gone."""

CLIENT_TAG = "ledgerstream-client"
"""Key in a ledger's custom metadata: the id of the client that writes it."""


def client_path(client_id: str) -> str:
    """Returns the path of the ephemeral node of a client."""
    return f"/ledgerstream/clients/{client_id}"


class LedgerStore:
    """Ledger metadata below `root`. Any number may share one store.

    It caches only the layout, which never changes during the life of a cluster. Every call raises
    MetadataCorrupt if the cluster has an unknown layout.

    Args:
        layout: the one that the cluster address asks for; another one raises InvalidArgument.
        keys: fill in the passwords of ledgers that are derived from the secret of the cluster.
    """

    def __init__(
        self,
        store: MetadataStore,
        root: str = "/ledgers",
        *,
        layout: Layout | None = None,
        keys: LedgerKeys = NO_KEYS,
    ) -> None:
        self._store = store
        self.root = root
        self.keys = keys
        self._wanted_layout = layout
        self._layout: Layout | None = None
        self._ids = LedgerIds(store, root)

    async def layout(self) -> Layout:
        """Returns the layout of the cluster; without a LAYOUT node Apache's default, which
        Pulsar's driver assumes."""
        return await self._find_layout() or self._wanted_layout or Layout.HIERARCHICAL

    async def path(self, ledger_id: int) -> str:
        """Returns the path of a ledger's metadata, whether it exists or not."""
        layout = self._layout or await self.layout()
        return layout.path(self.root, ledger_id)

    async def next_ledger_id(self, *, beyond: int = -1) -> int:
        """Returns an id that was not generated before. A ledger with a chosen id may have it.

        It is greater than `beyond`, and so are all that are generated later.
        """
        return await self._ids.next_id(await self.layout(), beyond=beyond)

    async def create(self, metadata: LedgerMetadata, *, while_exists: str | None = None) -> None:
        """Writes the first metadata of a ledger, at version 0. Raises LedgerExists.

        The retry of a create whose response was lost succeeds: it finds its own `c_token`.
        `while_exists` is the path of a node: without it nothing is written, and NoSuchNode is
        raised; a lost response then raises MetadataUnavailable.
        """
        path, data = await self.path(metadata.ledger_id), encode(metadata)
        try:
            if while_exists is None:
                await self._store.create(path, data)
            else:
                await self._store.transaction(
                    [Check(while_exists, ANY_VERSION), Create(path, data)]
                )
        except NodeExists:
            if metadata.c_token and await self._has_token(metadata):
                return
            raise LedgerExists(f"ledger {metadata.ledger_id} already exists") from None

    async def read(self, ledger_id: int) -> tuple[LedgerMetadata, int]:
        """Returns the metadata and its version. Raises NoSuchLedger, MetadataCorrupt."""
        try:
            node = await self._store.get(await self.path(ledger_id))
        except NoSuchNode:
            raise _no_such(ledger_id) from None
        return self._decode(ledger_id, node), node.version

    async def exists(self, ledger_id: int) -> bool:
        """Whether the ledger exists; False only if the store says so, otherwise an error is raised.

        Garbage collection deletes entries by this answer. Unreadable metadata does exist.
        """
        if self._layout is None and await self._find_layout() is None:
            raise MetadataUnavailable(
                f"{self.root} has no LAYOUT: this is no cluster, or it is being made or removed, "
                f"and whether it has ledger {ledger_id} is unknown"
            )
        try:
            await self._store.get(await self.path(ledger_id))
        except NoSuchNode:
            return False
        return True

    async def compare_and_put(self, metadata: LedgerMetadata, version: int) -> int:
        """Replaces metadata that has `version`, and returns the new version.

        Raises MetadataConflict if it has another one, NoSuchLedger.
        """
        assert version != ANY_VERSION, "ledger metadata is never overwritten blindly"
        try:
            path = await self.path(metadata.ledger_id)
            return await self._store.put(path, encode(metadata), version)
        except NoSuchNode:
            raise _no_such(metadata.ledger_id) from None

    async def put_of_created(self, metadata: LedgerMetadata) -> Put:
        """Returns the change, for a transaction, of a ledger that is as `create` stored it."""
        return Put(await self.path(metadata.ledger_id), encode(metadata), 0)

    async def update(
        self,
        ledger_id: int,
        transform: Callable[[LedgerMetadata], LedgerMetadata | None],
        *,
        while_exists: str | None = None,
    ) -> LedgerMetadata:
        """Reads, transforms and writes, again until no other process interferes. Returns what is
        stored then.

        `transform` is pure, may be called several times, and returns None (or its argument)
        to leave the metadata unchanged; what it raises is raised here. `while_exists` is the path
        of a node: once it is gone nothing is written, and SessionLost is raised.
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
                    "readers may rely on the ensemble as it is. Cure: recover it, and "
                    "continue in a new ledger"
                ) from None
            raise _no_such(metadata.ledger_id) from None

    async def delete(self, ledger_id: int) -> None:
        """Removes the metadata; bookies collect the entries later. Raises NoSuchLedger."""
        path = await self.path(ledger_id)
        try:
            await self._store.delete(path)
        except NoSuchNode:
            raise _no_such(ledger_id) from None
        # Empty parents would accumulate. They may be in use again, so a failure is ignored.
        while (path := path.rpartition("/")[0]) != self.root:
            try:
                await self._store.delete(path)
            except LedgerError:
                return  # the ledger is deleted nevertheless

    async def list(self) -> builtins.list[int]:
        """Returns all ledger ids, ascending. No snapshot: the tree may change meanwhile."""
        layout = await self.layout()
        found: builtins.list[int] = []
        for name in await self._store.children(self.root):
            depth = layout.depth_below(name)
            if depth == 0:
                found.append(int(name[1:]))
            elif depth is not None:  # otherwise LAYOUT, available, cookies, idgen, ...
                found += await _list_below(self._store, f"{self.root}/{name}", name, depth)
        return sorted(found)

    async def watch(self, ledger_id: int) -> AsyncGenerator[LedgerMetadata | None, None]:
        """Yields the metadata now and after each change; None while the ledger does not exist.

        Close it: `async with aclosing(ledgers.watch(i)) as versions`.
        """
        path = await self.path(ledger_id)
        async with aclosing(self._store.watch(path)) as nodes:
            async for node in nodes:
                yield None if node is None else self._decode(ledger_id, node)

    async def is_writer_gone(self, metadata: LedgerMetadata) -> bool:
        """Whether the ledger names the client that writes it, and the node of that client is gone:
        from then on the client cannot change an ensemble of it (see `update`). False if that is
        unknown, as for a store that does not answer at once or a ledger of another program."""
        client_id = metadata.custom.get(CLIENT_TAG)
        if client_id is None:
            return False
        with trio.move_on_after(_WRITER_CHECK_S):
            try:
                await self._store.get(client_path(client_id.decode("ascii", "replace")))
            except NoSuchNode:
                return True
            except (MetadataUnavailable, InvalidArgument):
                return False
        return False

    async def is_writer_alive(self, metadata: LedgerMetadata) -> bool:
        """Whether the ledger names the client that writes it, and that client has its node. Raises
        MetadataUnavailable."""
        client_id = metadata.custom.get(CLIENT_TAG)
        if client_id is None:
            return False
        try:
            await self._store.get(client_path(client_id.decode("ascii", "replace")))
        except (NoSuchNode, InvalidArgument):
            return False
        return True

    def _decode(self, ledger_id: int, node: Node) -> LedgerMetadata:
        return self.keys.completed(decode(ledger_id, node.data, node.created_ms))

    async def _has_token(self, metadata: LedgerMetadata) -> bool:
        try:
            present, _ = await self.read(metadata.ledger_id)
        except NoSuchLedger:
            return False
        return present.c_token == metadata.c_token

    async def _find_layout(self) -> Layout | None:
        """Returns None while there is no LAYOUT node; that is not cached."""
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
                    f"asks for {self._wanted_layout.value}. Cure: zk:// or zk+null:// accepts "
                    "any layout"
                )
            self._layout = layout
        return self._layout


def _no_such(ledger_id: int) -> NoSuchLedger:
    return NoSuchLedger(f"ledger {ledger_id} is not in the metadata store")


async def _list_below(store: MetadataStore, path: str, digits: str, depth: int) -> list[int]:
    """Returns the ledger ids in `depth` levels of nodes, the first of which is `path`."""
    found: list[int] = []
    for name in await store.children(path):
        if depth == 1:
            if _LEAF.match(name):
                found.append(int(digits + name[1:]))
        elif _BRANCH.match(name):
            found += await _list_below(store, f"{path}/{name}", digits + name, depth - 1)
    return found
