"""`ledgerstream autorecovery run`: a process that finds and heals ledgers that lack copies."""

from __future__ import annotations

import logging
import os
import random
import re
import signal
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ledger.cli.output import AtLeastOne, AtLeastZero, ClusterOption, SecondsOrZero

if TYPE_CHECKING:
    import trio

_CLUSTER = ClusterOption()
_MIB = 1024 * 1024
_log = logging.getLogger(__name__)


async def run(
    *,
    lost_bookie_recovery_delay_s: SecondsOrZero = 60.0,
    open_ledger_grace_s: SecondsOrZero = 30.0,
    copy_bytes_per_s: AtLeastZero = 64 * _MIB,
    ledgers_at_once: AtLeastOne = 16,
    metadata_reads_per_s: AtLeastOne = 1000,
    metadata_operations_per_s: AtLeastZero = 300,
    name: str | None = None,
    child: Annotated[bool, Parameter(show=False, negative="")] = False,
    cluster: ClusterOption = _CLUSTER,
) -> None:
    """Find and heal ledgers that lack copies, until SIGTERM or Ctrl-C.

    `standalone` and bookies with `autorecovery = true` do that in their own processes. Any number
    of processes share the work; one of them is the auditor.

    Parameters
    ----------
    lost_bookie_recovery_delay_s
        Seconds that a single bookie that is down is waited for, unless the cluster has a delay of
        its own (`autorecovery delay`).
    open_ledger_grace_s
        Seconds that an open ledger that lost a bookie is left to a writer that may be alive.
    copy_bytes_per_s
        Bytes of entries copied per second; 0: no limit.
    ledgers_at_once
        Number of ledgers healed at the same time.
    metadata_reads_per_s
        Number of ledgers that the auditor looks up per second.
    metadata_operations_per_s
        Operations of the metadata store that all processes together send per second; 0: no limit.
    name
        Name of this process for `autorecovery status`; default: its host and process id.
    """
    import trio

    from ledger.autorecovery.options import AutoRecoveryOptions
    from ledger.autorecovery.service import heal_for_ever
    from ledger.cli.standard_streams import announce
    from ledger.client import LedgerClient
    from ledger.runtime.logs import open_log

    reopen_log = open_log(os.environ)
    options = AutoRecoveryOptions(
        lost_bookie_recovery_delay_s=lost_bookie_recovery_delay_s,
        open_ledger_grace_s=open_ledger_grace_s,
        copy_bytes_per_s=copy_bytes_per_s,
        ledgers_at_once=ledgers_at_once,
        metadata_reads_per_s=metadata_reads_per_s,
        metadata_operations_per_s=metadata_operations_per_s,
    )
    identity = name or _default_name()
    async with (
        LedgerClient.connect(cluster.uri, options=cluster.options) as client,
        trio.open_nursery() as nursery,
    ):
        _follow(nursery, reopen_log, is_child=child)
        announce(f"ready {identity}")
        await heal_for_ever(client, options, bookie_id=identity, rng=random.SystemRandom())


def _follow(nursery: trio.Nursery, reopen_log: Callable[[], bool], *, is_child: bool) -> None:
    if is_child or not sys.stderr.isatty():
        nursery.start_soon(_reopen_on_hangup, reopen_log)
    if is_child:
        nursery.start_soon(_end_with_starter, nursery.cancel_scope)


async def _end_with_starter(scope: trio.CancelScope) -> None:
    from ledger.cli.supervised import wait_starter_gone

    await wait_starter_gone()
    scope.cancel()


def _default_name() -> str:
    host = re.sub(r"[^a-zA-Z0-9.-]", "-", socket.gethostname())
    return f"autorecovery-{host}-{os.getpid()}"


async def _reopen_on_hangup(reopen_log: Callable[[], bool]) -> None:
    import trio

    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            what = "log file reopened" if reopen_log() else "no log file to reopen"
            _log.warning("%s signal=SIGHUP", what)
