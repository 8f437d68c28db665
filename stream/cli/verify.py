"""`ledgerstream stream verify`: reads every copy of a stream, or of the entries in receipts.

The exit code separates damage from unknown results: 0 all copies are whole, 3 damage, 4 not every
copy could be read, 5 no damage, but fewer copies than required. It is the last of the modules that
add to the commands of `stream`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import stream.cli.adoption
import stream.cli.repair
import stream.cli.trash  # noqa: F401 - it adds commands to the same app
from ledger.cli.output import (
    ClusterOption,
    OutputOption,
    UsageError,
    examples,
    print_json,
    remark,
    usage,
)
from stream.cli.streams import app as app

if TYPE_CHECKING:
    from stream.cli.arguments import StreamName
    from stream.namespace import Namespace
    from stream.verify import OnProgress, StreamReport, VerifyProgress

EXIT_CODES = {"WHOLE": 0, "DAMAGE": 3, "DOUBT": 4, "REDUCED": 5}
"""By the name of the verdict: its class is loaded when a stream is verified."""

_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()
_RECEIPTS_AT_ONCE = 8
_FAULTS_SHOWN_MAX = 50
_REPORTS_MAX = 1000
_REPORT_EVERY_S = 10.0
_WORDS = {
    "WHOLE": "whole: every copy there should be is there, and equal to the others",
    "REDUCED": (
        "fewer copies than there should be; an ack quorum holds all of it, nothing is lost"
    ),
    "DOUBT": "in doubt: not every copy could be looked at; try again with all bookies up",
    "DAMAGE": "DAMAGED: see the faults; copies were lost or are wrong",
}


@app.command(
    help_epilogue=examples(
        "ledgerstream stream verify demo/clicks",
        "ledgerstream stream verify demo/clicks --receipt-file receipts.jsonl",
    )
)
async def verify(
    stream: str,
    /,
    *,
    receipt: str | None = None,
    receipt_file: Path | None = None,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> int:
    """Read every copy of a stream at every bookie, and compare them. Changes nothing.

    Exit code 0: all whole; 3: damage; 4: in doubt; 5: fewer copies than there should be.

    Parameters
    ----------
    stream
        NAMESPACE/STREAM.
    receipt
        Only the entry of this receipt (as `append --receipts` prints it), against what it says.
    receipt_file
        The same for all receipts in a file, one on each line.
    """
    from stream.cli.arguments import parse_stream
    from stream.cli.connecting import connect
    from stream.core.receipt import Receipt

    name = parse_stream(stream)
    if receipt is not None and receipt_file is not None:
        raise UsageError("--receipt and --receipt-file: use one of them")
    with usage():
        parsed = None if receipt is None else Receipt.from_json(receipt)
    async with connect(cluster, name) as namespace:
        if receipt_file is not None:
            return await _verify_file(namespace, name, receipt_file, output)
        with _progress() as on_progress:
            report = await namespace.verify(
                name.stream,
                receipt=parsed,
                on_progress=on_progress,
            )
    _show(name, report, output)
    return EXIT_CODES[report.verdict.name]


def _show(name: StreamName, report: StreamReport, output: OutputOption) -> None:
    from ledger.units import size_text

    if output.json:
        print_json(report.as_dict() | {"stream": str(name)})
        return
    facts: dict[str, Any] = {
        "stream": str(name),
        "segments": len(report.segments),
        "entries": report.entries,
        "size": size_text(report.payload_bytes),
        "copies": {state.value: count for state, count in report.copies.items()},
        "lost_entries": report.lost_entries,
    }
    output.show(facts, title=f"verified {name}")
    faults = list(_faults(report))
    if faults:
        output.show_list(faults[:_FAULTS_SHOWN_MAX], title="faults", none="")
        if len(faults) > _FAULTS_SHOWN_MAX:
            remark(f"{len(faults) - _FAULTS_SHOWN_MAX} more faults: --json prints them")
    remark(f"{name} is {_WORDS[report.verdict.name]}")


def _faults(report: StreamReport) -> Iterator[dict[str, Any]]:
    for segment in report.segments:
        where = {"stream": segment.stream, "segment": segment.segment, "ledger": segment.ledger_id}
        whole: dict[str, Any] = {"entries": "all", "bookie": None} | where
        if segment.problem:
            yield {"state": "damage"} | whole | {"detail": segment.problem}
        if segment.ledger is None:
            continue
        for doubt in segment.ledger.doubts:
            yield {"state": "doubt"} | whole | {"detail": doubt}
        for fault in segment.ledger.faults:
            yield {
                "state": fault.state.value,
                "entries": f"{fault.first_entry}..{fault.last_entry}",
                "bookie": fault.bookie,
                **where,
                "detail": fault.detail,
            }


async def _verify_file(
    namespace: Namespace, name: StreamName, file: Path, output: OutputOption
) -> int:
    """Verifies every receipt of the file; shows the reports of those that are not whole."""
    import trio

    from ledger.copy_reader import SilentBookies
    from ledger.core.copies import CopyVerdict
    from stream.core.position import Truncated
    from stream.core.receipt import Receipt
    from stream.verify import verify_stream

    lines = (await trio.Path(file).read_text("utf-8", "surrogateescape")).splitlines()
    receipts = [Receipt.from_json(line) for line in lines if line.strip()]
    counts = dict.fromkeys(CopyVerdict, 0)
    truncated, silent = 0, SilentBookies()
    reports: list[StreamReport] = []
    waiting = iter(receipts)

    async def take_turns() -> None:
        nonlocal truncated
        for receipt in waiting:
            try:
                report = await verify_stream(
                    namespace.scope, name.stream, receipt=receipt, silent=silent
                )
            except Truncated:
                truncated += 1
                continue
            counts[report.verdict] += 1
            if report.verdict is not CopyVerdict.WHOLE and len(reports) < _REPORTS_MAX:
                reports.append(report)

    async with trio.open_nursery() as nursery:
        for _ in range(min(_RECEIPTS_AT_ONCE, len(receipts))):
            nursery.start_soon(take_turns)
    verdict = max((v for v, count in counts.items() if count), default=CopyVerdict.WHOLE)
    facts: dict[str, Any] = {
        "stream": str(name),
        "receipts": len(receipts),
        **{v.name.lower(): count for v, count in counts.items()},
        "truncated": truncated,
        "verdict": verdict.name.lower(),
    }
    if output.json:
        print_json(facts | {"reports": [report.as_dict() for report in reports]})
    else:
        output.show(facts, title=f"verified receipts of {name}")
        faults = [fault for report in reports for fault in _faults(report)]
        if faults:
            output.show_list(faults[:_FAULTS_SHOWN_MAX], title="faults", none="")
        remark(f"what they name is {_WORDS[verdict.name]}")
    return EXIT_CODES[verdict.name]


@contextmanager
def _progress() -> Iterator[OnProgress]:
    """Shows a bar on a terminal, and a line every few seconds elsewhere; on stderr."""
    from ledger.shown_text import shown_text
    from ledger.units import size_text

    if not sys.stderr.isatty():
        yield _report_to(remark)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.fields[stream]}:", markup=False),
        TextColumn("{task.completed} of {task.total} segments"),
        BarColumn(),
        TextColumn("{task.fields[entries]:,} entries, {task.fields[size]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("verify", total=None, stream="", entries=0, size="0 B")

        def on_progress(now: VerifyProgress) -> None:
            progress.update(
                task,
                completed=now.segments_done,
                total=now.segments,
                stream=shown_text(now.stream),
                entries=now.entries,
                size=size_text(now.payload_bytes),
            )

        yield on_progress


def _report_to(write: Callable[[str], None]) -> OnProgress:
    import trio

    from ledger.units import size_text

    reported_s = trio.current_time()

    def on_progress(now: VerifyProgress) -> None:
        nonlocal reported_s
        if trio.current_time() - reported_s >= _REPORT_EVERY_S:
            reported_s = trio.current_time()
            write(
                f"{now.stream}: {now.segments_done} of {now.segments} segments, "
                f"{now.entries} entries, {size_text(now.payload_bytes)}"
            )

    return on_progress
