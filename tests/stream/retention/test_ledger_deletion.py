"""The deletion of a stream's ledgers completes however often its janitor dies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count

import pytest
import trio

from bookie.testing import SimCluster, simulate
from ledger.core.entry import DigestType
from ledger.core.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.core.metadata_format import encode
from ledger.metastore.base import Create
from stream import Janitor, Namespace
from stream.core.metadata.streams import SegmentEnd
from stream.core.sinks import committed
from stream.retention.ledger_deletion import LEDGERS_PER_STEP
from tests.sim.cancellation import cut_once
from tests.stream.sim_namespace import sim_namespace

LEDGERS = 5 * LEDGERS_PER_STEP


async def a_long_stream(namespace: Namespace) -> None:
    """Returns a stream of many sealed segments, whose ledgers have metadata and no entries."""
    client = namespace.client
    stream = await namespace.create_stream("s")
    for begin in range(0, LEDGERS, 100):
        for ledger_id in range(begin, begin + 100):
            metadata = LedgerMetadata(
                ledger_id=ledger_id, ensemble_size=1, write_quorum=1, ack_quorum=1,
                state=LedgerState.CLOSED, fragments=(Fragment(0, ("b:1",)),),
                digest_type=DigestType.CRC32C, last_entry_id=9, length=100,
                custom={"ledgerstream.stream": f"{namespace.name}/s".encode()},
            )  # fmt: skip
            await client.store.transaction(
                [Create(await client.ledgers.path(ledger_id), encode(metadata))]
            )
    end = SegmentEnd(9, 10, 100, 1, 1)
    stream = committed(stream, [(n, end) for n in range(LEDGERS)], client.now_ms())
    await namespace.store.update_stream(namespace.name, "s", lambda _: stream)


async def truncate(namespace: Namespace) -> None:
    end = (await namespace.info("s")).end_position
    await cut_once(lambda: _ignored(namespace.truncate("s", end)), 20)


async def delete(namespace: Namespace) -> None:
    await cut_once(lambda: namespace.delete_stream("s"), 20)


async def _ignored(call: Awaitable[object]) -> None:
    await call


@pytest.mark.parametrize("condemn", [truncate, delete])
def test_janitors_that_always_die_early_complete_the_deletion(
    condemn: Callable[[Namespace], Awaitable[None]],
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sim_namespace(cluster, trash_ms=0) as namespace:
            await a_long_stream(namespace)
            await condemn(namespace)
            janitor = Janitor(namespace.client, namespace.name)

            async def sweep() -> None:
                await janitor.sweep()

            deaths = count()
            # Each janitor lives long enough for a third of the ledgers, found or not.
            while await cut_once(sweep, LEDGERS):
                assert next(deaths) < 20, "every janitor begins from scratch"
            assert next(deaths) > 1
            assert not await namespace.client.list_ledgers()
            await trio.lowlevel.checkpoint()

    simulate(scenario, 1, time_limit_s=1e6)
