"""Cookies: a bookie refuses an emptied or foreign disk, and names the cure.

A cookie that was damaged, or removed from a directory that is not empty, is written again if the
directory proves otherwise that it is this bookie's. One that can be read and is another's may be
that of a disk mounted in the wrong place, and is always refused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace

from bookie.config import BookieConfig
from bookie.named_ledgers import is_named
from bookie.storage.disk.disk import Disk
from bookie.storage.disk.reserved_space import RESERVE_FILE
from ledger.errors import FinalError, InvalidArgument, MetadataCorrupt
from ledger.metastore.bookies import BookieRegistry
from ledger.metastore.cookie import Cookie, decode_cookie, encode_cookie
from ledger.metastore.ledgers import LedgerStore

COOKIE_FILE = "VERSION"
LOCK_FILE = "LOCK"
UNSYNCED_FILE = "UNSYNCED"
"""File in a journal directory that has lost entries, see `bookie.startup.power_loss`."""
START_COUNT_FILE = "STARTS"
"""File in every directory, see `bookie.startup.start_count`."""
PUT_BACK = b"put back"
"""Content of `UNSYNCED_FILE`: a directory is older than the metadata."""
EMPTIED = b"emptied"
"""Content of that file: all entries are lost, if there were any."""
NO_DATA = (
    LOCK_FILE,
    COOKIE_FILE,
    f"{COOKIE_FILE}.tmp",
    UNSYNCED_FILE,
    f"{UNSYNCED_FILE}.tmp",
    START_COUNT_FILE,
    f"{START_COUNT_FILE}.tmp",
    RESERVE_FILE,
    "lost+found",
)
"""Files that the directory of a new bookie may contain, also after a crash or on a new disk."""


_log = logging.getLogger(__name__)


class CookieMismatch(FinalError):
    """The disk is not the one this bookie was registered with."""


async def check_cookie(
    config: BookieConfig,
    disk: Disk,
    registry: BookieRegistry,
    ledgers: LedgerStore,
    bookie_id: str,
    instance_id: str,
) -> None:
    """Checks that the disks are those this bookie was registered with. Raises CookieMismatch, and
    MetadataUnavailable.

    A bookie that starts with empty directories may have acknowledged entries before: if it is known
    and allowed to start empty, or if its cookie was deleted from the cluster and ledgers name it.
    Its journals record that (`bookie.startup.power_loss`) before anything else is written. A bookie
    that no ledger names really is new. That is asked before it has a cookie: afterwards a ledger
    may name it although it never served, and would be fenced for nothing.
    """
    expected = Cookie(
        bookie_id=bookie_id,
        journal_directories=tuple(config.journal_directories),
        ledger_directories=tuple(config.ledger_directories),
        instance_id=instance_id,
    )
    directories = dict.fromkeys((*config.journal_directories, *config.ledger_directories))
    registered = await registry.read_cookie(bookie_id)
    is_known = registered is not None and registered[0] == expected
    on_disk = await _cookies_on(disk, list(directories), expected if is_known else None)
    found = [(d, cookie) for d, cookie in on_disk.items() if cookie is not None]
    if registered is not None:
        found.append(("the cluster", registered[0]))
    for where, cookie in found:
        _check_same(where, cookie, expected, config.metadata_uri, is_known=is_known)
    missing = [d for d, cookie in on_disk.items() if cookie is None]
    if not config.allow_empty_disk:
        await registry.permit_empty_start(bookie_id)
    await _check_may_begin(config, disk, bookie_id, on_disk, is_known=registered is not None)
    if registered is not None and missing and not await _has_begun_empty(config, disk):
        await _check_is_permitted(registry, bookie_id, missing, instance_id)
    if await is_named(ledgers, bookie_id) if registered is None else missing:
        for directory in config.journal_directories:
            await disk.replace_file(f"{directory}/{UNSYNCED_FILE}", EMPTIED)
    if registered is not None and missing:
        # Before the first cookie: a start that is killed in between is known by the file above.
        await registry.record_empty_start(bookie_id, instance_id)
    # Disks first: a crash in between leaves cookies on empty disks, which is harmless.
    for directory in missing:
        await disk.replace_file(f"{directory}/{COOKIE_FILE}", encode_cookie(expected))
    if registered is None:
        for directory in directories:
            # A process killed after the rename may leave a name that is only in memory. Once the
            # cluster knows this bookie, a directory without its cookie is refused permanently.
            await disk.sync_directory(directory)
        await registry.write_cookie(bookie_id, expected)


def _check_same(
    where: str, cookie: Cookie, expected: Cookie, metadata_uri: str, *, is_known: bool
) -> None:
    """Checks that a cookie is the expected one. Raises CookieMismatch."""
    if cookie == replace(expected, instance_id=cookie.instance_id) != expected:
        raise _of_another_cluster(
            where, cookie.instance_id, f"is cluster {expected.instance_id}", metadata_uri
        )
    if cookie != expected:
        raise CookieMismatch(
            f"cookie in {where}: {differences(cookie, expected)}: foreign disk or "
            f"changed configuration. Cure: {_cure_of(cookie, expected, is_known=is_known)}"
        )


async def _cookies_on(
    disk: Disk, directories: Sequence[str], known: Cookie | None
) -> dict[str, Cookie | None]:
    """Returns the cookies by directory. Writes those that are lost again, where the directory is
    certainly not another's: the cluster has the cookie `known`, another directory has it too, and
    their numbers of starts are equal. Raises CookieMismatch for others that are damaged."""
    found: dict[str, Cookie | None] = {}
    damaged: dict[str, CookieMismatch] = {}
    for directory in directories:
        try:
            found[directory] = await cookie_of(disk, directory)
        except CookieMismatch as error:
            damaged[directory] = error
    lost = [each for each in directories if found.get(each) is None]
    proved = [await start_number(disk, each) for each, cookie in found.items() if cookie == known]
    starts = max(proved, default=0) if known is not None else 0
    for directory in lost:
        if known is not None and starts and await start_number(disk, directory) == starts:
            await disk.replace_file(f"{directory}/{COOKIE_FILE}", encode_cookie(known))
            found[directory] = known
            _log.error(
                "cookie written again directory=%s cause=%s. The directory is this bookie's, as "
                "its file %s shows. Cure: check the disk",
                directory,
                damaged.get(directory, "the file was missing"),
                START_COUNT_FILE,
            )
        elif directory in damaged:
            raise damaged[directory]
    return {directory: found[directory] for directory in directories}


async def start_number(disk: Disk, directory: str) -> int:
    """Returns the number of starts in a directory (`bookie.startup.start_count`); 0 if the file is
    missing or damaged. Raises OSError."""
    try:
        return int(await disk.read_file(f"{directory}/{START_COUNT_FILE}"))
    except (FileNotFoundError, ValueError):
        return 0


async def check_has_no_cluster(config: BookieConfig, disk: Disk) -> None:
    """Checks, before a cluster is created, that no disk belongs to one: then the address of the
    metadata is wrong, and no cluster must be created there. Raises CookieMismatch."""
    for directory in (*config.journal_directories, *config.ledger_directories):
        cookie = await cookie_of(disk, directory)
        if cookie is not None and cookie.instance_id:
            raise _of_another_cluster(
                directory, cookie.instance_id, "is no cluster", config.metadata_uri
            )


def _cure_of(found: Cookie, expected: Cookie, *, is_known: bool) -> str:
    """Returns the cure for a cookie with other directories, or of another bookie. `is_known`: the
    cluster's cookie is the expected one."""
    has, wants = found.ledger_directories, expected.ledger_directories
    if found != replace(expected, ledger_directories=has):
        return (
            "give it the directories and id it had, in the same order: which ledgers are in a "
            "journal depends on their number. For other journals, run another bookie; for another "
            "id, or to complete that, `ledgerstream bookie rename OLD NEW --config CONFIG`"
        )
    if is_known:
        return (
            "mount the right disk; or, if a change of the list was interrupted, repeat the "
            "command, which completes it: `ledgerstream bookie expand-storage CONFIG`, or "
            "`ledgerstream bookie drop-directory CONFIG DIRECTORY`. A directory that was dropped "
            "is of no use any more: empty it before you add it again"
        )
    if wants[: len(has)] == has:
        return (
            f"to add {', '.join(wants[len(has) :])}, run `ledgerstream bookie expand-storage "
            "CONFIG` with the bookie stopped; else give it the directories it had"
        )
    return (
        "give it the directories it had, in the same order, and new ones behind them; if one is "
        "lost: `ledgerstream bookie drop-directory CONFIG DIRECTORY`"
    )


def _of_another_cluster(
    where: str, instance_id: str, is_there: str, metadata_uri: str
) -> CookieMismatch:
    return CookieMismatch(
        f"cookie in {where} is of cluster {instance_id or 'without an id'}, and at {metadata_uri} "
        f"there {is_there}. Cure: point metadata_uri at the cluster the disks belong to; if its "
        "metadata was emptied, restore it; for a new bookie there, use empty directories"
    )


async def _check_may_begin(
    config: BookieConfig,
    disk: Disk,
    bookie_id: str,
    on_disk: Mapping[str, Cookie | None],
    *,
    is_known: bool,
) -> None:
    """Checks that directories without a cookie belong to a new bookie, or to one that is allowed to
    start empty. Raises CookieMismatch."""
    missing = [d for d, cookie in on_disk.items() if cookie is None]
    if not is_known:
        await _check_holds_nothing(
            disk,
            on_disk,
            f"but the cluster does not know bookie {bookie_id}: wrong cluster address, or its "
            "cookie was deleted. Cure: check the address; if a rename was interrupted, repeat "
            "`ledgerstream bookie rename`; to use the disk for a new bookie, empty it",
        )
    elif missing and not (
        config.allow_empty_disk
        and (len(missing) == len(on_disk) or await _has_begun_empty(config, disk))
    ):
        raise CookieMismatch(
            f"bookie {bookie_id} is known to the cluster, but there is no cookie in "
            f"{', '.join(missing)}: a disk is not mounted, or was emptied and the entries that the "
            "bookie acknowledged are lost. Cure: mount the right disks; or, if they are lost, "
            f"{_cure_of_lost(config, missing)}start a bookie under a new bookie_id, or this one "
            'with all its directories empty and allow_empty_disk, which makes it answer "unknown" '
            "for what it forgot; it then copies the missing entries from the other bookies"
        )
    elif missing:
        await _check_holds_nothing(
            disk,
            on_disk,
            f"but no cookie, and allow_empty_disk allows bookie {bookie_id} to start with empty "
            f"directories only. Cure: if it is this bookie's, restore its {COOKIE_FILE}; if "
            "it is not needed, empty the directory",
        )


def _cure_of_lost(config: BookieConfig, missing: Sequence[str]) -> str:
    """Returns the cure for directories without which the bookie can continue, or ""."""
    if not set(missing) < set(config.ledger_directories):
        return ""
    return f"`ledgerstream bookie drop-directory CONFIG {' '.join(missing)}`; or "


async def _check_is_permitted(
    registry: BookieRegistry, bookie_id: str, missing: list[str], instance_id: str
) -> None:
    """Checks that the permission to start empty was not used before. Raises CookieMismatch."""
    if await registry.is_empty_start_used(bookie_id, instance_id):
        raise CookieMismatch(
            f"bookie {bookie_id} has no cookie in {', '.join(missing)}, and its allow_empty_disk "
            "was used up when it started with empty directories before: a disk is not mounted, or "
            "was lost again. Cure: mount the right disks; or, if they are lost, start it once "
            "with allow_empty_disk = false, which refuses and permits one more empty start, and "
            "then with true; the bookie then copies the missing entries from the other bookies"
        )


def differences(found: Cookie, expected: Cookie) -> str:
    """Returns the fields in which the cookie `found` is not `expected`, for a message."""

    def text(value: object) -> str:
        return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)

    pairs = ((f.name, getattr(found, f.name), getattr(expected, f.name)) for f in fields(Cookie))
    return "; ".join(
        f"its {name} is {text(its)}, expected is {text(ours)}"
        for name, its, ours in pairs
        if its != ours
    )


async def cookie_of(disk: Disk, directory: str) -> Cookie | None:
    try:
        return decode_cookie(await disk.read_file(f"{directory}/{COOKIE_FILE}"))
    except FileNotFoundError:
        return None
    except (MetadataCorrupt, InvalidArgument) as error:
        raise CookieMismatch(
            f"{directory}/{COOKIE_FILE}: {error}. Cure: copy it from another directory of this "
            "bookie, they are all alike; if there is none, replace the disk: it is damaged"
        ) from error


async def _has_begun_empty(config: BookieConfig, disk: Disk) -> bool:
    """Returns whether the bookie was killed while it wrote the cookies of an empty start."""
    for directory in config.journal_directories:
        try:
            if await disk.read_file(f"{directory}/{UNSYNCED_FILE}") != EMPTIED:
                return False
        except FileNotFoundError:
            return False
    return True


async def _check_holds_nothing(disk: Disk, directories: Iterable[str], problem: str) -> None:
    """Checks that the directories contain no data. Raises CookieMismatch."""
    for directory in directories:
        names = await disk.list_directory(directory)
        held = [name for name in names if name not in NO_DATA]
        if held:
            raise CookieMismatch(f"{directory} holds {', '.join(held[:5])}, {problem}")
