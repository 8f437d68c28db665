"""Write cache and read cache against a dict, and what memory they hold."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bookie.core.buffer_pool import SegmentPool
from bookie.core.caches import Block, ReadCache, SharedSegment, WriteCache
from bookie.core.ledger_state import (
    LedgerState,
    decode_ledger_state,
    encode_ledger_state,
)
from ledger.errors import InvalidArgument, Status

KEY = b"k" * 20


def make_entry(ledger_id: int, entry_id: int, payload: bytes = b"", lac: int = -1) -> bytes:
    return struct.pack(">qqqq", ledger_id, entry_id, lac, len(payload)) + payload


def make_frame(ledger_id: int, entry_id: int, payload: bytes = b"", lac: int = -1) -> bytes:
    entry = make_entry(ledger_id, entry_id, payload, lac)
    return struct.pack(">iI20s", 24 + len(entry), 0x02010000, KEY) + entry


class WriteCacheMachine(RuleBasedStateMachine):
    """Frames put whole or through a connection's segment, swaps and flushes, against dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = WriteCache(bytes_max=600)
        self.active: dict[tuple[int, int], bytes] = {}
        self.flushing: dict[tuple[int, int], bytes] | None = None
        self.segment = memoryview(bytearray(300))
        self.segment_no = self.cache.add_segment(self.segment)
        self.segment_end = 0

    @rule(ledger=st.integers(0, 2), entry=st.integers(0, 9), payload=st.binary(max_size=40))
    def put_frame(self, ledger: int, entry: int, payload: bytes) -> None:
        self.cache.put_frame(make_frame(ledger, entry, payload))
        self.active[ledger, entry] = make_entry(ledger, entry, payload)

    @rule(ledger=st.integers(0, 2), entry=st.integers(0, 9), payload=st.binary(max_size=40))
    def put_as_the_add_path_does(self, ledger: int, entry: int, payload: bytes) -> None:
        frame = make_frame(ledger, entry, payload)
        if self.segment_end + len(frame) > len(self.segment):
            self.cache.release_segment(self.segment_no)
            self.segment = memoryview(bytearray(300))
            self.segment_no = self.cache.add_segment(self.segment)
            self.segment_end = 0
        offset = self.segment_end
        self.segment[offset : offset + len(frame)] = frame
        self.segment_end += len(frame)
        self.cache.active.setdefault(ledger, {})[entry] = self.segment_no << 32 | offset
        self.cache.count(len(frame))
        self.active[ledger, entry] = make_entry(ledger, entry, payload)

    @precondition(lambda self: self.flushing is None)
    @rule()
    def swap(self) -> None:
        self.cache.swap()
        self.flushing, self.active = self.active, {}

    @precondition(lambda self: self.flushing is not None)
    @rule()
    def flushed(self) -> None:
        self.cache.flushed()
        self.flushing = None

    @precondition(lambda self: self.flushing is None)
    @rule(ledger=st.integers(0, 2))
    def drop_ledger(self, ledger: int) -> None:
        self.cache.drop_ledger(ledger)
        self.active = {key: value for key, value in self.active.items() if key[0] != ledger}

    @invariant()
    def holds_what_the_dicts_hold(self) -> None:
        both = {**(self.flushing or {}), **self.active}
        for ledger in range(3):
            for entry in range(10):
                found = self.cache.get(ledger, entry)
                assert (None if found is None else bytes(found)) == both.get((ledger, entry))
            last = max((e for held, e in both if held == ledger), default=-1)
            assert self.cache.last_entry_id(ledger) == last
            assert self.cache.holds(ledger) == (last >= 0)


TestWriteCache = WriteCacheMachine.TestCase


def test_two_flushes_after_its_release_a_segment_is_gone() -> None:
    cache = WriteCache(bytes_max=1000)
    number = cache.add_segment(memoryview(bytearray(500)))
    cache.swap()
    cache.release_segment(number)  # may hold frames of both halves
    cache.flushed()
    assert list(cache.segments) == [number]
    cache.swap()
    cache.flushed()
    assert not cache.segments


def test_segments_held_count_as_full_even_without_frames_in_them() -> None:
    cache = WriteCache(bytes_max=1000)
    cache.release_segment(cache.add_segment(memoryview(bytearray(999))))
    seen = [cache.is_active_full]
    cache.release_segment(cache.add_segment(memoryview(bytearray(1))))
    seen.append(cache.is_active_full)
    cache.swap()
    seen.append(cache.is_active_full)
    assert seen == [False, True, False]


def test_an_unused_segment_is_freed_at_once() -> None:
    cache = WriteCache(bytes_max=1000)
    cache.release_segment(cache.add_segment(memoryview(bytearray(999))), is_unused=True)
    assert not cache.segments


@pytest.mark.parametrize(
    "frame",
    [b"", make_frame(1, 2)[:-1], make_frame(1, 2) + b"x", make_frame(1, -5), make_frame(-1, 5)],
)
def test_what_is_not_a_frame_is_refused(frame: bytes) -> None:
    with pytest.raises(InvalidArgument):
        WriteCache(bytes_max=1000).put_frame(frame)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(1, 6)), max_size=60),
    st.integers(0, 2),
)
def test_read_cache_returns_only_right_bytes_and_stays_within_its_bound(
    puts: list[tuple[int, int, int]], dropped: int
) -> None:
    cache = ReadCache(bytes_max=4000)
    for ledger, first, count in puts:
        bodies = [make_entry(ledger, first + i) for i in range(count)]
        ends = [32 * (i + 1) for i in range(count)]
        cache.put(Block(ledger, first, ends, b"".join(bodies)), cache.generation)
        assert cache.nbytes <= 4000
        found = cache.find(ledger, first)
        assert found is not None
        assert bytes(found.entry(first + count - 1)) == bodies[-1]
    cache.drop_ledger(dropped)
    for entry in range(40):
        assert cache.find(dropped, entry) is None
        for ledger in range(3):
            found = cache.find(ledger, entry)
            assert found is None or bytes(found.entry(entry)) == make_entry(ledger, entry)


def test_a_block_read_before_an_overwrite_is_not_kept() -> None:
    cache = ReadCache(bytes_max=4000)
    generation = cache.generation
    cache.drop_ledger(1)
    cache.put(Block(1, 0, [32], make_entry(1, 0)), generation)
    assert cache.find(1, 0) is None


def test_after_a_fence_only_recovery_adds() -> None:
    state = LedgerState(7, KEY)
    assert state.check_add(KEY, is_recovery=False) is Status.OK
    assert state.check_add(b"x" * 20, is_recovery=False) is Status.UNAUTHORIZED
    assert state.check_fence(None) is Status.UNAUTHORIZED
    assert state.check_fence(memoryview(KEY)) is Status.OK
    state.fence()
    assert state.check_add(KEY, is_recovery=False) is Status.FENCED
    assert state.check_add(KEY, is_recovery=True) is Status.OK
    assert state.check_add(b"x" * 20, is_recovery=True) is Status.UNAUTHORIZED


def test_a_deleted_ledger_takes_nothing() -> None:
    state = LedgerState(7, KEY)
    state.delete()
    assert state.check_add(KEY, is_recovery=False) is Status.FENCED
    assert state.check_add(KEY, is_recovery=True) is Status.NO_SUCH_LEDGER
    assert state.check_fence(KEY) is Status.NO_SUCH_LEDGER
    assert state.check_write_lac(KEY) is Status.NO_SUCH_LEDGER


@given(
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(-1, 2**63 - 1),
    st.none() | st.binary(min_size=1),
)
def test_stored_state_comes_back(
    is_fenced: bool, is_limbo: bool, is_removed: bool, lac: int, packet: bytes | None
) -> None:
    state = LedgerState(7, KEY)
    state.is_removed = is_removed
    state.is_fenced, state.is_limbo, state.lac, state.explicit_lac = (
        is_fenced,
        is_limbo,
        lac,
        packet,
    )
    found = decode_ledger_state(7, encode_ledger_state(state))
    assert (found.master_key, found.is_fenced, found.is_limbo) == (KEY, is_fenced, is_limbo)
    assert found.is_removed is is_removed
    assert found.is_absence_unknown is (is_limbo or is_removed)
    assert (found.lac, found.explicit_lac, found.is_fence_durable) == (lac, packet, is_fenced)


def test_the_bytes_of_a_stored_state_stay_as_they_are() -> None:
    """Before copies were removed the third flag did not exist, and was 0."""
    for flags in range(8):
        data = bytes([1, flags]) + (5).to_bytes(8, "big") + b"\x14\0\0" + KEY
        state = decode_ledger_state(7, data)
        found = (state.is_fenced, state.is_limbo, state.is_removed)
        assert found == (bool(flags & 1), bool(flags & 2), bool(flags & 4))
        assert (state.lac, state.is_leaving) == (5, False)
        assert encode_ledger_state(state) == data


@given(st.binary(max_size=60))
def test_stored_state_of_garbage_is_refused_or_read_whole(data: bytes) -> None:
    try:
        state = decode_ledger_state(7, data)
    except ValueError:
        return
    assert len(state.master_key) <= len(data)


def test_what_was_read_while_other_ledgers_changed_is_kept() -> None:
    cache = ReadCache(bytes_max=4000)
    generation = cache.generation
    cache.drop_ledger(7)
    cache.drop_ledger(8)
    cache.put(Block(7, 0, [10], bytes(10)), generation)
    assert cache.find(7, 0) is None
    cache.put(Block(7, 0, [10], bytes(10)), generation + 1)
    cache.put(Block(9, 0, [10], bytes(10)), generation)
    assert cache.find(7, 0) is not None
    assert cache.find(9, 0) is not None
    # Only a limited number of changes is remembered: older reads may be of any ledger.
    for ledger in range(100, 100 + ReadCache.DROPS_MAX):
        cache.drop_ledger(ledger)
    assert not cache.is_current(9, generation)
    assert not cache.is_current(7, generation)
    assert cache.is_current(7, cache.generation)
    assert not cache.is_current(100 + ReadCache.DROPS_MAX - 1, cache.generation - 1)


@pytest.mark.parametrize("first", [1, 4])
def test_freed_segments_are_used_again_whatever_else_was_freed(first: int) -> None:
    """Connections begin with small segments: one of them must not bar the way to the others."""
    pool = SegmentPool()
    sizes = [first, *[4] * 8, 1, *[4] * 8]
    freed = [bytearray(size << 20) for size in sizes]
    for buffer in freed:
        pool.give_back(memoryview(buffer))
    taken = [pool.take_segment(4 << 20) for _ in range(9)]
    assert [any(segment is buffer for buffer in freed) for segment in taken] == [True] * 8 + [False]
    assert len({id(segment) for segment in taken}) == 9


def test_a_segment_of_several_caches_is_charged_to_one_after_the_other() -> None:
    """Otherwise each would flush too early, or the last of them hold memory without a bound."""
    buffer = bytearray(1000)
    caches = [WriteCache(bytes_max=900) for _ in range(3)]
    numbers = [cache.add_segment(memoryview(buffer)) for cache in caches]
    shared = SharedSegment(len(buffer))
    for cache, number in zip(caches, numbers, strict=True):
        cache.active[7] = {0: number << 32}
        cache.release_segment(number, shared=shared)
    for left in (1000, 1000, 0):
        charged = next(cache for cache in caches if cache.released_bytes)
        assert [cache.is_active_full for cache in caches].count(True) == 1
        charged.swap()
        assert charged.segments, "its frames are not flushed yet"
        charged.flushed()
        assert not charged.segments
        assert sum(cache.released_bytes for cache in caches) == left
    assert not any(cache.segments for cache in caches)


def test_caches_that_flush_at_once_leave_no_charge_behind() -> None:
    """A charge without a segment would count as memory until the next swap, which nobody asks for
    where nothing is added any more."""
    buffer = bytearray(1000)
    first, second = (WriteCache(bytes_max=900) for _ in range(2))
    shared = SharedSegment(len(buffer))
    for cache in (first, second):
        cache.release_segment(cache.add_segment(memoryview(buffer)), shared=shared)
    first.swap()
    assert (first.released_bytes, second.released_bytes) == (0, 1000)
    second.swap()
    first.flushed()
    second.flushed()
    for cache in (first, second):
        assert cache.released_bytes == 0
        assert not cache.has_released
        assert not cache.segments


def test_a_cache_that_flushes_out_of_turn_leaves_the_charge_where_it_is() -> None:
    buffer = bytearray(1000)
    first, second = (WriteCache(bytes_max=900) for _ in range(2))
    shared = SharedSegment(len(buffer))
    for cache in (first, second):
        cache.release_segment(cache.add_segment(memoryview(buffer)), shared=shared)
    second.swap()
    second.flushed()
    assert (first.released_bytes, second.released_bytes) == (1000, 0)
    assert not second.segments
    first.swap()
    first.flushed()
    assert (first.released_bytes, second.released_bytes) == (0, 0)
    assert not first.segments
