"""How soon a tail sees the last record of a stream that falls idle: by virtual time, exactly."""

from __future__ import annotations

import trio

from bookie.testing import SimCluster, simulate
from ledger.options import ClientOptions
from stream import LATEST
from stream.namespace import Namespace

ONE_WAY_S = 0.010
LINGER_MS = 3.0


def test_the_last_record_of_an_idle_stream_arrives_one_round_trip_after_its_ack() -> None:
    """Writer tells the bookies its LAC after the linger, they answer the parked poll with the
    record: half a round trip each. Nothing else may lie between."""

    async def story(cluster: SimCluster) -> None:
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

    for seed in range(3):
        simulate(story, seed)
