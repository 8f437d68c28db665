"""`ledgerstream autorecovery`: the healing of ledgers that lack copies, in the whole cluster.

The commands act on the metadata alone, which Apache's tools and processes read and write as well.
A damaged node is named, and hides nothing of the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter, validators

from ledger.cli.output import (
    EXIT_ERROR,
    ClusterOption,
    OutputOption,
    examples,
    print_json,
    remark,
    time_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from ledger.metastore.base import MetadataStore
    from ledger.metastore.election import AuditorElection
    from ledger.metastore.underreplication import UnderreplicationStore

app = App(
    name="autorecovery",
    help="Run, status, enable, disable, list, delay, audit.",
    help_epilogue=examples("ledgerstream autorecovery status"),
)
app.command(
    "ledger.cli.autorecovery_run:run",
    name="run",
    help_epilogue=examples("ledgerstream autorecovery run --name healer-1"),
)

_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()
_DELAY_S_MAX = 999_999_999

Seconds = Annotated[int, Parameter(validator=validators.Number(gte=0, lte=_DELAY_S_MAX))]


class _Opened:
    """What the commands use of a cluster."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        from ledger.metastore.election import AuditorElection
        from ledger.metastore.sqlite.store import wall_clock_ms
        from ledger.metastore.underreplication import UnderreplicationStore

        self.store = store
        self.marks: UnderreplicationStore = UnderreplicationStore(store, root, wall_clock_ms)
        self.election: AuditorElection = AuditorElection(store, root)


def _opened(cluster: ClusterOption) -> AbstractAsyncContextManager[_Opened]:
    from contextlib import asynccontextmanager

    from ledger.metastore import ClusterAddress, open_metadata

    @asynccontextmanager
    async def opened() -> AsyncIterator[_Opened]:
        address = ClusterAddress.parse(cluster.uri)
        async with open_metadata(address, cluster.options) as store:
            yield _Opened(store, address.root)

    return opened()


async def _or_damaged(read: Callable[[], Awaitable[Any]], damaged: list[str]) -> Any:
    """Returns what `read` returns; None for a damaged node, which is added to `damaged`."""
    from ledger.errors import MetadataCorrupt

    try:
        return await read()
    except MetadataCorrupt as error:
        damaged.append(str(error))
        return None


def _exit_code(damaged: list[str]) -> int:
    for one in damaged:
        remark(f"damaged: {one}")
    return EXIT_ERROR if damaged else 0


@app.command(
    help_epilogue=examples(
        "ledgerstream autorecovery status", "ledgerstream autorecovery status --json"
    )
)
async def status(*, cluster: ClusterOption = _CLUSTER, output: OutputOption = _OUTPUT) -> int:
    """Show whether auto-recovery is enabled, who is the auditor, and which ledgers are copied.

    The newest audit counts how many ledgers keep their placement: strict, in full; soft, what is
    required; fail, less. `ledgerstream status` reports whether the data are in danger.
    """
    from ledger.autorecovery.published import read_audit

    damaged: list[str] = []
    async with _opened(cluster) as opened:
        marks = opened.marks
        facts = {
            "is_enabled": await marks.is_enabled(),
            "auditor": await _or_damaged(opened.election.auditor, damaged),
            "lost_bookie_recovery_delay_s": await _or_damaged(
                marks.lost_bookie_recovery_delay_s, damaged
            ),
            "marked_ledgers": len(await marks.list()),
        }
        audit = await read_audit(opened.store)
        if audit is not None:
            facts |= {
                "audit_ended": time_of(audit.ended_ms) if audit.ended_ms else None,
                "placement_strict": audit.placement_strict,
                "placement_soft": audit.placement_soft,
                "placement_fail": audit.placement_fail,
            }
        locks = [
            {"ledger_id": ledger_id, "locked_by": owner}
            for ledger_id, owner in sorted((await marks.locked()).items())
        ]
    if output.json:
        print_json(facts | {"locks": locks, "damaged": damaged})
        return EXIT_ERROR if damaged else 0
    output.show(facts, title="auto-recovery")
    if locks:
        output.show_list(locks, title="ledgers that are being copied", none="")
    if facts["auditor"] is None and not damaged:
        remark("no process runs auto-recovery: nothing is healed")
    return _exit_code(damaged)


@app.command(help_epilogue=examples("ledgerstream autorecovery enable"))
async def enable(*, cluster: ClusterOption = _CLUSTER, output: OutputOption = _OUTPUT) -> None:
    """Permit auto-recovery in the whole cluster, Apache's processes included."""
    async with _opened(cluster) as opened:
        await opened.marks.set_enabled(True)
    output.report({"is_enabled": True}, "auto-recovery is enabled in the whole cluster")


@app.command(help_epilogue=examples("ledgerstream autorecovery disable"))
async def disable(*, cluster: ClusterOption = _CLUSTER, output: OutputOption = _OUTPUT) -> None:
    """Stop auto-recovery in the whole cluster, Apache's processes included, until it is enabled.

    For a planned outage of bookies: what they lack meanwhile is copied once it is enabled again.
    """
    async with _opened(cluster) as opened:
        await opened.marks.set_enabled(False)
    output.report(
        {"is_enabled": False},
        "auto-recovery is disabled in the whole cluster, until `ledgerstream autorecovery enable`",
    )


@app.command(
    name="list",
    help_epilogue=examples(
        "ledgerstream autorecovery list", "ledgerstream autorecovery list --json"
    ),
)
async def list_all(*, cluster: ClusterOption = _CLUSTER, output: OutputOption = _OUTPUT) -> int:
    """List the ledgers that lack copies: at which bookies, since when, and who copies them.

    The reason is why a ledger cannot be healed now, as its worker reports it.
    """
    from ledger.autorecovery.published import read_workers
    from ledger.runtime.concurrency import map_bounded

    damaged: list[str] = []
    async with _opened(cluster) as opened:
        reasons = {
            held[0]: held[1] for worker in await read_workers(opened.store) for held in worker.held
        }
        owners = await opened.marks.locked()

        async def row_of(ledger_id: int) -> dict[str, Any] | None:
            errors: list[str] = []
            mark = await _or_damaged(lambda: opened.marks.read(ledger_id), errors)
            if mark is None and not errors:
                return None  # it was healed since the listing
            damaged.extend(errors)
            return {
                "ledger_id": ledger_id,
                "missing_at": "damaged" if mark is None else list(mark.replicas),
                "since": None if mark is None else time_of(mark.created_ms),
                "copied_by": owners.get(ledger_id),
                "reason": reasons.get(ledger_id),
            }

        rows = await map_bounded(await opened.marks.list(), row_of)
    output.show_list(
        [row for row in rows if row is not None],
        title="ledgers that lack copies",
        none="no ledger is known to lack copies",
    )
    return _exit_code(damaged)


@app.command(
    help_epilogue=examples("ledgerstream autorecovery delay", "ledgerstream autorecovery delay 300")
)
async def delay(
    seconds: Seconds | None = None,
    /,
    *,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Show or set how long a single lost bookie is waited for before its ledgers are copied.

    It holds for the whole cluster, Apache's processes included. Setting it has the auditor look
    now; a second lost bookie is not waited for.

    Parameters
    ----------
    seconds
        The delay; without it, the present one is shown.
    """
    async with _opened(cluster) as opened:
        if seconds is None:
            found = await opened.marks.lost_bookie_recovery_delay_s()
            output.show({"lost_bookie_recovery_delay_s": found}, title="auto-recovery")
            if found is None:
                remark("not set for the cluster: each auditor uses its own setting")
            return
        await opened.marks.set_lost_bookie_recovery_delay_s(seconds)
    output.report(
        {"lost_bookie_recovery_delay_s": seconds}, f"a lost bookie is waited for {seconds} s"
    )


@app.command(help_epilogue=examples("ledgerstream autorecovery audit"))
async def audit(*, cluster: ClusterOption = _CLUSTER, output: OutputOption = _OUTPUT) -> None:
    """Have the auditor look now which ledgers lack copies.

    It sets the delay for lost bookies to what it is, which is Apache's signal for it.
    """
    from ledger.autorecovery.options import AutoRecoveryOptions
    from ledger.errors import InvalidArgument

    damaged: list[str] = []
    async with _opened(cluster) as opened:
        if not await opened.marks.is_enabled():
            raise InvalidArgument(
                "auto-recovery is disabled in this cluster. Cure: ledgerstream autorecovery enable"
            )
        auditor = await _or_damaged(opened.election.auditor, damaged)
        if auditor is None and not damaged:
            raise InvalidArgument(
                "there is no auditor: no process of this cluster runs auto-recovery"
            )
        default_s = int(AutoRecoveryOptions().lost_bookie_recovery_delay_s)
        was_set = await opened.marks.lost_bookie_recovery_delay_s() is not None
        seconds = await opened.marks.trigger_audit(default_s)
    if not was_set:
        remark(f"the cluster had no delay for lost bookies; it is {seconds} s now")
    output.report(
        {"auditor": auditor, "lost_bookie_recovery_delay_s": seconds},
        f"the auditor {auditor or '(its vote is damaged)'} was asked to look",
    )
