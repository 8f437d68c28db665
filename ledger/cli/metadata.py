"""`ledgerstream metadata`: backups of the metadata, and what a restore has lost."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from ledger.cli.output import ClusterOption, OutputOption, UsageError, examples, remark, time_of

app = App(
    name="metadata",
    help="Export, import, restores, release.",
    help_epilogue=examples("ledgerstream metadata export backup.jsonl"),
)

_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()


@app.command(help_epilogue=examples("ledgerstream metadata export backup.jsonl"))
async def export(file: Path | None = None, /, *, cluster: ClusterOption = _CLUSTER) -> None:
    """Write all metadata as lines of JSON, for a backup or another metadata store.

    The cluster may be in use. Records are not in it: they are on the bookies.

    Parameters
    ----------
    file
        File to write, which must not exist; standard output without it.
    """
    from ledger.metastore import ClusterAddress, open_metadata
    from ledger.metastore.backup import export_lines

    address = ClusterAddress.parse(cluster.uri)
    async with open_metadata(address, cluster.options) as store:
        if file is None:
            async for line in export_lines(store, address.root):
                sys.stdout.write(f"{line}\n")
            return
        lines = [line async for line in export_lines(store, address.root)]
    _write_new(file, lines)
    remark(f"exported {len(lines) - 2} nodes to {file}")


def _write_new(file: Path, lines: list[str]) -> None:
    """Writes a file for its owner alone: the passwords of ledgers are in it."""
    from ledger.runtime.private_files import private_opener

    with open(file, "x", encoding="utf-8", opener=private_opener) as output:
        output.writelines(f"{line}\n" for line in lines)


@app.command(
    name="import",
    help_epilogue=examples("ledgerstream metadata import backup.jsonl --cluster sqlite:///new.db"),
)
async def import_(file: Path, /, *, cluster: ClusterOption = _CLUSTER) -> None:
    """Create a metadata store from an exported file.

    Stop all bookies and clients before. When the bookies start again, they notice which ledgers are
    newer than the backup, keep them, and never use their ids again: see `metadata restores`.

    Parameters
    ----------
    file
        What `metadata export` wrote.
    """
    from ledger.metastore import ClusterAddress, open_metadata
    from ledger.metastore.backup import decode_backup, import_backup

    with file.open(encoding="utf-8", errors="surrogateescape") as lines:
        backup = decode_backup(lines)
    address = ClusterAddress.parse(cluster.uri)
    async with open_metadata(address, cluster.options, may_create=True) as store:
        count = await import_backup(store, address.root, backup)
    remark(f"imported {count} nodes from {file}")


@app.command(help_epilogue=examples("ledgerstream metadata restores"))
async def restores(*, cluster: ClusterOption = _CLUSTER, output: OutputOption = _OUTPUT) -> None:
    """List the times at which the metadata was found to be older than the bookies' disks.

    Bookies keep ledgers in these ranges of ids that the metadata does not list.
    """
    from ledger.metastore import open_metadata
    from ledger.metastore.restores import RestoreLog

    async with open_metadata(cluster.uri, cluster.options) as store:
        found = await RestoreLog(store).read()
    rows = [
        {
            "number": number,
            "noticed": time_of(restore.noticed_ms),
            "bookie": restore.bookie,
            "first_ledger": restore.first_id,
            "last_ledger": restore.end_id - 1,
            "released": restore.is_released,
        }
        for number, restore in enumerate(found, 1)
    ]
    output.show_list(rows, title="restores", none="the metadata was never put back")


@app.command(help_epilogue=examples("ledgerstream metadata release 1 --yes"))
async def release(
    number: int,
    /,
    *,
    yes: Annotated[bool, Parameter(negative="")] = False,
    cluster: ClusterOption = _CLUSTER,
) -> None:
    """Let bookies delete the ledgers that a restore has lost.

    Parameters
    ----------
    number
        The restore up to which ledgers are given up, as `metadata restores` numbers them.
    yes
        Do it: the records in these ledgers are gone for good.
    """
    from ledger.errors import InvalidArgument
    from ledger.metastore import open_metadata
    from ledger.metastore.restores import RestoreLog

    async with open_metadata(cluster.uri, cluster.options) as store:
        log = RestoreLog(store)
        found = await log.read()
        if not 1 <= number <= len(found):
            raise UsageError(f"restore {number}: there are {len(found)}, counted from 1")
        if not yes:
            last = found[number - 1]
            raise InvalidArgument(
                f"this lets bookies delete ledgers up to {last.end_id - 1} that the metadata does "
                "not list, for good; continue with --yes"
            )
        await log.release(number)
