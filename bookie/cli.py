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
from ledger.cli.output import CLUSTER_VARIABLE, remark

app = App(name="bookie", help="Run one bookie; list bookies.")


async def standalone(
    *,
    directory: Annotated[Path, Parameter(name="--dir")],
    bookies: Annotated[
        int | None, Parameter(validator=validators.Number(gte=1, lte=BOOKIES_MAX))
    ] = None,
    metadata: str = "sqlite",
    restart: bool = True,
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
        "sqlite" (a file in the directory) or a metadata URI that processes can share.
    restart
        Start a bookie again that died.
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
                    remark("stopping")
                    nursery.cancel_scope.cancel()
                    return

            nursery.start_soon(stop_when_told)
            await run_local_cluster(
                layout, is_restarted=restart, say=remark, when_ready=until_stopped
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
