"""Segments are merged beside commits, writers and readers; a merger fails at each of its steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest
import trio

from bookie.testing import SimCluster, simulate
from bookie.testing.metastore import MetadataOptions
from bookie.testing.process import SimProcess
from ledger.client import LedgerClient
from ledger.errors import LedgerError, NoSuchEntry, NoSuchLedger
from stream.core import segment_merging
from stream.core.entry.records import Record
from stream.core.metadata import page_format
from stream.core.metadata.page_format import rewritten
from stream.core.metadata.pages import Pages
from stream.core.metadata.segments import Segment
from stream.core.metadata.streams import StreamMetadata
from stream.core.position import EARLIEST, Position
from stream.errors import RecordFormatError
from stream.namespace import Namespace
from stream.reading.reader import StreamReader
from stream.retention import segment_merging as shell
from stream.retention.janitor import Janitor
from stream.retention.ledger_deletion import delete_ledgers
from stream.retention.segment_merging import plan_merge
from stream.sinks.sinks import SinkLedger, commit_batch
from tests.effort import seeds, stride
from tests.sim.commits.run import run_world
from tests.sim.model import Violation
from tests.sim.page_limits import page_limits, small_merges
from tests.stream.sinks.sink_ledgers import write_ledger

COMMITS = 15
_BATCHES = 11
_ACTS = 6
_PURGES = 2
_TRUNCATED_MAX = 6
"""Records in the segments that are purged."""
_MERGED_MIN = 6
_PROCESSES_MAX = 20
_APART = 79
"""Steps between two faults in a world."""
_FIRST = 40
"""The first one in the world that each change tries."""
_NONE = -1
"""No step fails."""

Fault = Callable[["_World"], None]


@pytest.mark.parametrize("seed", seeds(ci=[1], night=20))
def test_merging_changes_nothing_that_is_read_or_committed(seed: int) -> None:
    counts = run_world(seed, COMMITS, is_merging=True)
    for what in ("segments merged", "segments merged again", "replaced ledgers deleted", "kills"):
        assert counts.get(what, 0) > 0, f"nothing happened: {what} in {counts}"


class _World:
    """A janitor that merges the segments of a stream, and fails at step `first`, and again every
    _APART steps. Beside it another client commits, takes over, truncates and purges, and a reader
    is half way."""

    def __init__(self, cluster: SimCluster, first: int, fault: Fault) -> None:
        self.cluster = cluster
        self.steps = 0
        self.process: SimProcess | None = None
        self.scope = trio.CancelScope()
        self.read: list[Record] = []
        self._values: list[bytes] = []
        """Of the records that the other client appended."""
        self._first = first
        self._fault = fault
        self._is_done = self._is_quiet = False
        cluster.metadata.on_call = self._note

    def _note(self, node: str, kind: str, path: str) -> None:
        if node == "janitor":
            self.cluster.metadata.options = MetadataOptions()
            if self.steps % _APART == self._first:
                self._fault(self)
            self.steps += 1

    async def run(self, space: Namespace, wanted: list[Record]) -> list[Record]:
        """Until janitors have merged what there is, and deleted what that replaced. Returns the
        records of the stream behind what was truncated."""
        async with space.reader("s", start=wanted[_TRUNCATED_MAX].position) as reader:
            self.read = (await reader.next_batch()).records()
            bystander = self.cluster.start_client(self._bystand, name="bystander")
            for _ in range(_PROCESSES_MAX):
                self.process = self.cluster.start_client(self._sweep, name="janitor")
                await self.process.finished.wait()
                self.cluster.metadata.options = MetadataOptions()
                if self._is_done:
                    break
                await self.cluster.simulation.sleep(3)  # its session ends
            else:
                raise Violation("it never ends")
            await bystander.finished.wait()
            await self.cluster.simulation.sleep(10)  # what is late has happened
            self.read += await _rest(reader)
        found = await _records(space)
        before = [record for record in wanted if record.position >= found[0].position]
        if len(wanted) - len(before) > _TRUNCATED_MAX:
            raise Violation(f"the stream begins at {found[0]}")
        if found[: len(before)] != before:
            raise Violation(f"found {found}")
        if [record.value for record in found[len(before) :]] != self._values:
            raise Violation(f"{self._values} were appended, found {found[len(before) :]}")
        if self.read != found[-len(self.read) :] or self.read[0] != wanted[_TRUNCATED_MAX]:
            raise Violation(f"a reader in the middle found {self.read}")
        return found

    async def _sweep(self, client: LedgerClient) -> None:
        space = Namespace(client, "n")
        for _ in range(4):
            janitor = Janitor(client, "n", orphan_age_ms=60_000, replaced_ms=0)  # without pauses
            try:
                with trio.CancelScope() as self.scope:
                    await janitor.sweep()
                    await janitor.merge()
                    stream, policy = await space.stream_metadata("s"), await space.policy()
                    plan = (await plan_merge(client, policy, stream)).plan
                    self._is_done = not plan and not stream.pages.replaced and self._is_quiet
            except LedgerError:
                continue
            if self._is_done:
                return

    async def _bystand(self, client: LedgerClient) -> None:
        space = Namespace(client, "n")

        async def commit() -> None:
            if not ledgers:
                ledgers.append(await write_ledger(client, "s", [[self._values[-1]]]))
            await commit_batch(client, ledgers)

        async def append() -> None:
            async with space.writer("s") as writer:
                producer = await writer.producer("p")
                await producer.append(self._values[-1], number // 2)

        async def purge() -> None:
            await space.truncate("s", Position(number + 2, 0, 0))

        for number in range(_ACTS):
            await self.cluster.simulation.sleep(0.13)
            self._values.append(b"b%d" % number)
            ledgers: list[SinkLedger] = []
            await _until_it_succeeds(append if number % 2 else commit)
            if number < _PURGES:
                await _until_it_succeeds(purge)
        self._is_quiet = True


async def _until_it_succeeds(act: Callable[[], Awaitable[None]]) -> None:
    for _ in range(100):
        is_done = False
        try:
            await act()
            is_done = True
        except* LedgerError:
            await trio.sleep(0.05)
        if is_done:
            return
    raise Violation("the other client never succeeds")


async def _prepared(space: Namespace) -> list[Record]:
    """Makes a stream of segments that writers and batches made; returns its records."""
    await space.ensure(roll_bytes=1 << 16, trash_ms=0)
    await space.create_stream("s")
    for number in range(_BATCHES):
        if number % 4 == 3:
            async with space.writer("s") as writer:
                await writer.append_many([b"w%d/%d" % (number, i) for i in range(3)])
        else:
            entries = [
                [b"k%d/%d/%d" % (number, e, i) for i in range(2)] for e in range(1 + number % 3)
            ]
            ledger = await write_ledger(space.client, "s", entries)
            await commit_batch(space.client, [ledger])
    return await _records(space)


async def _records(space: Namespace) -> list[Record]:
    async with space.reader("s", start=EARLIEST) as reader:
        return await _rest(reader)


async def _rest(reader: StreamReader) -> list[Record]:
    """Returns all records that follow; to fail where some are missing is to find that."""
    try:
        return [r async for batch in reader.read_to_end() for r in batch.records()]
    except (NoSuchLedger, NoSuchEntry, RecordFormatError, AssertionError) as error:
        raise Violation(f"records are missing: {error}") from error


async def _check(space: Namespace, wanted: Sequence[Record]) -> None:
    for record in wanted:
        async with space.reader("s", start=record.position) as reader:
            if (await reader.next_batch()).records()[0] != record:
                raise Violation(f"{record.position} has another record")
    await trio.sleep(120)  # orphans are old enough
    last = Janitor(
        space.client, "n", orphan_age_ms=60_000, sink_orphan_age_ms=60_000, merge_bytes_per_s=0,
        replaced_ms=0,
    )  # fmt: skip
    await last.sweep()
    stream = await space.stream_metadata("s")
    segments = await space.store.pages.listed(stream)
    if sum(one.is_merged for one in segments) < _MERGED_MIN:
        raise Violation(f"hardly anything is merged: {segments}")
    named, left = {s.ledger_id for s in segments}, set(await space.client.list_ledgers())
    if named | set(stream.ledgers()) != left:
        raise Violation(f"{named} are in the stream, {left} are there")
    if await _records(space) != wanted:
        raise Violation("a sweep changed what is there")


@page_limits()
@small_merges()
def _run(first: int, fault: Fault) -> _World:
    """Runs a world, and checks what it leaves."""

    async def scenario(cluster: SimCluster) -> _World:
        async with cluster.client("checker") as client:
            space = Namespace(client, "n")
            wanted = await _prepared(space)
            world = _World(cluster, first, fault)
            await _check(space, await world.run(space, wanted))
            return world

    return simulate(scenario)


def _die(world: _World) -> None:
    assert world.process is not None
    world.process.kill()


def _cancel(world: _World) -> None:
    """The request that is sent at this moment is still carried out."""
    world.scope.cancel()


def _lose_the_next_answer(world: _World) -> None:
    world.cluster.metadata.options = MetadataOptions(error_after_probability=1.0, timeout_s=0.1)


def _carry_the_next_call_out_late(world: _World) -> None:
    world.cluster.metadata.options = MetadataOptions(
        error_late_probability=1.0, late_max_s=1.0, timeout_s=0.1
    )


@pytest.mark.parametrize(
    "fault", [_die, _cancel, _lose_the_next_answer, _carry_the_next_call_out_late]
)
def test_a_merger_that_fails_at_any_step_loses_nothing(fault: Fault) -> None:
    for first in range(_FIRST, _FIRST + _APART, stride(ci=79)):
        assert _run(first % _APART, fault).steps > 2 * _APART


# Bugs that are planted must be found.


def _a_base_is_off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(pages: Pages, moved: dict[int, Segment], now_ms: int) -> Pages:
        wrong = {
            number: replace(one, base_entry=one.base_entry + (one.base_entry > 0))
            for number, one in moved.items()
        }
        return rewritten(pages, wrong, now_ms)

    monkeypatch.setattr(segment_merging, "rewritten", careless)
    monkeypatch.setattr(page_format, "check_ledgers", list)


def _ledgers_are_deleted_before_the_change(monkeypatch: pytest.MonkeyPatch) -> None:
    publish = shell.publish_merge

    async def hasty(
        client: LedgerClient, namespace: str, name: str, plan: segment_merging.MergePlan, made: int,
        progress: shell.MergeProgress,
    ) -> StreamMetadata:  # fmt: skip
        await delete_ledgers(client, {segment.ledger_id for segment in plan.segments})
        return await publish(client, namespace, name, plan, made, progress)

    monkeypatch.setattr(shell, "publish_merge", hasty)


def _positions_are_renumbered(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the entries of merged segments counted from the begin of their ledger."""

    def careless(pages: Pages, moved: dict[int, Segment], now_ms: int) -> Pages:
        wrong = {number: replace(one, base_entry=0) for number, one in moved.items()}
        return rewritten(pages, wrong, now_ms)

    monkeypatch.setattr(segment_merging, "rewritten", careless)
    monkeypatch.setattr(page_format, "check_ledgers", list)


@pytest.mark.parametrize(
    "plant",
    [
        _a_base_is_off_by_one,
        _ledgers_are_deleted_before_the_change,
        _positions_are_renumbered,
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(Violation):
        _run(_NONE, _die)
