"""The consuming half of a Namespace: cursors, and consumer groups.

Keeps no state.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from ledger.client import LedgerClient
from stream.consuming import groups
from stream.consuming.consumer import Consumer
from stream.consuming.cursor import COMMIT_INTERVAL_MS, Cursor, lag_of, open_cursor
from stream.consuming.groups import HAND_OVER_S, GroupInfo
from stream.core.metadata.cursors import CursorMetadata
from stream.core.position import EARLIEST, Position, Start
from stream.namespace_reading import NamespaceReading
from stream.reading.lag import CursorLag
from stream.reading.reader import OnTruncated, StreamReader
from stream.reading.seek import find
from stream.store.cursors import CursorStore
from stream.store.streams import StreamStore

_TOMBSTONE_MS = 3_600_000
"""After so long no commit that was on its way when its cursor was deleted can still arrive."""


class NamespaceConsuming(NamespaceReading):
    """Who has read how far in the streams of a namespace; a part of `Namespace`."""

    client: LedgerClient
    name: str
    store: StreamStore

    def cursor(
        self,
        stream: str,
        name: str,
        *,
        start: Start = EARLIEST,
        commit_interval_ms: int = COMMIT_INTERVAL_MS,
    ) -> AbstractAsyncContextManager[Cursor]:
        """The durable position `name` in a stream or partition, made at `start` if there is none.

        What is advanced is stored at most once per `commit_interval_ms`, and at the end of the
        block. Entering raises NoSuchStream, IsPartitioned, InvalidArgument, MetadataUnavailable;
        leaving CursorMoved if somebody else moved it, MetadataUnavailable.
        """
        return open_cursor(
            self.client, self.store, self.name, stream, name,
            start=start, commit_interval_ms=commit_interval_ms,
        )  # fmt: skip

    async def cursors(self, stream: str) -> list[CursorMetadata]:
        """The cursors of a stream, sorted by name; also those of consumer groups.

        Raises NoSuchStream, IsPartitioned, MetadataCorrupt.
        """
        present = await self.store.read_living_stream(self.name, stream)
        return await CursorStore(self.client.store).list(self.name, present)

    async def cursor_lag(self, stream: str, name: str) -> CursorLag:
        """How far the stored position of a cursor is behind the end of its stream.

        Raises NoSuchStream, IsPartitioned, NoSuchCursor.
        """
        present = await self.store.read_living_stream(self.name, stream)
        cursor, _ = await CursorStore(self.client.store).read(self.name, present, name)
        return await lag_of(self.client, self.name, present, cursor.position)

    async def set_cursor(self, stream: str, name: str, to: Start) -> CursorMetadata:
        """Moves a cursor forward or back, and makes it if there is none.

        Whoever uses it gets CursorMoved when he commits next; a consumer group goes on from
        there by itself. Raises NoSuchStream, IsPartitioned, NoSuchCursor, Truncated,
        MetadataUnavailable (it may have moved).
        """
        present = await self.store.read_living_stream(self.name, stream)
        position = await find(self.client, present, to, self.name)
        cursors, now_ms = CursorStore(self.client.store), self.client.now_ms()
        moved = await cursors.move(self.name, present, name, position, now_ms)
        await groups.note_reset(self.client, self.name, stream, name)
        return moved

    async def delete_cursor(self, stream: str, name: str) -> None:
        """Forgets a position; whoever uses it gets CursorMoved.

        Raises NoSuchStream, IsPartitioned, NoSuchCursor.
        """
        present = await self.store.read_living_stream(self.name, stream)
        cursors, now_ms = CursorStore(self.client.store), self.client.now_ms()
        await cursors.delete(self.name, present, name, now_ms)
        await cursors.forget_deleted(self.name, present, now_ms - _TOMBSTONE_MS)

    def consumer(
        self,
        stream: str,
        group: str,
        *,
        member: str | None = None,
        start: Start = EARLIEST,
        auto_advance: bool = True,
        commit_interval_ms: int = COMMIT_INTERVAL_MS,
        hand_over_s: float = HAND_OVER_S,
        on_truncated: OnTruncated = "error",
    ) -> AbstractAsyncContextManager[Consumer]:
        """A member of a consumer group: the partitions of a stream are shared among its members.

        The group's position in each partition is the cursor of the group's name there.

        Args:
            stream: a partitioned stream, or a plain one, which counts as one partition.
            group: its name; a group begins with its first member.
            member: name of this process. With a name that lasts over restarts partitions come
                back to it; None draws one.
            start: where the group begins in a partition when it is new; partitions that are added
                later are read from their begin.
            auto_advance: to ask for the next records says that those before are handled; False:
                call `Consumer.advance`.
            commit_interval_ms: how often each partition is committed, at most.
            hand_over_s: how long a partition that moves to another member waits for records that
                were handed out; then it goes, and they are handled again there. The same for all
                members of a group.
            on_truncated: as for `reader`.

        Entering raises NoSuchStream, InvalidArgument, MetadataUnavailable, and after 30 s
        MemberExists if another living process has this member name.
        """

        def open_reader(
            partition: str, position: Position
        ) -> AbstractAsyncContextManager[StreamReader]:
            return self.reader(partition, start=position, on_truncated=on_truncated)

        return groups.open_consumer(
            self.client, self.name, stream, group,
            member=member, start=start, auto_advance=auto_advance,
            commit_interval_ms=commit_interval_ms, hand_over_s=hand_over_s,
            open_reader=open_reader,
        )  # fmt: skip

    async def groups(self, stream: str) -> list[str]:
        """Consumer groups of a stream, sorted. Raises NoSuchStream."""
        return await groups.group_names(self.client, self.name, stream)

    async def group(self, stream: str, group: str) -> GroupInfo:
        """Who handles which partition, and how far behind. Raises NoSuchStream, NoSuchGroup."""
        return await groups.describe_group(self.client, self.name, stream, group)

    async def delete_group(self, stream: str, group: str) -> None:
        """Forgets a group without members, with its positions.

        Raises NoSuchStream, NoSuchGroup, GroupBusy.
        """
        await groups.delete_group(self.client, self.name, stream, group)
