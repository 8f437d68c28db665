"""All forms of KeyValue behave alike; the index on top against a dict of entries."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from bookie.core.ledger_state import LedgerState
from bookie.storage.index.index import ENTRY_ID_MAX, Index, PlacedRun
from bookie.storage.index.key_value import IndexUnreadable, KeyValue
from bookie.storage.index.rocksdb import MIB, RocksKeyValue, RocksOptions
from bookie.testing.memory_key_value import MemoryKeyValue
from ledger.errors import BookieIoError, InvalidArgument
from tests.bookie.core.test_caches import KEY
from tests.effort import scaled

SMALL = RocksOptions(block_cache_bytes=1 << 20, write_buffer_bytes=1 << 16)


@pytest.fixture(params=["memory", "rocks"])
def pairs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeyValue]:
    store: KeyValue
    store = MemoryKeyValue() if request.param == "memory" else RocksKeyValue(str(tmp_path), SMALL)
    yield store
    store.close()


async def test_key_values_are_sorted_maps(pairs: KeyValue) -> None:
    keys = [bytes([a, b]) for a in range(0, 250, 5) for b in (0, 7, 255)]
    for at in range(0, len(keys), 10):
        pairs.write([(key, key * 2) for key in reversed(keys[at : at + 10])])
    pairs.write([(keys[3], b"new")], [keys[5], b"never there"])
    twin = {key: key * 2 for key in keys} | {keys[3]: b"new"}
    del twin[keys[5]]
    for is_settled in (False, True):
        if is_settled:
            await pairs.flush()
        assert list(pairs.items(b"", b"\xff\xff\xff")) == sorted(twin.items())
        assert [k for k, _ in pairs.items(keys[4], keys[9])] == [keys[4], *keys[6:9]]
        assert list(pairs.items(keys[9], keys[4])) == []
        assert pairs.get(keys[5]) is None
        assert pairs.get(keys[3]) == b"new"
        for probe in (b"\x00", keys[5], b"\x0a\x06", b"\xff", keys[-1]):
            at_most = [key for key in sorted(twin) if key <= probe]
            expected = (at_most[-1], twin[at_most[-1]]) if at_most else None
            assert pairs.floor(probe, b"") == expected
        assert pairs.floor(keys[5], keys[5]) is None
        assert pairs.floor(keys[4], keys[4]) == (keys[4], twin[keys[4]])


async def test_memory_keeps_whole_batches_up_to_some_point() -> None:
    store = MemoryKeyValue()
    store.write([(b"a", b"1")])
    await store.flush()
    store.write([(b"a", b"2"), (b"b", b"2")])
    store.write([], [b"a"])
    found = [list(store.after_crash(kept).items(b"", b"z")) for kept in range(3)]
    assert found == [[(b"a", b"1")], [(b"a", b"2"), (b"b", b"2")], [(b"b", b"2")]]


async def test_rocks_finds_what_was_flushed(tmp_path: Path) -> None:
    store = RocksKeyValue(str(tmp_path), SMALL)
    store.write([(b"a", b"1")])
    await store.flush()
    store.close()
    again = RocksKeyValue(str(tmp_path), SMALL)
    assert again.get(b"a") == b"1"
    again.close()


async def test_rocks_has_the_sizes_it_was_given_also_when_opened_again(tmp_path: Path) -> None:
    for factor in (1, 2, 4):
        store = RocksKeyValue(
            str(tmp_path),
            RocksOptions(block_cache_bytes=factor << 20, write_buffer_bytes=factor << 16),
        )
        store.write([(b"a", b"1")])
        await store.flush()
        store.close()
        said = (tmp_path / "LOG").read_text(errors="replace")
        capacities = set(re.findall(r"^ +capacity : (\d+)$", said, re.MULTILINE))
        buffers = set(re.findall(r" Options\.write_buffer_size: (\d+)$", said, re.MULTILINE))
        assert capacities == {str(factor << 20)}
        assert buffers == {str(factor << 16)}


async def test_looking_up_one_of_many_keys_reads_little(tmp_path: Path) -> None:
    """Filters and inner indexes that fit into no shard of the cache were read for each key."""
    count, looked_up = 600_000, 500
    store = RocksKeyValue(str(tmp_path), RocksOptions(block_cache_bytes=4 * MIB))
    for begin in range(0, count, 1000):
        store.write([(number.to_bytes(8, "big"), b"v") for number in range(begin, begin + 1000)])
    await store.flush()
    await trio.to_thread.run_sync(store._db.compact_range, None, None)
    before = _bytes_read()
    for number in range(0, count, count // looked_up):
        assert store.get(number.to_bytes(8, "big")) == b"v"
    per_key = (_bytes_read() - before) / looked_up
    store.close()
    assert per_key < 64 * 1024  # a block of data, one of a filter, one of an index


def _bytes_read() -> int:
    """By this process's system calls, from the page cache or not."""
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["rchar"])


def test_a_rocks_directory_in_use_is_named_in_the_error(tmp_path: Path) -> None:
    store = RocksKeyValue(str(tmp_path), SMALL)
    with pytest.raises(BookieIoError, match="in use by another process"):
        RocksKeyValue(str(tmp_path), SMALL)
    store.close()


async def test_errors_of_rocks_are_io_errors(tmp_path: Path) -> None:
    store = RocksKeyValue(str(tmp_path), SMALL)
    store.close()
    for call in (
        lambda: store.get(b"a"),
        lambda: store.floor(b"a", b""),
        lambda: store.write([(b"a", b"b")]),
        lambda: list(store.items(b"a", b"b")),
    ):
        with pytest.raises(BookieIoError):
            call()
    with pytest.raises(BookieIoError):
        await store.flush()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BookieIoError, match="cannot be opened"):
        RocksKeyValue(str(tmp_path / "file"), SMALL)
    with pytest.raises(InvalidArgument):
        RocksOptions(write_buffer_bytes=1)


Runs = list[tuple[int, int, int]]


@settings(max_examples=scaled(ci=80, night=2000))
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 1), st.integers(0, 30), st.integers(1, 9)), max_size=4),
        max_size=6,
    ),
    st.integers(0, 39),
    st.integers(0, 39),
)
def test_newest_runs_win_as_in_a_dict(rounds: list[Runs], first: int, last: int) -> None:
    """Each round is one checkpoint: its runs do not overlap each other, but older ones."""
    index = Index(MemoryKeyValue())
    twin: dict[tuple[int, int], tuple[int, int, int]] = {}
    offset = 0
    for log_id, runs in enumerate(rounds):
        taken: set[tuple[int, int]] = set()
        first_seen = {0, 1} - {ledger for ledger, _ in twin}
        placed: list[PlacedRun] = []
        for ledger, begin, count in sorted(runs):
            ids = {(ledger, begin + i) for i in range(count)}
            if taken & ids:
                continue
            taken |= ids
            lengths = array("I", [(begin + i) % 7 + 16 for i in range(count)])
            placed.append(PlacedRun(ledger, begin, log_id, offset, lengths))
            for i, length in enumerate(lengths):
                twin[ledger, begin + i] = (log_id, offset, length)
                offset += length
        for _ in index.put_runs(placed, first_seen):
            pass
    for ledger in range(2):
        for entry in range(41):
            run = index.find(ledger, entry)
            if run is None:
                assert (ledger, entry) not in twin
            else:
                only = run.part(entry, entry)
                place = (only.log_id, only.offset, only.lengths[0])
                assert twin[ledger, entry] == place
        held = [e for run in index.runs(ledger) for e in range(run.first, run.last + 1)]
        assert held == sorted(e for twin_ledger, e in twin if twin_ledger == ledger)
        assert index.last_entry_id(ledger) == max(held, default=-1)
        touching = [run for run in index.runs(ledger) if run.first <= last and run.last >= first]
        assert first > last or list(index.runs(ledger, first, last)) == touching


def test_a_step_names_the_ledger_it_overwrote() -> None:
    index = Index(MemoryKeyValue())
    run = PlacedRun(1, 0, 1, 0, array("I", [20] * 10))
    assert list(index.put_runs([run])) == [None]
    later = [PlacedRun(1, 3, 1, 0, array("I", [20])), PlacedRun(1, 10, 1, 0, array("I", [20]))]
    assert list(index.put_runs(later)) == [1, None]
    assert [run.first for run in index.runs(1)] == [0, 3, 4, 10]


class _CountedLookups(MemoryKeyValue):
    lookups = 0

    def floor(self, key: bytes, lowest: bytes) -> tuple[bytes, bytes] | None:
        self.lookups += 1
        return super().floor(key, lowest)


def test_a_step_looks_up_few_ledgers_and_none_that_is_new() -> None:
    """Each look-up may be a read of the disk, and nothing else runs meanwhile."""
    store = _CountedLookups()
    index = Index(store)
    runs = [PlacedRun(ledger, 0, 1, 20 * ledger, array("I", [20])) for ledger in range(95)]
    assert list(index.put_runs(runs, range(95))) == [None]
    assert store.lookups == 0
    later = [PlacedRun(ledger, 1, 2, 20 * ledger, array("I", [20])) for ledger in range(95)]
    before = 0
    for _ in index.put_runs(later):
        assert store.lookups - before <= Index.LOOKUPS_MAX
        before = store.lookups
    assert store.lookups == 95


def test_large_puts_and_deletes_go_in_batches() -> None:
    store = MemoryKeyValue()
    index = Index(store)
    runs = [PlacedRun(1, 2 * i, 1, i, array("I", [20])) for i in range(220)]
    assert list(index.put_runs(runs)) == [None] * 3
    assert store.unflushed == 3
    state = LedgerState(1, KEY)
    list(index.put_states([state]))
    steps = len(list(index.delete_ledger(1, KEY, now_ms=5)))
    assert steps == 4
    assert not list(index.runs(1))
    assert index.state(1) is None
    assert index.tombstone(1) == KEY
    assert index.tombstones() == [(5, 1)]
    index.forget_tombstones([1])
    assert index.tombstone(1) is None


def test_ledgers_are_listed_in_pages() -> None:
    index = Index(MemoryKeyValue())
    list(index.put_states(LedgerState(i, KEY) for i in (3, 1, 2**40, 7)))
    assert index.ledger_ids(-1, 2) == [1, 3]
    assert index.ledger_ids(3, 10) == [7, 2**40]


def test_the_end_of_a_closed_ledger_is_a_record_of_its_own() -> None:
    """Releases that do not know it read the ledger's state as before."""
    pairs = MemoryKeyValue()
    index = Index(pairs)
    list(index.put_states([LedgerState(7, KEY), LedgerState(8, KEY)]))
    before = dict(pairs.items(b"", b"\xff"))
    index.put_ends({7: 31, 8: 0})
    added = {key: value for key, value in pairs.items(b"", b"\xff") if key not in before}
    assert added == {
        bytes.fromhex("4e0000000000000007"): bytes.fromhex("000000000000001f"),
        bytes.fromhex("4e0000000000000008"): bytes.fromhex("0000000000000000"),
    }
    assert [index.end(ledger_id) for ledger_id in (7, 8, 9)] == [31, 0, None]
    assert index.ledger_ids(-1, 10) == [7, 8]
    for _ in index.delete_ledger(7, KEY, 5):
        pass
    assert index.end(7) is None
    assert index.end(8) == 0


def test_entry_logs_and_their_ledgers() -> None:
    index = Index(store := MemoryKeyValue())
    list(index.put_log_ledgers(2, {5: 100, 6: 1}))
    list(index.put_log_ledgers(1, {}))
    assert index.log_ids() == Index(store).log_ids() == [1, 2]
    list(index.put_log_ledgers(9, {}))
    list(index.put_log_ledgers(3, {}))
    assert index.log_ids() == Index(store).log_ids() == [1, 2, 3, 9]
    index.delete_log(3)
    index.delete_log(9)
    assert index.log_ledgers(2) == {5: 100, 6: 1}
    index.delete_log(2)
    assert index.log_ids() == Index(store).log_ids() == [1]
    assert index.log_ledgers(2) == {}


def test_the_record_of_a_log_is_packed_in_steps_and_written_in_the_last() -> None:
    index = Index(MemoryKeyValue())
    ledgers = {i: 3 * i for i in range(2 * Index.LEDGERS_PACKED_MAX + 1)}
    steps = index.put_log_ledgers(7, ledgers)
    for _ in range(3):
        next(steps)
        assert index.log_ledgers(7) == {}
    next(steps)
    assert index.log_ledgers(7) == ledgers
    assert index.log_ids() == [7]
    assert next(steps, "done") == "done"


def test_damaged_records_are_io_errors() -> None:
    store = MemoryKeyValue()
    index = Index(store)
    list(index.put_runs([PlacedRun(1, 0, 1, 0, array("I", [20]))]))
    list(index.put_states([LedgerState(1, KEY)]))
    list(index.put_log_ledgers(1, {1: 20}))
    for key, value in list(store.items(b"", b"\xff")):
        store.write([(key, value[:-1])])
    for call in (lambda: index.find(1, 0), lambda: index.state(1), lambda: index.log_ledgers(1)):
        with pytest.raises(BookieIoError):
            call()


changes = st.lists(
    st.tuples(
        st.sampled_from(["state", "tombstone", "delete", "forget", "ask", "reopen"]),
        st.sampled_from([0, 1, 2, 5, 9, 2**40, ENTRY_ID_MAX]),
    ),
    max_size=30,
)


@settings(max_examples=scaled(ci=80, night=2000))
@given(changes)
def test_nothing_is_known_of_what_is_above_all(changes: list[tuple[str, int]]) -> None:
    """Against looking for both records; and without a change below it, what was put is not."""
    index, ledger_ids = Index(store := MemoryKeyValue()), [0, 1, 2, 5, 9, 2**40, ENTRY_ID_MAX]
    for kind, ledger_id in changes:
        if kind == "state":
            list(index.put_states([LedgerState(ledger_id, KEY), LedgerState(1, KEY)]))
        elif kind == "tombstone":
            index.put_tombstone(ledger_id, KEY, 5)
        elif kind == "delete":
            list(index.delete_ledger(ledger_id, KEY, 5))
        elif kind == "forget":
            index.forget_tombstones([ledger_id])
        elif kind == "reopen":
            index = Index(store)
        else:
            index.is_above_all(ledger_id)
        for asked in ledger_ids:
            known = index.has_state(asked) or index.tombstone(asked) is not None
            assert not (known and index.is_above_all(asked))
    fresh = Index(store)
    highest = max((n for n in ledger_ids if fresh.has_state(n) or fresh.tombstone(n)), default=-1)
    assert [fresh.is_above_all(n) for n in ledger_ids] == [n > highest for n in ledger_ids]


def test_where_the_highest_ledger_cannot_be_read_each_is_looked_for() -> None:
    class Unreadable(MemoryKeyValue):
        def floor(self, key: bytes, lowest: bytes) -> tuple[bytes, bytes] | None:
            raise IndexUnreadable("a bad block")

    index = Index(Unreadable())
    assert not index.is_above_all(7)
    assert index.state(7) is None
    list(index.put_states([LedgerState(7, KEY)]))
    assert not index.is_above_all(8)
