"""Consumer groups in the metadata store: their paths, and the only ways to change them.

Every change compares versions. Paths: `<namespace>/groups/<stream>/<group>`, and below it
`members/<member>`, an ephemeral node whose data is the token of the living member.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple

from ledger.errors import InvalidArgument, MetadataConflict, NoSuchNode
from ledger.metastore.base import ANY_VERSION, Check, MetadataStore, Node
from stream.core.metadata.groups import GroupMetadata, decode_group, encode_group
from stream.core.names import check_name
from stream.errors import GroupBusy, NoSuchGroup
from stream.store.gone_streams import remove_leftover
from stream.store.streams import (
    UPDATE_TRIES_MAX,
    namespace_path,
    too_many_conflicts,
)


def groups_path(namespace: str, stream: str) -> str:
    return f"{namespace_path(namespace)}/groups/{check_name(stream)}"


class GroupNode(NamedTuple):
    """The node of a group: the group (None: none yet), the version and the creation time of the
    node (-1: there is no node)."""

    group: GroupMetadata | None
    version: int
    created_ms: int

    def is_older_than(self, other: GroupNode) -> bool:
        """Whether this is an older state of the same node, or the same. A recreated node, whose
        versions begin again, is not."""
        return self.created_ms == other.created_ms and self.version <= other.version


_NO_NODE = GroupNode(None, -1, -1)


class GroupStore:
    """One group of one stream, which its creation time identifies. Stateless: any number may serve
    one group."""

    def __init__(
        self, store: MetadataStore, namespace: str, stream: str, stream_created_ms: int, group: str
    ) -> None:
        self._store = store
        self._namespace = namespace
        self.stream = stream
        self.name = check_name(group, "group")
        self._created_ms = stream_created_ms
        self._path = f"{groups_path(namespace, stream)}/{self.name}"
        self._members_path = f"{self._path}/members"

    # The group

    async def read(self) -> GroupNode:
        """Returns the group as it is now. Raises MetadataCorrupt, MetadataUnavailable."""
        try:
            return self._decoded(await self._store.get(self._path))
        except NoSuchNode:
            return _NO_NODE

    async def put(self, group: GroupMetadata, version: int) -> int:
        """Replaces what has `version`; returns the new version. Raises MetadataConflict,
        NoSuchNode."""
        assert version != ANY_VERSION, "a group is never overwritten blindly"
        return await self._store.put(self._path, encode_group(group), version)

    async def watch(self) -> AsyncGenerator[GroupNode, None]:
        """Yields what `read` returns, now and after each change. Close it with `aclosing`."""
        async with aclosing(self._store.watch(self._path)) as nodes:
            async for node in nodes:
                yield _NO_NODE if node is None else self._decoded(node)

    async def note_reset(self, now_ms: int) -> None:
        """Notes that a cursor of the group was set by hand: its holder checks it. Without a group
        it does nothing."""
        for _ in range(UPDATE_TRIES_MAX):
            group, version, _ = await self.read()
            if group is None:
                return
            try:
                await self.put(group.with_reset(now_ms), version)
            except (MetadataConflict, NoSuchNode):
                continue
            return
        raise too_many_conflicts(f"group {self.name!r}")

    async def delete(self) -> None:
        """Deletes the group, not its cursors. Raises NoSuchGroup, GroupBusy."""
        group, version, _ = await self.read()
        if group is None:
            raise no_such_group(self._namespace, self.stream, self.name)
        try:
            try:
                await self._store.delete(self._members_path)
            except NoSuchNode:
                pass
            await self._store.delete(self._path, version)
        except (InvalidArgument, MetadataConflict):
            members = ", ".join(await self.members()) or "one that has just joined or left"
            raise GroupBusy(
                f"group {self.name!r} of stream {self.stream!r} has active members: {members}; "
                f"stop them first"
            ) from None
        except NoSuchNode:
            raise no_such_group(self._namespace, self.stream, self.name) from None

    def _decoded(self, node: Node) -> GroupNode:
        # Empty: created as the parent of its first member.
        group = decode_group(self.name, node.data) if node.data else None
        is_ours = group is not None and group.stream_created_ms == self._created_ms
        return GroupNode(group if is_ours else None, node.version, node.created_ms)

    # Members

    def member_path(self, member: str) -> str:
        return f"{self._members_path}/{check_name(member, 'member')}"

    async def members(self) -> list[str]:
        """Returns the living members, sorted."""
        return await self._store.children(self._members_path)

    async def token_of(self, member: str) -> str | None:
        """Returns the token of a living member; None if it is not alive."""
        try:
            node = await self._store.get(self.member_path(member))
        except (NoSuchNode, InvalidArgument):
            return None
        return node.data.decode("utf-8", "replace")

    def watch_members(self) -> AsyncGenerator[list[str], None]:
        """Yields the living members, now and after each change. Close it with `aclosing`."""
        return self._store.watch_children(self._members_path)


async def list_groups(store: MetadataStore, namespace: str, stream: str) -> list[str]:
    """Returns the names, sorted; also of groups of an earlier stream of this name."""
    return await store.children(groups_path(namespace, stream))


async def forget_groups(
    store: MetadataStore, namespace: str, stream: str, *, only_if: Check
) -> None:
    """Removes the groups of a deleted stream, which have no members. May be repeated.

    Raises MetadataConflict once `only_if` has changed.
    """
    folder = groups_path(namespace, stream)
    names = await store.children(folder)
    paths = [path for name in names for path in (f"{folder}/{name}/members", f"{folder}/{name}")]
    for path in (*paths, folder):
        await remove_leftover(store, path, only_if)


def no_such_group(namespace: str, stream: str, group: str) -> NoSuchGroup:
    """Returns the error for a group that does not exist."""
    return NoSuchGroup(
        f"stream {stream!r} in namespace {namespace!r} has no consumer group {group!r}: a group "
        f"begins with its first member (namespace.consumer)"
    )
