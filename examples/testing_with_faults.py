"""Shows how to test a program against crashes and partitions, in virtual time.

    pytest examples/testing_with_faults.py
    pytest examples/testing_with_faults.py --ledgerstream-seed=7     (repeats a failed run)

The fixtures come with `pip install ledgerstream[testing]`.
"""

from __future__ import annotations

import trio

from bookie.testing import CrashKind, InProcessCluster, MakeSimulatedCluster, SimCluster
from ledgerstream import Namespace

PAYMENTS = [b"payment %d" % number for number in range(30)]


async def pay(namespace: Namespace, payments: list[bytes]) -> None:
    """The program under test."""
    async with namespace.writer("payments", create=True) as writer:
        for payment in payments:
            await writer.append(payment)
            await trio.sleep(0.1)


async def paid(namespace: Namespace) -> list[bytes]:
    async with namespace.reader("payments") as reader:
        return [r.value async for batch in reader.read_to_end() for r in batch.records()]


async def scenario(cluster: SimCluster) -> None:
    async with cluster.client("shop") as client:
        namespace = Namespace(client, "shop")
        await namespace.ensure()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pay, namespace, PAYMENTS)
            await trio.sleep(1)
            await cluster.kill_bookie("bookie-0", CrashKind.POWER_LOST_TORN)
            await cluster.start_bookie("bookie-0")
            cluster.network.partition(["shop"], ["bookie-1"])
            await trio.sleep(20)  # virtual seconds: they cost nothing
            cluster.network.heal()
        assert await paid(namespace) == PAYMENTS


def test_payments_survive_a_power_cut_and_a_partition(
    simulated_cluster: MakeSimulatedCluster,
) -> None:
    simulated_cluster.run_seeds(range(5), scenario)


async def test_payments_survive_a_killed_bookie(ledgerstream_cluster: InProcessCluster) -> None:
    async with Namespace.connect(ledgerstream_cluster.uri, "shop", create=True) as namespace:
        await pay(namespace, PAYMENTS[:3])
        ledgerstream_cluster.crash(ledgerstream_cluster.bookies[0])
        assert await paid(namespace) == PAYMENTS[:3]
