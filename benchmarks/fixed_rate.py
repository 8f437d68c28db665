"""Appends at a fixed rate, each timed from when it was due.

This includes the wait of appends that queue behind a slow one, which a measurement from the call
would hide.
"""

from __future__ import annotations

import os
import struct
import time
from array import array
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from stream import StreamWriter

STAMP: Final = struct.Struct(">d")
"""The time of a record's append by the monotonic clock, in the first bytes of its value."""
OUTSTANDING_MAX: Final = 20_000
"""Appends that are waited for at a time; with more, a system that is too slow sets the rate."""
PATIENCE: Final = 3
"""How many times as long as planned the appends of one rate may take, then they are cut off."""
_FULL_PAUSE_S: Final = 0.001

Append = Callable[[bytes], Awaitable[object]]


async def at_fixed_rate(append: Append, value: bytes, count: int, rate: int) -> array[float]:
    """Returns the latencies (ms) of `count` appends at a constant `rate` per second.

    There are fewer if the system did not reach a third of the rate.
    """
    latencies_ms = array("d")
    end_s = time.perf_counter() + max(1.0, PATIENCE * count / rate)

    async def append_one(due_s: float) -> None:
        await append(value)
        latencies_ms.append((time.perf_counter() - due_s) * 1e3)

    async with trio.open_nursery() as nursery:
        started_s = time.perf_counter()
        sent = 0
        while sent < count and (now_s := time.perf_counter()) < end_s:
            due = min(count, int((now_s - started_s) * rate) + 1)
            due = max(sent, min(due, len(latencies_ms) + OUTSTANDING_MAX))
            for number in range(sent, due):
                nursery.start_soon(append_one, started_s + number / rate)
            pause_s = 0.0 if due > sent else _FULL_PAUSE_S
            sent = due
            await trio.sleep(max(pause_s, started_s + sent / rate - time.perf_counter()))
    return latencies_ms


async def append_at_rate(writer: StreamWriter, size: int, count: int, rate: int) -> None:
    """Appends `rate` records per second, each beginning with the time of its append."""
    padding = os.urandom(max(0, size - STAMP.size))
    started_s = time.monotonic()
    sent = 0
    while sent < count:
        due = min(count, int((time.monotonic() - started_s) * rate) + 1)
        for _ in range(due - sent):
            while not writer.has_room:
                await writer.wait_room()
            writer.append_nowait(STAMP.pack(time.monotonic()) + padding)
        sent = due
        await trio.sleep(max(0.0, started_s + sent / rate - time.monotonic()))
    await writer.flush()
