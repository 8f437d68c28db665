"""Formats results for docs/performance.md: `make bench | python -m benchmarks.table`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

_COLUMNS = ("CPU us", "client", "bookies", "records/s", "MB/s", "p50 ms", "p99 ms", "p99.9 ms")
_NAMES = (
    "cpu_us_per_record",
    "cpu_us_per_record_client",
    "cpu_us_per_record_bookies",
    "records_per_s",
    "mb_per_s",
    "p50_ms",
    "p99_ms",
    "p999_ms",
)


def _title(result: dict[str, Any]) -> str:
    settings = result["settings"]
    name = result["benchmark"]
    about = {
        "ledger-add": f"{settings['size']} B, window {settings['window']:,}",
        "append": f"{settings['mode']}, {settings['size']} B"
        + (f", {settings['callers']} callers" if settings["mode"] == "callers" else ""),
        "latency": f"{settings['layer']}, {settings['size']} B, {settings['rate']:,}/s",
        "tail": f"{settings['size']} B, {settings['rate']:,}/s",
        "fanout": f"{settings['shape']}, {settings['readers']} readers, {settings['rate']:,}/s",
        "catchup": f"{settings['shape']}, {settings['size']} B",
        "mixed": f"beside a tail and two catch-ups, {settings['size']} B, {settings['rate']:,}/s",
        "streams": f"{settings['streams']:,} streams, {settings['written']:,} written",
        "restart": f"{settings['count']:,} entries of {settings['size']} B",
        "many-ledgers": f"{settings['ledgers']:,} ledgers, {settings['size']} B",
        "security": f"everything on, {settings['size']} B",
        "spark-read": f"{settings['size']} B",
        "spark-write": f"{settings['size']} B",
        "spark-latency": f"{settings['size']} B",
    }
    return f"`{name}` {about.get(name, '')}".strip()


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value)


def rows(results: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Returns lines of Markdown: the table, the starts, and the machine."""
    listed = list(results)
    yield f"| | {' | '.join(_COLUMNS)} |"
    yield "|---|" + "---:|" * len(_COLUMNS)
    for result in listed:
        if result["benchmark"] != "start":
            cells = " | ".join(_cell(result.get(name)) for name in _NAMES)
            yield f"| {_title(result)} | {cells} |"
    for result in listed:
        if result["benchmark"] == "start":
            yield ""
            yield (
                f"`start`: ready after {result['ready_new_s']} s on a new directory (slowest of "
                f"{result['count']}: {result['ready_new_s_max']} s), {result['ready_again_s']} s "
                f"on one with data (slowest: {result['ready_again_s_max']} s)."
            )
    if listed:
        loads = sorted(result["machine"]["load_1m"] for result in listed)
        facts = {**listed[0]["machine"], "load_1m": f"{loads[0]} to {loads[-1]}"}
        yield ""
        yield "Machine: " + ", ".join(f"{name} {value}" for name, value in facts.items()) + "."
        versions = listed[0]["versions"].items()
        yield "Versions: " + ", ".join(f"{name} {value}" for name, value in versions) + "."


if __name__ == "__main__":
    print("\n".join(rows(json.loads(line) for line in sys.stdin if line.startswith("{"))))
