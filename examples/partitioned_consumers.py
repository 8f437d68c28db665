"""Two workers share the partitions of a stream; one leaves, and the other takes over.

    python -m examples.partitioned_consumers CLUSTER

Records of one user are in one partition, in order. A worker that dies, or does not respond in time,
loses its partitions to the others, which continue where it committed. Each record is handled at
least once, and a rebalance does not stop the group.
"""

from __future__ import annotations

import sys

import trio

from ledgerstream import Namespace

USERS, CLICKS = 20, 400


class Tally:
    def __init__(self) -> None:
        self.clicks: set[bytes] = set()
        self.is_complete = trio.Event()

    def add(self, values: list[bytes]) -> None:
        self.clicks.update(values)
        if len(self.clicks) >= CLICKS:
            self.is_complete.set()


async def work(namespace: Namespace, name: str, tally: Tally, leaves_after: int) -> None:
    handled = 0
    async with namespace.consumer("clicks", group="billing", member=name) as consumer:
        async for delivery in consumer:
            tally.add([bytes(value) for value in delivery.batch.values()])
            handled += len(delivery.batch)
            consumer.advance(delivery)  # committed in the background, and at the end of the block
            if handled >= leaves_after:
                break
    print(f"{name} leaves after {handled} clicks")


async def main(cluster: str) -> None:
    tally = Tally()
    async with Namespace.connect(cluster, "examples", create=True) as namespace:
        await namespace.ensure_stream("clicks", partitions=4)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, namespace, "worker-1", tally, CLICKS // 4)
            nursery.start_soon(work, namespace, "worker-2", tally, 1 << 30)
            async with namespace.partitioned_writer("clicks") as writer:
                for number in range(CLICKS):
                    await writer.append(b"click %d" % number, key=b"user-%d" % (number % USERS))
            await tally.is_complete.wait()
            nursery.cancel_scope.cancel()
    print(f"all {len(tally.clicks)} clicks were handled")


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
