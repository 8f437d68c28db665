"""How fast the machine is while a benchmark runs: the same code costs twice as much on some days.

Each result carries the mean of a calibration before it and one after it. CPU times of other days
and machines can be compared after they were scaled to a loop of `LOOP_S`.
"""

from __future__ import annotations

import os
import tempfile
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.disk import FilledFile

LOOP_S: Final = 0.3
"""CPU seconds of the loop on the machine that aims are for."""
_LOOP: Final = compile(
    "total = 0\nfor number in range(count):\n    total += number\n", "calibration", "exec"
)
"""As the body of a module, as `python -c` runs it; in a function it takes half as long."""
_PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """How much a calibration does. Results of other workloads cannot be compared."""

    additions: int = 5_000_000
    pieces: int = 1024
    """Pieces of 1 MiB that are copied."""
    syncs: int = 100
    """Writes of 4 KiB, each synced."""


FULL: Final = Workload()


def calibrate(directory: Path, workload: Workload = FULL) -> dict[str, float]:
    """Measures this machine and the disk of `directory`, in about a second.

    Returns `loop_s` and `copy_s`, CPU seconds of a loop in Python and of copying, and
    `sync_p50_ms`, the time of a synced write to blocks that were written before.
    """
    before_s = time.process_time()
    exec(_LOOP, {"count": workload.additions})
    loop_s = time.process_time() - before_s
    before_s = time.process_time()
    _copy(workload.pieces)
    copy_s = time.process_time() - before_s
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        filled = FilledFile(file.fileno())
        took_ms = sorted(array("d", (filled.synced_write_ms() for _ in range(workload.syncs))))
    return {"loop_s": loop_s, "copy_s": copy_s, "sync_p50_ms": took_ms[len(took_ms) // 2]}


def _copy(pieces: int) -> None:
    source, target = memoryview(os.urandom(_PIECE_BYTES)), memoryview(bytearray(_PIECE_BYTES))
    for _ in range(pieces):
        target[:] = source


def around(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Returns what a result carries: the means, and `drift`, the slower loop through the faster."""
    loops = sorted((before["loop_s"], after["loop_s"]))
    means = {name: float(f"{(before[name] + after[name]) / 2:.3g}") for name in before}
    return {**means, "drift": round(loops[1] / loops[0], 3)}


def on_standard_machine(cpu: float, calibration: Mapping[str, float]) -> float:
    """Returns a CPU time as it would be on a machine where the loop takes `LOOP_S`."""
    return cpu * LOOP_S / calibration["loop_s"]
