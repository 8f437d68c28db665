"""A real cluster inside the process of a test: real bookie code and sockets, disks in memory.

It runs in a thread of its own, so that blocking, asyncio and trio programs, and other processes
too, can use it by its address; the metadata is one SQLite file. Never for data that matters: the
disks live as long as the object.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import trio

from bookie.bookie import Bookie
from bookie.config import MIB, BookieConfig
from bookie.standalone.cluster import HOST, free_ports
from bookie.testing.disk import CrashKind, DiskOptions, SimDisk
from bookie.testing.process import SimProcess
from bookie.testing.scheduler import Simulation
from ledger.errors import InvalidArgument
from ledger.metastore import open_store
from ledger.runtime.network import TcpNetwork

_SESSION_TIMEOUT_MS = 2000
_CALL_POLL_S = 1.0
_FAST_DISK = DiskOptions(
    read_max_s=0, write_max_s=0, sync_max_s=0, cached_read_probability=1.0
)  # fmt: skip


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class _Node:
    """What a bookie keeps over its deaths: its port and its disk."""

    def __init__(self, world: Simulation, port: int, uri: str) -> None:
        self.bookie_id = f"{HOST}:{port}"
        self.disk = SimDisk(world, self.bookie_id, _FAST_DISK)
        self.process: SimProcess | None = None
        self.config = BookieConfig(
            metadata_uri=uri,
            host=HOST,
            port=port,
            journal_directories=("/journal",),
            ledger_directories=("/ledgers",),
            journal_file_bytes_max=4 * MIB,
            journal_queue_bytes_max=4 * MIB,
            write_cache_bytes=8 * MIB,
            entry_log_bytes_max=4 * MIB,
            read_cache_bytes=4 * MIB,
            frame_bytes_max=2 * MIB,
        )

    @property
    def is_up(self) -> bool:
        return self.process is not None and not self.process.finished.is_set()


class InProcessCluster:
    """Bookies for tests; a context manager. Its methods may be called from any thread and from any
    kind of program; they block until they have finished, which takes milliseconds.

    Args:
        directory: where the SQLite file of the metadata is stored.
        bookies: their number.

    A bookie that dies of anything but `crash` is a bug: leaving the block raises its error.
    """

    def __init__(self, directory: Path | str, *, bookies: int = 3) -> None:
        if not 1 <= bookies <= 64:
            raise InvalidArgument(f"bookies is {bookies}, must be 1 to 64")
        directory = Path(directory).absolute()  # for programs that run elsewhere, too
        if not directory.is_dir():
            raise InvalidArgument(f"there is no directory {directory} for the cluster's metadata")
        self.uri = f"sqlite://{directory / 'cluster.db'}"
        """The cluster's address for any program."""
        world = Simulation(0, time_limit_s=math.inf, trace_file=None)
        self._nodes = {
            node.bookie_id: node
            for node in (_Node(world, port, self.uri) for port in free_ports(bookies))
        }
        self._starts = 0
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._is_ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run_thread, name="ledgerstream cluster", daemon=True
        )

    def __enter__(self) -> Self:
        """Returns when all bookies accept requests."""
        self._thread.start()
        self._is_ready.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._token is not None and self._nursery is not None:
            try:
                self._token.run_sync_soon(self._nursery.cancel_scope.cancel)
            except trio.RunFinishedError:
                pass  # a bookie has failed, and the others have ended with it
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure

    @property
    def bookies(self) -> list[str]:
        """The ids of all bookies, up or down."""
        return list(self._nodes)

    def is_up(self, bookie: str) -> bool:
        """Returns whether this bookie runs."""
        return self._node(bookie).is_up

    def crash(self, bookie: str, kind: CrashKind = CrashKind.PROCESS_KILLED) -> None:
        """Kills a bookie as `kill -9` does, or as a power cut does; `kind` is what its disk keeps
        of what was not synced. Does nothing if it is down."""
        node = self._node(bookie)

        async def kill() -> None:
            process = node.process
            if process is None or not process.is_running:
                return
            node.disk.crash(kind)
            process.kill()
            await process.finished.wait()

        self._call(kill)

    def restart(self, bookie: str) -> None:
        """Starts a bookie that is down, on the disk it left; returns when it accepts requests."""
        node = self._node(bookie)
        if node.is_up:
            raise InvalidArgument(f"bookie {bookie} is up; crash it first")

        async def start() -> None:
            await self._start(node).started.wait()

        self._call(start)

    # Inside: in the cluster's thread.

    def _node(self, bookie: str) -> _Node:
        if bookie not in self._nodes:
            raise InvalidArgument(f"no bookie {bookie!r}; there are {', '.join(self._nodes)}")
        return self._nodes[bookie]

    def _call(self, async_fn: Callable[[], Awaitable[None]]) -> None:
        """Runs `async_fn` in the cluster's thread and waits. It also works in a thread with a loop
        of its own, which `trio.from_thread` refuses: what it waits for never needs that loop."""
        if self._token is None or self._nursery is None:
            raise InvalidArgument("the cluster does not run: use it inside its `with` block")
        nursery, done = self._nursery, threading.Event()
        errors: list[BaseException] = []

        async def call() -> None:
            try:
                await async_fn()
            except trio.Cancelled:
                raise  # the cluster has failed or ended; its thread reports why, and then ends
            except BaseException as error:
                errors.append(error)
                done.set()
                raise
            done.set()

        try:
            self._token.run_sync_soon(nursery.start_soon, call)
        except trio.RunFinishedError:
            raise self._failure or InvalidArgument("the cluster has ended") from None
        while not done.wait(_CALL_POLL_S):
            if not self._thread.is_alive():
                raise self._failure or InvalidArgument("the cluster has ended")
        if errors:
            raise errors[0]

    def _run_thread(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self._failure = error
        finally:
            self._is_ready.set()

    async def _main(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._token = trio.lowlevel.current_trio_token()
            # The first one creates the metadata; together they would only wait for each other.
            for node in self._nodes.values():
                await self._start(node).started.wait()
            self._is_ready.set()
            await trio.sleep_forever()

    def _start(self, node: _Node) -> SimProcess:
        assert self._nursery is not None, "the cluster does not run"
        self._starts += 1
        rng = random.Random(self._starts)
        process = node.process = SimProcess(node.bookie_id, node.disk.freeze)

        async def body() -> None:
            mounted = node.disk.mount()
            async with (
                open_store(
                    self.uri, session_timeout_ms=_SESSION_TIMEOUT_MS, may_create=True
                ) as store,
                trio.open_nursery() as nursery,
            ):
                bookie = Bookie(
                    node.config,
                    network=TcpNetwork(),
                    disk=mounted,
                    key_value=mounted.open_key_value,
                    store=store,
                    now_ms=_now_ms,
                    rng=rng,
                )
                await nursery.start(bookie.run)
                process.started.set()

        async def run() -> None:
            await process.run(body)
            if process.error is not None:
                raise process.error

        self._nursery.start_soon(run)
        return process
