"""Replicates a table from a change-data log, and truncates the log up to the applied changes.

    python -m examples.change_log CLUSTER

The source appends changes of rows. The replica applies them and advances its cursor; once the
cursor is durable, it truncates the log up to there. A second run resumes where the first ended.
"""

from __future__ import annotations

import json
import sys

import trio

from ledgerstream import FromCursor, Namespace

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
    # Records before the cursor are not needed any more. They stay in the trash for an hour.
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
