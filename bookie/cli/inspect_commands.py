"""`ledgerstream bookie inspect`: what lies in the files of a bookie."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from ledger.cli.output import AtLeastZero, OutputOption, examples

_OUTPUT = OutputOption()

inspect = App(
    name="inspect",
    help="Show what lies in a bookie's files. Changes nothing.",
    help_epilogue=examples("ledgerstream bookie inspect index /data/ledgers"),
)


@inspect.command(
    name="journal", help_epilogue=examples("ledgerstream bookie inspect journal /data/journal")
)
async def inspect_journal(
    path: Path, /, *, lines_max: AtLeastZero = 1000, output: OutputOption = _OUTPUT
) -> int:
    """Show groups and frames of a journal file, or of all files of a journal directory. Exit
    code 1: there is damage; what precedes it is shown.

    Parameters
    ----------
    lines_max
        Largest number of lines to show.
    """
    from bookie.cli import check as cli_disk

    return await cli_disk.inspect_journal(path, lines_max, output)


@inspect.command(
    name="entry-log",
    help_epilogue=examples(
        "ledgerstream bookie inspect entry-log /data/ledgers/0000000000000001.log"
    ),
)
async def inspect_entry_log(
    path: Path, /, *, lines_max: AtLeastZero = 1000, output: OutputOption = _OUTPUT
) -> int:
    """Show the records of an entry log, and verify their checksums. Exit code 1: there is damage;
    what precedes it is shown."""
    from bookie.cli import check as cli_disk

    return await cli_disk.inspect_entry_log(path, lines_max, output)


@inspect.command(
    name="index", help_epilogue=examples("ledgerstream bookie inspect index /data/ledgers")
)
def inspect_index(
    directory: Path, /, *, lines_max: AtLeastZero = 1000, output: OutputOption = _OUTPUT
) -> None:
    """Show the entry logs and ledgers in the index of a ledger directory."""
    from bookie.cli import check as cli_disk

    cli_disk.inspect_index(directory, None, lines_max, output)


@inspect.command(
    name="ledger", help_epilogue=examples("ledgerstream bookie inspect ledger /data/ledgers 7")
)
def inspect_ledger(
    directory: Path,
    ledger_id: AtLeastZero,
    /,
    *,
    lines_max: AtLeastZero = 1000,
    output: OutputOption = _OUTPUT,
) -> None:
    """Show one ledger in the index of a ledger directory: its state, and where its entries are."""
    from bookie.cli import check as cli_disk

    cli_disk.inspect_index(directory, ledger_id, lines_max, output)
