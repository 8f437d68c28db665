"""`ledgerstream ledger check`: grades how well ledgers keep their placement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ledger.cli.output import (
    AtLeastZero,
    ClusterOption,
    OutputOption,
    UsageError,
    print_json,
    remark,
)

if TYPE_CHECKING:
    from ledger.core.placement.grading import GradedLedger, PlacementReport

_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()
_CHUNK = 1000
EXIT_FAIL = 5
"""A ledger has fewer racks, regions or zones than its placement requires."""


async def check(
    *ledger_ids: AtLeastZero,
    placement: Annotated[bool, Parameter(negative="")] = False,
    lines_max: AtLeastZero = 20,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> int:
    """Check ledgers by their metadata. With --placement: grade how well the bookies of each ledger
    keep its placement policy. strict: in full; soft: what is required, less than what is wanted;
    fail: less than what is required. Exit code 5: a ledger fails.

    Parameters
    ----------
    ledger_ids
        The ledgers; without any, all of the cluster.
    placement
        Check placement. There is no other check yet.
    lines_max
        Largest number of ledgers to list, the worst first.
    """
    from ledger.client import LedgerClient
    from ledger.core.placement.grading import PlacementReport, grade_ledger
    from ledger.errors import NoSuchLedger
    from ledger.runtime.concurrency import map_bounded

    if not placement:
        raise UsageError("say what to check: --placement")
    report = PlacementReport(lines_max)
    async with LedgerClient.connect(cluster.uri, options=cluster.options) as client:
        topology = await client.bookies.topology()

        async def graded(ledger_id: int) -> GradedLedger | None:
            try:
                return grade_ledger(await client.ledger_metadata(ledger_id), topology)
            except NoSuchLedger:
                if ledger_ids:
                    raise
                return None  # deleted since the listing

        wanted = list(dict.fromkeys(ledger_ids)) or await client.list_ledgers()
        for first in range(0, len(wanted), _CHUNK):
            for one in await map_bounded(wanted[first : first + _CHUNK], graded):
                if one is not None:
                    report.add(one)
    report.cut()
    return _show(report, output)


def _show(report: PlacementReport, output: OutputOption) -> int:
    from ledger.core.placement.policies import Grade

    counts: dict[str, Any] = {grade.value: count for grade, count in report.counts.items()}
    facts = {"ledgers": sum(counts.values())} | counts
    rows = [_row(one) for one in report.worst]
    if output.json:
        print_json(facts | {"worst": rows})
    else:
        output.show(facts, title="placement")
        if rows:
            output.show_list(rows, title="the worst", none="")
        left = counts["fail"] + counts["soft"] - len(rows)
        if left:
            remark(f"{left} more are soft or fail (--lines-max)")
    return EXIT_FAIL if report.counts[Grade.FAIL] else 0


def _row(one: GradedLedger) -> dict[str, Any]:
    return {
        "ledger_id": one.ledger_id,
        "grade": one.grade.value,
        "placement": None if one.policy is None else one.policy.encode().decode(),
        "first_entry": one.first_entry_id,
        "reason": one.reason,
    }
