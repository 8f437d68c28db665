"""`ledgerstream bookie rebalance`: moves copies from full bookies to empty ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter, validators

from ledger.cli.output import (
    AtLeastOne,
    AtLeastZero,
    ClusterOption,
    OutputOption,
    print_json,
    remark,
    usage,
)

if TYPE_CHECKING:
    from ledger.autorecovery.rebalancing import RebalanceProgress
    from ledger.client import LedgerClient
    from ledger.core.autorecovery.plan import Move
    from ledger.core.autorecovery.rebalance import Balance
    from ledger.core.metadata import LedgerMetadata

_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()
_MIB = 1024 * 1024
_MOVES_SHOWN_MAX = 20
_REPORT_EVERY_S = 10.0
EXIT_PART = 3


async def rebalance(
    *,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    tolerance: Annotated[float, Parameter(validator=validators.Number(gt=0, lte=10))] = 0.05,
    bytes_per_s: AtLeastZero = 64 * _MIB,
    ledgers_at_once: AtLeastOne = 8,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> int:
    """Move copies of closed ledgers from full bookies to empty ones, after bookies were added.

    This command makes the copies itself; Ctrl-C ends it at any time, and the next one continues.
    Each copy is made before metadata names it, the placement of ledgers is kept, and bookies remove
    copies that metadata names no more in their own time. Exit code 3: some copies could not be
    moved.

    Parameters
    ----------
    dry_run
        Show what would move, and change nothing.
    tolerance
        How far above its share a bookie may be; 0.05 is 5 %.
    bytes_per_s
        Bytes of entries copied per second; 0: no limit.
    ledgers_at_once
        Number of ledgers that are copied at the same time.
    """
    from ledger.autorecovery.rebalancing import balance_of
    from ledger.client import LedgerClient

    shown = _Moves(None if output.json else _MOVES_SHOWN_MAX)
    async with LedgerClient.connect(cluster.uri, options=cluster.options) as client:
        with usage():
            balance = await balance_of(client, tolerance=tolerance)
        before = dict(balance.loads)
        done = await _moved(
            client, balance, shown, bytes_per_s, ledgers_at_once, is_dry_run=dry_run
        )
    _show(done, shown.rows, before, balance.loads, output, dry_run=dry_run)
    return EXIT_PART if done.copies_failed else 0


class _Moves:
    """The first moves that were proposed, as rows of a table."""

    def __init__(self, count_max: int | None) -> None:
        self.rows: list[dict[str, Any]] = []
        self._count_max = count_max

    def add(self, metadata: LedgerMetadata, move: Move) -> None:
        if self._count_max is None or len(self.rows) < self._count_max:
            self.rows.append(
                {
                    "ledger": metadata.ledger_id,
                    "first_entry": move.first_entry_id,
                    "from": move.old,
                    "to": move.new,
                }
            )


async def _moved(
    client: LedgerClient,
    balance: Balance,
    shown: _Moves,
    bytes_per_s: int,
    ledgers_at_once: int,
    *,
    is_dry_run: bool,
) -> RebalanceProgress:
    from ledger.autorecovery.copier import Copier, CopierOptions
    from ledger.autorecovery.rebalancing import rebalance as rebalance_ledgers

    if is_dry_run:
        return await rebalance_ledgers(client, balance, None, owner="", on_move=shown.add)
    options = CopierOptions(bytes_per_s=bytes_per_s, ledgers_at_once=ledgers_at_once)
    with _progress() as on_progress:
        async with Copier(client, options) as copier:
            return await rebalance_ledgers(
                client,
                balance,
                copier,
                owner=f"rebalance-{client.rng.getrandbits(32):08x}",
                ledgers_at_once=ledgers_at_once,
                on_progress=on_progress,
            )


def _show(
    done: RebalanceProgress,
    moves: list[dict[str, Any]],
    before: dict[str, int],
    after: dict[str, int],
    output: OutputOption,
    *,
    dry_run: bool,
) -> None:
    from ledger.units import size_text

    loads = [
        {"bookie": one, "bytes_before": before[one], "bytes_after": after[one]}
        for one in sorted(after)
    ]
    if output.json:
        facts = {
            "is_dry_run": dry_run,
            "copies_moved": done.copies_moved,
            "bytes_moved": done.bytes_moved,
            "copies_failed": done.copies_failed,
            "skew_before": round(done.skew_before, 4),
            "skew_after": round(done.skew, 4),
        }
        print_json(facts | {"bookies": loads, "moves": moves, "problems": done.problems})
        return
    if moves:
        output.show_list(moves, title="moves", none="")
        if done.copies_moved > len(moves):
            remark(f"and {done.copies_moved - len(moves):,} more (--json shows all)")
    output.show_list(loads, title="bookies, payload by metadata", none="")
    verb = "would move" if dry_run else "moved"
    remark(
        f"{done.copies_moved:,} copies with {size_text(done.bytes_moved)} {verb}; the fullest "
        f"bookie has {done.skew:.2f} times its share, before {done.skew_before:.2f}"
    )
    for problem in done.problems[:_MOVES_SHOWN_MAX]:
        remark(problem)


@contextmanager
def _progress() -> Iterator[Callable[[RebalanceProgress], None]]:
    """Shows a bar on a terminal, and a line every few seconds elsewhere; on stderr."""
    from ledger.units import size_text

    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (
            TextColumn("ledgers"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[moved]} moved, fullest {task.fields[skew]:.2f}"),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("rebalance", total=None, moved="0 B", skew=1.0)

            def show(now: RebalanceProgress) -> None:
                moved = size_text(now.bytes_moved)
                progress.update(
                    task,
                    completed=now.ledgers_seen,
                    total=now.ledgers,
                    moved=moved,
                    skew=now.skew,
                )

            yield show
        return
    import trio

    said_s = trio.current_time()

    def say(now: RebalanceProgress) -> None:
        nonlocal said_s
        if trio.current_time() >= said_s + _REPORT_EVERY_S:
            said_s = trio.current_time()
            remark(
                f"{now.ledgers_seen:,} of {now.ledgers:,} ledgers, {size_text(now.bytes_moved)} "
                f"moved, the fullest bookie has {now.skew:.2f} times its share"
            )

    yield say
