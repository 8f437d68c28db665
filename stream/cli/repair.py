"""`ledgerstream stream repair`: mends a stream whose newest segment was closed at a wrong end."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from ledger.cli.output import ClusterOption, OutputOption, examples, remark
from stream.cli.streams import app

_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()


@app.command(
    help_epilogue=examples(
        "ledgerstream stream repair demo/clicks --dry-run",
        "ledgerstream stream repair demo/clicks",
    )
)
async def repair(
    stream: str,
    /,
    *,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    end: int | None = None,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Mend a stream that cannot be appended to or read, because its last ledger ends wrongly.

    All bookies of that ledger have to answer. Where doubt remains, nothing is changed.

    Parameters
    ----------
    stream
        NAMESPACE/STREAM.
    dry_run
        Show what would be changed, and change nothing.
    end
        The last entry that stays: for a ledger with many entries behind the first one that no
        bookie holds. The error names it.
    """
    from stream.cli.arguments import parse_stream
    from stream.cli.connecting import connect
    from stream.repair import repair_stream

    name = parse_stream(stream)
    async with connect(cluster, name) as namespace:
        found = await repair_stream(namespace.scope, name.stream, end=end, is_dry_run=dry_run)
    if found is None:
        remark(f"{name}: there is nothing to repair")
        return
    plan = found.ledger
    facts = {
        "stream": str(name),
        "segment": found.segment,
        "ledger_id": plan.stored.ledger_id,
        "ledger_state": plan.stored.state.name.lower(),
        "last_entry_stored": plan.stored.last_entry_id if plan.stored.is_closed else None,
        "last_entry": plan.repaired.last_entry_id,
        "bytes": plan.repaired.length,
        "next_sequence": found.next_sequence,
        "entries_missing": plan.hole.missing,
        "entries_behind": plan.hole.behind,
        "is_changed": not dry_run,
    }
    output.show(facts, title=f"repair of {name}")
    remark(
        f"{name}: nothing was changed; run it again without --dry-run"
        if dry_run
        else f"{name}: mended; the next writer continues after record {found.next_sequence - 1}"
    )
