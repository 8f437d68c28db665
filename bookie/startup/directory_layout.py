"""Reads and writes the file that says which ledgers are in each ledger directory.

A bookie whose list of ledger directories never changed has no such file. The file is in every
directory, so that none of them is needed to find it, and holds up to two layouts: the one in force,
and the next one, which is in force once the cluster's cookie has its list of directories. The
decisions are in `bookie.core.directories`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from bookie.config import BookieConfig
from bookie.core.directories import DirectoryLayout, decode_layouts, encode_layouts
from bookie.core.integrity import CheckReport, Finding, Severity
from bookie.core.marks import DirectoryMap
from bookie.storage.disk.disk import Disk
from ledger.errors import FinalError

DIRECTORIES_FILE = "DIRECTORIES"

_log = logging.getLogger(__name__)


class DirectoriesDamaged(FinalError):
    """Which ledgers are in each directory cannot be read."""


async def read_layouts(
    disk: Disk, directories: Iterable[str]
) -> tuple[dict[str, list[DirectoryLayout]], dict[str, str]]:
    """Returns the layouts by directory, and what is wrong with a file, by directory; a directory
    without the file has no layouts. Raises OSError."""
    found: dict[str, list[DirectoryLayout]] = {}
    damaged: dict[str, str] = {}
    for directory in dict.fromkeys(directories):
        found[directory] = []
        try:
            found[directory] = decode_layouts(
                await disk.read_file(f"{directory}/{DIRECTORIES_FILE}")
            )
        except FileNotFoundError:
            continue
        except ValueError as error:
            damaged[directory] = str(error)
    return found, damaged


def in_force(
    config: BookieConfig, found: dict[str, list[DirectoryLayout]], damaged: dict[str, str]
) -> DirectoryLayout:
    """Returns the layout of the configured list of directories. Raises DirectoriesDamaged."""
    known = [one for each in found.values() for one in each]
    fitting = [one for one in known if one.paths == config.ledger_directories]
    if damaged and not known:
        directory, what = next(iter(damaged.items()))
        raise DirectoriesDamaged(
            f"{directory}/{DIRECTORIES_FILE}: {what}, and no other directory of this bookie "
            "has a whole one. Cure: restore the file from a backup of any of its directories"
        )
    if known and not fitting:
        named = "; ".join(dict.fromkeys(", ".join(one.paths) for one in known))
        raise DirectoriesDamaged(
            f"{DIRECTORIES_FILE} names the ledger directories {named}, and the settings name "
            f"{', '.join(config.ledger_directories)}. Cure: give the bookie the directories it had"
        )
    journals = len(config.journal_directories)
    original = DirectoryLayout.original(journals, config.ledger_directories)
    layout = max(fitting, key=lambda one: one.generation, default=original)
    if layout.journals != journals:
        raise DirectoriesDamaged(
            f"{DIRECTORIES_FILE} is of a bookie with {layout.journals} journals, and the settings "
            f"name {journals}. Cure: give the bookie the journal_directories it had"
        )
    return layout


def map_of(layout: DirectoryLayout) -> DirectoryMap:
    changed = layout if layout.generation else None
    return DirectoryMap(layout.journals, len(layout.paths), changed)


async def load_layout(config: BookieConfig, disk: Disk) -> DirectoryMap:
    """Returns which ledgers are in each directory, and writes the file again where it is missing or
    damaged. Call it when the cookies were checked. Raises DirectoriesDamaged, OSError."""
    directories = (*config.journal_directories, *config.ledger_directories)
    found, damaged = await read_layouts(disk, directories)
    layout = in_force(config, found, damaged)
    if layout.generation:
        lacking = [one for one, layouts in found.items() if layout not in layouts]
        for directory in lacking:
            _log.error(
                "file written again file=%s/%s cause=%s",
                directory,
                DIRECTORIES_FILE,
                damaged.get(directory, "it was missing or older than that of another directory"),
            )
        await write_layouts(disk, lacking, [layout])
    return map_of(layout)


async def check_layout(
    config: BookieConfig, disk: Disk, report: CheckReport
) -> DirectoryMap | None:
    """Reports what is wrong with the file, for a check that changes nothing. Returns which ledgers
    are in each directory, or None if that is unknown. Raises OSError."""
    directories = (*config.journal_directories, *config.ledger_directories)
    found, damaged = await read_layouts(disk, directories)
    try:
        layout = in_force(config, found, damaged)
    except DirectoriesDamaged as error:
        what, _, cure = str(error).partition(". Cure: ")
        path = f"{directories[0]}/{DIRECTORIES_FILE}"
        report.add(Finding(severity=Severity.DAMAGE, path=path, what=what, cure=cure))
        return None
    for directory, layouts in found.items():
        if layout.generation and layout not in layouts:
            report.add(
                Finding(
                    severity=Severity.NOTE,
                    path=f"{directory}/{DIRECTORIES_FILE}",
                    what=damaged.get(directory, "it is missing, or older than the others"),
                    cure="start the bookie: it writes the file again",
                )
            )
    return map_of(layout)


async def settle_layout(config: BookieConfig, disk: Disk, layout: DirectoryMap) -> None:
    """Records that all ledgers of directories that were dropped are in limbo. Raises OSError."""
    if layout.layout is not None and layout.layout.unsettled:
        directories = (*config.journal_directories, *config.ledger_directories)
        await write_layouts(disk, directories, [layout.layout.settled()])


async def write_layouts(
    disk: Disk, directories: Iterable[str], layouts: Sequence[DirectoryLayout]
) -> None:
    """Writes the file in directories, one after the other. Raises OSError."""
    data = encode_layouts(layouts)
    for directory in dict.fromkeys(directories):
        await disk.replace_file(f"{directory}/{DIRECTORIES_FILE}", data)
