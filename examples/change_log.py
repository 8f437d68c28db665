"""A table kept in step with a change-data log, which is truncated up to what was applied.

    python -m examples.change_log CLUSTER

The source appends changes of rows. The replica applies them, moves its cursor, and once the cursor
is durable lets the log go up to there. Run it again: it goes on where it was.
"""

from __future__ import annotations

import json
import sys

import trio

from stream import FromCursor, Namespace

CHANGES = 50


async def capture(namespace: Namespace) -> None:
    async with namespace.writer("changes", create=True) as writer:
        for number in range(CHANGES):
            row = {"balance": number * 10}
            writer.append_nowait(json.dumps(row).encode(), key=f"account-{number % 7}".encode())
        await writer.flush()


async def replicate(namespace: Namespace, table: dict[str, dict[str, int]]) -> int:
    applied = 0
    async with (
        namespace.cursor("changes", "replica", commit_interval_ms=100) as cursor,
        namespace.reader("changes", start=FromCursor("replica")) as reader,
    ):
        async for batch in reader.read_to_end():
            for record in batch.records():
                table[(record.key or b"").decode()] = json.loads(record.value)
                applied += 1
            cursor.advance(batch)  # stored at most every 100 ms, and at the end of the block
        durable = await cursor.commit()
        print(f"applied {applied} changes, {(await cursor.lag()).records} left")
    # What the cursor has passed nobody needs again. It stays in the trash for an hour.
    await namespace.truncate("changes", durable)
    return applied


async def main(cluster: str) -> None:
    table: dict[str, dict[str, int]] = {}
    async with Namespace.connect(cluster, "examples", create=True) as namespace:
        await capture(namespace)
        await replicate(namespace, table)
        info = await namespace.info("changes")
        print(f"{len(table)} rows, account-0 is {table['account-0']}; {info.records} records kept")


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
