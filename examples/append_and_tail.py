"""Appends to a stream and tails it at the same time.

    python -m examples.append_and_tail CLUSTER [CREDENTIALS]

CLUSTER is what `ledgerstream standalone` prints, like sqlite:///var/lib/cluster.db. A cluster that
authenticates its clients, as with `standalone --secure`, wants the file CREDENTIALS, too, or the
variable LEDGERSTREAM_CREDENTIALS.
"""

from __future__ import annotations

import sys
import time

import trio

from ledgerstream import EARLIEST, Namespace

RECORDS = 10


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def append(namespace: Namespace) -> None:
    async with namespace.writer("temperatures") as writer:
        for number in range(RECORDS):
            value = f"{20 + number / 10:.1f}".encode()
            # Returns when the record is synced on two of three bookies.
            position = await writer.append(value, key=b"kitchen", event_time_ms=now_ms())
            print(f"appended {value.decode()} at {position}")


async def tail(namespace: Namespace) -> None:
    async with namespace.reader("temperatures", start=EARLIEST) as reader:
        async for record in reader:  # continues forever unless it is left
            delay_ms = now_ms() - (record.event_time_ms or 0)
            print(f"read {record.value.decode()}, {record.sequence=}, {delay_ms} ms later")
            if record.sequence == RECORDS - 1:
                return


async def main(cluster: str, credentials: str | None = None) -> None:
    connecting = Namespace.connect(cluster, "examples", create=True, credentials=credentials)
    async with connecting as namespace:
        await namespace.ensure_stream("temperatures")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tail, namespace)
            nursery.start_soon(append, namespace)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
