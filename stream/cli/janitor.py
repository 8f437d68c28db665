"""`ledgerstream janitor`: applies retention and deletes ledgers that nothing refers to."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, NoReturn, TypedDict, Unpack

import trio
from cyclopts import Parameter

from ledger.cli.output import ClusterOption, OutputOption, SecondsOrZero, run
from stream.retention.janitor import SINK_ORPHAN_AGE_MS
from stream.retention.segment_merging import MERGE_BYTES_PER_S, REPLACED_MS

MERGE_ONCE_S = 30.0
"""With `--once`, how long merges take together, about."""

if TYPE_CHECKING:
    from ledger.client import LedgerClient
    from stream.retention.janitor import Janitor, SweepReport


class _Settings(TypedDict, total=False):
    sink_orphan_age_ms: int
    trust_clock: bool
    merge_bytes_per_s: float
    replaced_ms: int


_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()
_log = logging.getLogger(__name__)


async def janitor(
    *,
    interval_s: SecondsOrZero = 60.0,
    sink_orphan_hours: SecondsOrZero = SINK_ORPHAN_AGE_MS / 3_600_000,
    merge_mib_s: SecondsOrZero = MERGE_BYTES_PER_S / (1 << 20),
    replaced_hours: SecondsOrZero = REPLACED_MS / 3_600_000,
    once: bool = False,
    trust_clock: Annotated[bool, Parameter(negative="")] = False,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> int | None:
    """Apply the retention of all namespaces repeatedly.

    `standalone` runs one. Several at a time do no harm. With `--once` the exit code is 1 if a part
    of the work failed, so that cron reports it; standard error names that part.

    Parameters
    ----------
    interval_s
        Seconds from one sweep to the next.
    sink_orphan_hours
        Age at which a ledger is deleted that a task of a sink (Spark) wrote and no commit took,
        while its batch is not committed. A batch must not take longer.
    merge_mib_s
        MiB per second that are copied to merge small segments of a stream into few ledgers; 0:
        none are merged. With `--once` for half a minute, after all else.
    replaced_hours
        How long the ledgers are kept that merged segments were on. Longer than the age of the
        oldest backup of the metadata that may have to be put back.
    once
        Sweep once, print the result, and exit.
    trust_clock
        Sweep although the clock of this machine differs from others by more than a day. Only for
        a clock that is right.
    """
    from ledger.client import LedgerClient
    from ledger.runtime.logs import open_log

    reopen_log = open_log(os.environ, level="warning")
    settings = _Settings(
        sink_orphan_age_ms=int(sink_orphan_hours * 3_600_000),
        trust_clock=trust_clock,
        merge_bytes_per_s=merge_mib_s * (1 << 20),
        replaced_ms=int(replaced_hours * 3_600_000),
    )
    async with LedgerClient.connect(cluster.uri, options=cluster.options) as client:
        if once:
            rows = await _sweep_once(client, settings)
            output.show_list(rows, title="sweep", none="no namespaces")
            return int(any(row["failures"] for row in rows))
        await _serve(client, interval_s, settings, reopen_log, is_child=False)
    return None


def main() -> NoReturn:
    """Runs the janitor of a supervisor, which ends with it: `python -m stream.cli.janitor CLUSTER
    INTERVAL_S [CREDENTIALS]`. Such a process needs no parser of commands."""
    _, uri, interval_s, *credentials = sys.argv
    cluster = ClusterOption(cluster=uri, credentials=credentials[0] if credentials else None)
    run(partial(trio.run, _run_child, cluster, float(interval_s)))


async def _run_child(cluster: ClusterOption, interval_s: float) -> None:
    from ledger.client import LedgerClient
    from ledger.runtime.logs import open_log

    reopen_log = open_log(os.environ, level="warning")
    async with LedgerClient.connect(cluster.uri, options=cluster.options) as client:
        await _serve(client, interval_s, _Settings(), reopen_log, is_child=True)


async def _serve(
    client: LedgerClient,
    interval_s: float,
    settings: _Settings,
    reopen_log: Callable[[], bool],
    *,
    is_child: bool,
) -> None:
    from ledger.cli.standard_streams import announce

    async with trio.open_nursery() as nursery:
        if is_child or not sys.stderr.isatty():
            await nursery.start(_reopen_on_hangup, reopen_log)
        if is_child:
            nursery.start_soon(_end_with_starter, nursery.cancel_scope)
        announce("ready janitor")
        await _sweep_for_ever(client, interval_s, settings)


async def _reopen_on_hangup(
    reopen_log: Callable[[], bool], task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        task_status.started()
        async for _ in signals:
            what = "log file reopened" if reopen_log() else "no log file to reopen"
            _log.warning("%s signal=SIGHUP", what)


async def _end_with_starter(scope: trio.CancelScope) -> None:
    from ledger.cli.supervised import wait_starter_gone

    await wait_starter_gone()
    scope.cancel()


async def _sweep_for_ever(client: LedgerClient, interval_s: float, settings: _Settings) -> None:
    from ledger.errors import LedgerError
    from stream.retention.segment_merger import merge_for_ever

    janitors: dict[str, Janitor] = {}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(merge_for_ever, janitors, interval_s)
        while True:
            try:
                await sweep(client, janitors, **settings)
            except LedgerError as error:
                _log.warning("sweep failed cause=%s", error)
            await trio.sleep(interval_s)


async def _sweep_once(client: LedgerClient, settings: _Settings) -> list[dict[str, object]]:
    """Sweeps, and then merges small segments; returns what became of both, by namespace."""
    from ledger.errors import LedgerError
    from stream.retention.segment_merger import MergeReport

    janitors: dict[str, Janitor] = {}
    reports = await sweep(client, janitors, **settings)
    until_s = trio.current_time() + MERGE_ONCE_S
    rows: list[dict[str, object]] = []
    for name, report in reports.items():
        try:
            merged = await janitors[name].merge(max(0.0, until_s - trio.current_time()))
        except LedgerError as error:
            _log.warning("namespace=%s: not merged: %s", name, error)
            merged = MergeReport(failures=1)
        failures = report.failures + merged.failures
        counts = {"segments_merged": merged.segments, "failures": failures}
        rows.append({"namespace": name, **asdict(report), **counts})
    return rows


async def sweep(
    client: LedgerClient,
    janitors: dict[str, Janitor] | None = None,
    **settings: Unpack[_Settings],
) -> dict[str, SweepReport]:
    """Sweeps every namespace once. The settings are those of `Janitor`.

    `janitors` are those of the sweep before, by namespace: each knows which ledgers are none of
    its business. It is kept up to date. A namespace that cannot be read is a failure of its own
    report. Raises MetadataUnavailable.
    """
    from ledger.errors import LedgerError, MetadataUnavailable
    from stream.errors import NoSuchNamespace
    from stream.retention.janitor import Janitor, SweepReport
    from stream.retention.policies import list_namespaces

    known = {} if janitors is None else janitors
    names = await list_namespaces(client)
    for gone in [name for name in known if name not in names]:
        del known[gone]
    reports = {}
    for name in names:
        janitor = known.setdefault(name, Janitor(client, name, **settings))
        try:
            reports[name] = await janitor.sweep()
        except NoSuchNamespace:
            continue  # deleted since the listing
        except MetadataUnavailable:
            raise  # it concerns all of them
        except LedgerError as error:
            _log.warning("namespace=%s: not cleaned: %s", name, error)
            reports[name] = SweepReport(failures=1)
    return reports


if __name__ == "__main__":
    main()
