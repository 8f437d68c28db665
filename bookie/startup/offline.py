"""Access to a stopped bookie: locks its directories, so that it cannot start, and checks them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from bookie.config import BookieConfig
from bookie.core.integrity import CheckReport, Finding, Severity
from bookie.startup.cookies import COOKIE_FILE, LOCK_FILE, UNSYNCED_FILE, differences
from bookie.startup.power_loss import reason_unverified
from bookie.storage.disk.disk import Disk
from ledger.errors import FinalError, InvalidArgument, MetadataCorrupt
from ledger.metastore.cookie import Cookie, decode_cookie


class BookieRuns(FinalError):
    """The directories are in use."""


class DirectoryMissing(FinalError):
    """A directory of the bookie is missing, or is another bookie's."""


@asynccontextmanager
async def stopped_bookie(config: BookieConfig, disk: Disk) -> AsyncIterator[None]:
    """Holds the locks of all directories. Raises BookieRuns or DirectoryMissing."""
    try:
        for directory in (*config.journal_directories, *config.ledger_directories):
            try:
                await disk.lock(f"{directory}/{LOCK_FILE}")
            except BlockingIOError as error:
                raise BookieRuns(
                    f"the bookie is running ({error.strerror}): {directory} is in use. Cure: stop "
                    "the bookie first"
                ) from None
            except FileNotFoundError:
                raise DirectoryMissing(
                    f"{directory} is not there: a disk is not mounted, or the bookie never ran "
                    "with these settings. Cure: mount it; relative paths begin at the directory "
                    "in which the bookie is started"
                ) from None
        yield
    finally:
        disk.close()


async def refuse_foreign(config: BookieConfig, disk: Disk) -> None:
    """Raises DirectoryMissing unless all cookies exist and are right: a tool that changes files
    must not work on the disk of another bookie."""
    report = CheckReport()
    await check_cookies(config, disk, report)
    for finding in report.findings:
        raise DirectoryMissing(str(finding))


async def check_cookies(config: BookieConfig, disk: Disk, report: CheckReport) -> None:
    """Checks that the cookies of all directories exist, are equal, and name these directories in
    this order. The bookie compares them with the cluster's cookie when it starts."""
    found: dict[str, Cookie] = {}
    for directory in (*config.journal_directories, *config.ledger_directories):
        path = f"{directory}/{COOKIE_FILE}"
        try:
            found[path] = decode_cookie(await disk.read_file(path))
        except FileNotFoundError:
            _damage(report, path, "there is no cookie: the disk is not mounted, or was emptied")
        except (OSError, MetadataCorrupt, InvalidArgument) as error:
            _damage(report, path, str(error))
    _compare(config, found, report)


async def check_unsynced(config: BookieConfig, disk: Disk, boot: str, report: CheckReport) -> None:
    """Reports directories whose entries will be unknown after the next start. `boot` is the boot
    id of the machine."""
    for directory in (*config.journal_directories, *config.ledger_directories):
        path = f"{directory}/{UNSYNCED_FILE}"
        try:
            reason = reason_unverified(await disk.read_file(path), boot)
        except FileNotFoundError:
            continue
        except OSError as error:
            _damage(report, path, f"it cannot be read, and the bookie would not start: {error}")
            continue
        if reason is not None:
            report.add(
                Finding(
                    severity=Severity.DOUBT,
                    path=path,
                    what=f"acknowledged entries of this directory may be gone: {reason}",
                    cure="start the bookie: it treats all ledgers of this directory as unknown, "
                    "and copies lost entries back from other bookies",
                )
            )


def _compare(config: BookieConfig, found: Mapping[str, Cookie], report: CheckReport) -> None:
    if not found:
        return
    first, usual = next(iter(found.items()))
    for path, cookie in found.items():
        if (cookie.journal_directories, cookie.ledger_directories) != (
            config.journal_directories,
            config.ledger_directories,
        ):
            _damage(report, path, f"it names {named(cookie)}, and the settings others")
        elif config.port and cookie.bookie_id != config.id_of(config.port):
            _damage(report, path, f"it is of {cookie.bookie_id}, not {config.id_of(config.port)}")
        elif cookie != usual:
            _damage(report, path, f"it differs from that of {first}: {differences(cookie, usual)}")


def named(cookie: Cookie) -> str:
    """Returns the directories in a cookie, for a message."""
    journals, ledgers = cookie.journal_directories, cookie.ledger_directories
    return f"journal directories {', '.join(journals)} and ledger directories {', '.join(ledgers)}"


def _damage(report: CheckReport, path: str, what: str) -> None:
    report.add(
        Finding(
            severity=Severity.DAMAGE,
            path=path,
            what=what,
            cure="mount the right disks; give the bookie the id and the directories it had, in "
            "the same order. Replace a damaged cookie by a copy from the other directories",
        )
    )
