"""The questions that docs/performance.md answers: which benchmarks, and which of their figures.

A question has a table at its marker in the document. Most have a row for each result; those with
`facts` have a column for each result and a row for each figure whose name matches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.calibration import LOOP_S, on_standard_machine
from benchmarks.systems.system import PEERS

Result = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """One benchmark with its settings, and how long it takes on a quiet machine of two cores."""

    name: str
    seconds: int
    changes: Mapping[str, Any] = field(default_factory=dict)
    needs: str = ""
    """A module that must be installed."""
    has_peers: bool = False
    """`seconds` is per system."""

    @property
    def title(self) -> str:
        return " ".join([self.name, *(f"{name}={value}" for name, value in self.changes.items())])


Column = tuple[str, str | Callable[[Result], Any]]


@dataclass(frozen=True, slots=True)
class Question:
    marker: str
    runs: tuple[Run, ...]
    columns: tuple[Column, ...] = ()
    facts: str = ""
    """A pattern of the names of figures."""


def setting(name: str) -> Callable[[Result], Any]:
    return lambda result: result["settings"][name]


def title(result: Result) -> str:
    """Returns what distinguishes a result of throughput from the others."""
    name, chosen = result["benchmark"], result["settings"]
    about = {
        "append": f"{chosen['mode']}, {chosen['size']} B"
        + (f", {chosen['callers']} callers" if chosen["mode"] == "callers" else ""),
        "ledger-add": f"{chosen['size']} B, window {chosen['window']:,}",
        "catchup": f"{chosen['shape']}, {chosen['size']} B",
        "fanout": f"{chosen['shape']}, {chosen['readers']} readers, {chosen['rate']:,}/s",
        "segments": f"{result.get('segments', 0):,}",
        "mixed": f"{chosen['size']} B, {chosen['rate']:,}/s",
    }
    return f"`{name}` {about.get(name, str(chosen['size']) + ' B')}"


def at_loop(name: str) -> Callable[[Result], Any]:
    """Returns a CPU time as it would be where the loop of the calibration takes `LOOP_S`."""

    def value(result: Result) -> float | None:
        found = result.get(name)
        return (
            None
            if found is None
            else float(f"{on_standard_machine(found, result['calibration']):.3g}")
        )

    return value


def calibrated(name: str) -> Callable[[Result], Any]:
    return lambda result: result["calibration"][name]


_CPU, _TAILED = "cpu_us_per_record", "tailed_cpu_us_per_record"
_SCALED: Final = f"at a loop of {LOOP_S} s"
_LOOP: Column = ("loop s", calibrated("loop_s"))
_RATE: tuple[Column, ...] = (
    ("", "system"),
    ("records/s", setting("rate")),
    ("reached", "records_per_s"),
    ("append: CPU us", _CPU),
    (_SCALED, at_loop(_CPU)),
    ("p50 ms", "p50_ms"),
    ("p99 ms", "p99_ms"),
    ("tailed: CPU us", _TAILED),
    (_SCALED, at_loop(_TAILED)),
    ("p50 ms", "tail_p50_ms"),
    ("p99 ms", "tail_p99_ms"),
    _LOOP,
    ("sync p50 ms", calibrated("sync_p50_ms")),
)
_IDLE: tuple[Column, ...] = (
    ("", "system"),
    ("processes", "processes"),
    ("CPU, % of a core", lambda result: round(100 * result["cpu_share"], 2)),
    ("wake-ups/s", "wakeups_per_s"),
    ("memory, MiB", "memory_mib"),
    _LOOP,
)
_THROUGHPUT: tuple[Column, ...] = (
    ("", title),
    ("CPU us", _CPU),
    (_SCALED, at_loop(_CPU)),
    ("client", "cpu_us_per_record_client"),
    ("bookies", "cpu_us_per_record_bookies"),
    ("per delivered", "cpu_us_per_delivered"),
    ("records/s", "records_per_s"),
    ("MB/s", "mb_per_s"),
    ("p50 ms", "p50_ms"),
    ("p99 ms", "p99_ms"),
    _LOOP,
)
_SIZES: tuple[Column, ...] = (
    ("bytes", setting("size")),
    ("append: CPU us", _CPU),
    (_SCALED, at_loop(_CPU)),
    ("MB/s", "mb_per_s"),
    ("records per entry", "records_per_entry"),
    ("read: CPU us", "read_cpu_us_per_record"),
    (_SCALED, at_loop("read_cpu_us_per_record")),
    ("MB/s", "read_mb_per_s"),
    _LOOP,
)
_WRITERS: tuple[Column, ...] = (
    ("writers", setting("writers")),
    ("CPU us", _CPU),
    (_SCALED, at_loop(_CPU)),
    ("records/s", "records_per_s"),
    ("records per entry", "records_per_entry"),
    ("p50 ms", "p50_ms"),
    ("p99 ms", "p99_ms"),
    _LOOP,
)
_COLD: tuple[Column, ...] = (
    ("bytes", setting("size")),
    ("CPU us", _CPU),
    (_SCALED, at_loop(_CPU)),
    ("MB/s", "mb_per_s"),
    ("the disk, MB/s", "disk_mb_per_s"),
    ("share", "share_of_disk"),
    _LOOP,
)

_KIB: Final = {"size": 1024}
QUESTIONS: Final = (
    Question("rate", (Run("rate", 175, has_peers=True),), _RATE),
    Question("idle", (Run("idle", 50, has_peers=True),), _IDLE),
    Question(
        "throughput",
        (
            Run("append", 15, {"mode": "many"}),
            Run("append", 15, {"mode": "single"}),
            Run("append", 20, {"mode": "callers"}),
            Run("ledger-add", 15, {"size": 100}),
            Run("ledger-add", 15, _KIB),
            Run("catchup", 20, {"shape": "batches"}),
            Run("catchup", 20, {"shape": "batches", **_KIB, "count": 400_000}),
            Run("catchup", 20, {"shape": "records"}),
            Run("fanout", 20, {"shape": "batches"}),
            Run("fanout", 20, {"shape": "records"}),
        ),
        _THROUGHPUT,
    ),
    Question("record-size", (Run("record-size", 40),), _SIZES),
    Question("writers", (Run("writers", 40),), _WRITERS),
    Question("cold-read", (Run("cold-read", 30), Run("cold-read", 30, _KIB)), _COLD),
    Question("mixed", (Run("mixed", 75),), facts="p50_ms|p99_ms|^ratio_p|^fast_|_records_per_s"),
    Question("segments", (Run("segments", 600, {"count": 1_000_000}),), facts="_ms$|bytes|calls"),
    Question(
        "micro-batches",
        (
            Run("micro-batches", 900, needs="pyspark"),
            Run("spark-stateful", 420, {"count": 50}, needs="pyspark"),
        ),
        facts="_ms$|batches|ledgers",
    ),
    Question("streams", (Run("streams", 75),), facts="^(?!count|seconds)"),
    Question("copy", (Run("copy", 30, _KIB),), facts="^cpu_us|mb_per_s|per_1000$"),
    Question(
        "many-ledgers",
        (Run("many-ledgers", 480),),
        facts="^(?!count|seconds|records_per_s|mb_per_s)",
    ),
    Question("restart", (Run("start", 25), Run("restart", 60, _KIB)), facts="ready|replay|journal"),
    Question(
        "security",
        (Run("security", 240), Run("security", 240, _KIB)),
        facts="_us$|_ratio$|_noise$|_us_per_s$",
    ),
    Question(
        "spark",
        (
            Run("spark-read", 180, needs="pyspark"),
            Run("spark-write", 300, needs="pyspark"),
            Run("spark-latency", 180, needs="pyspark"),
        ),
        facts="_s$|_ms$|ratio",
    ),
)


def minutes(runs: Iterable[Run], *, has_peers: bool) -> int:
    """Returns how long runs take in all. With peers, ours is run before and after them."""
    systems = 2 + len(PEERS) if has_peers else 1
    return round(sum(one.seconds * (systems if one.has_peers else 1) for one in runs) / 60)


def table(question: Question, results: Iterable[Result]) -> list[str]:
    """Returns the lines of a question's table in Markdown."""
    listed = list(results)
    present = [result for result in listed if "absent" not in result]
    absent = [f"{each.get('system', each['benchmark'])}: {each['absent']}" for each in listed
              if "absent" in each]  # fmt: skip
    lines = ["Not measured.", ""] if not present else []
    if present:
        lines = _rows(question.columns, present) if question.columns else _facts(question, present)
        lines += ["", *_notes(present)]
    return [*lines, *(f"Absent: {each}." for each in absent)]


def _rows(columns: Iterable[Column], results: list[Result]) -> list[str]:
    listed = list(columns)
    cells = [[value(result) if callable(value) else result.get(value) for _, value in listed]
             for result in results]  # fmt: skip
    kept = [at for at in range(len(listed)) if any(row[at] is not None for row in cells)]
    return _markdown([listed[at][0] for at in kept], [[row[at] for at in kept] for row in cells])


def _facts(question: Question, results: list[Result]) -> list[str]:
    """Figures of a benchmark have their own names: a row for each, a column for each result."""
    found = [dict(_flat(result)) for result in results]
    names = dict.fromkeys(name for each in found for name in each)
    kept = [name for name in names if re.search(question.facts, name)]
    rows = [[name.replace("_", " "), *(each.get(name) for each in found)] for name in kept]
    return _markdown(["", *map(title, results)], rows)


_OF_ALL: Final = {"benchmark", "settings", "versions", "machine", "calibration", "system", "about"}


def _flat(values: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            if name not in _OF_ALL:
                yield from _flat(value, f"{before}{name}: ")
        elif name not in _OF_ALL and value is not None:
            yield f"{before}{name}", value


def _markdown(head: list[str], rows: list[list[Any]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    return [*lines, *(f"| {' | '.join(map(_cell, row))} |" for row in rows)]


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def _notes(results: list[Result]) -> list[str]:
    """What the systems are, and how much the machine's speed varied."""
    lines = list(dict.fromkeys(f"{each['about']}." for each in results if "about" in each))
    loops, copies, syncs, drifts = (
        sorted(each["calibration"][name] for each in results)
        for name in ("loop_s", "copy_s", "sync_p50_ms", "drift")
    )
    lines.append(
        f"Calibration: loop {_span(loops)} s, copy {_span(copies)} s, sync {_span(syncs)} ms; "
        f"between two beside one result the loop differed by {drifts[-1] - 1:.0%} at most."
    )
    return lines


def _span(values: list[float]) -> str:
    return f"{values[0]:.3g}" if values[0] == values[-1] else f"{values[0]:.3g} to {values[-1]:.3g}"
