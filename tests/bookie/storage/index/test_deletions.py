"""What was deleted from the index costs look-ups next to nothing, and is soon cleared away.

RocksDB's own counts are asked for, not the time: marks of deleted pairs that were passed over.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from rocksdict import Options

from bookie.core.ledger_state import LedgerState
from bookie.storage.garbage import collector
from bookie.storage.index import rocksdb
from bookie.storage.index.index import Index, PlacedRun, run_key
from bookie.storage.index.rocksdb import RocksKeyValue
from bookie.testing.memory_key_value import MemoryKeyValue
from tests.bookie.storage.garbage.test_compactor import OPTIONS, deleted
from tests.bookie.storage.simulated_storage import SimulatedStorage

LEDGERS = 5000


class Counted:
    """A store whose work is counted."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, *, clears: bool) -> None:
        kept: list[Options] = []
        make = rocksdb._rocks_options

        def counting(options: rocksdb.RocksOptions) -> Options:
            made = make(options)
            made.enable_statistics()
            made.set_disable_auto_compactions(not clears)
            kept.append(made)
            return made

        monkeypatch.setattr(rocksdb, "_rocks_options", counting)
        self.pairs = RocksKeyValue(str(path))
        self._options = kept[0]

    @property
    def skipped(self) -> int:
        reported = self._options.get_statistics() or ""
        found = re.search(r"rocksdb\.number\.iter\.skip COUNT : (\d+)", reported)
        assert found is not None
        return int(found[1])

    @property
    def marks(self) -> int:
        return sum(one["num_deletions"] for one in self.pairs._db.live_files())


@pytest.fixture(params=[False, True], ids=["in memory", "in a file"])
def is_flushed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def _run(ledger_id: int) -> PlacedRun:
    return PlacedRun(ledger_id, 0, 1, 100 + ledger_id, array("I", [100]))


async def _put_and_delete(pairs: RocksKeyValue) -> None:
    """Ledgers that lived long enough for a checkpoint."""
    index, every = Index(pairs), range(LEDGERS)
    for _ in index.put_runs([_run(number) for number in every], every):
        pass
    for _ in index.put_states([LedgerState(number, bytes(20)) for number in every]):
        pass
    await pairs.flush()
    for number in every:
        for _ in index.delete_ledger(number, b"", 0):
            pass


async def test_a_look_up_passes_over_few_deleted_ledgers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_flushed: bool
) -> None:
    store = Counted(tmp_path, monkeypatch, clears=False)
    await _put_and_delete(store.pairs)
    if is_flushed:
        await store.pairs.flush()
    index = Index(store.pairs)
    before = store.skipped
    assert index.last_entry_id(LEDGERS + 1) == -1
    assert index.find(LEDGERS + 1, 7) is None
    assert list(index.runs(LEDGERS + 1)) == []
    assert store.skipped - before < 3 * 1000 < LEDGERS
    store.pairs.close()


async def test_what_lies_behind_many_deleted_pairs_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_flushed: bool
) -> None:
    """Within one ledger they must be passed over."""
    store, twin = Counted(tmp_path, monkeypatch, clears=False), MemoryKeyValue()
    for pairs in (store.pairs, twin):
        keys = [run_key(7, number) for number in range(LEDGERS)]
        for begin in range(0, LEDGERS, 100):
            pairs.write([(key, b"v" + key) for key in keys[begin : begin + 100]])
        for begin in range(1, LEDGERS, 100):
            pairs.write([], keys[begin : begin + 100])
        if is_flushed:
            await pairs.flush()
    for number in (0, 1, 50, 150, 1000, LEDGERS):
        for lowest in (run_key(7, 0), run_key(7, 1), run_key(7, number), run_key(6, 0)):
            key = run_key(7, number)
            assert store.pairs.floor(key, lowest) == twin.floor(key, lowest)
    store.pairs.close()


async def test_marks_of_deleted_ledgers_are_cleared_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Counted(tmp_path, monkeypatch, clears=True)
    await _put_and_delete(store.pairs)
    for _ in Index(store.pairs).put_states([LedgerState(LEDGERS + 1, bytes(20))]):
        pass
    await store.pairs.flush()
    with trio.fail_after(30):
        while store.marks > 4000:  # noqa: ASYNC110 - RocksDB has no event for it
            await trio.sleep(0.01)
    before = store.skipped
    assert Index(store.pairs).ledger_ids(-1, 500) == [LEDGERS + 1]
    assert store.skipped - before < 2500
    store.pairs.close()


async def test_deletions_are_flushed_though_no_log_goes_and_nothing_is_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collector, "BATCHES_PER_FLUSH", 50)
    garbage = replace(OPTIONS.garbage, seal_age_s=1e9)
    simulated = SimulatedStorage(
        options=replace(OPTIONS, entry_log_bytes_max=1 << 20, garbage=garbage)
    )
    async with simulated.running():
        for ledger_id in range(1, 50):
            simulated.add(ledger_id, 0)
        await simulated.settle()
        await simulated.storage.checkpoint()
        simulated.deleted.update(dict.fromkeys(range(1, 40)))
        [collected] = await simulated.storage.collect_garbage(deleted(simulated))
        assert collected.ledgers_deleted == 39
        assert collected.logs_removed == 0
        assert simulated.pairs["ledgers/index"].unflushed == 0
