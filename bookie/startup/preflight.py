"""Claims what a bookie needs before it serves: its directories and the address it listens on.

Failures are in most cases wrong settings, so each error names the cure.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence

from bookie.config import BookieConfig
from bookie.startup.cookies import LOCK_FILE
from bookie.startup.offline import BookieRuns
from bookie.storage.disk.disk import Disk
from ledger.errors import InvalidArgument
from ledger.runtime.network import Listener, Network

_HOST_CURE = (
    "set host to an address of this machine, or to 0.0.0.0, which is all of them, and "
    "advertised_host to what clients connect to"
)


async def lock_directories(config: BookieConfig, disk: Disk) -> None:
    """Creates missing directories, and locks all until the process ends.

    Raises BookieRuns if another process uses one of them, InvalidArgument if one cannot be created
    or written, and OSError.
    """
    await lock_each((*config.journal_directories, *config.ledger_directories), disk)


async def lock_each(directories: Sequence[str], disk: Disk) -> None:
    """Does the same for these directories."""
    for directory in directories:
        try:
            await disk.make_directory(directory)
        except (FileExistsError, NotADirectoryError) as error:
            raise InvalidArgument(
                f"directory {directory} cannot be created: {error.filename or directory} is a "
                "file. Cure: move the file away, or name another directory"
            ) from error
        except PermissionError as error:
            raise InvalidArgument(
                f"directory {directory} cannot be created: {error}. Cure: create it, and let this "
                "user write in it"
            ) from error
    for directory in directories:
        try:
            await disk.lock(f"{directory}/{LOCK_FILE}")
        except BlockingIOError as error:
            raise _running(directory, error) from None
        except PermissionError as error:
            raise InvalidArgument(
                f"directory {directory} cannot be used: {error}. Cure: let this user write in it"
            ) from error


async def check_not_running(config: BookieConfig, disk: Disk) -> None:
    """Raises BookieRuns if a process holds a directory of this bookie; creates nothing."""
    for directory in (*config.journal_directories, *config.ledger_directories):
        try:
            await disk.lock(f"{directory}/{LOCK_FILE}")
        except BlockingIOError as error:
            raise _running(directory, error) from None
        except OSError:
            return  # the start will report it


def _running(directory: str, error: BlockingIOError) -> BookieRuns:
    return BookieRuns(
        f"this bookie is already running ({error.strerror}): {directory} is in use by "
        "that process. Cure: stop the bookie that runs there, or give this one directories of its "
        "own"
    )


async def listen(config: BookieConfig, network: Network, setting: str = "port") -> Listener:
    """Listens on the bookie's address, at the port in `setting`. Raises InvalidArgument if it
    cannot be used, and OSError."""
    port: int = getattr(config, setting)
    try:
        return await network.listen(config.host, port)
    except OSError as error:
        cure = _cure_of(error, setting)
        if not cure:
            raise
        raise InvalidArgument(
            f"cannot listen on {config.host}:{port}: {error.strerror}. Cure: {cure}"
        ) from error


def _cure_of(error: OSError, setting: str) -> str:
    """Returns the cure for an unusable address, or "" if the error has another cause."""
    if isinstance(error, socket.gaierror):
        return _HOST_CURE
    match error.errno:
        case errno.EADDRINUSE:
            return f"stop the program that listens there, or change {setting}"
        case errno.EADDRNOTAVAIL:
            return _HOST_CURE
        case errno.EACCES:
            return "choose a port of 1024 or above, or allow this user lower ones"
    return ""
