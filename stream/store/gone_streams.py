"""What is remembered of streams that are gone: below which number segments may have been theirs.

A deleted stream leaves a tombstone under its name, and a stream that is created again continues its
numbers. When the tombstone is removed, or the namespace deleted, one number for the whole cluster
takes its place: streams that are created later begin there, so that a position that was given out
never denotes a record of another stream. It may only grow.

Nodes that are created again begin again with version 0, too. So the node of the number is written
before any node of a stream or sink is removed: while its version stays, none was.
"""

from __future__ import annotations

from ledger.errors import InvalidArgument, MetadataConflict, MetadataCorrupt, NodeExists, NoSuchNode
from ledger.metastore.base import Check, Delete, MetadataStore, Node

PATH = "/ledgerstream/gone-segments"
_FIRST = b"1"
_TRIES_MAX = 100


class GoneSegments:
    """The number in the metadata store, and the version of its node."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def begin(self) -> tuple[int, Check]:
        """Returns the number of the first segment of a new stream, and the condition under which it
        may be created with it. Raises MetadataCorrupt, MetadataUnavailable."""
        node = await self._read()
        return _number(node), Check(PATH, node.version)

    async def none_since(self) -> Check:
        """Returns the condition that no node of a stream or sink is removed from now on: versions
        that are read later do not begin again while it holds. Raises MetadataUnavailable."""
        return Check(PATH, (await self._read()).version)

    async def note(self, next_segment: int = 0) -> None:
        """Records that a stream is about to go whose next segment would have this number, or a node
        that has no segments. Raises MetadataCorrupt, MetadataUnavailable."""
        for _ in range(_TRIES_MAX):
            node = await self._read()
            number = max(_number(node), next_segment)
            try:
                await self._store.put(PATH, b"%d" % number, node.version)
            except MetadataConflict:
                continue
            return
        raise MetadataConflict(f"{PATH}: others changed it first {_TRIES_MAX} times")

    async def _read(self) -> Node:
        while True:
            try:
                return await self._store.get(PATH)
            except NoSuchNode:
                try:
                    await self._store.create(PATH, _FIRST)
                except NodeExists:
                    pass  # another client was first


def _number(node: Node) -> int:
    if not (node.data.isdigit() and len(node.data) < 20):
        raise MetadataCorrupt(f"{PATH} cannot be read: {node.data[:40]!r} is not a number")
    return int(node.data)


async def remove_leftover(store: MetadataStore, path: str, only_if: Check) -> None:
    """Removes a node of a deleted stream. Raises MetadataConflict if the stream exists again."""
    try:
        await store.transaction([only_if, Delete(path)])
    except (NoSuchNode, InvalidArgument):
        pass  # it was removed before, or has children that a late client created
