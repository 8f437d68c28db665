"""Writers hand a stream over without unknown outcomes, or take it over at a given epoch."""

from __future__ import annotations

from contextlib import aclosing
from itertools import count

import pytest
import trio

from bookie.testing import SimCluster, simulate
from ledger.errors import LedgerClosed, MetadataUnavailable
from stream import (
    EpochMismatch,
    HandedOver,
    Namespace,
    NoSuchStream,
    Position,
    StreamWriter,
    TakenOver,
    WriterOptions,
)
from stream.writing.handover import parse_request, request_name, requests_path
from tests.stream.sim_namespace import sim_namespace
from tests.stream.whole_streams import read_values


def test_a_writer_that_is_asked_to_hand_over_flushes_and_seals() -> None:
    async def scenario(cluster: SimCluster) -> None:
        confirmed: dict[bytes, Position] = {}
        refused: list[bytes] = []

        async def write(writer: StreamWriter, first: int) -> None:
            for number in count(first):
                value = b"%d" % number
                try:
                    confirmed[value] = await writer.append(value)
                except HandedOver:
                    refused.append(value)
                    return
                await trio.sleep(0.001)

        async with cluster.client() as one, cluster.client() as two:
            await Namespace(one, "n").ensure()
            old_is_open, new_is_done = trio.Event(), trio.Event()

            async def old_process() -> None:
                async with Namespace(one, "n").writer("s", create=True) as writer:
                    old_is_open.set()
                    async with trio.open_nursery() as nursery:
                        for task in range(5):
                            nursery.start_soon(write, writer, 100_000 * task + 1)
                    with pytest.raises(TakenOver, match="handed over"):
                        writer.append_nowait(b"late")
                    await new_is_done.wait()
                    assert isinstance(writer.error, HandedOver)
                    with pytest.raises(HandedOver):
                        await writer.flush()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(old_process)
                await old_is_open.wait()
                await trio.sleep(1)
                begun = trio.current_time()
                async with Namespace(two, "n").writer("s", hand_over_s=100) as writer:
                    assert trio.current_time() - begun < 5
                    assert writer.epoch == 2
                    await writer.append(b"new")
                new_is_done.set()
            found = await read_values(Namespace(two, "n"))
            assert sorted(found) == sorted([*confirmed, b"new"])
            assert len(refused) == 5
            assert not set(refused) & set(found)
            assert await one.store.children(requests_path("n")) == []

    simulate(scenario, 1)


def test_a_writer_that_does_not_answer_is_taken_over_by_force() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("old") as one, cluster.client() as two:
            await Namespace(one, "n").ensure()
            is_over = trio.Event()

            async def old_process() -> None:
                async with Namespace(one, "n").writer("s", create=True) as writer:
                    await writer.append(b"1")
                    await is_over.wait()
                    with pytest.raises(TakenOver) as reported:
                        await writer.append(b"never")
                    assert not isinstance(reported.value, HandedOver)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(_ignore_takeover, old_process)
                await trio.sleep(2)
                cluster.metadata.cut_off("old")
                begun = trio.current_time()
                async with Namespace(two, "n").writer("s", hand_over_s=3) as writer:
                    assert 3 <= trio.current_time() - begun < 6
                    await writer.append(b"2")
                    cluster.metadata.heal()
                    await trio.sleep(10)
                    await writer.append(b"3")  # the request was not for this writer
                    is_over.set()
            assert await read_values(Namespace(two, "n")) == [b"1", b"2", b"3"]

    simulate(scenario, 2)


async def _ignore_takeover(process: object) -> None:
    """Runs a writer whose block may end with the takeover as its error."""
    assert callable(process)
    try:
        await process()
    except TakenOver:
        pass


def test_a_takeover_does_not_wait_if_there_is_no_writer() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sim_namespace(cluster) as namespace:
            with trio.fail_after(5):
                async with namespace.writer("s", create=True, hand_over_s=100) as writer:
                    await writer.append(b"1")
                async with namespace.writer("s", hand_over_s=100) as writer:
                    await writer.append(b"2")
            with pytest.raises(NoSuchStream):
                async with namespace.writer("other", hand_over_s=100):
                    pass
            assert await read_values(namespace) == [b"1", b"2"]

    simulate(scenario, 3)


def test_writers_that_ask_each_other_for_the_stream_all_get_it() -> None:
    async def scenario(cluster: SimCluster) -> None:
        turns: list[bytes] = []

        async def take_turns(name: str) -> None:
            async with cluster.client(name) as client:
                for turn in range(3):
                    try:
                        async with Namespace(client, "n").writer("s", hand_over_s=20) as writer:
                            value = b"%s %d" % (name.encode(), turn)
                            await writer.append(value)
                            turns.append(value)
                            await trio.sleep(1)
                    except HandedOver:
                        pass

        async with cluster.client() as client:
            await Namespace(client, "n").ensure()
            await Namespace(client, "n").ensure_stream("s")
            async with trio.open_nursery() as nursery:
                for name in ("a", "b", "c"):
                    nursery.start_soon(take_turns, name)
            assert sorted(await read_values(Namespace(client, "n"))) == sorted(turns)
            assert len(turns) == 9

    simulate(scenario, 4)


def test_the_owner_may_close_while_it_hands_over() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as one, cluster.client() as two:
            await Namespace(one, "n").ensure(linger_ms=5000)
            async with Namespace(one, "n").writer("s", create=True) as writer:
                await trio.sleep(1)
                ticket = writer.append_nowait(b"1")

                async def successor() -> None:
                    async with Namespace(two, "n").writer("s", hand_over_s=100) as other:
                        other.append_nowait(b"2")

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(successor)
                    await trio.sleep(0.02)
                    await writer.close()
                    await writer.close()
                assert ticket.is_confirmed
                with pytest.raises((HandedOver, LedgerClosed)):
                    writer.append_nowait(b"late")
            assert await read_values(Namespace(two, "n")) == [b"1", b"2"]

    simulate(scenario, 5)


def test_records_in_flight_survive_a_repair_during_a_handover() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("old") as one, cluster.client() as two:
            await Namespace(one, "n").ensure(ensemble_size=3, ack_quorum=3)
            options = WriterOptions(repair_timeout_s=60)
            block = Namespace(one, "n").writer("s", create=True, options=options)
            async with block as writer:
                await writer.append(b"0")
                await trio.sleep(1)
                await cluster.kill_bookie("bookie-0")
                tickets = [writer.append_nowait(b"%d" % n) for n in range(1, 50)]

                async def successor() -> None:
                    async with Namespace(two, "n").writer("s", hand_over_s=100) as other:
                        await other.append(b"last")

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(successor)
                    await trio.sleep(2)
                    await cluster.start_bookie("bookie-0")
                assert all(ticket.is_confirmed for ticket in tickets)
            expected = [b"%d" % n for n in range(50)] + [b"last"]
            assert await read_values(Namespace(two, "n")) == expected

    simulate(scenario, 6)


def test_a_stream_is_taken_over_only_at_the_given_epoch() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sim_namespace(cluster) as namespace:
            async with namespace.writer("s", create=True, if_epoch=0) as writer:
                assert writer.epoch == 1
                with pytest.raises(
                    EpochMismatch, match="is at epoch 1, it was to be taken"
                ) as reported:
                    async with namespace.writer("s", if_epoch=0):
                        pass
                assert (reported.value.expected, reported.value.epoch) == (0, 1)
                await writer.append(b"still here")
            epoch = (await namespace.info("s")).epoch
            async with namespace.writer("s", if_epoch=epoch) as writer:
                assert writer.epoch == epoch + 1

    simulate(scenario, 7)


def test_a_writer_may_be_asked_to_hand_over_during_its_own_takeover() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as one, cluster.client() as two:
            await Namespace(one, "n").ensure()
            try:
                async with Namespace(one, "n").writer("s", create=True) as writer:
                    await writer.append(b"old")
                    raise ZeroDivisionError  # leaves the segment open
            except ZeroDivisionError:
                pass
            is_open = trio.Event()

            async def slow() -> None:
                async with Namespace(one, "n").writer("s") as writer:
                    is_open.set()
                    while True:
                        try:
                            await writer.append(b"slow")
                        except HandedOver:
                            return

            async with trio.open_nursery() as nursery:
                nursery.start_soon(slow)
                # Its epoch is stored, and the old segment is still open.
                async with aclosing(Namespace(two, "n").store.watch_stream("n", "s")) as versions:
                    async for stream in versions:
                        if stream is not None and stream.epoch == 2:
                            break
                assert not is_open.is_set()
                with trio.fail_after(10):
                    async with Namespace(two, "n").writer("s", hand_over_s=100) as writer:
                        assert writer.epoch == 3
            assert is_open.is_set()

    simulate(scenario, 8)


def test_a_stale_request_does_not_hide_a_newer_one() -> None:
    """The requests are for epochs 9 and 10, which sort differently as names and as numbers."""

    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as one, cluster.client() as two:
            namespace = Namespace(one, "n")
            await namespace.ensure()
            for _ in range(9):
                async with namespace.writer("s", create=True):
                    pass
            left_over = f"{requests_path('n')}/{request_name('s', 9)}"
            await two.store.create(left_over, b"", is_ephemeral=True)
            async with namespace.writer("s") as writer:
                assert writer.epoch == 10
                await writer.append(b"1")
                with trio.fail_after(10):
                    async with Namespace(two, "n").writer("s", hand_over_s=100):
                        assert isinstance(writer.error, HandedOver)

    simulate(scenario, 9)


def test_a_cancelled_request_for_a_handover_is_removed() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as one, cluster.client() as two:
            namespace = Namespace(one, "n")
            await namespace.ensure()
            await namespace.ensure_stream("s")
            for milliseconds in range(1, 30):
                with trio.move_on_after(milliseconds / 1000):
                    async with namespace.writer("s", hand_over_s=100):
                        pass
                await trio.sleep(1)
                assert await two.store.children(requests_path("n")) == []

    simulate(scenario, 10)


def test_a_request_that_could_not_be_removed_is_removed_later() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("asks") as one, cluster.client() as two:
            await Namespace(two, "n").ensure()

            async def ask() -> None:
                with pytest.raises(MetadataUnavailable):
                    async with Namespace(one, "n").writer("s", hand_over_s=100):
                        pass

            async with Namespace(two, "n").writer("s", create=True):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(ask)
                    async with aclosing(two.store.watch_children(requests_path("n"))) as folders:
                        async for names in folders:
                            if names:
                                break
                    cluster.metadata.cut_off("asks")
                cluster.metadata.heal()
                await trio.sleep(5)
                assert "s~" not in await two.store.children(requests_path("n"))

    simulate(scenario, 11)


def test_names_of_requests_are_distinguished_from_other_names() -> None:
    assert parse_request(request_name("clicks#2", 17)) == ("clicks#2", 17)
    assert [parse_request(name) for name in ("", "s", "~1", "s~", "s~x", "s~-1")] == [None] * 6
