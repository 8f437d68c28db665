"""Reports one result: numbers, settings, versions and facts about the machine, as text or JSON."""

from __future__ import annotations

import json
import os
import platform
import sys
from array import array
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate
from pathlib import Path
from typing import Any

from benchmarks.cluster import Phase
from benchmarks.settings import Settings

_VERSIONS = ("ledgerstream", "trio", "protobuf", "crc32c", "rocksdict", "msgspec", "pyarrow")
_NOT_REPORTED = {"json", "dir", "peers"}


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of a benchmark: `count` records, with `nbytes` bytes of values in total."""

    count: int
    nbytes: int
    phase: Phase
    latencies_ms: array[float] | None = None
    more: Mapping[str, Any] | None = None


def result_of(
    name: str, settings: Settings, measured: Measured, directory: Path,
    calibration: Mapping[str, float],
) -> dict[str, Any]:  # fmt: skip
    """Returns the JSON object of one benchmark; its names are part of the interface.

    `calibration`: of the machine, before and after (benchmarks/calibration.py).
    """
    phase, count = measured.phase, max(measured.count, 1)
    to_us = 1e6 / count
    result: dict[str, Any] = {
        "benchmark": name,
        "count": measured.count,
        "seconds": round(phase.wall_s, 4),
        "records_per_s": round(measured.count / phase.wall_s) if phase.wall_s else None,
        "mb_per_s": round(measured.nbytes / phase.wall_s / 1e6, 2) if phase.wall_s else None,
        "cpu_us_per_record": _digits((phase.client_cpu_s + phase.bookies_cpu_s) * to_us),
        "cpu_us_per_record_client": _digits(phase.client_cpu_s * to_us),
        "cpu_us_per_record_bookies": _digits(phase.bookies_cpu_s * to_us),
    }
    if measured.latencies_ms:
        result |= percentiles(measured.latencies_ms)
    result |= dict(measured.more or {})
    chosen = {key: value for key, value in asdict(settings).items() if key not in _NOT_REPORTED}
    result["calibration"] = dict(calibration)
    result["settings"] = chosen | {"count": measured.count}
    result["versions"] = versions()
    result["machine"] = machine(directory)
    return result


def _digits(value: float) -> float:
    return float(f"{value:.3g}")


def percentiles(latencies_ms: array[float]) -> dict[str, float]:
    ordered = sorted(latencies_ms)

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 3)

    return {"p50_ms": at(0.5), "p99_ms": at(0.99), "p999_ms": at(0.999)}


def percentiles_of(counts: Mapping[float, int]) -> dict[str, float]:
    """Returns `percentiles` of latencies (ms), each with its number of occurrences."""
    latencies_ms = sorted(counts)
    reached = list(accumulate(counts[each] for each in latencies_ms))

    def at(share: float) -> float:
        return round(latencies_ms[bisect_right(reached, share * (reached[-1] - 1))], 3)

    return {"p50_ms": at(0.5), "p99_ms": at(0.99), "p999_ms": at(0.999)}


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _VERSIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def machine(directory: Path) -> dict[str, Any]:
    """Returns facts about the machine. `load_1m` above 0 means that other processes were active."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "kernel": platform.release(),
        "filesystem": _filesystem(directory),
        "load_1m": round(os.getloadavg()[0], 2),
    }


def _filesystem(directory: Path) -> str:
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    path = str(directory.resolve())
    holding = [m for m in mounts if path == m[1] or path.startswith(m[1].rstrip("/") + "/")]
    return max(holding, key=lambda m: len(m[1]))[2] if holding else "unknown"


def show(result: Mapping[str, Any], *, is_json: bool) -> None:
    if is_json:
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"benchmark {result['benchmark']}", show_header=False, title_justify="left")
    for name, value in result.items():
        if name == "benchmark":
            continue
        if isinstance(value, Mapping):
            shown = ", ".join(f"{key} {inner}" for key, inner in value.items() if inner is not None)
        else:
            shown = f"{value:,}" if isinstance(value, int) else str(value)
        table.add_row(name.replace("_", " "), shown)
    Console().print(table)
