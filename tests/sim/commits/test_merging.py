"""Segments are merged beside commits, writers and readers; a merger fails at each of its steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import trio

from bookie.testing import SimCluster, simulate
from bookie.testing.metastore import MetadataOptions
from bookie.testing.process import SimProcess
from ledger.client import LedgerClient
from ledger.errors import LedgerError
from stream.core import segment_merging
from stream.core.entry.records import Record
from stream.core.metadata.segments import Segment
from stream.core.metadata.streams import StreamMetadata
from stream.core.position import EARLIEST
from stream.namespace import Namespace
from stream.retention import segment_merging as shell
from stream.retention.janitor import Janitor
from stream.retention.ledger_deletion import delete_ledgers
from stream.sinks.sinks import commit_batch
from tests.effort import stride
from tests.sim.commits.run import run_world
from tests.sim.model import Violation
from tests.sim.page_limits import page_limits, small_merges
from tests.stream.sinks.sink_ledgers import write_ledger

COMMITS = 15
_BATCHES = 11

Fault = Callable[["_World"], None]


@pytest.mark.parametrize("seed", [1, 4])
def test_merging_changes_nothing_that_is_read_or_committed(seed: int) -> None:
    counts = run_world(seed, COMMITS, is_merging=True)
    for what in ("segments merged", "segments merged again", "replaced ledgers deleted", "kills"):
        assert counts.get(what, 0) > 0, f"nothing happened: {what} in {counts}"


class _World:
    """A janitor that merges the segments of a stream, and fails at one step."""

    def __init__(self, cluster: SimCluster, step: int, fault: Fault) -> None:
        self.cluster = cluster
        self.steps = 0
        self.process: SimProcess | None = None
        self.scope = trio.CancelScope()
        self.reader: list[Record] = []
        self._step = step
        self._fault = fault
        self._is_done = False
        cluster.metadata.on_call = self._note

    def _note(self, node: str, kind: str, path: str) -> None:
        if node == "janitor":
            if self.steps == self._step:
                self._fault(self)
            if self.steps == self._step + 1:
                self.cluster.metadata.options = MetadataOptions()
            self.steps += 1

    async def run(self, policy: Namespace) -> None:
        """Until a janitor has merged what there is, while a reader is half way."""
        async with policy.reader("s", start=EARLIEST) as reader:
            self.reader = (await reader.next_batch()).records()
            while not self._is_done:
                self.process = self.cluster.start_client(self._sweep, name="janitor")
                await self.process.finished.wait()
            await self.cluster.simulation.sleep(10)  # what is late has happened
            async for batch in reader.read_to_end():
                self.reader += batch.records()

    async def _sweep(self, client: LedgerClient) -> None:
        janitor = Janitor(client, "n", orphan_age_ms=60_000, replaced_ms=0)
        for _ in range(3):
            try:
                with trio.CancelScope() as self.scope:
                    report = await janitor.sweep()
            except LedgerError:
                continue
            if self.scope.cancelled_caught or report.failures:
                continue
            if not report.segments_merged:
                self._is_done = True
                return


async def _prepared(space: Namespace) -> list[Record]:
    """Makes a stream of segments that writers and batches made; returns its records."""
    await space.ensure(roll_bytes=1 << 16)
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
        return [r async for batch in reader.read_to_end() for r in batch.records()]


async def _check(space: Namespace, wanted: Sequence[Record]) -> None:
    found = await _records(space)
    if found != wanted:
        raise Violation(f"found {found}")
    for record in wanted:
        async with space.reader("s", start=record.position) as reader:
            if (await reader.next_batch()).records()[0] != record:
                raise Violation(f"{record.position} has another record")
    await trio.sleep(120)  # orphans are old enough
    last = Janitor(space.client, "n", orphan_age_ms=60_000, merge_bytes_per_s=0, replaced_ms=0)
    await last.sweep()
    stream = await space.stream_metadata("s")
    named = {s.ledger_id for s in await space.store.pages.listed(stream)} | set(stream.ledgers())
    left = set(await space.client.list_ledgers())
    if named != left:
        raise Violation(f"{named} are in the stream, {left} are there")
    if await _records(space) != wanted:
        raise Violation("a sweep changed what is there")


@page_limits()
@small_merges()
def _run(step: int, fault: Fault) -> _World:
    """Runs a world, and checks what it leaves."""

    async def scenario(cluster: SimCluster) -> _World:
        async with cluster.client("checker") as client:
            space = Namespace(client, "n")
            wanted = await _prepared(space)
            world = _World(cluster, step, fault)
            await world.run(space)
            if world.reader != wanted:
                raise Violation(f"a reader in the middle found {world.reader}")
            await _check(space, wanted)
            return world

    return simulate(scenario)


def _die(world: _World) -> None:
    assert world.process is not None
    world.process.kill()


def _cancel(world: _World) -> None:
    """What is asked for at this moment is still done."""
    world.scope.cancel()


def _lose_the_next_answer(world: _World) -> None:
    world.cluster.metadata.options = MetadataOptions(error_after_probability=1.0, timeout_s=0.1)


def _carry_the_next_call_out_late(world: _World) -> None:
    world.cluster.metadata.options = MetadataOptions(
        error_late_probability=1.0, late_max_s=1.0, timeout_s=0.1
    )


@pytest.mark.parametrize(
    ("fault", "distance"),
    [
        (_die, stride(ci=5)),
        (_cancel, stride(ci=9)),
        (_lose_the_next_answer, stride(ci=13)),
        (_carry_the_next_call_out_late, stride(ci=13)),
    ],
)
def test_a_merger_that_fails_at_any_step_loses_nothing(fault: Fault, distance: int) -> None:
    undisturbed = _run(-2, fault)
    for step in range(0, undisturbed.steps, distance):
        _run(step, fault)


# Bugs that are planted must be found.


def _a_base_is_off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rewritten = segment_merging.rewritten

    def careless(pages: object, moved: dict[int, Segment], now_ms: int) -> object:
        wrong = {
            number: replace(one, base_entry=one.base_entry + (one.base_entry > 0))
            for number, one in moved.items()
        }
        return rewritten(pages, wrong, now_ms)  # type: ignore[arg-type]

    monkeypatch.setattr(segment_merging, "rewritten", careless)


def _ledgers_are_deleted_before_the_change(monkeypatch: pytest.MonkeyPatch) -> None:
    publish = shell.publish_merge

    async def hasty(
        client: LedgerClient, namespace: str, name: str, plan: segment_merging.MergePlan, made: int
    ) -> StreamMetadata:
        await delete_ledgers(client, {segment.ledger_id for segment in plan.segments})
        return await publish(client, namespace, name, plan, made)

    monkeypatch.setattr(shell, "publish_merge", hasty)


def _positions_are_renumbered(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the entries of merged segments counted from the begin of their ledger."""
    rewritten = segment_merging.rewritten

    def careless(pages: object, moved: dict[int, Segment], now_ms: int) -> object:
        wrong = {number: replace(one, base_entry=0) for number, one in moved.items()}
        return rewritten(pages, wrong, now_ms)  # type: ignore[arg-type]

    monkeypatch.setattr(segment_merging, "rewritten", careless)


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
    for step in range(-2, 60, 3):
        try:
            _run(step, _die)
        except Exception:  # noqa: BLE001 - whatever it is, it is what was found
            return
    pytest.fail("no step notices it")
