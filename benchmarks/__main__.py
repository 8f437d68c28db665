"""Runs benchmarks: `python -m benchmarks NAME [options]` or `ledgerstream bench NAME [options]`."""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import trio
from cyclopts import App

from benchmarks.calibration import around, calibrate
from benchmarks.children import ChildEnded, early_end
from benchmarks.cluster import (
    RunningCluster,
    running_cluster,
    stop_all_when_terminated,
    temporary_directory,
)
from benchmarks.questions import QUESTIONS, Run, minutes
from benchmarks.report import Measured, result_of, show
from benchmarks.settings import Settings
from benchmarks.systems import programs
from benchmarks.systems import system as systems

Name = Literal[
    "rate", "idle", "ledger-add", "append", "fanout", "catchup", "record-size", "writers",
    "cold-read", "streams", "start", "restart", "many-ledgers", "mixed", "copy", "spark-read",
    "spark-write", "spark-latency", "security", "segments", "micro-batches",
    "spark-stateful", "all",
]  # fmt: skip
_OF_SYSTEMS: tuple[Name, ...] = ("rate", "idle")
"""Benchmarks of ours and of its peers."""
_OF_SEVERAL: tuple[Name, ...] = ("record-size", "writers", "segments")
"""Benchmarks that report several results."""
_OF_THEIR_OWN: tuple[Name, ...] = ("start", "restart", "many-ledgers", "security", "cold-read")
"""Benchmarks that start processes themselves."""
_WITH_JANITOR: tuple[Name, ...] = ("micro-batches", "spark-stateful")
_RATES: dict[Name, int] = {"fanout": 20_000, "mixed": 1000}

Report = Callable[[Settings, Measured], None]
Show = Callable[[dict[str, Any]], None]


def run(name: Name, settings: Settings, show_result: Show) -> None:
    """Runs one benchmark; shows each result as soon as it is there, with its calibration."""
    if not settings.rate:
        settings = replace(settings, rate=_RATES.get(name, 0))
    disk = settings.dir or Path(tempfile.gettempdir())
    before = calibrate(disk)
    facts: dict[str, Any] = {}

    def report(chosen: Settings, found: Measured) -> None:
        nonlocal before
        after = calibrate(disk)
        show_result(result_of(name, chosen, found, disk, around(before, after)) | facts)
        before = after

    module = importlib.import_module("benchmarks." + name.replace("-", "_"))
    body: Callable[..., Any] = getattr(module, name.replace("-", "_"))
    if name in _OF_THEIR_OWN:
        report(settings, body(settings))
        return
    if name not in _OF_SYSTEMS:
        with running_cluster(
            settings.bookies, settings.dir, has_janitor=name in _WITH_JANITOR
        ) as cluster:
            _run_on(cluster, name, settings, body, report)
        return
    peers: Iterable[systems.Name] = (*systems.PEERS, systems.OURS) if settings.peers else ()
    for each in (systems.OURS, *peers):
        if reason := systems.system(each).missing():
            show_result({"benchmark": name, "system": each, "absent": reason})
            continue
        facts = {"system": each, "about": about(each)}
        with (
            temporary_directory(settings.dir) as directory,
            systems.system(each).running(directory) as servers,
        ):
            _until_the_end(name, body, settings, servers, report)


def about(name: systems.Name) -> str:
    """Returns what a system is: its version, its copies, and when it acknowledges."""
    text = systems.system(name).ABOUT
    return text if name == systems.OURS else text.format(version=programs.version(name))


def _run_on(
    cluster: RunningCluster, name: Name, settings: Settings, body: Callable[..., Any],
    report: Report,
) -> None:  # fmt: skip
    if name in _OF_SEVERAL:
        _until_the_end(name, body, settings, cluster, report)
        return
    found = _until_the_end(name, body, settings, cluster)
    ended = cluster.ended_bookies()
    more = {**(found.more or {}), "bookies_ended": len(ended)} if ended else found.more
    report(settings, replace(found, more=more))


def _until_the_end(name: Name, body: Callable[..., Awaitable[Any]], *arguments: object) -> Any:
    try:
        return trio.run(body, *arguments)
    except (ChildEnded, BaseExceptionGroup) as error:
        if (ended_early := early_end(error)) is None:
            raise
        raise SystemExit(f"benchmark {name}: {ended_early}") from error


def run_all(settings: Settings, show_result: Callable[[Run, dict[str, Any]], None]) -> None:
    """Runs the benchmarks of all questions; says on stderr what is next and how long it takes."""
    runs = [one for question in QUESTIONS for one in question.runs]
    for number, one in enumerate(runs):
        left = minutes(runs[number:], has_peers=settings.peers)
        sys.stderr.write(f"[{number + 1}/{len(runs)}] {one.title}; {left} min to go\n")
        run_planned(one, settings, show_result)


def run_planned(
    one: Run, settings: Settings, show_result: Callable[[Run, dict[str, Any]], None]
) -> None:
    """Runs one of a question's benchmarks, unless it needs what is not installed."""
    if one.needs and importlib.util.find_spec(one.needs) is None:
        reason = f"{one.needs} is not installed"
        show_result(one, {"benchmark": one.name, "absent": reason})
        return
    chosen = replace(settings, **one.changes)
    run(one.name, chosen, lambda result: show_result(one, result))  # type: ignore[arg-type]


def bench(name: Name, *, settings: Settings | None = None) -> None:
    """Run a benchmark on a cluster of its own: real processes, fsync on.

    Each result has a calibration of the machine beside it: CPU seconds of a loop in Python and of
    copying a gigabyte, and the median of a synced write of 4 KiB.

    Parameters
    ----------
    name
        rate: appends at fixed rates, alone and with a reader; --peers. idle: CPU, wake-ups and
        memory while nothing happens; --peers. ledger-add: entries to a ledger. append: records to a
        stream. fanout: to a hundred readers. catchup: reading a whole stream. cold-read: the same,
        from the disk. record-size: appending and reading records of 10 bytes to 1 MB. writers: one
        writer to a thousand, each of a stream. streams: many streams, some written at once.
        start: until "ready". restart: a killed bookie with 1 GiB in its journal, until "ready".
        many-ledgers: a bookie with a million ledgers, compared with one with a thousand.
        mixed: writes, a tail and two catch-up readers together, compared with writes alone.
        copy: a ledger of two bookies to the third; with --rate, appends beside it.
        security: what TLS, authentication and permissions cost, compared with a cluster in clear.
        segments: streams of a hundred, ten thousand and, with --count 1000000, a million segments.
        micro-batches: a sink and a source after 20,000 micro-batches, and after none.
        spark-read: a stream into Spark, and Parquet. spark-write: rows of Spark into a stream, and
        into Parquet. spark-latency: one record through a micro-batch. spark-stateful: a
        query with 200 shuffle partitions after 500 micro-batches, and after none.
        all: every one of them, as docs/performance.md reports them, in about 70 minutes, or 90
        with --peers, on a quiet machine of two cores.
    """
    chosen = settings or Settings()
    if chosen.one_at_a_time:
        chosen = replace(chosen, mode="single", one_at_a_time=False)
    if name == "all":
        run_all(chosen, lambda _, result: show(result, is_json=chosen.json))
    else:
        run(name, chosen, lambda result: show(result, is_json=chosen.json))


def main(tokens: Sequence[str] | None = None) -> None:
    app = App(name="ledgerstream bench", result_action="return_value", version_flags=[])
    app.default(bench)
    app(sys.argv[1:] if tokens is None else list(tokens))


if __name__ == "__main__":
    stop_all_when_terminated()
    main()
