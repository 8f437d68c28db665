"""Coordinator: a member's part in deciding who handles what. Core: core/metadata/groups.py.

There is no leader: any member that sees that the assignment does not fit members and partitions
changes it, comparing versions; members with a higher rank wait a moment longer, so that one of them
does it. Reads precede changes only; waiting is done by watches.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

import trio

from ledger.client import LedgerClient
from ledger.errors import MetadataConflict, NoSuchNode, RetryableError
from ledger.runtime.background import open_background
from stream.consuming.membership import Membership
from stream.core.metadata.groups import GroupMetadata
from stream.errors import NoSuchStream
from stream.store.groups import GroupNode, GroupStore
from stream.store.partitions import PartitionStore
from stream.store.streams import StreamStore

_log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_S = 0.5
_RANK_DELAY_S = 0.1
_RANK_MAX = 20


class Coordinator:
    """The coordination of one consumer.

    Args:
        created_ms: of the stream; another stream of this name is never consumed.
        partitions: those that exist now; `is_partitioned` if more may be added.
        on_assignment: called with the group whenever it changed (None: it was deleted).
    """

    def __init__(
        self,
        client: LedgerClient,
        namespace: str,
        groups: GroupStore,
        member: str,
        *,
        created_ms: int,
        partitions: list[str],
        is_partitioned: bool,
        on_assignment: Callable[[GroupMetadata | None], None],
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._groups = groups
        self._member = member
        self._created_ms = created_ms
        self._partitions = partitions
        self._is_partitioned = is_partitioned
        self._on_assignment = on_assignment
        self._members: list[str] | None = None
        self._node: GroupNode | None = None
        self._changed = trio.Event()

    async def run(self, membership: Membership) -> None:
        """Runs until cancelled. Raises NoSuchStream, MemberExists, MetadataCorrupt."""
        async with open_background() as nursery:
            nursery.start_soon(membership.keep)
            nursery.start_soon(self._follow, self._groups.watch_members, self._note_members)
            nursery.start_soon(self._follow, self._groups.watch, self._note_group)
            nursery.start_soon(
                self._follow_partitions if self._is_partitioned else self._follow_stream
            )
            await self._rebalance_when_needed()

    # Observing

    async def _follow(
        self, watch: Callable[[], AsyncGenerator[T, None]], note: Callable[[T], None]
    ) -> None:
        while True:
            try:
                async with aclosing(watch()) as values:
                    async for value in values:
                        note(value)
            except RetryableError as error:
                _log.info("group=%s: %s", self._groups.name, error)
            await trio.sleep(RETRY_S)

    async def _follow_partitions(self) -> None:
        store = PartitionStore(self._client.store)
        while True:
            try:
                watch = store.watch(self._namespace, self._groups.stream)
                async with aclosing(watch) as versions:
                    async for stream in versions:
                        if stream is None or stream.created_ms != self._created_ms:
                            raise NoSuchStream(f"stream {self._groups.stream!r} was deleted")
                        if len(stream.partition_names) > len(self._partitions):
                            self._partitions = stream.partition_names
                            self._changed.set()
            except RetryableError as error:
                _log.info("group=%s: %s", self._groups.name, error)
            await trio.sleep(RETRY_S)

    async def _follow_stream(self) -> None:
        """Watches whether a plain stream is still the same one.

        Members of another stream of its name would undo what this one decides, and vice versa,
        forever.
        """
        store = StreamStore(self._client.store)
        while True:
            try:
                watch = store.watch_stream(self._namespace, self._groups.stream)
                async with aclosing(watch) as versions:
                    async for stream in versions:
                        if stream is None or stream.created_ms != self._created_ms:
                            raise NoSuchStream(f"stream {self._groups.stream!r} was deleted")
            except RetryableError as error:
                _log.info("group=%s: %s", self._groups.name, error)
            await trio.sleep(RETRY_S)

    def _note_members(self, members: list[str]) -> None:
        self._members = members
        self._changed.set()

    def _note_group(self, node: GroupNode) -> None:
        if self._node is not None and node.is_older_than(self._node):
            return  # older than a change of our own
        self._node = node
        self._changed.set()
        self._on_assignment(node.group)

    # Rebalancing

    def _is_unbalanced(self) -> bool:
        if self._members is None or self._node is None or self._member not in self._members:
            return False  # not known yet, or the others consider this member dead
        group = self._node.group or self._blank()
        return group.balanced(self._partitions, self._members, 0) is not group

    def _blank(self) -> GroupMetadata:
        return GroupMetadata(
            name=self._groups.name,
            stream=self._groups.stream,
            stream_created_ms=self._created_ms,
            changed_ms=self._client.now_ms(),
        )

    async def _rebalance_when_needed(self) -> None:
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            if not self._is_unbalanced():
                continue
            assert self._members is not None, "known when unbalanced"
            rank = min(self._members.index(self._member), _RANK_MAX)
            await trio.sleep(rank * _RANK_DELAY_S)
            if not self._is_unbalanced():
                continue
            try:
                await self._rebalance()
            except (MetadataConflict, NoSuchNode):
                self._changed.set()  # another member was faster: read its change
            except RetryableError as error:
                _log.info("group=%s: not balanced: %s", self._groups.name, error)
                await trio.sleep(RETRY_S)
                self._changed.set()

    async def _rebalance(self) -> None:
        """Decides on facts read now: a watch may be late, and old facts would undo new ones."""
        node = await self._groups.read()
        members = await self._groups.members()
        self._members = members
        if self._member not in members or node.version < 0:
            return  # the others consider this member dead, or the group is being deleted
        group = node.group or self._blank()
        wanted = group.balanced(self._partitions, members, self._client.now_ms())
        if wanted is not group:
            version = await self._groups.put(wanted, node.version)
            node = GroupNode(wanted, version, node.created_ms)
        self._note_group(node)
