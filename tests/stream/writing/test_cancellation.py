"""Calls of a writer that are cancelled at each of their awaits.

The writer stays usable or is clearly closed, acknowledged records are stored, and no record is
stored twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count

import pytest
import trio

from bookie.testing import SimCluster, simulate
from ledger.errors import LedgerClosed
from stream import Namespace, StreamWriter, Ticket, WriterOptions
from tests.sim.cancellation import cut_each, cut_once
from tests.stream.sim_namespace import sim_namespace
from tests.stream.whole_streams import read_values

SMALL = WriterOptions(pending_bytes_max=300)


def check(found: list[bytes], acknowledged: list[bytes], unconfirmed: list[bytes]) -> None:
    """Checks that acknowledged records are found once, in order, and others at most once."""
    assert [value for value in found if value in acknowledged] == acknowledged
    for value in unconfirmed:
        assert found.count(value) <= 1
    assert not set(found) - set(acknowledged) - set(unconfirmed)


async def _append(writer: StreamWriter) -> None:
    await writer.append(b"unconfirmed")


async def _append_expecting(writer: StreamWriter) -> None:
    await writer.append(b"unconfirmed", expected_sequence=writer.next_sequence)


async def _append_many(writer: StreamWriter) -> None:
    await writer.append_many([b"unconfirmed", *(bytes([n]) * 100 for n in range(20))])


async def _flush(writer: StreamWriter) -> None:
    await writer.wait_room()
    writer.append_nowait(b"unconfirmed")
    await writer.flush()


async def _produce(writer: StreamWriter) -> None:
    producer = await writer.producer("loader")
    await producer.append(b"unconfirmed", 0)


async def _produce_many(writer: StreamWriter) -> None:
    producer = await writer.producer("loader")
    await producer.append_many([b"unconfirmed", *(bytes([n]) * 100 for n in range(20))], 0)


@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize(
    "call", [_append, _append_expecting, _append_many, _flush, _produce, _produce_many]
)
def test_a_cancelled_call_leaves_the_writer_usable(
    call: Callable[[StreamWriter], Awaitable[None]], is_full: bool
) -> None:
    def run(number: int) -> bool:
        async def scenario(cluster: SimCluster) -> bool:
            async with cluster.client() as client:
                namespace = Namespace(client, "n", writer_options=SMALL)
                await namespace.ensure(batch_bytes=100)
                async with namespace.writer("s", create=True) as writer:
                    while is_full and writer.has_room:
                        writer.append_nowait(b"")
                    is_cut = await cut_once(partial(call, writer), number)
                    await writer.append(b"after")
                    producer = await writer.producer("loader")
                    # A retry of the cancelled record: it is stored already, or is stored now.
                    known = producer.next_sequence
                    await producer.append(b"last", known)
                    assert producer.last_sequence == known
                found = [value for value in await read_values(namespace) if value]
                unconfirmed = [b"unconfirmed", *(bytes([n]) * 100 for n in range(20))]
                check(found, [b"after", b"last"], unconfirmed)
                assert is_cut or b"unconfirmed" in found
                return is_cut

        return simulate(scenario, 1)

    assert cut_each(run) >= 1


def test_a_cancelled_close_can_be_repeated() -> None:
    def run(number: int) -> bool:
        async def scenario(cluster: SimCluster) -> bool:
            async with sim_namespace(cluster) as namespace:
                async with namespace.writer("s", create=True) as writer:
                    await writer.append(b"1")
                    writer.append_nowait(b"2")
                    is_cut = await cut_once(writer.close, number)
                    with pytest.raises(LedgerClosed):
                        writer.append_nowait(b"never")
                    await writer.close()
                assert await read_values(namespace) == [b"1", b"2"]
                assert (await namespace.stream_metadata("s")).open_segment is None
                return is_cut

        return simulate(scenario, 3)

    assert cut_each(run) >= 2


def test_a_waiting_task_gets_an_error_when_the_end_of_the_block_is_cancelled() -> None:
    async def scenario(cluster: SimCluster) -> None:
        reported: list[LedgerClosed] = []

        async def wait(ticket: Ticket) -> None:
            with pytest.raises(LedgerClosed, match="abandoned") as error:
                await ticket.wait()
            reported.append(error.value)

        async with sim_namespace(cluster, linger_ms=60_000) as namespace:
            with trio.fail_after(50):
                async with trio.open_nursery() as nursery:
                    with trio.move_on_after(10):
                        async with namespace.writer("s", create=True) as writer:
                            for bookie in cluster.bookies:
                                await cluster.kill_bookie(bookie)
                            nursery.start_soon(wait, writer.append_nowait(b"1"))
            assert len(reported) == 1

    simulate(scenario, 5)


def test_a_cancelled_writer_leaves_no_ledger_open_for_writing() -> None:
    """It is cancelled while it takes over, prepares a ledger, rolls or closes."""

    async def scenario(cluster: SimCluster) -> None:
        async with sim_namespace(cluster, roll_ms=1000) as namespace:

            async def write(stream: str) -> None:
                async with namespace.writer(stream, create=True) as writer:
                    await writer.append(b"1")
                    await trio.sleep(1.2)
                    assert writer.statistics().rolls == 1

            for number in count():
                is_cut = await cut_once(partial(write, f"s{number}"), number)
                assert not namespace.client._send_loop._writers
                if not is_cut:
                    break
            assert number > 100

    simulate(scenario, 6, time_limit_s=10_000)
