"""The demo's second process: tails a stream and computes a digest of its records, in order.

`python -m examples.tail_digest CLUSTER NAMESPACE STREAM COUNT` prints lines of JSON: the number of
records so far and, after COUNT records, their digest.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
import time
from array import array

import trio

from ledgerstream import EARLIEST, Namespace

_LENGTHS = struct.Struct(">qqq").pack


class Digest:
    """The SHA-256 of records: their sequences, event times, keys and values, with their lengths."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.count = 0
        self.nbytes = 0

    def add(self, sequence: int, event_time_ms: int | None, key: bytes, value: bytes) -> None:
        time_ms = -1 if event_time_ms is None else event_time_ms
        self._hash.update(_LENGTHS(sequence, time_ms, len(key)) + key)
        self._hash.update(_LENGTHS(len(value), 0, 0) + value)
        self.count += 1
        self.nbytes += len(value)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


async def tail(cluster: str, namespace_name: str, stream: str, count: int) -> None:
    digest = Digest()
    said_s = 0.0
    delays_ms = array("d")
    async with (
        Namespace.connect(cluster, namespace_name) as namespace,
        namespace.reader(stream, start=EARLIEST) as reader,
    ):
        say(count=0)
        async for record in reader:
            digest.add(record.sequence, record.event_time_ms, record.key or b"", record.value)
            if not record.sequence % 100:
                now_s = time.time()
                delays_ms.append(now_s * 1000 - record.append_time_ms)
                if now_s - said_s > 0.1:
                    said_s = now_s
                    say(count=digest.count)
            if digest.count == count:
                break
    delays = sorted(delays_ms)
    p50_ms = delays[len(delays) // 2] if delays else 0.0
    say(count=digest.count, sha256=digest.hexdigest(), delay_p50_ms=round(p50_ms, 1))


if __name__ == "__main__":
    where, name, stream_name, number = sys.argv[1:]
    trio.run(tail, where, name, stream_name, int(number))
