"""The command `ledgerstream bookie`: starts a bookie, and asks those that run.

A composition root, which names real drivers. No module imports it; `stream.cli` loads it by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from bookie.cli.decommission import decommission, replace
from bookie.cli.directories import drop_directory, expand_storage
from bookie.cli.inspect_commands import inspect
from bookie.cli.locations import place
from bookie.cli.rebalance import rebalance
from bookie.cli.rename import rename
from ledger.cli.output import (
    ClusterOption,
    OutputOption,
    examples,
    print_json,
    remark,
)
from ledgerstream_entry import require_extra

app = App(
    name="bookie",
    help="Run one bookie; list, show and tend bookies.",
    help_epilogue=examples("ledgerstream bookie list"),
)

app.command(inspect)
app.command(
    place,
    name="place",
    help_epilogue=examples("ledgerstream bookie place 127.0.0.1:3181 /eu-1/rack-7"),
)
app.command(
    decommission,
    name="decommission",
    help_epilogue=examples(
        "ledgerstream bookie decommission 127.0.0.1:3181 --dry-run",
        "ledgerstream bookie decommission 127.0.0.1:3181 --watch",
        "ledgerstream bookie decommission 127.0.0.1:3181 --cancel",
    ),
)
app.command(
    rebalance,
    name="rebalance",
    help_epilogue=examples(
        "ledgerstream bookie rebalance --dry-run",
        "ledgerstream bookie rebalance --bytes-per-s 10000000",
    ),
)
app.command(
    replace,
    name="replace",
    help_epilogue=examples("ledgerstream bookie replace 127.0.0.1:3181 127.0.0.1:3184 --watch"),
)

app.command(
    rename,
    name="rename",
    help_epilogue=examples(
        "ledgerstream bookie rename 10.0.0.7:3181 10.0.1.7:3181 --config bookie.toml --dry-run",
    ),
)
app.command(
    expand_storage,
    name="expand-storage",
    help_epilogue=examples("ledgerstream bookie expand-storage bookie.toml"),
)
app.command(
    drop_directory,
    name="drop-directory",
    help_epilogue=examples("ledgerstream bookie drop-directory bookie.toml /hdd1/ledgers --yes"),
)

_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()
_INFO_TIMEOUT_S = 2.0
REPORT_PATH = "/api/v1/bookie/report"
GARBAGE_PATH = "/api/v1/bookie/gc"


@app.command(name="run", help_epilogue=examples("ledgerstream bookie run --config bookie.toml"))
def run_bookie(*, config: Path) -> int:
    """Run one bookie until SIGTERM or Ctrl-C. Prints "ready HOST:PORT" once it serves.

    Parameters
    ----------
    config
        TOML file; docs/configuration.md describes the settings.
    """
    require_extra("bookie")
    from bookie.process import run_bookie_process

    return run_bookie_process(config, is_child=False)


@app.command(name="list", help_epilogue=examples("ledgerstream bookie list"))
async def list_bookies(
    *,
    ledgers: Annotated[bool, Parameter(negative="")] = False,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """List the bookies of the cluster: state, location and disk space.

    The state is up, read only, emptying (being decommissioned) or down.

    Parameters
    ----------
    ledgers
        Count the ledgers and fragments whose metadata names each bookie. Reads the metadata of all
        ledgers, 2,000 per second.
    """
    from bookie.cli.ledger_counts import count_ledgers, show_count
    from ledger.client import LedgerClient
    from ledger.connection.pool import BookieSpace
    from ledger.metastore.decommissions import Decommissions

    async with LedgerClient.connect(cluster.uri, options=cluster.options) as client:
        writable, readable = await client.bookies.available(), await client.bookies.read_only()
        states = dict.fromkeys(await client.bookies.all(), "down")
        states |= dict.fromkeys(readable, "read only") | dict.fromkeys(writable, "up")
        for bookie in await Decommissions(client.store).names():
            if states.get(bookie, "down") != "down":
                states[bookie] = "emptying"
        topology = await client.bookies.topology()
        space = await client.bookie_info(timeout_s=_INFO_TIMEOUT_S)
        counts = await count_ledgers(client.ledgers, show_count) if ledgers else None
    if counts is not None:
        states = dict.fromkeys(counts.ledgers, "unknown") | states  # also those without a cookie
        if counts.unreadable:
            remark(f"ledgerstream: the metadata of {counts.unreadable} ledgers cannot be read")
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
            {
                "bookie": bookie,
                "state": states[bookie],
                "location": topology.place(bookie).location.path,
                "free_bytes": free,
                "total_bytes": total,
                **(counts.columns(bookie) if counts else {}),
            }
            for bookie, (total, free) in total_and_free.items()
        ],
        title="bookies",
        none="no bookies are known in this cluster",
    )


@app.command(
    name="show",
    help_epilogue=examples(
        "ledgerstream bookie show", "ledgerstream bookie show 127.0.0.1:3181 --json"
    ),
)
async def show_bookie(
    bookie: str | None = None,
    /,
    *,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Show bookies: state, journals, ledger directories, queues, caches, checkpoints.

    Parameters
    ----------
    bookie
        Id of the bookie; without it, all registered bookies that answer are shown.
    """
    from ledger.cli.http_client import ask
    from ledger.client import LedgerClient
    from ledger.errors import LedgerError

    async with LedgerClient.connect(cluster.uri, options=cluster.options) as client:
        if bookie is None:
            infos = await client.bookies.available() | await client.bookies.read_only()
        else:
            infos = {}
            info = await client.bookies.info(bookie)
    if bookie is not None:
        shown = [await ask(bookie, info, REPORT_PATH, options=client.options)]
    else:
        shown = []
        for name in sorted(infos):
            try:
                shown.append(await ask(name, infos[name], REPORT_PATH, options=client.options))
            except LedgerError as error:  # the others are shown all the same
                remark(f"ledgerstream: {error}")
    if output.json:
        print_json(shown[0] if bookie is not None else shown)
        return
    for found in shown:
        journals, directories = found.pop("journals"), found.pop("ledger_directories")
        healing = found.pop("autorecovery", None) or {}
        audit = healing.pop("audit", None)
        output.show(found, title=f"bookie {found['bookie']}")
        for title, several in (
            ("journal", journals),
            ("ledger directory", directories),
            ("auto-recovery", [healing] if healing else []),
            ("newest audit", [audit] if audit else []),
        ):
            for one in several:
                output.show(one, title=title)
    if bookie is None and not infos:
        remark("no bookies are registered in this cluster")


@app.command(name="gc", help_epilogue=examples("ledgerstream bookie gc 127.0.0.1:3181"))
async def collect_garbage(
    bookie: str,
    /,
    *,
    minor: bool = False,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Make a bookie collect garbage and compact entry logs now.

    Parameters
    ----------
    bookie
        Id of the bookie.
    minor
        Run only a minor compaction.
    """
    from ledger.cli.http_client import ask
    from ledger.client import LedgerClient

    async with LedgerClient.connect(cluster.uri, options=cluster.options) as client:
        info = await client.bookies.info(bookie)
    kind = b'{"forceMinor": true}' if minor else b'{"forceMajor": true}'
    await ask(bookie, info, GARBAGE_PATH, method="PUT", body=kind, options=cluster.options)
    output.report({"bookie": bookie, "is_collecting": True}, f"bookie {bookie} collects garbage")


@app.command(name="check", help_epilogue=examples("ledgerstream bookie check bookie.toml"))
async def check_bookie(config: Path, /, *, output: OutputOption = _OUTPUT) -> int:
    """Check the disks of a stopped bookie: cookies, journals, index and entry logs, every byte
    that is needed. Changes nothing. Exit code 0: no damage; 1: damage, or lost entries possible.

    Parameters
    ----------
    config
        The bookie's TOML file.
    """
    from bookie.cli.check import check

    return await check(config, output)


@app.command(
    name="rebuild-index", help_epilogue=examples("ledgerstream bookie rebuild-index bookie.toml")
)
async def rebuild_index(
    config: Path, /, *, directory: str | None = None, output: OutputOption = _OUTPUT
) -> int:
    """Rebuild the index of a stopped bookie from its entry logs. The old index is kept as
    index.old-N beside it. Entries that the new index lacks are unknown to the bookie, not absent,
    until its ledgers were compared with the other copies. Exit code 1: records were left out.

    Parameters
    ----------
    config
        The bookie's TOML file.
    directory
        One of its ledger directories, written as in that file; without it, all of them.
    """
    from bookie.cli import check as cli_disk

    return await cli_disk.rebuild_index(config, directory, output)
