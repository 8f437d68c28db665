"""The command `ledgerstream standalone`: a cluster on this machine.

A composition root, which names real drivers. No module imports it; `stream.cli` loads it by name.
"""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter, validators

from bookie.standalone import BOOKIES_MAX
from ledger.cli.output import CLUSTER_VARIABLE, CREDENTIALS_VARIABLE, SecondsOrZero, remark
from ledgerstream_entry import require_extra

if TYPE_CHECKING:
    import trio

    from bookie.standalone.cluster import StandaloneLayout
    from bookie.standalone.forks import ForkedProcess

_SHARED = (
    "bookie.process",
    "ledger.autorecovery.service",
    "ledger.metastore.sqlite.store",
    "msgspec",
)
"""What every bookie imports at its start or soon after: imported once, before they are forked."""


def standalone(
    *,
    directory: Annotated[Path, Parameter(name="--dir")],
    bookies: Annotated[
        int | None, Parameter(validator=validators.Number(gte=1, lte=BOOKIES_MAX))
    ] = None,
    metadata: str | None = None,
    restart: bool = True,
    janitor_interval_s: SecondsOrZero = 60.0,
    secure: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Run a cluster on this machine until Ctrl-C, with a process per bookie.

    Prints "ready CLUSTER-URI" once all bookies serve. A restart on the same directory keeps all
    data.

    Parameters
    ----------
    directory
        Directory of the cluster; created if missing.
    bookies
        Number of bookies (default 3); fixed when the directory is created.
    metadata
        "sqlite" (the default: a file in the directory), "zookeeper" (a server of its own; needs
        Java and PySpark), or the address of a store, like zk://host:2181/ledgers. Fixed, too.
    restart
        Restart a process that ended.
    janitor_interval_s
        Interval at which retention is applied; 0 leaves it to you (`ledgerstream janitor`).
    secure
        Admit nobody but users with a permission, over TLS alone: makes certificates, a user
        `admin`, and its credentials, in DIR/security. Fixed when the directory is created.
    """
    import trio

    from bookie.standalone.cluster import StandaloneLayout
    from bookie.standalone.forks import forked_processes

    require_extra("bookie")
    if secure:
        require_extra("security")
    layout = StandaloneLayout.open(directory, bookies, metadata, is_secure=secure)
    count = len(layout.ports) + (janitor_interval_s > 0)
    with forked_processes(count, _SHARED) as forked:
        trio.run(
            partial(
                _run,
                layout,
                forked,
                is_restarted=restart,
                janitor_interval_s=janitor_interval_s,
            )
        )


async def _run(
    layout: StandaloneLayout,
    forked: Iterator[ForkedProcess],
    *,
    is_restarted: bool,
    janitor_interval_s: float,
) -> None:
    import trio

    from bookie.standalone.cluster import create_users_once, run_local_cluster
    from ledger.cli.standard_streams import announce

    async def until_stopped() -> None:
        if layout.is_secure:
            await create_users_once(layout)
        announce(f"ready {layout.metadata}")
        _say_what_is_next(layout)
        await trio.sleep_forever()

    with _signals() as (ending, hangups):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_stop_on_signal, ending, nursery.cancel_scope)
            await run_local_cluster(
                layout,
                is_restarted=is_restarted,
                janitor_interval_s=janitor_interval_s,
                say=remark,
                forked=forked,
                when_ready=until_stopped,
                reopen_logs=partial(_reopen_on_hangup, hangups),
            )


def _say_what_is_next(layout: StandaloneLayout) -> None:
    is_for_people = sys.stdout.isatty()
    if is_for_people:
        remark(f"{len(layout.ports)} bookies in {layout.directory}; Ctrl-C stops them. Next:")
    if is_for_people or layout.is_secure:
        remark(f"  export {CLUSTER_VARIABLE}={shlex.quote(layout.metadata)}")
    if layout.is_secure:
        credentials = layout.security.credentials_file(layout.security.admin)
        remark(f"  export {CREDENTIALS_VARIABLE}={shlex.quote(str(credentials))}")
    if is_for_people:
        remark("  seq 1000 | ledgerstream append demo/numbers")
        remark("  ledgerstream tail demo/numbers --from earliest")


@contextmanager
def _signals() -> Iterator[tuple[AsyncIterator[int], AsyncIterator[int]]]:
    """Receives the signals that end the cluster, and those that have its logs opened again. On a
    terminal SIGHUP is one of the first kind: the terminal has gone away."""
    import trio

    ending = (signal.SIGINT, signal.SIGTERM)
    if sys.stderr.isatty():
        sending, nothing = trio.open_memory_channel[int](0)
        with sending, trio.open_signal_receiver(*ending, signal.SIGHUP) as received:
            yield received, nothing
    else:
        with (
            trio.open_signal_receiver(*ending) as received,
            trio.open_signal_receiver(signal.SIGHUP) as hangups,
        ):
            yield received, hangups


async def _stop_on_signal(received: AsyncIterator[int], scope: trio.CancelScope) -> None:
    async for number in received:
        if sys.stderr.isatty():
            remark(f"stopping ({signal.Signals(number).name})")
        scope.cancel()
        return


async def _reopen_on_hangup(hangups: AsyncIterator[int], reopen: Callable[[], None]) -> None:
    async for _ in hangups:
        reopen()
        remark("SIGHUP: the logs are opened again")
