"""A cluster on one machine: one process per bookie, watched over by a small supervisor.

Answers for the directory's layout, for starting, restarting and stopping the processes, and for
leaving none behind: each bookie watches a pipe whose other end only the supervisor holds. It never
touches a bookie's data, and imports nothing heavy, so that a cluster is ready soon.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import subprocess
import sys
import tomllib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import trio

from ledger.errors import InvalidArgument, LedgerError

HOST = "127.0.0.1"
BOOKIES_MAX = 64
# Below Linux's range for outgoing connections: a client that tries a dead bookie's port can
# then never be given the same port as its own, and so never connects to itself.
_PORTS = range(20_000, 32_000)
# A bookie of a supervisor that was killed a moment ago may still hold port and directory.
_START_ATTEMPTS = 3
_BACKOFF_FIRST_S = 0.2
_BACKOFF_MAX_S = 10.0
_STABLE_S = 30.0
_START_TIMEOUT_S = 60.0
_STOP_GRACE_S = 10.0


class ClusterStartFailed(LedgerError):
    """A bookie of the local cluster did not come up."""


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


class BookieProcess:
    """One bookie of the cluster and its supervisor."""

    def __init__(self, layout: Layout, number: int, say: Callable[[str], None]) -> None:
        self._config = layout.bookie_config(number)
        self._log = layout.bookie_directory(number) / "bookie.log"
        self._number = number
        self._say = say
        self.is_ready = trio.Event()
        self.address = f"{HOST}:{layout.ports[number - 1]}"

    async def supervise(self, *, is_restarted: bool) -> None:
        """Keeps the bookie running until cancelled; then stops it.

        Raises ClusterStartFailed if it ends before it was ever ready.
        """
        backoff_s = _BACKOFF_FIRST_S
        attempts = 0
        while True:
            started_s = trio.current_time()
            code = await self._run_once()
            attempts += 1
            if not self.is_ready.is_set() and attempts >= _START_ATTEMPTS:
                raise ClusterStartFailed(
                    f"bookie {self._number} ({self.address}) ended with {_ending(code)} before it "
                    f"was ready: {self._last_words()} (see {self._log})"
                )
            ended = f"bookie {self._number} ({self.address}) ended with {_ending(code)}"
            if not is_restarted and self.is_ready.is_set():
                self._say(f"{ended}; it stays down (--no-restart)")
                await trio.sleep_forever()
            if trio.current_time() - started_s > _STABLE_S:
                backoff_s = _BACKOFF_FIRST_S
            self._say(f"{ended}; started again in {backoff_s:.1f} s (see {self._log})")
            await trio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)

    async def _run_once(self) -> int:
        """Starts the process and waits for its end. Stops it when cancelled."""
        with self._log.open("ab") as log:
            process = await trio.lowlevel.open_process(
                [sys.executable, "-P", "-m", "bookie.process", str(self._config)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(),
                start_new_session=True,  # Ctrl-C is for the supervisor, who tells them in order
            )
        pid_file = self._config.with_name("bookie.pid")
        pid_file.write_text(f"{process.pid}\n")
        try:
            await self._wait_ready(process)
            return await process.wait()
        finally:
            with trio.CancelScope(shield=True):
                await _stop(process)
            pid_file.unlink(missing_ok=True)

    async def _wait_ready(self, process: trio.Process) -> None:
        assert process.stdout is not None
        said = b""
        async for chunk in process.stdout:
            said += chunk
            if said.startswith(b"ready ") and b"\n" in said:
                if self.is_ready.is_set():
                    self._say(f"bookie {self._number} ({self.address}) serves again")
                self.is_ready.set()
                return

    def _last_words(self) -> str:
        with self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - 4096))
            lines = log.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


async def _stop(process: trio.Process) -> None:
    if process.returncode is None:
        process.terminate()
        with trio.move_on_after(_STOP_GRACE_S):
            await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            await pipe.aclose()


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _environment() -> dict[str, str]:
    """Ours, with this very checkout or installation first, wherever the user stands."""
    here = str(Path(__file__).resolve().parents[1])
    earlier = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{earlier}" if earlier else here}


async def run_local_cluster(
    layout: Layout,
    *,
    is_restarted: bool = True,
    say: Callable[[str], None],
    when_ready: Callable[[], Awaitable[None]],
) -> None:
    """Runs all bookies of `layout` until cancelled, and leaves none behind.

    `when_ready` is awaited once, when all of them serve; the cluster stops when it returns.
    `say` gets a line for a human on each change. Raises ClusterStartFailed.
    """
    bookies = [BookieProcess(layout, n + 1, say) for n in range(len(layout.ports))]
    with _sole_owner(layout.directory):
        await _run_bookies(layout, bookies, is_restarted, when_ready)


async def _run_bookies(
    layout: Layout,
    bookies: list[BookieProcess],
    is_restarted: bool,
    when_ready: Callable[[], Awaitable[None]],
) -> None:
    async with trio.open_nursery() as nursery:
        for bookie in bookies:
            nursery.start_soon(_supervise, bookie, is_restarted)
        with trio.move_on_after(_START_TIMEOUT_S) as patience:
            for bookie in bookies:
                await bookie.is_ready.wait()
        if patience.cancelled_caught:
            late = [bookie.address for bookie in bookies if not bookie.is_ready.is_set()]
            raise ClusterStartFailed(
                f"not ready after {_START_TIMEOUT_S:.0f} s: {', '.join(late)}; "
                f"see bookie.log in {layout.directory}"
            )
        await when_ready()
        nursery.cancel_scope.cancel()


async def _supervise(bookie: BookieProcess, is_restarted: bool) -> None:
    await bookie.supervise(is_restarted=is_restarted)


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
