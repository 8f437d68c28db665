"""The commands that change the list of ledger directories of a stopped bookie."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ledger.cli.output import OutputOption

if TYPE_CHECKING:
    from bookie.startup.change_directories import DirectoryChange

_OUTPUT = OutputOption()


@asynccontextmanager
async def _stopped(config: Path) -> AsyncIterator[DirectoryChange]:
    import random
    import time

    from bookie.bookie import storage_of
    from bookie.cli.check import settings_of
    from bookie.startup.change_directories import DirectoryChange
    from bookie.startup.power_loss import boot_id
    from bookie.storage.disk.real_disk import RealDisk
    from bookie.storage.index.rocksdb import index_opener
    from ledger.metastore import open_store
    from ledger.metastore.address import ClusterAddress
    from ledger.metastore.ledgers import LedgerStore

    settings = settings_of(config)
    disk, rng = RealDisk(), random.SystemRandom()
    key_value = index_opener(settings.index_cache_bytes, len(settings.ledger_directories))
    layout = ClusterAddress.parse(settings.metadata_uri).layout
    opened = open_store(
        settings.metadata_uri,
        session_timeout_ms=settings.session_timeout_ms,
        root=settings.ledgers_root,
        may_create=False,
        tls=settings.metadata_context(),
    )
    async with opened as store:
        yield DirectoryChange(
            settings,
            disk,
            store,
            LedgerStore(store, settings.ledgers_root, layout=layout),
            open_storage=lambda given, directories: storage_of(
                given,
                disk,
                key_value,
                directories,
                rng=rng,
                now_ms=lambda: time.time_ns() // 1_000_000,
            ),
            key_value=key_value,
            boot_id=boot_id(),
        )


async def expand_storage(config: Path, /, *, output: OutputOption = _OUTPUT) -> None:
    """Add ledger directories to a stopped bookie: those that ledger_directories names behind the
    ones it has, which must be empty. Ledgers stay where they are, new ones are spread over all. May
    be repeated after an interruption.

    Parameters
    ----------
    config
        The bookie's TOML file, with the new directories.
    """
    async with _stopped(config) as change:
        done = await change.expand()
    added = ", ".join(done.changed)
    output.report(
        {"ledger_directories": done.directories, "added": done.changed},
        f"added {added}; start the bookie" if added else "the bookie has these directories already",
    )


async def drop_directory(
    config: Path,
    /,
    *directory: str,
    yes: Annotated[bool, Parameter(negative="")] = False,
    output: OutputOption = _OUTPUT,
) -> None:
    """Give up ledger directories of a stopped bookie that are lost, so that it starts without them.
    What was in them is unknown to the bookie, not absent, until it has copied it from the other
    bookies, which it does by itself. May be repeated after an interruption.

    Parameters
    ----------
    config
        The bookie's TOML file, with or without these directories in ledger_directories.
    directory
        The directories, written as in that file.
    yes
        Give them up, with every copy in them.
    """
    from ledger.errors import InvalidArgument

    if not directory:
        raise InvalidArgument("name the ledger directories to drop, as ledger_directories does")
    names = ", ".join(directory)
    if not yes:
        raise InvalidArgument(
            f"this gives up every copy in {names}, for good: if the disk is only not mounted, "
            "mount it; continue with --yes"
        )
    async with _stopped(config) as change:
        done = await change.drop(directory)
    output.report(
        {"ledger_directories": done.directories, "dropped": done.changed},
        f"dropped {names}; remove it from ledger_directories in {config}, and start the bookie",
    )
