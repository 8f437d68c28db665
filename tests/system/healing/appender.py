"""Appends numbered records to a stream until killed, and notes in a file which were acknowledged.

`python -m tests.system.healing.appender CLUSTER NAMESPACE/STREAM INCARNATION FILE`. A record is
"INCARNATION NUMBER". Another one of the same stream takes over from this one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trio

from stream import Namespace

_BATCH = 20
_PAUSE_S = 0.05
_RETRY_S = 0.5


def _record(incarnation: str, number: int) -> bytes:
    return f"{incarnation} {number:09} ".encode().ljust(500, b".")


async def append(cluster: str, name: str, incarnation: str, acknowledged: Path) -> None:
    namespace_name, _, stream = name.partition("/")
    number = 0
    with acknowledged.open("a") as notes:
        while True:
            try:
                async with (
                    Namespace.connect(cluster, namespace_name) as namespace,
                    namespace.writer(stream) as writer,
                ):
                    while True:
                        numbers = range(number, number + _BATCH)
                        number += _BATCH
                        await writer.append_many([_record(incarnation, n) for n in numbers])
                        notes.writelines(f"{incarnation} {n:09}\n" for n in numbers)
                        notes.flush()
                        await trio.sleep(_PAUSE_S)
            except Exception as error:  # noqa: BLE001 - whatever it is: the next attempt continues
                print(f"{incarnation}: {error!r}", file=sys.stderr, flush=True)
                await trio.sleep(_RETRY_S)


if __name__ == "__main__":
    trio.run(append, sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
