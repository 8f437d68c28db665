"""Writes the tables of docs/performance.md and its plot: `make performance`.

Measures what the file of results lacks, each benchmark once; a run that was interrupted continues
where it ended. To measure again, delete the file or its lines.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import App, Parameter

from benchmarks.__main__ import run_planned
from benchmarks.charts import Chart, Line, svg
from benchmarks.children import ROOT
from benchmarks.cluster import stop_all_when_terminated
from benchmarks.questions import QUESTIONS, Question, Result, Run, minutes, table
from benchmarks.rate import RATES
from benchmarks.settings import Settings

DOCUMENT: Final = ROOT / "docs" / "performance.md"
PLOT: Final = ROOT / "docs" / "performance.svg"
RESULTS: Final = ROOT / "build" / "performance.jsonl"
_IMAGE: Final = "\n![Latency and CPU by rate, of ledgerstream and its peers](performance.svg)"
_END: Final = "<!-- end -->"


def key_of(question: Question, run: Run) -> str:
    return f"{question.marker}: {run.title}"


def read(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Returns results by the key of their run."""
    found: dict[str, list[dict[str, Any]]] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            result = json.loads(line)
            found.setdefault(result.pop("run"), []).append(result)
    return found


def measure(path: Path, questions: Iterable[Question], settings: Settings) -> None:
    """Runs what the file lacks. The results of a run are added together, when it has ended."""
    has = read(path)
    todo = [(one, run) for one in questions for run in one.runs if key_of(one, run) not in has]
    path.parent.mkdir(parents=True, exist_ok=True)
    for number, (question, run) in enumerate(todo):
        left = minutes([each for _, each in todo[number:]], has_peers=settings.peers)
        sys.stderr.write(f"[{number + 1}/{len(todo)}] {run.title}: {left} min to go\n")
        taken: list[dict[str, Any]] = []
        run_planned(run, settings, _taker(taken))
        lines = [json.dumps({"run": key_of(question, run), **result}) + "\n" for result in taken]
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(lines))


def _taker(taken: list[dict[str, Any]]) -> Callable[[Run, dict[str, Any]], None]:
    def take(_: Run, result: dict[str, Any]) -> None:
        sys.stderr.write(f"  {_short(result)}\n")
        taken.append(result)

    return take


def _short(result: Result) -> str:
    if "absent" in result:
        return f"{result.get('system', result['benchmark'])}: absent: {result['absent']}"
    chosen = result["settings"]
    return (
        f"{result.get('system', result['benchmark'])} rate={chosen['rate']} size={chosen['size']}:"
        f" {result['cpu_us_per_record']} us, p50 {result.get('p50_ms')} ms"
    )


def with_tables(text: str, results: dict[str, list[dict[str, Any]]]) -> str:
    """Returns the document with the tables of these results; others stay as they are."""
    for question in QUESTIONS:
        begin = f"<!-- table: {question.marker} -->\n"
        assert text.count(begin) == 1, f"docs/performance.md has no marker for {question.marker}"
        found = [each for run in question.runs for each in results.get(key_of(question, run), ())]
        if found:
            before, after = text.split(begin)
            _, after = after.split(_END, 1)
            lines = table(question, found) + ([_IMAGE] if question.marker == "rate" else [])
            text = before + begin + "\n".join(lines) + "\n" + _END + after
    return text


def plot(results: Iterable[Result]) -> str:
    """Returns latency and cost against the rate, a line for each system."""
    listed = [result for result in results if "absent" not in result]
    charts = [
        ("CPU of all processes per record appended, us", "cpu_us_per_record"),
        ("CPU of all processes per record appended and tailed, us", "tailed_cpu_us_per_record"),
        ("median latency of an append, ms", "p50_ms"),
        ("median latency of a tail, ms", "tail_p50_ms"),
    ]
    systems = list(dict.fromkeys(result["system"] for result in listed))
    return svg(
        [
            Chart(
                f"{name}, by records per second",
                RATES,
                [
                    Line(each, [_mean(listed, each, rate, key) for rate in RATES])
                    for each in systems
                ],
                lambda rate: f"{rate:,.0f}/s",
                is_log=True,
            )
            for name, key in charts
        ]
    )


def _mean(results: Sequence[Result], system: str, rate: int, key: str) -> float | None:
    """Returns the mean of a system's runs; ours has two, before and after its peers."""
    values = [
        result[key] for result in results
        if result["system"] == system and result["settings"]["rate"] == rate and key in result
    ]  # fmt: skip
    return sum(values) / len(values) if values else None


Markers = Annotated[tuple[str, ...], Parameter(consume_multiple=True)]


def document(*, results: Path = RESULTS, only: Markers = (), peers: bool = True) -> None:
    """Measure what is not measured yet, and write docs/performance.md and its plot.

    All of it takes about 90 minutes on a quiet machine of two cores, 70 of them without peers. What
    is next and how long the rest takes is printed.

    Parameters
    ----------
    results
        The file of results, a JSON object a line; what is in it is not measured again.
    only
        Markers of tables, such as rate and idle: only these are measured.
    peers
        Whether Redis, NATS, Kafka and Apache BookKeeper are run, too, where they are installed or
        fetched (`make peers`).
    """
    chosen = [question for question in QUESTIONS if not only or question.marker in only]
    measure(results, chosen, replace(Settings(), peers=peers))
    found = read(results)
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text(encoding="utf-8"), found), encoding="utf-8")
    (rate,) = (question for question in QUESTIONS if question.marker == "rate")
    if of_rate := found.get(key_of(rate, rate.runs[0])):
        PLOT.write_text(plot(of_rate), encoding="utf-8")


def main(tokens: Sequence[str] | None = None) -> None:
    app = App(name="python -m benchmarks.document", version_flags=[])
    app.default(document)
    app(sys.argv[1:] if tokens is None else list(tokens))


if __name__ == "__main__":
    stop_all_when_terminated()
    main()
