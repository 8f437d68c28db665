"""Appends that expect a sequence number, and the limits that a namespace sets for appends."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from bookie.testing import CrashKind, SimCluster, simulate
from ledger.errors import InvalidArgument
from stream import SequenceMismatch, StreamWriter, TakenOver, WriterOptions
from tests.stream.real_namespace import a_namespace
from tests.stream.sim_namespace import sim_namespace
from tests.stream.whole_streams import read_all, values


async def test_only_a_record_with_the_expected_sequence_is_appended(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace, namespace.writer("s", create=True) as writer:
        assert writer.next_sequence == 0
        await writer.append(b"0", expected_sequence=0)
        with pytest.raises(SequenceMismatch, match="expected to append record 0, the next one is"):
            await writer.append(b"never", expected_sequence=0)
        waiting = writer.append_nowait(b"1")
        with pytest.raises(SequenceMismatch) as reported:
            writer.append_nowait(b"never", expected_sequence=1)
        assert (reported.value.expected, reported.value.next_sequence) == (1, 2)
        ticket = writer.append_nowait(b"2", expected_sequence=2)
        assert (await waiting.wait()) < (await ticket.wait())
        with pytest.raises(SequenceMismatch):
            await writer.append_many([b"never"] * 2, expected_sequence=7)
        await writer.append_many([b"3", b"4"], expected_sequence=3)
        assert writer.next_sequence == 5
        assert values(await read_all(namespace, "s")) == [b"%d" % n for n in range(5)]


async def test_one_of_many_appends_that_expect_the_same_sequence_succeeds(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace, namespace.writer("s", create=True) as writer:
        won: list[int] = []

        async def compete(number: int) -> None:
            sequence = writer.next_sequence
            await trio.lowlevel.checkpoint()
            try:
                await writer.append(b"%d" % number, expected_sequence=sequence)
            except SequenceMismatch:
                return
            won.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(compete, number)
        assert len(won) == 1
        assert values(await read_all(namespace, "s")) == [b"%d" % won[0]]


async def test_records_of_a_conditional_append_stay_contiguous_beside_other_appends(
    tmp_path: Path,
) -> None:
    options = WriterOptions(pending_bytes_max=100_000)
    async with (
        a_namespace(tmp_path, batch_bytes=1000) as namespace,
        namespace.writer("s", create=True, options=options) as writer,
    ):
        ours = [b"ours %d" % n for n in range(2000)]

        async def disturb() -> None:
            for _ in range(100):
                await writer.append_many([b"other"] * 50)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(disturb)
            await writer.append(b"first")
            while True:
                try:
                    await writer.append_many(ours, expected_sequence=writer.next_sequence)
                    break
                except SequenceMismatch:
                    pass  # it waited for capacity, and another append came first
        found = values(await read_all(namespace, "s"))
        begin = found.index(ours[0])
        assert found[begin : begin + 2000] == ours
        with pytest.raises(InvalidArgument, match="too many for one conditional append"):
            await writer.append_many([bytes(1000)] * 200, expected_sequence=writer.next_sequence)


@pytest.mark.parametrize("is_many", [False, True])
def test_a_mismatch_counts_only_durable_records(is_many: bool) -> None:
    """A caller that was cancelled and retries must not take its record for stored too early."""

    async def append(writer: StreamWriter) -> None:
        if is_many:
            await writer.append_many([b"1"], expected_sequence=1)
        else:
            await writer.append(b"1", expected_sequence=1)

    async def scenario(cluster: SimCluster) -> None:
        async with (
            sim_namespace(cluster) as namespace,
            namespace.writer("s", create=True) as writer,
        ):
            await writer.append(b"0")
            for bookie in cluster.bookies:
                await cluster.kill_bookie(bookie, CrashKind.POWER_LOST_ALL)
            for _ in range(2):
                with trio.move_on_after(1) as scope:
                    await append(writer)
                assert scope.cancelled_caught
            with pytest.raises(SequenceMismatch):
                await writer.append(b"never", expected_sequence=7)
            await cluster.start_all()
            with pytest.raises(SequenceMismatch, match="the next one is 2"):
                await append(writer)
            assert writer.statistics().records == 2

    simulate(scenario, 3)


async def test_a_replaced_writer_raises_taken_over_before_a_mismatch(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        block = namespace.writer("s", create=True)
        old = await block.__aenter__()
        await old.append(b"0")
        async with namespace.writer("s") as writer:
            await writer.append(b"1", expected_sequence=1)
            with pytest.raises(TakenOver):
                await old.append(b"never", expected_sequence=1)
            with pytest.raises(TakenOver):
                await old.append(b"never", expected_sequence=0)
        with pytest.raises(TakenOver):
            await block.__aexit__(None, None, None)


async def test_a_namespace_limits_the_size_of_records(tmp_path: Path) -> None:
    async with (
        a_namespace(tmp_path, record_bytes_max=10) as namespace,
        namespace.writer("s", create=True) as writer,
    ):
        await writer.append(bytes(10))
        with pytest.raises(InvalidArgument, match="11 bytes; the largest is 10"):
            await writer.append(bytes(11))
        with pytest.raises(InvalidArgument):
            await writer.append(bytes(9), key=b"ab")
        with pytest.raises(InvalidArgument):
            await writer.append_many([b"", bytes(11)])
        assert writer.next_sequence == 1


def test_appends_wait_to_stay_within_the_quota() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with (
            sim_namespace(cluster, bytes_per_s_max=10_000, batch_bytes=1000) as namespace,
            namespace.writer("s", create=True) as writer,
        ):
            begun = trio.current_time()
            for _ in range(200):
                await writer.append(bytes(1000))
            seconds = trio.current_time() - begun
            assert 19 < seconds < 23  # 200 entries of about 1100 bytes, less one burst
            while writer.has_room:
                writer.append_nowait(bytes(1000))
            with pytest.raises(trio.WouldBlock):
                writer.append_nowait(bytes(1000))
            with trio.fail_after(5):
                await writer.wait_room()

    simulate(scenario, 1)


def test_an_append_that_waits_for_the_quota_follows_its_changes() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with (
            sim_namespace(cluster, bytes_per_s_max=1) as namespace,
            namespace.writer("s", create=True) as writer,
        ):
            await writer.append(bytes(1000))
            with trio.fail_after(10), trio.move_on_after(5) as scope:
                await writer.append(b"too early")
            assert scope.cancelled_caught
            await namespace.set_policy(bytes_per_s_max=1_000_000)
            with trio.fail_after(5):
                await writer.append(b"now")
            await namespace.set_policy(bytes_per_s_max=1)
            await trio.sleep(5)
            await writer.append(bytes(1000))
            await namespace.set_policy(bytes_per_s_max=None)
            with trio.fail_after(5):
                await writer.append_many([bytes(1000)] * 100)
            await namespace.set_policy(bytes_per_s_max=1)
            await trio.sleep(5)
            await writer.append(bytes(1000))  # the writer closes without waiting for it

    simulate(scenario, 2)
