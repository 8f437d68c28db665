"""The commands that check and repair the disks of a stopped bookie, with output for a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterable, Iterable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ledger.cli.output import EXIT_ERROR, OutputOption, print_json, print_line, remark

if TYPE_CHECKING:
    from bookie.cli.inspect import Line
    from bookie.config import BookieConfig

_MIB = 1 << 20
_PROGRESS_S = 2.0


class Progress:
    """Prints progress on stderr from time to time, if that is a terminal."""

    def __init__(self, what: str, *, is_shown: bool) -> None:
        import trio

        self._what = what
        self._is_shown = is_shown
        self._nbytes = 0
        self._printed_at = trio.current_time()

    def read(self, nbytes: int) -> None:
        """Counts bytes that were read."""
        import trio

        self._nbytes += nbytes
        now = trio.current_time()
        if self._is_shown and now - self._printed_at >= _PROGRESS_S:
            self._printed_at = now
            remark(f"{self._what}: {self._nbytes // _MIB} MiB")


def settings_of(config: Path) -> BookieConfig:
    """Loads the settings of the bookie. Raises InvalidArgument."""
    from bookie.config import load_bookie_config

    return load_bookie_config(config, os.environ, {})


async def check(config: Path, output: OutputOption) -> int:
    """Checks a bookie; returns the exit code: 0 if it is undamaged."""
    from bookie.core.integrity import CheckReport
    from bookie.startup.directory_layout import check_layout
    from bookie.startup.offline import check_cookies, check_unsynced, stopped_bookie
    from bookie.startup.power_loss import boot_id
    from bookie.storage.check.bookie import check_bookie
    from bookie.storage.disk.read_only_disk import ReadOnlyDisk
    from bookie.storage.index.rocksdb import RocksStores

    settings = settings_of(config)
    report = CheckReport()
    disk = ReadOnlyDisk()
    async with stopped_bookie(settings, disk):
        await check_cookies(settings, disk, report)
        await check_unsynced(settings, disk, boot_id(), report)
        progress = Progress("read", is_shown=not output.json and sys.stderr.isatty())
        await check_bookie(
            disk,
            settings.journal_directories,
            settings.ledger_directories,
            RocksStores(disk).open_to_read,
            report,
            layout=await check_layout(settings, disk, report),
            on_bytes=progress.read,
        )
    if output.json:
        print_json(report.as_dict())
    else:
        output.show(report.summary(), title=f"check of {config}")
        for finding in report.findings:
            print_line(str(finding))
        for severity, count in report.found.items():
            shown = sum(finding.severity is severity for finding in report.findings)
            if count > shown:
                remark(f"{count - shown} more of severity {severity} are not shown")
    return 0 if report.is_clean else EXIT_ERROR


async def rebuild_index(config: Path, directory: str | None, output: OutputOption) -> int:
    """Rebuilds an index; returns the exit code: 0 if it has all entries of the entry logs."""
    from bookie.startup.offline import refuse_foreign, stopped_bookie
    from bookie.storage.check.index_rebuild import IndexRebuild
    from bookie.storage.disk.real_disk import RealDisk
    from bookie.storage.index.rocksdb import RocksStores
    from ledger.errors import InvalidArgument

    settings = settings_of(config)
    directories = settings.ledger_directories
    if directory is not None:
        if directory not in directories:
            raise InvalidArgument(
                f"{directory} is no ledger directory of this bookie; its own are "
                f"{', '.join(directories)}"
            )
        directories = (directory,)
    disk = RealDisk()
    is_all = True
    async with stopped_bookie(settings, disk):
        await refuse_foreign(settings, disk)
        for one in directories:
            progress = Progress(f"{one}: read", is_shown=not output.json and sys.stderr.isatty())
            rebuilt = await IndexRebuild(disk, one, RocksStores(disk), on_bytes=progress.read).run()
            is_all = is_all and not rebuilt.left_out
            found = asdict(rebuilt)
            left_out = found.pop("left_out")
            if output.json:
                print_json({**found, "left_out": left_out})
                continue
            output.show(found, title=f"index of {one}")
            for line in left_out:
                print_line(f"left out: {line}")
    return 0 if is_all else EXIT_ERROR


class _Shown:
    """Prints up to a number of lines on stdout, then a remark that there are more."""

    def __init__(self, lines_max: int, output: OutputOption) -> None:
        self.is_any = False
        """Whether there was a line, printed or not."""
        self.has_problem = False
        """Whether a printed line reports a problem."""
        self._left = lines_max
        self._output = output

    def is_over(self, line: Line) -> bool:
        """Prints the line; at the limit it prints that there are more, and ends the output."""
        self.is_any = True
        if not self._left:
            remark("there are more lines: give a larger --lines-max")
            return True
        self._left -= 1
        self.has_problem = self.has_problem or bool(line.get("problem"))
        if self._output.json:
            print_json(line)
        else:
            fields = (
                f" {name}={value}"
                for name, value in line.items()
                if name != "kind" and (name != "problem" or value)
            )
            print_line(f"{line['kind']}{''.join(fields)}")
        return False

    def show(self, lines: Iterable[Line]) -> None:
        for line in lines:
            if self.is_over(line):
                return

    async def show_all(self, lines: AsyncIterable[Line]) -> bool:
        """Whether more lines may be printed."""
        async for line in lines:
            if self.is_over(line):
                return False
        return True

    @property
    def exit_code(self) -> int:
        return EXIT_ERROR if self.has_problem else 0


async def inspect_journal(path: Path, lines_max: int, output: OutputOption) -> int:
    """Prints a file, or all files of a directory in order. Returns the exit code: 0 if no printed
    line reports a problem."""
    import trio

    from bookie.cli.inspect import journal_lines
    from bookie.core.journal import file_id_of
    from bookie.storage.disk.read_only_disk import ReadOnlyDisk
    from ledger.errors import InvalidArgument

    disk = ReadOnlyDisk()
    await _check_is_there(path)
    files = [str(path)]
    if await trio.Path(path).is_dir():
        names = await disk.list_directory(str(path))
        files = [f"{path}/{name}" for name in names if file_id_of(name) is not None]
        if not files:
            raise InvalidArgument(
                f"there is no journal file in {path}: they have names like "
                "0000000000000001.journal, and a bookie without entries has none. Cure: name one "
                "of its journal_directories"
            )
    shown = _Shown(lines_max, output)
    for file in files:
        if not await shown.show_all(journal_lines(disk, file)):
            break
    return shown.exit_code


async def inspect_entry_log(path: Path, lines_max: int, output: OutputOption) -> int:
    """Prints an entry log; returns the exit code: 0 if no printed line reports a problem."""
    from bookie.cli.inspect import entry_log_lines
    from bookie.storage.disk.read_only_disk import ReadOnlyDisk

    await _check_is_there(path)
    shown = _Shown(lines_max, output)
    await shown.show_all(entry_log_lines(ReadOnlyDisk(), str(path)))
    return shown.exit_code


async def _check_is_there(path: Path) -> None:
    import trio

    from ledger.errors import InvalidArgument

    if not await trio.Path(path).exists():
        raise InvalidArgument(f"{path} does not exist")


def inspect_index(path: Path, ledger_id: int | None, lines_max: int, output: OutputOption) -> None:
    """Prints the index of a ledger directory, or its records of one ledger. Raises InvalidArgument
    if it has none of that ledger."""
    from bookie.cli.inspect import index_lines, ledger_lines
    from bookie.storage.disk.read_only_disk import ReadOnlyDisk
    from bookie.storage.index.rocksdb import RocksStores
    from ledger.errors import InvalidArgument

    with closing(RocksStores(ReadOnlyDisk()).open_to_read(f"{path}/index")) as pairs:
        lines = index_lines(pairs) if ledger_id is None else ledger_lines(pairs, ledger_id)
        shown = _Shown(lines_max, output)
        shown.show(lines)
    if not shown.is_any:
        raise InvalidArgument(
            f"ledger {ledger_id} is not in the index in {path}: the bookie has none of its "
            "entries, or only in its journal, or in another of its ledger directories. Cure: of n "
            f"of them, inspect number {ledger_id} modulo n, counted from 0; or, if there is a file "
            "DIRECTORIES, the one that its table has for the ledger; or inspect the journal"
        )
