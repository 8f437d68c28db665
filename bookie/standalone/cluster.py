"""A cluster on one machine: one process per bookie, run by a small supervisor.

Defines the layout of the cluster's directory and its processes, with a ZooKeeper server of its own
if requested; `bookie.standalone.supervisor` starts, restarts and stops them. Must never touch their
data, nor import anything heavy, so that commands that only need the layout begin soon.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import time
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import trio

from bookie.standalone import BOOKIES_MAX
from bookie.standalone.forks import ForkedProcess
from bookie.standalone.supervisor import Child, ClusterStartFailed, wait_ready
from bookie.standalone.zookeeper_server import require_zookeeper
from ledger.errors import InvalidArgument
from ledger.metastore import ledgers_root, open_store
from ledger.runtime.private_files import DIRECTORY_MODE, make_private_file, private_opener
from ledger.security_setup import (
    BOOKIES,
    SecurityDirectory,
    create_first_users,
    make_security_directory_at_once,
)

HOST = "127.0.0.1"
SQLITE, ZOOKEEPER = "sqlite", "zookeeper"
"""Values of --metadata other than an address."""
# Below Linux's range for outgoing connections: a client that tries the port of a dead bookie can
# then never get the same port for itself, and so never connects to itself.
PORTS = range(20_000, 32_000)
_BOOKIE = "bookie"
"""Name of the certificate that all bookies of a secure cluster have: they have one host."""


@dataclass(frozen=True, slots=True)
class StandaloneLayout:
    """The layout of a standalone cluster's directory. Ports are chosen once and kept, because
    `host:port` is the name of a bookie in the metadata."""

    directory: Path
    ports: tuple[int, ...]
    metadata: str
    zookeeper_port: int | None = None
    """Port of the cluster's own ZooKeeper server, if it has one."""
    http_ports: tuple[int, ...] = ()
    """A port per bookie; empty in a directory that was created before bookies served HTTP."""
    is_secure: bool = False
    """Whether the bookies admit nobody but users with permissions, over TLS."""

    @classmethod
    def open(
        cls,
        directory: Path,
        bookies: int | None,
        metadata: str | None = None,
        *,
        is_secure: bool = False,
    ) -> Self:
        """Reads the layout of `directory`, or creates one for `bookies` (default 3).

        `metadata` is "sqlite" (default), "zookeeper", or the address of an existing store.
        `is_secure` makes certificates and credentials in a new directory. Raises InvalidArgument if
        the directory holds another cluster, and ZooKeeperMissing.
        """
        directory = directory.resolve()
        _check_path(str(directory))
        kept = directory / "standalone.toml"
        if kept.exists():
            with kept.open("rb") as file:
                stored = tomllib.load(file)
            layout = cls(
                directory,
                tuple(stored["ports"]),
                stored["metadata"],
                stored.get("zookeeper_port"),
                tuple(stored.get("http_ports", ())),
                stored.get("is_secure", False),
            )
            layout._check_is(bookies, metadata, is_secure=is_secure)
            return layout
        layout = cls._new(directory, 3 if bookies is None else bookies, metadata, is_secure)
        try:
            directory.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidArgument(
                f"the directory {directory} cannot be made: {error.strerror}. Cure: choose another "
                f"--dir, which this user may create or write"
            ) from error
        if is_secure:
            make_security_directory_at_once(
                layout.security,
                {_BOOKIE: (HOST, "localhost")},
                rng=random.SystemRandom(),
                now_ms=_wall_ms(),
            )
        layout._keep(kept)
        return layout

    @classmethod
    def _new(cls, directory: Path, count: int, metadata: str | None, is_secure: bool) -> Self:
        """Returns the layout of a cluster that does not exist yet; creates nothing."""
        if not 1 <= count <= BOOKIES_MAX:
            raise InvalidArgument(f"--bookies is {count}, must be 1 to {BOOKIES_MAX}")
        if is_secure and metadata not in (None, SQLITE):
            raise InvalidArgument(
                f"--secure keeps the metadata in a file of this user, not in {metadata}: a "
                "program that can change the metadata can give any user any role. Cure: leave out "
                "--metadata, or secure ZooKeeper and run single bookies (docs/security.md)"
            )
        if metadata == ZOOKEEPER:
            require_zookeeper()  # before anything is created
            *ports, port = free_ports(2 * count + 1)
            uri = f"zk://{HOST}:{port}/ledgers"
            return cls(directory, tuple(ports[:count]), uri, port, tuple(ports[count:]))
        if metadata in (None, SQLITE):
            metadata = f"sqlite://{directory / 'cluster.db'}"
        found = free_ports(2 * count)
        uri = _shareable(metadata)
        return cls(directory, found[:count], uri, None, found[count:], is_secure)

    def _check_is(self, bookies: int | None, metadata: str | None, *, is_secure: bool) -> None:
        if is_secure and not self.is_secure:
            raise InvalidArgument(
                f"{self.directory} holds a cluster that was created without --secure: choose "
                "another directory, or set it up as docs/security.md describes"
            )
        if bookies is not None and bookies != len(self.ports):
            raise InvalidArgument(
                f"{self.directory} holds a cluster of {len(self.ports)} bookies, not {bookies}: "
                f"omit --bookies, or choose another directory"
            )
        kind = SQLITE if self.metadata == f"sqlite://{self.directory / 'cluster.db'}" else None
        kind = ZOOKEEPER if self.zookeeper_port is not None else kind
        if metadata not in (None, kind, self.metadata):
            raise InvalidArgument(
                f"{self.directory} holds a cluster with its metadata in {self.metadata}, not "
                f"{metadata}: omit --metadata, or choose another directory"
            )

    def _keep(self, path: Path) -> None:
        kept: dict[str, Any] = {
            "metadata": self.metadata,
            "ports": self.ports,
            "http_ports": self.http_ports,
        }
        if self.zookeeper_port is not None:
            kept["zookeeper_port"] = self.zookeeper_port
        if self.is_secure:
            kept["is_secure"] = True
        _write_toml(path, kept)

    @property
    def zookeeper_directory(self) -> Path:
        return self.directory / "zookeeper"

    @property
    def security(self) -> SecurityDirectory:
        """The certificates, keys and credentials of a secure cluster."""
        return SecurityDirectory(self.directory / "security")

    def bookie_directory(self, number: int) -> Path:
        """Returns the directory of bookie `number`, from 1."""
        return self.directory / f"bookie-{number}"

    def bookie_config(self, number: int) -> Path:
        """Returns the file of the bookie's settings. The first call writes it; after that it is the
        operator's."""
        directory = self.bookie_directory(number)
        path = directory / "bookie.toml"
        if not path.exists():
            directory.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
            settings = {
                "metadata_uri": self.metadata,
                "host": HOST,
                "port": self.ports[number - 1],
                "http_port": self.http_ports[number - 1] if self.http_ports else 0,
                "journal_directories": [str(directory / "journal")],
                "ledger_directories": [str(directory / "ledgers")],
                "autorecovery": True,
                **(self.security.bookie_settings(_BOOKIE) if self.is_secure else {}),
            }
            comment = "# Settings of this bookie; docs/configuration.md describes all of them.\n"
            _write_toml(path, settings, comment)
        return path


def _write_toml(path: Path, values: dict[str, Any], comment: str = "") -> None:
    import tomli_w  # of the extra "bookie", which commands that start no process do not need

    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)  # left by a process that was killed, with a mode of its own
    with open(new, "w", encoding="utf-8", opener=private_opener) as file:
        file.write(comment + tomli_w.dumps(values))
    new.replace(path)


def _check_path(path: str, *, is_address: bool = False) -> None:
    """Checks that a path can be in settings files and cookies, before anything is created there.

    Raises InvalidArgument. Settings are UTF-8, and a cookie, which has Apache's form, separates
    directories by commas and tabs.
    """
    try:
        path.encode()
    except UnicodeEncodeError:
        shown = os.fsencode(path).decode(errors="backslashreplace")
        raise InvalidArgument(
            f"path '{shown}' is not UTF-8, and settings files are. Cure: choose another path"
        ) from None
    refused = set("" if is_address else ",") | {chr(code) for code in (*range(32), 127)}
    odd = [mark.encode("unicode_escape").decode() for mark in sorted(refused.intersection(path))]
    if odd:
        raise InvalidArgument(
            f"path '{path.encode('unicode_escape').decode()}' contains {' '.join(odd)}: commas "
            "and control characters cannot be in the paths of a bookie. Cure: choose another path"
        )


def _shareable(metadata: str) -> str:
    if metadata.startswith("sqlite://"):
        _check_path(metadata, is_address=True)
        return metadata
    if metadata.startswith(("zk://", "zk+")):
        ledgers_root(metadata)  # refuses an address that no bookie could use
        return metadata
    raise InvalidArgument(
        f"--metadata is {metadata!r}: several processes need a store they can share, "
        f"'{SQLITE}', '{ZOOKEEPER}', sqlite:///path/cluster.db or zk://host:2181/ledgers"
    )


def free_ports(count: int) -> tuple[int, ...]:
    ports: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return tuple(ports)
    raise ClusterStartFailed(f"fewer than {count} free ports between {PORTS[0]} and {PORTS[-1]}")


def _bookie_child(
    layout: StandaloneLayout,
    number: int,
    say: Callable[[str], None],
    forked: Iterator[ForkedProcess],
) -> Child:
    directory = layout.bookie_directory(number)
    return Child(
        f"bookie {number} ({HOST}:{layout.ports[number - 1]})",
        ["bookie.process", str(layout.bookie_config(number))],
        directory / "bookie",
        say,
        forked=next(forked, None),
    )


def _zookeeper_child(layout: StandaloneLayout, say: Callable[[str], None]) -> Child:
    directory = layout.zookeeper_directory
    directory.mkdir(DIRECTORY_MODE, exist_ok=True)
    return Child(
        f"ZooKeeper ({HOST}:{layout.zookeeper_port})",
        ["bookie.standalone.zookeeper_process", str(directory), str(layout.zookeeper_port)],
        directory / "zookeeper",
        say,
        reopens_log=False,
    )


def _janitor_child(
    layout: StandaloneLayout,
    interval_s: float,
    say: Callable[[str], None],
    forked: Iterator[ForkedProcess],
) -> Child:
    # By name, as a program of its own: this package never imports streams.
    command = ["stream.cli.janitor", layout.metadata, str(interval_s)]
    if layout.is_secure:
        command.append(str(layout.security.credentials_file(BOOKIES)))
    files = layout.directory / "janitor"
    return Child("janitor", command, files, say, forked=next(forked, None))


async def run_local_cluster(
    layout: StandaloneLayout,
    *,
    is_restarted: bool = True,
    janitor_interval_s: float = 0,
    say: Callable[[str], None],
    forked: Iterator[ForkedProcess],
    when_ready: Callable[[], Awaitable[None]],
    reopen_logs: Callable[[Callable[[], None]], Awaitable[None]] | None = None,
) -> None:
    """Runs all processes of `layout` until cancelled, and leaves none behind.

    `forked` are processes to begin with. `when_ready` is awaited once all bookies serve; when it
    returns, the cluster stops. A janitor that applies retention starts a little later, unless its
    interval is 0. `say` gets a line of text for each change. `reopen_logs` runs beside it, and gets
    a function that has all processes open their logs. Raises ClusterStartFailed, ZooKeeperMissing.
    """
    bookies = [_bookie_child(layout, n + 1, say, forked) for n in range(len(layout.ports))]
    with _sole_owner(layout.directory):
        async with _metadata_served(layout, is_restarted, say), trio.open_nursery() as nursery:
            for bookie in bookies:
                nursery.start_soon(partial(bookie.supervise, is_restarted=is_restarted))
            await wait_ready(bookies)
            children = [*bookies]
            if janitor_interval_s > 0:
                children.append(_janitor_child(layout, janitor_interval_s, say, forked))
                nursery.start_soon(children[-1].begin_later)
            if reopen_logs is not None:
                nursery.start_soon(reopen_logs, partial(_reopen_logs, children))
            await when_ready()
            nursery.cancel_scope.cancel()


async def create_users_once(layout: StandaloneLayout) -> None:
    """Creates the first users of a secure cluster whose bookies serve, unless it was done before:
    the operator may have deleted them since. Raises InvalidArgument, MetadataUnavailable."""
    done = layout.security.path / "users-created"
    if done.exists():
        return
    async with open_store(layout.metadata) as store:
        await create_first_users(
            store, layout.security, rng=random.SystemRandom(), now_ms=_wall_ms()
        )
    make_private_file(str(done))


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _reopen_logs(children: list[Child]) -> None:
    for child in children:
        child.reopen_log()


@asynccontextmanager
async def _metadata_served(
    layout: StandaloneLayout, is_restarted: bool, say: Callable[[str], None]
) -> AsyncIterator[None]:
    """Runs a ZooKeeper server during the block, if the cluster has one of its own.

    The server outlives a cancelled block, because stopping bookies leave the registry.
    """
    if layout.zookeeper_port is None:
        yield
        return
    require_zookeeper()
    zookeeper = _zookeeper_child(layout, say)
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope(shield=True)

        async def supervise() -> None:
            with scope:
                await zookeeper.supervise(is_restarted=is_restarted)

        nursery.start_soon(supervise)
        try:
            await wait_ready([zookeeper])
            yield
        finally:
            scope.cancel()


@contextmanager
def _sole_owner(directory: Path) -> Iterator[None]:
    with open(directory / "standalone.lock", "w", opener=private_opener) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ClusterStartFailed(
                f"a cluster is already running in {directory}: use it, stop it, or choose "
                f"another directory"
            ) from None
        yield
