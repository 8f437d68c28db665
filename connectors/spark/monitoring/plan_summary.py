"""Prints what a batch is going to read, in one line on stderr of the process that plans it.

Prints nothing unless the option `progress` asks for it, or the driver's stderr is a terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from connectors.spark.core.planner import Task
from connectors.spark.options.options import TERMINAL_VARIABLE, ReadOptions
from ledger.shown_text import shown_text
from ledger.units import size_text


def print_plan(options: ReadOptions, tasks: Sequence[Task]) -> None:
    """Prints one line on stderr: how much a batch is going to read, if `progress` allows it."""
    is_terminal = bool(os.environ.get(TERMINAL_VARIABLE)) or sys.stderr.isatty()
    if options.progress == "true" or (options.progress == "auto" and is_terminal):
        print(shown_text(plan_text(options, tasks)), file=sys.stderr, flush=True)


def plan_text(options: ReadOptions, tasks: Sequence[Task]) -> str:
    """Returns "ledgerstream: 3 streams, 12 segments, 512 MiB in 16 tasks: demo/clicks-*"."""
    ranges = [each for task in tasks for each in task]
    streams = {each.stream for each in ranges}
    segments = {(each.stream, each.segment.number) for each in ranges}
    nbytes = sum(each.nbytes for each in ranges)
    name = str(options.selection)
    parts = [count_text(len(streams), "stream"), count_text(len(segments), "segment")]
    size = f"{size_text(nbytes)} in {count_text(len(tasks), 'task')}"
    return (
        f"ledgerstream: {', '.join([*parts, size])}: "
        f"{name if len(name) <= 60 else name[:57] + '...'}"
    )


def count_text(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
