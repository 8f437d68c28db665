"""How soon a tail sees the last record of a stream that falls idle: by virtual time, exactly."""

from __future__ import annotations

import pytest
import trio

from bookie.testing import SimCluster, simulate
from bookie.testing.scheduler import Simulation, run_simulated
from ledger.options import ClientOptions
from stream import LATEST
from stream.namespace import Namespace
from tests.effort import scaled

ONE_WAY_S = 0.010
LINGER_MS = 3.0


def test_the_last_record_of_an_idle_stream_arrives_one_round_trip_after_its_ack() -> None:
    """The writer sends the bookies its LAC after the linger, they answer the parked poll with the
    record: half a round trip each. Nothing else may lie between."""

    async def scenario(cluster: SimCluster) -> None:
        options = cluster.network.options
        options.latency_min_s = options.latency_max_s = ONE_WAY_S
        options.spike_probability = options.split_probability = 0.0
        client_options = ClientOptions(lac_linger_ms=LINGER_MS)
        acked_at: dict[bytes, float] = {}
        waits_s: list[float] = []

        async with (
            cluster.client("writer", client_options) as one,
            cluster.client("reader", client_options) as other,
        ):
            await Namespace(one, "n").ensure()
            async with Namespace(one, "n").writer("s", create=True) as writer:
                await writer.append(b"first")
                async with (
                    Namespace(other, "n").reader("s", start=LATEST) as reader,
                    trio.open_nursery() as nursery,
                ):

                    async def read() -> None:
                        async for record in reader:
                            waits_s.append(trio.current_time() - acked_at[record.value])

                    nursery.start_soon(read)
                    await trio.sleep(1)
                    for number in range(10):
                        value = b"%d" % number
                        await writer.append(value)
                        acked_at[value] = trio.current_time()
                        await trio.sleep(1)
                    nursery.cancel_scope.cancel()

        assert len(waits_s) == 10
        assert max(waits_s) <= 2 * ONE_WAY_S + LINGER_MS / 1000 + 0.001, waits_s

    for seed in range(scaled(ci=1, night=12)):
        simulate(scenario, seed)


def test_a_record_does_not_wait_for_an_add_when_the_next_ones_are_on_their_way() -> None:
    """Adds in flight carry an older LAC: where records follow each other faster than they are
    confirmed, and no faster, each is sent by itself and not with the add after the next."""
    one_way_s, interval_s, sync_max_s = 0.001, 0.020, 0.040

    async def scenario(cluster: SimCluster) -> None:
        options = cluster.network.options
        options.latency_min_s = options.latency_max_s = one_way_s
        options.spike_probability = options.split_probability = 0.0
        for name in cluster.bookies:
            cluster.disk(name).options.sync_max_s = sync_max_s
        confirmed_at: dict[bytes, float] = {}
        waits_s: list[float] = []
        async with cluster.client("writer") as one, cluster.client("reader") as other:
            await Namespace(one, "n").ensure()
            async with Namespace(one, "n").writer("s", create=True) as writer:
                await writer.append(b"first")
                async with (
                    Namespace(other, "n").reader("s", start=LATEST) as reader,
                    trio.open_nursery() as nursery,
                ):

                    async def read() -> None:
                        async for record in reader:
                            waits_s.append(trio.current_time() - confirmed_at[record.value])

                    async def append(value: bytes) -> None:
                        await writer.append(value)
                        confirmed_at[value] = trio.current_time()

                    nursery.start_soon(read)
                    await trio.sleep(1)
                    for number in range(50):
                        nursery.start_soon(append, b"%d" % number)
                        await trio.sleep(interval_s)
                    await trio.sleep(1)
                    nursery.cancel_scope.cancel()
        assert len(waits_s) == 50
        # The way to the bookie and to the reader; two more if the one before is still on it.
        late = [wait_s for wait_s in waits_s if wait_s > 4 * one_way_s + 0.001]
        # When two are confirmed at once the second is read, and the first time there is no
        # connection to read it by.
        assert len(late) <= 2, late

    for seed in range(scaled(ci=1, night=12)):
        simulate(scenario, seed)


@pytest.mark.parametrize(
    ("size", "ack_quorum", "first"),
    [(3, 1, 0), (3, 1, 1), (3, 1, 2), *((5, 3, first) for first in range(5))],
)
def test_a_tail_hears_of_a_writer_that_does_without_the_bookies_asked_first(
    size: int, ack_quorum: int, first: int
) -> None:
    """They answer the reader, but the writer cannot reach them, and needs them for no quorum. Any
    neighbours: some two of them are those whom the reader asks first."""

    async def scenario(simulation: Simulation) -> None:
        async with (
            SimCluster(simulation, bookies=size) as cluster,
            cluster.client("writing") as one,
            cluster.client("reading") as other,
        ):
            namespace = Namespace(one, "n")
            await namespace.ensure(
                ensemble_size=size, write_quorum=size, ack_quorum=ack_quorum
            )  # fmt: skip
            async with (
                namespace.writer("s", create=True) as writer,
                Namespace(other, "n").reader("s", start=LATEST) as reader,
            ):
                await writer.append(b"0")
                await reader.next_batch()
                segment = (await namespace.stream_metadata("s")).open_segment
                assert segment is not None
                ensemble = (await one.ledger_metadata(segment.ledger_id)).last_fragment.bookies
                out = [ensemble[first], ensemble[(first + 1) % size]]
                cluster.network.partition(["writing"], [bookie.split(":")[0] for bookie in out])
                for _ in range(10):
                    await writer.append(b"x")
                    await trio.sleep(0.5)
                with trio.fail_after(5):
                    for _ in range(10):
                        await reader.next_batch()
                cluster.network.heal()

    run_simulated(scenario, 1)
