"""A cluster on one machine: one process per bookie, watched over by a small supervisor.

Answers for the directory's layout and for which processes there are; `bookie.supervisor` starts,
restarts and stops them. It never touches a bookie's data, and imports nothing heavy, so that a
cluster is ready soon.
"""

from __future__ import annotations

import fcntl
import random
import socket
import tomllib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import trio

from bookie.supervisor import Child, ClusterStartFailed
from ledger.errors import InvalidArgument

HOST = "127.0.0.1"
BOOKIES_MAX = 64
# Below Linux's range for outgoing connections: a client that tries a dead bookie's port can
# then never be given the same port as its own, and so never connects to itself.
_PORTS = range(20_000, 32_000)
_START_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Layout:
    """What lies where in a standalone cluster's directory. Ports are chosen once and kept,
    because `host:port` is a bookie's name in the metadata."""

    directory: Path
    ports: tuple[int, ...]
    metadata: str

    @classmethod
    def open(cls, directory: Path, bookies: int | None, metadata: str = "sqlite") -> Self:
        """Reads the layout of `directory`, or makes one for `bookies` (default 3).

        Raises InvalidArgument if the directory holds a cluster of another size.
        """
        directory = directory.resolve()
        kept = directory / "standalone.toml"
        if kept.exists():
            with kept.open("rb") as file:
                stored = tomllib.load(file)
            layout = cls(directory, tuple(stored["ports"]), stored["metadata"])
            if bookies is not None and bookies != len(layout.ports):
                raise InvalidArgument(
                    f"{directory} holds a cluster of {len(layout.ports)} bookies, not {bookies}: "
                    f"leave --bookies out, or choose another directory"
                )
            return layout
        count = 3 if bookies is None else bookies
        if not 1 <= count <= BOOKIES_MAX:
            raise InvalidArgument(f"--bookies is {count}, must be 1 to {BOOKIES_MAX}")
        if metadata == "sqlite":
            metadata = f"sqlite://{directory / 'cluster.db'}"
        if not metadata.startswith("sqlite://"):
            raise InvalidArgument(
                f"--metadata is {metadata!r}: several processes need a store they can share, "
                f"'sqlite' or sqlite:///path/cluster.db"
            )
        directory.mkdir(parents=True, exist_ok=True)
        layout = cls(directory, _free_ports(count), metadata)
        layout._keep(kept)
        return layout

    def _keep(self, path: Path) -> None:
        new = path.with_suffix(".new")
        new.write_text(
            f'metadata = "{self.metadata}"\nports = [{", ".join(map(str, self.ports))}]\n'
        )
        new.replace(path)

    def bookie_directory(self, number: int) -> Path:
        """`number` counts from 1."""
        return self.directory / f"bookie-{number}"

    def bookie_config(self, number: int) -> Path:
        """The bookie's settings; written on the first call, then left to its owner."""
        directory = self.bookie_directory(number)
        path = directory / "bookie.toml"
        if not path.exists():
            directory.mkdir(parents=True, exist_ok=True)
            path.write_text(
                "# Settings of this bookie; docs/configuration.md describes all of them.\n"
                f'metadata_uri = "{self.metadata}"\n'
                f'host = "{HOST}"\n'
                f"port = {self.ports[number - 1]}\n"
                f'journal_directories = ["{directory / "journal"}"]\n'
                f'ledger_directories = ["{directory / "ledgers"}"]\n'
            )
        return path


def _free_ports(count: int) -> tuple[int, ...]:
    ports: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return tuple(ports)
    raise ClusterStartFailed(f"fewer than {count} free ports between {_PORTS[0]} and {_PORTS[-1]}")


def _bookie_child(layout: Layout, number: int, say: Callable[[str], None]) -> Child:
    directory = layout.bookie_directory(number)
    return Child(
        f"bookie {number} ({HOST}:{layout.ports[number - 1]})",
        ["bookie.process", str(layout.bookie_config(number))],
        directory / "bookie",
        say,
    )


def _janitor_child(layout: Layout, interval_s: float, say: Callable[[str], None]) -> Child:
    # By name, as a command of its own: this package never imports streams.
    command = ["stream.cli", "janitor", "--child", "--cluster", layout.metadata]
    return Child(
        "janitor", [*command, "--interval-s", str(interval_s)], layout.directory / "janitor", say
    )


async def run_local_cluster(
    layout: Layout,
    *,
    is_restarted: bool = True,
    janitor_interval_s: float = 0,
    say: Callable[[str], None],
    when_ready: Callable[[], Awaitable[None]],
) -> None:
    """Runs all bookies of `layout` until cancelled, and leaves none behind.

    `when_ready` is awaited once, when all of them serve; the cluster stops when it returns. A
    janitor that applies retention begins a little later, unless its interval is 0. `say` gets a
    line for a human on each change. Raises ClusterStartFailed.
    """
    bookies = [_bookie_child(layout, n + 1, say) for n in range(len(layout.ports))]
    with _sole_owner(layout.directory):
        async with trio.open_nursery() as nursery:
            for bookie in bookies:
                nursery.start_soon(partial(bookie.supervise, is_restarted=is_restarted))
            await _wait_ready(layout, bookies)
            if janitor_interval_s > 0:
                nursery.start_soon(_janitor_child(layout, janitor_interval_s, say).begin_later)
            await when_ready()
            nursery.cancel_scope.cancel()


async def _wait_ready(layout: Layout, bookies: list[Child]) -> None:
    with trio.move_on_after(_START_TIMEOUT_S):
        for bookie in bookies:
            await bookie.is_ready.wait()
        return
    late = [bookie.name for bookie in bookies if not bookie.is_ready.is_set()]
    raise ClusterStartFailed(
        f"not ready after {_START_TIMEOUT_S:.0f} s: {', '.join(late)}; see bookie.log in "
        f"{layout.directory}"
    )


@contextmanager
def _sole_owner(directory: Path) -> Iterator[None]:
    with (directory / "standalone.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ClusterStartFailed(
                f"a cluster is running in {directory} already: use it, stop it, or choose "
                f"another directory"
            ) from None
        yield
