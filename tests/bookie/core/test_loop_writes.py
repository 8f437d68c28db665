"""A journal writes in the event loop while its disk is fast and has little to do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookie.core.loop_writes import GROUP_BYTES_MAX, HANG_FACTOR, WINDOW_WRITES, LoopWrites

SLOW_S = 0.005
FAST_S = 0.0003
INTERVAL_S = 0.002


class Disk:
    """Writes a group every `INTERVAL_S`, and reports how long each took."""

    def __init__(self, slow_s: float = SLOW_S) -> None:
        self.writes = LoopWrites(slow_s)
        self.now_s = 100.0

    def write(self, seconds: float, times: int = 1) -> None:
        for _ in range(times):
            self.writes.wrote(self.now_s, seconds)
            self.now_s += max(seconds, INTERVAL_S)

    def is_in_loop(
        self, nbytes: int = 4096, *, is_thread_awaited: bool = False, has_gathered: bool = False
    ) -> bool:
        return self.writes.is_in_loop(
            self.now_s, nbytes, is_thread_awaited=is_thread_awaited, has_gathered=has_gathered
        )


def test_the_disk_has_to_be_fast_for_a_while_first() -> None:
    disk = Disk()
    disk.write(FAST_S, WINDOW_WRITES - 1)
    assert not disk.is_in_loop()
    disk.write(FAST_S)
    assert disk.is_in_loop()
    assert not disk.is_in_loop(GROUP_BYTES_MAX + 1)
    assert not disk.is_in_loop(is_thread_awaited=True)


def test_one_slow_write_in_a_hundred_is_forgiven_and_the_second_is_not() -> None:
    disk = Disk()
    disk.write(FAST_S, WINDOW_WRITES)
    for _ in range(3):
        disk.write(2 * SLOW_S)
        disk.write(FAST_S, WINDOW_WRITES)
        assert disk.is_in_loop()
    disk.write(2 * SLOW_S)
    disk.write(FAST_S, WINDOW_WRITES // 2)
    disk.write(2 * SLOW_S)
    assert not disk.is_in_loop()
    disk.write(FAST_S, WINDOW_WRITES - 1)
    assert not disk.is_in_loop(), "it has to be fast for as long again"
    disk.write(FAST_S)
    assert disk.is_in_loop()


def test_a_hang_ends_it_by_itself() -> None:
    disk = Disk()
    disk.write(FAST_S, WINDOW_WRITES)
    disk.write(2 * HANG_FACTOR * SLOW_S)
    assert not disk.is_in_loop()
    disk.write(FAST_S, WINDOW_WRITES)
    assert disk.is_in_loop()


def test_a_journal_that_is_busy_for_half_of_the_time_uses_its_thread() -> None:
    disk = Disk()
    disk.write(FAST_S, WINDOW_WRITES)
    disk.write(0.6 * INTERVAL_S, 16)
    assert not disk.is_in_loop()
    disk.write(0.4 * INTERVAL_S, 16)
    assert disk.is_in_loop()


def test_writes_that_follow_each_other_at_once_after_a_pause_gather() -> None:
    disk = Disk()
    disk.write(FAST_S, WINDOW_WRITES)
    disk.now_s += 10
    assert disk.is_in_loop()
    long_s = 0.8 * SLOW_S
    disk.write(long_s)
    assert not disk.is_in_loop(), "the loop would write one after the other for all connections"
    disk.now_s += 0.9 * long_s
    assert not disk.is_in_loop()
    assert disk.is_in_loop(has_gathered=True), "what came meanwhile is one group, in the next turn"
    disk.now_s += 0.2 * long_s
    assert disk.is_in_loop()


def test_several_journals_share_the_half() -> None:
    disk = Disk()
    disk.writes = LoopWrites(SLOW_S, journals=2)
    disk.write(FAST_S, WINDOW_WRITES)
    disk.write(0.3 * INTERVAL_S, 16)
    assert not disk.is_in_loop()
    disk.write(0.2 * INTERVAL_S, 16)
    assert disk.is_in_loop()


def test_a_bound_of_zero_leaves_all_to_the_thread() -> None:
    disk = Disk(0.0)
    disk.write(0.0, 10 * WINDOW_WRITES)
    assert not disk.is_in_loop()


@given(st.lists(st.sampled_from([FAST_S, SLOW_S, 2 * SLOW_S, 11 * SLOW_S]), max_size=400))
def test_it_is_fast_if_the_latest_hundred_since_the_last_change_had_one_slow_write(
    durations: list[float],
) -> None:
    disk = Disk()
    since: list[float] = []
    for seconds in durations:
        disk.write(seconds)
        since.append(seconds)
        slow = sum(one > SLOW_S for one in since[-WINDOW_WRITES:])
        if slow > 1 or seconds > HANG_FACTOR * SLOW_S:
            since.clear()
        assert disk.writes.is_fast == (len(since) >= WINDOW_WRITES)
