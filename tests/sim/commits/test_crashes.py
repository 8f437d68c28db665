"""A driver that writes small results dies, is cancelled, or gets no answer, at each step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache

import pytest
import trio

from bookie.testing import SimCluster, simulate
from bookie.testing.metastore import MetadataOptions
from bookie.testing.process import SimProcess
from connectors.spark.options.options import WriteOptions
from connectors.spark.sink.batch_commit import discard_task_ledgers
from connectors.spark.sink.result_ledgers import SmallLedgers
from connectors.spark.sink.task_ledgers import delete_ledgers
from connectors.spark.sink.task_results import SmallResult, TaskLedger
from ledger.client import LedgerClient
from ledger.errors import LedgerError
from ledger.wire.messages import Buffer
from ledger.writing.writer import LedgerWriter
from stream.core.position import EARLIEST
from stream.namespace import Namespace
from stream.retention.janitor import Janitor
from stream.sinks.sinks import SinkQuery
from tests.effort import stride
from tests.sim.commits.results import OPTIONS, commit, small_result
from tests.sim.model import Violation
from tests.stream.sinks.sink_ledgers import write_ledger

_STREAMS = ("a", "b")
_BATCHES = 2
"""If all results are small, the first one reads, and the second one is committed by what the first
has left."""

Fault = Callable[["_World"], None]


@dataclass(frozen=True)
class _Shape:
    """What the three tasks of each batch return.

    Args:
        rows: the numbers of the rows of each task.
        has_ledger: whether the second task writes a ledger.
        padding: bytes of a row, besides its name.
    """

    options: WriteOptions = OPTIONS
    rows: tuple[tuple[int, ...], ...] = ((0,), (1, 2), (3,))
    has_ledger: bool = False
    padding: int = 0

    async def results(self, client: LedgerClient, batch: int) -> list[SmallResult | TaskLedger]:
        policy = await Namespace(client, "n").policy()
        results: list[SmallResult | TaskLedger] = []
        for task, numbers in enumerate(self.rows):
            for stream in _STREAMS:
                values = [self.value(stream, batch, number) for number in numbers]
                if not (self.has_ledger and task == 1):
                    results.append(small_result(policy, stream, [values], partition=task))
                    continue
                ledger = await write_ledger(client, stream, [values], sink_id="k", batch_id=batch)
                results.append(TaskLedger(ledger, ((1, values[0]),), ((1, values[-1]),)))
        return results

    def value(self, stream: str, batch: int, number: int) -> bytes:
        return f"{stream}{batch}{number}".encode() + bytes(self.padding)

    def wanted(self, stream: str) -> list[bytes]:
        return [self.value(stream, batch, n) for batch in range(_BATCHES) for n in range(4)]


_SORTED = replace(OPTIONS, sort_within_batch=("value",))
_UNSORTED_ROWS = ((2,), (0, 3), (1,))
_SHAPES = {
    "small": _Shape(),
    "mixed": _Shape(has_ledger=True),
    "merged": _Shape(_SORTED, _UNSORTED_ROWS, has_ledger=True),
    "rolled": _Shape(replace(_SORTED, entry_bytes=20_000), _UNSORTED_ROWS, padding=40_000),
}


@dataclass
class _World:
    """A driver that commits batches, as a query of Spark does; it fails at one step: a call of the
    metadata store, or bytes that it sends to a bookie."""

    cluster: SimCluster
    shape: _Shape
    fails_at: int
    fault: Fault
    steps: list[str] = field(default_factory=list)
    commits: list[int] = field(default_factory=list)
    """The steps that commit a batch."""
    appends: list[int] = field(default_factory=list)
    """The steps before which an entry was appended."""
    process: SimProcess | None = None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    _is_disturbed: bool = False
    _recorded: int = -1
    _runs: int = 0

    async def run(self) -> None:
        network = self.cluster.network
        delay_s = network.delay_s

        def note_and_delay_s(source: str, target: str, size: int) -> float:
            if source == "driver" and size:
                self._step("network")
            return delay_s(source, target, size)

        network.delay_s = note_and_delay_s  # type: ignore[method-assign]
        self.cluster.metadata.on_call = self._note
        while self._recorded < _BATCHES - 1:
            self._runs += 1
            self.process = self.cluster.start_client(self._query, name="driver")
            await self.process.finished.wait()
        self.cluster.metadata.options = MetadataOptions()
        await self.cluster.simulation.sleep(10)  # what is late has happened

    def _note(self, node: str, kind: str, path: str) -> None:
        if node == "driver":
            if self._is_disturbed:
                self.cluster.metadata.options = MetadataOptions()
                self._is_disturbed = False
            if kind == "transaction" and "/sinks/" in path:
                self.commits.append(len(self.steps))
            self._step("metadata")

    def _step(self, kind: str) -> None:
        self.steps.append(kind)
        if len(self.steps) - 1 != self.fails_at:
            return
        if kind == "metadata":
            self.fault(self)
        else:  # the bytes are sent
            self.cluster.simulation.call_later(0.0, lambda: self.fault(self))

    def disturb(self, options: MetadataOptions) -> None:
        """Until the next call of the driver takes effect, calls are made under these options."""
        self.cluster.metadata.options, self._is_disturbed = options, True

    async def _query(self, client: LedgerClient) -> None:
        query = SinkQuery(query_id="q", run_id=f"r{self._runs}")
        while self._recorded < _BATCHES - 1:
            batch = self._recorded + 1
            results: list[SmallResult | TaskLedger] = []
            try:
                results += await self.shape.results(client, batch)
                with trio.CancelScope() as self.scope:
                    await commit(
                        client, results, "k", batch, query=query, options=self.shape.options
                    )
            except LedgerError:
                pass
            else:
                if not self.scope.cancelled_caught:
                    self._recorded = batch
                    continue
            # As Spark does when a commit has failed.
            ledgers = [each for each in results if isinstance(each, TaskLedger)]
            with suppress(LedgerError):
                await discard_task_ledgers(client, ledgers, sink_id="k", batch_id=batch)


async def _check(cluster: SimCluster, shape: _Shape, *, is_left_clean: bool) -> None:
    """Checks the streams and the ledgers; if it `is_left_clean`, no janitor was needed."""
    async with cluster.client("checker") as client:
        space = Namespace(client, "n")
        named: set[int] = set()
        for stream in _STREAMS:
            named.update((await space.stream_metadata(stream)).ledgers())
        if not is_left_clean:
            age_ms = -10_000
            await Janitor(client, "n", orphan_age_ms=age_ms, sink_orphan_age_ms=age_ms).sweep()
        if named != set(await client.list_ledgers()):
            raise Violation(f"{named} are in streams, {await client.list_ledgers()} are there")
        for stream in _STREAMS:
            async with space.reader(stream, start=EARLIEST) as reader:
                found = [r.value async for batch in reader.read_to_end() for r in batch.records()]
            if found != shape.wanted(stream):
                raise Violation(f"{stream} has {[value[:5] for value in found]}")
        for ledger_id in named:
            if not (await client.ledger_metadata(ledger_id)).is_closed:
                raise Violation(f"ledger {ledger_id} is open")


def _run(name: str, step: int, fault: Fault, *, is_left_clean: bool = False) -> _World:
    """Runs a world, and checks what it leaves."""
    shape = _SHAPES[name]
    append_nowait = LedgerWriter.append_nowait

    async def scenario(cluster: SimCluster) -> _World:
        async with cluster.client("preparer") as client:
            space = Namespace(client, "n")
            await space.ensure(roll_bytes=1 << 16)
            for stream in _STREAMS:
                await space.ensure_stream(stream)
        await cluster.simulation.sleep(20)  # older than ledgers also by a clock that is late
        world = _World(cluster, shape, step, fault)

        def note_and_append(writer: LedgerWriter, payload: Buffer) -> int:
            world.appends.append(len(world.steps))
            return append_nowait(writer, payload)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LedgerWriter, "append_nowait", note_and_append)
            await world.run()
        await _check(cluster, shape, is_left_clean=is_left_clean)
        return world

    return simulate(scenario)


def _die(world: _World) -> None:
    assert world.process is not None
    world.process.kill()


def _cancel(world: _World) -> None:
    """A request that is sent at this moment is still carried out."""
    world.scope.cancel()


def _lose_the_next_answer(world: _World) -> None:
    world.disturb(MetadataOptions(error_after_probability=1.0, timeout_s=0.1))


def _carry_the_next_call_out_late(world: _World) -> None:
    world.disturb(MetadataOptions(error_late_probability=1.0, late_max_s=1.0, timeout_s=0.1))


_OF_METADATA = (_lose_the_next_answer, _carry_the_next_call_out_late)
_FAULTS = (_die, _cancel, *_OF_METADATA)


@cache
def _undisturbed(name: str) -> _World:
    return _run(name, -2, _cancel, is_left_clean=True)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        *((name, fault) for name in ("small", "mixed", "merged") for fault in _FAULTS),
        ("rolled", _die),
        ("rolled", _cancel),
    ],
)
def test_each_batch_is_there_once_and_nothing_is_left(name: str, fault: Fault) -> None:
    kinds, commits = _undisturbed(name).steps, _undisturbed(name).commits
    assert len(commits) == _BATCHES
    distance = stride(ci=100)
    steps = {*range(0, len(kinds), distance), *commits}
    if fault in _OF_METADATA:
        # What is disturbed is the next call.
        steps = {step for step in steps if kinds[step] == "metadata"}
        steps |= {_metadata_step_before(kinds, end) for end in commits}
    for step in steps:
        _run(name, step, fault)


def _metadata_step_before(kinds: Sequence[str], step: int) -> int:
    return max(number for number in range(step) if kinds[number] == "metadata")


def _steps_before_commits(world: _World) -> list[int]:
    """Returns the steps of a driver that knows all of its ledgers and has not committed them."""
    found: list[int] = []
    for end in world.commits:
        last = max(step for step in world.appends if step <= end)
        found += range(last, end)
    return found


@pytest.mark.parametrize("name", ["small", "mixed", "rolled"])
def test_a_batch_that_is_given_up_leaves_nothing_to_the_janitor(name: str) -> None:
    steps = _steps_before_commits(_undisturbed(name))
    assert len(steps) > 4
    for step in steps[:: stride(ci=8)]:
        _run(name, step, _cancel, is_left_clean=True)


async def _discard_without_looking(self: SmallLedgers) -> None:
    """Does not look whether a stream has them."""
    await delete_ledgers(self._client, [each.writer.ledger_id for each in self.unclosed])


async def _discard_nothing(_: SmallLedgers) -> None:
    pass


@pytest.mark.parametrize("plant", [_discard_without_looking, _discard_nothing])
def test_a_planted_bug_is_found(
    plant: Callable[[SmallLedgers], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = _undisturbed("small")
    monkeypatch.setattr(SmallLedgers, "discard", plant)
    is_left_clean = plant is _discard_nothing
    steps = _steps_before_commits(undisturbed)[-1:] if is_left_clean else undisturbed.commits
    for step in steps:
        with pytest.raises((Violation, LedgerError)):
            _run("small", step, _cancel, is_left_clean=is_left_clean)
