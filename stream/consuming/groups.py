"""Consumer groups of a namespace: join, list, describe, delete.

It assembles the parts of a consumer, and keeps no state.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from ledger.client import LedgerClient
from ledger.errors import InvalidArgument
from ledger.runtime.background import open_background
from stream.consuming.assigned_partition import MemberContext
from stream.consuming.consumer import Consumer
from stream.consuming.coordinator import Coordinator
from stream.consuming.cursor import COMMIT_INTERVAL_MS, check_interval_ms
from stream.consuming.membership import Membership
from stream.core.names import check_name, parse_partition
from stream.core.position import Position, Start
from stream.errors import NoSuchCursor
from stream.reading.lag import CursorLag, lag_of
from stream.reading.reader import StreamReader
from stream.store.cursors import CursorStore
from stream.store.groups import GroupStore, list_groups, no_such_group
from stream.store.partitions import PartitionStore
from stream.store.streams import StreamStore, was_deleted

HAND_OVER_S = 10.0


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """A partition in a group. `assigned_to` is the member that should handle it, `holder` the one
    that does ("": none).

    `position` and `lag` are those of the group's cursor; None if it has none yet.
    """

    partition: str
    assigned_to: str
    holder: str
    epoch: int
    position: Position | None
    lag: CursorLag | None


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A consumer group as it is now. `members` are the living ones; `generation` counts changes of
    the assignment."""

    name: str
    stream: str
    generation: int
    members: tuple[str, ...]
    partitions: tuple[GroupPartition, ...]


@asynccontextmanager
async def open_consumer(
    client: LedgerClient,
    namespace: str,
    stream: str,
    group: str,
    *,
    member: str | None,
    start: Start,
    auto_advance: bool,
    commit_interval_ms: int = COMMIT_INTERVAL_MS,
    hand_over_s: float = HAND_OVER_S,
    open_reader: Callable[[str, Position], AbstractAsyncContextManager[StreamReader]],
) -> AsyncIterator[Consumer]:
    """Joins the group as a member that is visible to the others; partitions are assigned to it."""
    if not 0 <= hand_over_s <= 3600:
        raise InvalidArgument(f"hand_over_s is {hand_over_s}, legal is 0 to 3600")
    check_interval_ms(commit_interval_ms)
    if (partition := parse_partition(stream)) is not None:
        raise InvalidArgument(
            f"{stream} is one partition: a group shares all of {partition.stream!r}, consume that"
        )
    created_ms, partitions, is_partitioned = await _look_up(client, namespace, stream)
    token = f"{client.rng.getrandbits(64):016x}"
    groups = GroupStore(client.store, namespace, stream, created_ms, group)
    context = MemberContext(
        client=client, namespace=namespace, groups=groups,
        member=check_name(member or f"m-{token}", "member"), token=token,
        commit_interval_ms=commit_interval_ms, hand_over_s=hand_over_s, open_reader=open_reader,
    )  # fmt: skip
    consumer = Consumer(context, partitions=partitions, start=start, auto_advance=auto_advance)
    membership = Membership(
        client.store, groups.member_path(context.member), token,
        on_lost=consumer.note_lost, on_rejoined=consumer.note_rejoined,
    )  # fmt: skip
    coordinator = Coordinator(
        client, namespace, groups, context.member, created_ms=created_ms,
        partitions=partitions, is_partitioned=is_partitioned, on_assignment=consumer.note_group,
    )  # fmt: skip
    try:
        await membership.begin()
        async with open_background() as nursery:
            consumer.begin(nursery)
            nursery.start_soon(consumer.run, coordinator, membership)
            yield consumer
    finally:
        await consumer.leave(membership)


async def _look_up(
    client: LedgerClient, namespace: str, stream: str
) -> tuple[int, list[str], bool]:
    """Returns when the stream was created, its partitions, and whether more may be added."""
    store = client.store
    present, _ = await PartitionStore(store).read(namespace, check_name(stream))
    if present is None:
        plain = await StreamStore(store).read_living_stream(namespace, stream)
        return plain.created_ms, [stream], False
    if present.is_deleted:
        raise was_deleted(namespace, stream)
    return present.created_ms, present.partition_names, True


async def group_names(client: LedgerClient, namespace: str, stream: str) -> list[str]:
    """Returns the groups of exactly this stream, sorted. Raises NoSuchStream."""
    created_ms, _, _ = await _look_up(client, namespace, stream)
    store, found = client.store, []
    for name in await list_groups(store, namespace, stream):
        node = await GroupStore(store, namespace, stream, created_ms, name).read()
        if node.group is not None:
            found.append(name)
    return found


async def describe_group(
    client: LedgerClient, namespace: str, stream: str, group: str
) -> GroupInfo:
    """Returns who handles what, and how far behind. Raises NoSuchStream, NoSuchGroup."""
    created_ms, partitions, _ = await _look_up(client, namespace, stream)
    groups = GroupStore(client.store, namespace, stream, created_ms, group)
    present = (await groups.read()).group
    if present is None:
        raise no_such_group(namespace, stream, group)
    rows = [
        await _describe_partition(
            client, namespace, partition, group, present.assignment.get(partition)
        )
        for partition in partitions
    ]
    members = tuple(await groups.members())
    return GroupInfo(group, stream, present.generation, members, tuple(rows))


async def _describe_partition(
    client: LedgerClient, namespace: str, partition: str, group: str, assigned_to: str | None
) -> GroupPartition:
    stream = await StreamStore(client.store).read_living_stream(namespace, partition)
    cursor = (await CursorStore(client.store).read_slot(namespace, stream, group)).cursor
    if cursor is None:
        return GroupPartition(partition, assigned_to or "", "", 0, None, None)
    lag = await lag_of(client, namespace, stream, cursor.position)
    return GroupPartition(
        partition, assigned_to or "", cursor.holder, cursor.epoch, cursor.position, lag
    )


async def delete_group(client: LedgerClient, namespace: str, stream: str, group: str) -> None:
    """Deletes a group without members, and its cursors. Raises NoSuchGroup, GroupBusy."""
    created_ms, partitions, _ = await _look_up(client, namespace, stream)
    await GroupStore(client.store, namespace, stream, created_ms, group).delete()
    cursors = CursorStore(client.store)
    for partition in partitions:
        metadata = await StreamStore(client.store).read_living_stream(namespace, partition)
        try:
            await cursors.delete(namespace, metadata, group, client.now_ms())
        except NoSuchCursor:
            pass


async def note_reset(client: LedgerClient, namespace: str, stream: str, cursor: str) -> None:
    """Notifies the group, if there is one, that its cursor was set by hand: the holder checks it at
    once."""
    partition = parse_partition(stream)
    whole = stream if partition is None else partition.stream
    created_ms, _, _ = await _look_up(client, namespace, whole)
    groups = GroupStore(client.store, namespace, whole, created_ms, cursor)
    await groups.note_reset(client.now_ms())
