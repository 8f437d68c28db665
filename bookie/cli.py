"""`ledgerstream standalone` and `ledgerstream bookie`: processes started and listed.

A composition root: it names real drivers. Nothing imports it; `stream.cli` loads it by name.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import trio
from cyclopts import App, Parameter, validators

from bookie.local import BOOKIES_MAX, Layout, run_local_cluster
from ledger.cli.output import CLUSTER_VARIABLE, ClusterOption, OutputOption, remark

app = App(name="bookie", help="Run one bookie; list bookies.")

_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()
_INFO_TIMEOUT_S = 2.0


async def standalone(
    *,
    directory: Annotated[Path, Parameter(name="--dir")],
    bookies: Annotated[
        int | None, Parameter(validator=validators.Number(gte=1, lte=BOOKIES_MAX))
    ] = None,
    metadata: str | None = None,
    restart: bool = True,
    janitor_interval_s: float = 60.0,
) -> None:
    """Run a cluster on this machine until Ctrl-C, a process per bookie.

    Prints "ready CLUSTER-URI" once all bookies serve. Started again on the same directory it has
    everything.

    Parameters
    ----------
    directory
        Where everything is kept; made if missing.
    bookies
        How many (default 3); fixed when the directory is made.
    metadata
        "sqlite" (the default: a file in the directory), "zookeeper" (a server of its own; needs
        Java and PySpark), or the address of a store, like zk://host:2181/ledgers. Kept.
    restart
        Start a process again that died.
    janitor_interval_s
        How often retention is applied; 0 leaves it to you (`ledgerstream janitor`).
    """
    layout = Layout.open(directory, bookies, metadata)

    async def until_stopped() -> None:
        sys.stdout.write(f"ready {layout.metadata}\n")
        sys.stdout.flush()
        if sys.stdout.isatty():
            remark(f"{len(layout.ports)} bookies in {layout.directory}; Ctrl-C stops them. Next:")
            remark(f"  export {CLUSTER_VARIABLE}={layout.metadata}")
            remark("  seq 1000 | ledgerstream append demo/numbers")
            remark("  ledgerstream tail demo/numbers --from earliest")
        await trio.sleep_forever()

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:

            async def stop_when_told() -> None:
                async for _ in signals:
                    if sys.stderr.isatty():
                        remark("stopping")
                    nursery.cancel_scope.cancel()
                    return

            nursery.start_soon(stop_when_told)
            await run_local_cluster(
                layout,
                is_restarted=restart,
                janitor_interval_s=janitor_interval_s,
                say=remark,
                when_ready=until_stopped,
            )


@app.command(name="run")
def run_bookie(*, config: Path) -> int:
    """Run one bookie until SIGTERM or Ctrl-C. Prints "ready HOST:PORT" once it serves.

    Parameters
    ----------
    config
        TOML file; docs/configuration.md describes the settings.
    """
    from bookie.process import run_bookie_process

    return run_bookie_process(config, is_child=False)


@app.command(name="list")
async def list_bookies(
    *, cluster: ClusterOption = _CLUSTER, output: OutputOption = _OUTPUT
) -> None:
    """List the bookies of the cluster: state and disk space."""
    from ledger.bookie_space import BookieSpace
    from ledger.client import LedgerClient

    async with LedgerClient.connect(cluster.uri) as client:
        writable, readable = await client.bookies.available(), await client.bookies.read_only()
        states = dict.fromkeys(await client.bookies.all(), "down")
        states |= dict.fromkeys(readable, "read only") | dict.fromkeys(writable, "up")
        space = await client.bookie_info(timeout_s=_INFO_TIMEOUT_S)
    total_and_free: dict[str, tuple[int | None, int | None]] = dict.fromkeys(
        sorted(states), (None, None)
    )
    for bookie, found in space.items():
        if isinstance(found, BookieSpace):
            total_and_free[bookie] = found.total_bytes, found.free_bytes
        else:
            remark(f"ledgerstream: bookie {bookie} does not answer: {found}")
    output.show_list(
        [
            {"bookie": bookie, "state": states[bookie], "total_bytes": total, "free_bytes": free}
            for bookie, (total, free) in total_and_free.items()
        ],
        title="bookies",
        none="no bookies are known in this cluster",
    )
