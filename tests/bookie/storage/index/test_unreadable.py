"""A part of the index that cannot be read ends no process, and no entry log is blamed for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bookie.bookie import Bookie
from bookie.storage.index.key_value import IndexUnreadable
from bookie.storage.index.rocksdb import RocksKeyValue
from bookie.storage.metrics import GarbageCollectionReport
from bookie.storage.options import StorageFailed
from bookie.testing.memory_key_value import MemoryKeyValue
from ledger.errors import BookieIoError
from tests.bookie.storage.garbage.test_compactor import OPTIONS, deleted, fill, logs, statistics
from tests.bookie.storage.index.test_damage import damage_oldest
from tests.bookie.storage.simulated_storage import SimulatedStorage

SCRUBBED = replace(OPTIONS, scrub_bytes_per_s=1e12)


class BadBlock(MemoryKeyValue):
    """Keys that are `bad` cannot be read."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: Callable[[bytes], bool] = lambda _: False
        self.write_error: BookieIoError | None = None

    def _touch(self, key: bytes) -> None:
        if self.bad(key):
            raise IndexUnreadable(f"the block of {key!r} cannot be read")

    def get(self, key: bytes) -> bytes | None:
        self._touch(key)
        return super().get(key)

    def floor(self, key: bytes, lowest: bytes) -> tuple[bytes, bytes] | None:
        found = super().floor(key, lowest)
        if found is not None:
            self._touch(found[0])
        return found

    def items(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in super().items(first, end):
            self._touch(key)
            yield key, value

    def write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = ()) -> None:
        if self.write_error is not None:
            raise self.write_error
        super().write(puts, deletes)


def _simulated() -> tuple[SimulatedStorage, BadBlock]:
    pairs = BadBlock()
    return SimulatedStorage(
        pairs={"ledgers/index": pairs}, options=SCRUBBED, checkpoints_when_due=False
    ), pairs


def _key(kind: bytes, number: int) -> Callable[[bytes], bool]:
    return lambda key: key.startswith(kind + number.to_bytes(8, "big"))


async def _round(simulated: SimulatedStorage) -> GarbageCollectionReport:
    [collected] = await simulated.storage.collect_garbage(deleted(simulated), is_forced=True)
    return collected


async def _serves(simulated: SimulatedStorage) -> None:
    assert simulated.storage.failure is None
    simulated.add(9, 0, b"the bookie is well")
    await simulated.settle()
    assert (9, 0) in simulated.acked


BAD = [(b"L", 4), (b"T", 1), (b"G", 5), (b"E", 3)]


@pytest.mark.parametrize(("kind", "number"), BAD)
async def test_a_round_ends_with_a_reason_and_the_bookie_goes_on(kind: bytes, number: int) -> None:
    simulated, pairs = _simulated()
    async with simulated.running():
        await fill(simulated)
        simulated.deleted[1] = None
        await _round(simulated)
        simulated.deleted.update({2: None, 3: None})
        pairs.bad = _key(kind, number)
        for _ in range(2):
            collected = await _round(simulated)
            assert "cannot be read" in collected.index_problem
            assert collected.set_aside == ()
        assert statistics(simulated).logs_set_aside == 0
        await _serves(simulated)
        pairs.bad = lambda _: False
        collected = await _round(simulated)
        assert collected.index_problem == ""
        state = simulated.storage.state(2)
        assert state is None or state.is_deleted
        assert statistics(simulated).logs_set_aside == 0
        await simulated.check()


async def test_damaged_logs_that_cannot_be_looked_up_end_a_round_only() -> None:
    simulated, pairs = _simulated()
    async with simulated.running():
        await fill(simulated)
        directory = simulated.storage.directories[0]
        directory._index.set_log_aside(99, "for once")
        assert statistics(simulated).logs_set_aside == 1
        simulated.deleted.update(dict.fromkeys((1, 2, 3)))
        [run, *_] = directory._index.runs(4)
        simulated.disk.names[f"ledgers/{run.log_id:016x}.log"].data[run.offset + 20] ^= 1
        pairs.bad = lambda key: key.startswith(b"D")
        collected = await _round(simulated)
        assert "cannot be read" in collected.index_problem
        assert statistics(simulated).logs_set_aside == 1
        await _serves(simulated)


async def test_ledgers_before_the_unreadable_one_are_collected() -> None:
    simulated, pairs = _simulated()
    async with simulated.running():
        await fill(simulated)
        simulated.deleted.update({1: None, 2: None})
        pairs.bad = _key(b"L", 4)
        assert (await _round(simulated)).ledgers_deleted == 2


async def test_a_log_whose_record_cannot_be_read_keeps_no_other() -> None:
    simulated, pairs = _simulated()
    async with simulated.running():
        await fill(simulated)
        before = logs(simulated)
        simulated.deleted.update(dict.fromkeys(range(1, 6)))
        pairs.bad = _key(b"G", 5)
        collected = await _round(simulated)
        assert collected.ledgers_deleted == 5
        assert logs(simulated).keys() & before.keys() <= {"ledgers/0000000000000001.log"}


async def test_a_ledger_whose_runs_cannot_be_read_keeps_no_other_from_being_deleted() -> None:
    simulated, pairs = _simulated()
    async with simulated.running():
        await fill(simulated)
        simulated.deleted.update({2: None, 3: None})
        pairs.bad = _key(b"E", 2)
        collected = await _round(simulated)
        assert collected.ledgers_deleted == 1
        assert "cannot be read" in collected.index_problem
        await _serves(simulated)
        pairs.bad = lambda _: False
        assert (await _round(simulated)).ledgers_deleted == 1


@pytest.mark.parametrize("kind", [b"D", b"E", b"G"])
async def test_the_scrubber_blames_no_log(kind: bytes, caplog: pytest.LogCaptureFixture) -> None:
    simulated, pairs = _simulated()
    async with simulated.running():
        await fill(simulated)
        directory = simulated.storage.directories[0]
        directory._index.set_log_aside(99, "for once")
        pairs.bad = lambda key: key.startswith(kind)
        with caplog.at_level(logging.ERROR):
            await directory.scrubber.round()
        [reported] = caplog.messages
        assert "index" in reported
        assert "cannot be read" in reported
        await _serves(simulated)
        pairs.bad = lambda _: False
        assert directory._index.logs_set_aside().keys() == {99}
        await directory.scrubber.round()
        assert directory.scrubber.statistics.damaged_logs == 0


async def test_one_ledger_that_cannot_be_read_keeps_the_scrubber_from_no_other_log() -> None:
    simulated, pairs = _simulated()
    async with simulated.running():
        await fill(simulated)
        simulated.add(8, 0, b"in the last log alone")
        await simulated.settle()
        await simulated.storage.checkpoint()
        directory = simulated.storage.directories[0]
        await directory._logs.seal()
        [run] = directory._index.runs(8)
        sealed = len(directory._index.log_ids())
        pairs.bad = _key(b"G", run.log_id)
        await directory.scrubber.round()
        assert directory.scrubber.statistics.logs == sealed - 1


async def test_a_failed_write_still_stops_the_process() -> None:
    simulated, pairs = _simulated()
    async with simulated.running():
        await fill(simulated)
        simulated.deleted[1] = None
        pairs.write_error = BookieIoError("index: write failed")
        with pytest.raises(ExceptionGroup) as raised:
            await _round(simulated)
        assert raised.group_contains(StorageFailed)
        assert isinstance(simulated.storage.failure, StorageFailed)


async def test_what_rocks_cannot_read_is_distinguished_from_what_it_cannot_write(
    tmp_path: Path,
) -> None:
    store = RocksKeyValue(str(tmp_path))
    keys = [b"L" + number.to_bytes(8, "big") for number in range(2000)]
    for begin in range(0, len(keys), 100):
        store.write([(key, bytes(key) * 4) for key in keys[begin : begin + 100]])
    await store.flush()
    store.close()
    damage_oldest(tmp_path)
    store = RocksKeyValue(str(tmp_path))
    with pytest.raises(IndexUnreadable, match="rebuild-index"):
        store.get(keys[0])
    with pytest.raises(IndexUnreadable, match="rebuild-index"):
        store.floor(keys[0], b"L")
    with pytest.raises(IndexUnreadable, match="rebuild-index"):
        list(store.items(b"L", b"M"))
    store.write([(b"Z", b"z")])
    store.close()
    with pytest.raises(BookieIoError) as raised:
        store.write([(b"Z", b"z")])
    assert not isinstance(raised.value, IndexUnreadable)


def test_an_unreadable_index_is_reported_with_its_cure(caplog: pytest.LogCaptureFixture) -> None:
    class Reported:
        bookie_id = "bookie"

        class config:
            ledger_directories = ("ledgers",)

    problem = GarbageCollectionReport(index_problem="index x: get failed. Cure: see to the disk")
    with caplog.at_level(logging.INFO):
        Bookie._log_rounds(Reported(), [problem])  # type: ignore[arg-type]
        Bookie._log_rounds(Reported(), [GarbageCollectionReport()])  # type: ignore[arg-type]
    [reported] = caplog.records
    assert reported.levelno == logging.ERROR
    assert "Cure: see to the disk" in reported.getMessage()
    assert "directory=ledgers" in reported.getMessage()


async def test_scrubbing_goes_on_after_a_round_that_met_it() -> None:
    """`run` is a task of the storage: what it raised would end the process."""
    simulated, pairs = _simulated()
    async with simulated.running():
        await fill(simulated)
        pairs.bad = lambda key: key.startswith(b"D")
        simulated.storage.directories[0]._index.set_log_aside(99, "for once")
        scrubber = simulated.storage.directories[0].scrubber
        for _ in range(2):
            await scrubber.round()
        assert scrubber.statistics.rounds == 2
        await _serves(simulated)
