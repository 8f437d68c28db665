"""`ledgerstream stream lost-ledgers|adopt`: records that a restore of the metadata has lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ledger.cli.output import ClusterOption, OutputOption, UsageError, examples, remark, time_of
from stream.cli.streams import app

if TYPE_CHECKING:
    from ledger.client import LedgerClient
    from ledger.lost_ledgers import LostLedger

_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()
_VALUE_BYTES_MAX = 40
_REPORT_IDS = 10_000


@app.command(name="lost-ledgers", help_epilogue=examples("ledgerstream stream lost-ledgers"))
async def lost(*, cluster: ClusterOption = _CLUSTER, output: OutputOption = _OUTPUT) -> None:
    """List ledgers that bookies keep and the metadata does not, since it was put back to a backup.

    The metadata knew which stream they belonged to; times, sequences and records show it.
    """
    from ledger.client import LedgerClient
    from ledger.lost_ledgers import find_lost_ledgers

    def report(done: int, count: int) -> None:
        if done % _REPORT_IDS == 0:
            remark(f"asked for {done} of {count} ledgers")

    async with LedgerClient.connect(cluster.uri, options=cluster.options) as client:
        found = await find_lost_ledgers(client, report)
        rows = [await _row(client, each) for each in found]
    output.show_list(rows, title="lost ledgers", none="no ledger is lost")
    silent = sorted({bookie for each in found for bookie in each.silent})
    if silent:
        remark(f"{', '.join(silent)} did not answer, and may have more")


async def _row(client: LedgerClient, lost: LostLedger) -> dict[str, Any]:
    from ledger.errors import LedgerError
    from stream.adoption import describe_lost

    row: dict[str, Any] = {
        "ledger": lost.ledger_id,
        "records": None,
        "first_sequence": None,
        "appended_from": None,
        "appended_to": None,
        "first_value": None,
        "entries": lost.entries,
        "behind_gap": lost.behind_gap,
        "bookies": len(lost.holders),
    }
    try:
        found = await describe_lost(client, lost)
    except LedgerError as error:
        row["first_value"] = f"({error})"
        return row
    value = found.first_value[:_VALUE_BYTES_MAX].decode(errors="backslashreplace")
    return row | {
        "records": found.records,
        "first_sequence": found.first_sequence,
        "appended_from": time_of(found.appended_ms[0]),
        "appended_to": time_of(found.appended_ms[1]),
        "first_value": value,
    }


@app.command(help_epilogue=examples("ledgerstream stream adopt demo/clicks-lost 17 18 21"))
async def adopt(
    stream: str,
    /,
    *ledgers: int,
    partial: Annotated[bool, Parameter(negative="")] = False,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Append the records of lost ledgers to a stream, which is created if there is none.

    They get new positions and times of appending. Repeat it after an interruption: what was
    appended is not appended again. Then let bookies delete the ledgers: `metadata release`.

    Parameters
    ----------
    ledgers
        Their ids, in the order of their records; `stream lost-ledgers` lists them.
    partial
        Take what there is, though a bookie does not answer or entries are missing.
    """
    from ledger.lost_ledgers import look_for_lost_ledger
    from stream.adoption import adopt_ledger
    from stream.cli.arguments import parse_stream
    from stream.cli.connecting import connect

    if not ledgers:
        raise UsageError("which ledgers? `ledgerstream stream lost-ledgers` lists them")
    name = parse_stream(stream)
    async with connect(cluster, name) as streams:
        client, records = streams.client, 0
        found = []
        for ledger_id in ledgers:
            known = await look_for_lost_ledger(client, ledger_id)
            if known is None:
                raise UsageError(f"ledger {ledger_id} is not lost: the metadata lists it")
            found.append(known)
        async with streams.writer(name.stream, create=True) as writer:
            for known in found:
                count, last = await adopt_ledger(client, known, writer, is_partial_allowed=partial)
                records += count
                where = "they were there already" if last is None else f"the last one at {last}"
                remark(f"ledger {known.ledger_id}: {count} records, {where}")
    output.report(
        {"stream": stream, "ledgers": list(ledgers), "records": records},
        f"{records} records of {len(ledgers)} ledgers are in {stream}",
    )
