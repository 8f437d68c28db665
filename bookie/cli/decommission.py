"""`ledgerstream bookie decommission` and `replace`: empty a bookie, and follow how far that is.

The work is done by auto-recovery, wherever it runs; so a command that is interrupted changes
nothing, and the same command shows the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ledger.cli.output import (
    ClusterOption,
    OutputOption,
    PositiveSeconds,
    print_json,
    remark,
    usage,
)

if TYPE_CHECKING:
    from ledger.autorecovery.decommissioning import DecommissionProgress, Named
    from ledger.client import LedgerClient

_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()
_REPORT_EVERY_S = 10.0
_REASONS_SHOWN_MAX = 10
EXIT_HELD = 3
_Flag = Annotated[bool, Parameter(negative="")]


async def decommission(
    bookie: str,
    /,
    *,
    dry_run: _Flag = False,
    watch: _Flag = False,
    cancel: _Flag = False,
    patience_s: PositiveSeconds = 60.0,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> int:
    """Empty a bookie: it accepts no new entries from now on, all its copies are made at other
    bookies, and when no metadata names it any more its cookie is deleted. Then it can be stopped.

    Auto-recovery makes the copies, also after this command has ended. The same command shows the
    progress again. Exit code 3: the watch ended because nothing moved.

    Parameters
    ----------
    bookie
        Id of the bookie; it may be down.
    dry_run
        Show what is on the bookie, and change nothing.
    watch
        Show the progress until the bookie is empty.
    cancel
        End a decommission: the bookie accepts entries again. Copies made so far stay where they
        are.
    patience_s
        The watch ends when nothing moved for so long and each ledger left is held up by a reason.
    """
    return await _empty(
        bookie,
        None,
        dry_run=dry_run,
        watch=watch,
        cancel=cancel,
        patience_s=patience_s,
        cluster=cluster,
        output=output,
    )


async def replace(
    bookie: str,
    replacement: str,
    /,
    *,
    dry_run: _Flag = False,
    watch: _Flag = False,
    cancel: _Flag = False,
    patience_s: PositiveSeconds = 60.0,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> int:
    """Empty a bookie into another one, which gets all its copies. Otherwise as `decommission`.

    Parameters
    ----------
    bookie
        Id of the bookie to be emptied; it may be down.
    replacement
        Id of the bookie that takes its place; it must be writable. A copy for which it has one of
        the same entries already goes to another bookie.
    dry_run
        Show what is on the bookie, and change nothing.
    watch
        Show the progress until the bookie is empty.
    cancel
        End it: the bookie accepts entries again. Copies made so far stay where they are.
    patience_s
        The watch ends when nothing moved for so long and each ledger left is held up by a reason.
    """
    return await _empty(
        bookie,
        replacement,
        dry_run=dry_run,
        watch=watch,
        cancel=cancel,
        patience_s=patience_s,
        cluster=cluster,
        output=output,
    )


async def _empty(
    bookie: str,
    replacement: str | None,
    *,
    dry_run: bool,
    watch: bool,
    cancel: bool,
    patience_s: float,
    cluster: ClusterOption,
    output: OutputOption,
) -> int:
    from ledger.autorecovery import decommissioning as library
    from ledger.autorecovery.cluster_view import read_bookies
    from ledger.client import LedgerClient
    from ledger.metastore.decommissions import Decommissions

    async with LedgerClient.connect(cluster.uri, options=cluster.options) as client:
        decommissions = Decommissions(client.store)
        if cancel:
            is_cancelled = await decommissions.cancel(bookie)
            done = "is not emptied any more" if is_cancelled else "was not being emptied"
            output.report(
                {"bookie": bookie, "is_cancelled": is_cancelled}, f"bookie {bookie} {done}"
            )
            return 0
        if await decommissions.read(bookie) is None:
            with usage():
                await library.check_decommission(client, bookie, replacement)
        with _counting() as on_counted:
            named = await library.count_named(client, bookie, on_counted=on_counted)
        if dry_run:
            library.check_sizes(bookie, named, await read_bookies(client.bookies, decommissions))
            _show_named(bookie, named, output)
            return 0
        begun = await library.begin_decommission(client, bookie, named, replacement)
        if not watch:
            facts = {"bookie": bookie, "state": begun.state, **_facts_of(named)}
            text = f"bookie {bookie} is being emptied: {_words_of(named)} are on it. "
            text += f"`bookie decommission {bookie} --watch` shows the progress"
            output.report(facts, text)
            return 0
        return await _watch(client, bookie, named, patience_s, output)


def _facts_of(named: Named) -> dict[str, Any]:
    return {
        "ledgers": len(named.ledgers),
        "bytes": named.bytes,
        "unreadable_metadata": named.unreadable,
    }


def _words_of(named: Named) -> str:
    from ledger.units import size_text

    return f"{len(named.ledgers):,} ledgers with {size_text(named.bytes)}"


def _show_named(bookie: str, named: Named, output: OutputOption) -> None:
    facts = {"bookie": bookie, **_facts_of(named)}
    if output.json:
        print_json(facts)
    else:
        output.show(facts, title=f"bookie {bookie}")
        remark("nothing was changed (--dry-run)")


@contextmanager
def _counting() -> Iterator[Callable[[int, int], None] | None]:
    """Shows the count of a large cluster's ledgers on a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("looking for its ledgers"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("count", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


async def _watch(
    client: LedgerClient, bookie: str, named: Named, patience_s: float, output: OutputOption
) -> int:
    import trio

    from ledger.autorecovery.decommissioning import DecommissionWatch

    moved_s, left_before = trio.current_time(), -1
    now = None
    looks = DecommissionWatch(client, bookie, named).progress()
    with _bar(bookie) as show:
        async with aclosing(looks):
            async for now in looks:
                show(now)
                if now.ledgers_left != left_before:
                    moved_s, left_before = trio.current_time(), now.ledgers_left
                if now.is_held and trio.current_time() > moved_s + patience_s:
                    break
    assert now is not None, "at least one look was taken"
    reasons = list(now.reasons)
    if output.json:
        print_json(
            {
                "bookie": bookie,
                "state": now.state,
                "ledgers_left": now.ledgers_left,
                "bytes_left": now.bytes_left,
                "waits_for": reasons,
            }
        )
    elif now.state == "emptied":
        output.say(f"bookie {bookie} is empty, and has left the cluster: it can be stopped")
    elif now.state == "cancelled":
        output.say(f"the decommission of bookie {bookie} was cancelled")
    else:
        output.say(
            f"bookie {bookie} is not empty: {now.ledgers_left:,} ledgers are held up. "
            "Auto-recovery continues with each when its reason changes"
        )
        for reason in reasons[:_REASONS_SHOWN_MAX]:
            output.say(f"  {reason}")
        if len(reasons) > _REASONS_SHOWN_MAX:
            output.say(f"  and {len(reasons) - _REASONS_SHOWN_MAX} more (--json shows all)")
    return 0 if now.state == "emptied" else EXIT_HELD


@contextmanager
def _bar(bookie: str) -> Iterator[Callable[[DecommissionProgress], None]]:
    """Shows a bar on a terminal, and lines elsewhere; on stderr."""
    if not sys.stderr.isatty():
        yield _lines(bookie)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from ledger.shown_text import shown_text

    columns = (
        TextColumn("{task.fields[ledgers]:,} ledgers left"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[why]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("decommission", total=None, ledgers=0, why="")

        def show(now: DecommissionProgress) -> None:
            progress.update(
                task,
                completed=now.bytes_total - now.bytes_left,
                total=now.bytes_total,
                ledgers=now.ledgers_left,
                why=shown_text(f"waits: {next(iter(now.reasons))}") if now.reasons else "",
            )

        yield show


def _lines(bookie: str) -> Callable[[DecommissionProgress], None]:
    """Returns a function that prints a line every few seconds, and at once for each new reason."""
    import trio

    from ledger.units import duration_text, size_text

    began_s, said_s, known = trio.current_time(), -_REPORT_EVERY_S, set[str]()
    first: list[DecommissionProgress] = []

    def show(now: DecommissionProgress) -> None:
        nonlocal said_s
        first[:] = first or [now]
        for reason in list(now.reasons)[:_REASONS_SHOWN_MAX]:
            if reason not in known:
                known.add(reason)
                remark(f"bookie {bookie} waits: {reason}")
        at_s = trio.current_time()
        if at_s < said_s + _REPORT_EVERY_S:
            return
        said_s = at_s
        done = first[0].bytes_left - now.bytes_left
        rate = done / (at_s - began_s) if at_s > began_s else 0.0
        left = f", {duration_text(int(now.bytes_left / rate * 1000))} left" if rate > 0 else ""
        remark(
            f"bookie {bookie}: {now.ledgers_left:,} of {now.ledgers_total:,} ledgers and "
            f"{size_text(now.bytes_left)} of {size_text(now.bytes_total)} are left, "
            f"{size_text(int(rate))}/s{left}"
        )

    return show
