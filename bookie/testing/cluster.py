"""A simulated cluster: bookies and clients as processes that start, die and restart.

It connects the product to the simulated interfaces; only this module knows how a bookie is put
together. One seed gives one run.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import trio

from bookie.bookie import Bookie, storage_of
from bookie.config import KIB, MIB, BookieConfig
from bookie.data_integrity import LimboRepair
from bookie.server.audit import AuditLog
from bookie.server.server import Server
from bookie.startup.change_directories import DirectoriesKept, DirectoryChange
from bookie.startup.cookies import CookieMismatch
from bookie.startup.rename import BookieRename
from bookie.startup.rename_ledgers import RenameRefused
from bookie.storage.bookie_storage import BookieStorage
from bookie.testing.disk import CrashKind, DiskOptions, MountedDisk, SimDisk
from bookie.testing.metastore import MetadataOptions, SimMetadata
from bookie.testing.network import NetworkOptions, SimNetwork
from bookie.testing.process import SimProcess, leaves_of
from bookie.testing.scheduler import Simulation, run_simulated
from ledger.client import LedgerClient
from ledger.core.ledger_keys import NO_KEYS
from ledger.errors import LedgerError
from ledger.metastore.base import MetadataStore
from ledger.metastore.ledgers import LedgerStore
from ledger.metastore.underreplication import UnderreplicationStore
from ledger.options import ClientOptions

ResultT = TypeVar("ResultT")

BOOKIE_PORT = 3181
CLOCK_SKEW_MS_MAX = 5_000


@dataclasses.dataclass(slots=True)
class _Node:
    """What a bookie keeps over its deaths."""

    config: BookieConfig
    disk: SimDisk
    process: SimProcess | None = None
    bookie: Bookie | None = None
    is_lost: bool = False
    """Its disk, or a part of it, is gone: it must not serve before that was dropped."""
    is_changing: bool = False
    """A change of its list of directories, or of its id, was interrupted: it must not serve
    half-changed."""


class SimCluster:
    """Bookies, a metadata store and clients in one simulated world; an `async with` object.

    Args:
        simulation: the world, from `run_simulated`.
        bookies: their number at first; they are started on entering.
        config: gives each bookie its settings; the default is made for quick simulations.
        network, metadata, disk: how the interfaces behave at first.

    A bookie that fails because of its disk dies as a process does, and can be started again. One
    that dies of anything else is a bug and ends the simulation with its error.
    """

    def __init__(
        self,
        simulation: Simulation,
        *,
        bookies: int = 3,
        config: Callable[[str, random.Random], BookieConfig] | None = None,
        network: NetworkOptions | None = None,
        metadata: MetadataOptions | None = None,
        disk: DiskOptions | None = None,
    ) -> None:
        self.simulation = simulation
        self.network = SimNetwork(simulation, network)
        self.metadata = SimMetadata(simulation, metadata)
        self.chance = simulation.chance("cluster")
        self.restarts = 0
        self.keys = NO_KEYS
        """The secrets of the cluster, for bookies and clients that start from now on."""
        self.open_audit: Callable[[str], AuditLog] | None = None
        """Makes the audit log of a bookie that starts."""
        self._make_config = config or small_config
        self._disk_options = disk or DiskOptions()
        self._nodes: dict[str, _Node] = {}
        self._skews_ms: dict[str, int] = {}
        self._clients = 0
        self._incarnations = 0
        self._nursery_manager = trio.open_nursery()
        self._nursery: trio.Nursery | None = None
        for _ in range(bookies):
            self.add_bookie()

    async def __aenter__(self) -> Self:
        self._nursery = await self._nursery_manager.__aenter__()
        await self.start_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._nursery is not None
        self._nursery.cancel_scope.cancel()
        await self._nursery_manager.__aexit__(kind, error, traceback)

    # Bookies.

    @property
    def bookies(self) -> list[str]:
        """The names of all bookies, up or down, that have their disks. A bookie's id is
        `<name>:3181`."""
        return [name for name, node in self._nodes.items() if not node.is_lost]

    @property
    def lost_bookies(self) -> list[str]:
        """The names of those that `lose_disk` took from the cluster."""
        return [name for name, node in self._nodes.items() if node.is_lost]

    def add_bookie(self) -> str:
        """Adds a bookie with an empty disk, not started yet; returns its name."""
        name = f"bookie-{len(self._nodes)}"
        chance = self.simulation.chance(f"node/{name}")
        disk = SimDisk(self.simulation, name, dataclasses.replace(self._disk_options))
        self._nodes[name] = _Node(self._make_config(name, chance), disk)
        return name

    def disk(self, bookie: str) -> SimDisk:
        return self._nodes[bookie].disk

    def config(self, bookie: str) -> BookieConfig:
        return self._nodes[bookie].config

    def configure(self, bookie: str, **settings: Any) -> None:
        """Changes settings of a bookie, from its next start on."""
        node = self._nodes[bookie]
        node.config = dataclasses.replace(node.config, **settings)

    def storage(self, bookie: str) -> BookieStorage:
        """Returns the storage of a bookie that serves."""
        server = self._nodes[bookie].bookie
        assert server is not None, f"{bookie} never served"
        assert server.storage is not None, f"{bookie} does not serve"
        return server.storage

    def server(self, bookie: str) -> Server:
        """Returns the server of a bookie that serves."""
        serving = self._nodes[bookie].bookie
        assert serving is not None, f"{bookie} never served"
        assert serving.server is not None, f"{bookie} does not serve"
        return serving.server

    def limbo_repair(self, bookie: str) -> LimboRepair:
        """Returns the data integrity check of a bookie that serves."""
        server = self._nodes[bookie].bookie
        assert server is not None, f"{bookie} never served"
        assert server.limbo_repair is not None, f"{bookie} does not serve"
        return server.limbo_repair

    def is_up(self, bookie: str) -> bool:
        process = self._nodes[bookie].process
        return process is not None and not process.finished.is_set()

    async def start_bookie(self, bookie: str) -> None:
        """Starts a bookie that is down; returns when it accepts requests, or has died again."""
        process = self.begin_bookie(bookie)
        await process.started.wait()

    async def start_all(self) -> None:
        """Starts every bookie that is down or dying, all at once, and waits for all."""
        for node in self._nodes.values():
            # A request to the metadata store that has begun delays the end of a process.
            if node.process is not None and node.process.is_dead:
                await node.process.finished.wait()
        for name in self.bookies:
            if not self.is_up(name):
                self.begin_bookie(name)
        for node in self._nodes.values():
            if node.process is not None:
                await node.process.started.wait()

    def begin_bookie(self, bookie: str) -> SimProcess:
        """Starts a bookie that is down, without waiting for it."""
        assert self._nursery is not None, "the cluster is not open"
        node = self._nodes[bookie]
        assert not self.is_up(bookie), f"{bookie} is up"
        self.restarts += 1
        self.simulation.trace("start", bookie)
        process = SimProcess(bookie, lambda: self._freeze(bookie))
        node.process = process
        rng = self.simulation.chance(f"run/{bookie}/{self.restarts}")
        must_refuse = node.is_lost
        audit = self.open_audit(bookie) if self.open_audit is not None else None

        async def body() -> None:
            mounted = node.disk.mount()
            server = Bookie(
                node.config,
                network=self.network.of(bookie),
                disk=mounted,
                key_value=mounted.open_key_value,
                store=self.metadata.connect(bookie),
                now_ms=self._clock_of(bookie),
                rng=rng,
                boot_id=f"boot {node.disk.power_losses}",
                audit=audit,
                keys=self.keys,
            )
            node.bookie = server
            async with trio.open_nursery() as nursery:
                if audit is not None:
                    nursery.start_soon(audit.run)
                await nursery.start(server.run)
                assert not must_refuse, f"{bookie} serves although its disk is lost"
                self.simulation.trace("started", bookie)
                process.started.set()

        async def run() -> None:
            await process.run(body)
            if process.error is not None:
                self._judge_death(node, process.error)

        self._nursery.start_soon(run)
        return process

    async def stop_bookie(self, bookie: str) -> None:
        """Has a bookie that serves drain and end, as on SIGTERM. Returns when it is gone."""
        node = self._nodes[bookie]
        assert node.process is not None, f"{bookie} is not up"
        assert node.bookie is not None
        self.simulation.trace("stop", bookie)
        node.bookie.stop()
        await node.process.finished.wait()

    async def kill_bookie(
        self,
        bookie: str,
        kind: CrashKind = CrashKind.PROCESS_KILLED,
        *,
        is_silent: bool | None = None,
    ) -> None:
        """Kills a bookie, if it is up, and settles its disk. Returns when it is gone.

        `is_silent`: its peers are not notified; the default when power is lost.
        """
        self.kill_bookie_now(bookie, kind, is_silent=is_silent)
        process = self._nodes[bookie].process
        if process is not None:
            await process.finished.wait()

    def kill_bookie_now(
        self,
        bookie: str,
        kind: CrashKind = CrashKind.PROCESS_KILLED,
        *,
        is_silent: bool | None = None,
    ) -> None:
        """Does the same without waiting: from this moment on the bookie can do nothing more."""
        node = self._nodes[bookie]
        self.simulation.trace("kill", bookie, kind.value)
        silent = kind is not CrashKind.PROCESS_KILLED if is_silent is None else is_silent
        process = node.process
        if process is not None and process.is_running:
            self.network.freeze(bookie, is_silent=silent)
            node.disk.crash(kind)
            process.kill()
        elif kind is not CrashKind.PROCESS_KILLED:
            node.disk.crash(kind)

    async def lose_disk(self, bookie: str, directory: str = "") -> None:
        """Cuts the power of a bookie, whose disk is then lost: all of it, or what was mounted at
        one of its directories. It is started once more, as its operator would before checking, and
        must refuse, unless it died before it ever was in the cluster: then it is not started. From
        then on it is not in `bookies`."""
        node = self._nodes[bookie]
        await self.kill_bookie(bookie, CrashKind.POWER_LOST_TORN)
        while self.is_up(bookie):  # another task has started it meanwhile
            await self.kill_bookie(bookie, CrashKind.POWER_LOST_TORN)
        node.disk.wipe(directory)
        node.is_lost = True
        cookie = f"{node.config.ledgers_root}/cookies/{node.config.id_of(node.config.port)}"
        if self.metadata.tree.get(cookie) is not None:
            refused = self.begin_bookie(bookie)
            await refused.finished.wait()

    async def drop_directories(self, bookie: str, *directories: str) -> bool:
        """Has the operator of a bookie that is down, and may have lost a part of its disk, give up
        these ledger directories. Returns whether that was done: the bookie may be killed meanwhile,
        and then it can be repeated."""
        node = self._nodes[bookie]
        if not await self._change(bookie, lambda change: change.drop(directories)):
            return False
        left = [one for one in node.config.ledger_directories if one not in directories]
        node.config = dataclasses.replace(node.config, ledger_directories=tuple(left))
        node.is_lost = False
        return True

    async def expand_storage(self, bookie: str, *directories: str) -> bool:
        """Has the operator of a bookie that is down add empty ledger directories, as
        `drop_directories` does. Caches grow with their number."""
        node = self._nodes[bookie]
        before = node.config
        every = (*before.ledger_directories, *directories)
        node.config = dataclasses.replace(
            before,
            ledger_directories=every,
            write_cache_bytes=before.write_cache_bytes * len(every),
            read_cache_bytes=before.read_cache_bytes * len(every),
        )
        is_done = False
        try:
            is_done = await self._change(bookie, lambda change: change.expand())
        finally:
            if not is_done:
                node.config = before
        return is_done

    async def rename_bookie(self, bookie: str, port: int, **options: Any) -> bool:
        """Has the operator of a bookie that is down give it another port, and so another id.
        Returns whether that was done, as `drop_directories` does. Raises RenameRefused."""
        node = self._nodes[bookie]
        before = node.config
        settings = dataclasses.replace(before, port=port)

        async def rename(disk: MountedDisk, store: MetadataStore) -> None:
            root = settings.ledgers_root
            marks = UnderreplicationStore(store, root, self._clock_of(bookie))
            ledgers = LedgerStore(store, root)
            one = BookieRename(settings, disk, store, ledgers, marks, **options)
            await one.run(before.id_of(before.port), settings.id_of(port))

        is_done = await self._command(bookie, "rename", rename)
        if is_done:
            node.config = settings
        return is_done

    async def _change(
        self, bookie: str, change: Callable[[DirectoryChange], Awaitable[object]]
    ) -> bool:
        """Runs a command that changes the list of ledger directories. Raises DirectoriesKept."""
        node = self._nodes[bookie]
        rng = self.simulation.chance(f"run/{bookie}/{self.restarts + 1}")

        async def run(disk: MountedDisk, store: MetadataStore) -> None:
            await change(
                DirectoryChange(
                    node.config,
                    disk,
                    store,
                    LedgerStore(store, node.config.ledgers_root),
                    open_storage=lambda config, layout: storage_of(
                        config,
                        disk,
                        disk.open_key_value,
                        layout,
                        rng=rng,
                        now_ms=self._clock_of(bookie),
                    ),
                    key_value=disk.open_key_value,
                    boot_id=f"boot {node.disk.power_losses}",
                )
            )

        return await self._command(bookie, "change directories", run)

    async def _command(
        self,
        bookie: str,
        name: str,
        command: Callable[[MountedDisk, MetadataStore], Awaitable[object]],
    ) -> bool:
        """Runs a command in the place of the bookie's process; returns whether it ended. Raises
        what the command raises if it refuses."""
        assert self._nursery is not None, "the cluster is not open"
        node = self._nodes[bookie]
        assert not self.is_up(bookie), f"{bookie} is up"
        self.restarts += 1
        self.simulation.trace(name, bookie)
        process = node.process = SimProcess(bookie, lambda: self._freeze(bookie))
        is_done, node.is_changing = False, True

        async def body() -> None:
            nonlocal is_done
            await command(node.disk.mount(), self.metadata.connect(bookie))
            is_done = True

        await process.run(body)
        is_refused = isinstance(process.error, DirectoriesKept | RenameRefused)
        node.is_changing = not is_done and not is_refused
        if is_refused and process.error is not None:
            node.disk.crash(CrashKind.PROCESS_KILLED)
            raise process.error
        if process.error is not None:
            self._judge_death(node, process.error)
        return is_done

    def retire(self, bookie: str) -> None:
        """Takes a bookie from `bookies` that left the cluster: it may continue to run, and must not
        start again."""
        self._nodes[bookie].is_lost = True

    def jump_clock(self, node: str, milliseconds: int) -> None:
        """Moves the wall clock of a bookie or client forward or back."""
        self._skews_ms[node] = self._skews_ms.get(node, 0) + milliseconds
        self.simulation.trace("clock", node, milliseconds)

    # Clients.

    @asynccontextmanager
    async def client(
        self, name: str | None = None, options: ClientOptions | None = None
    ) -> AsyncIterator[LedgerClient]:
        """Opens a client on a node of its own."""
        name = name or self._client_name()
        self._incarnations += 1
        # Not the chance of the one before: ids drawn from it must be new.
        chance = self.simulation.chance(f"client/{name}/{self._incarnations}")
        async with LedgerClient(
            self.metadata.connect(name),
            self.network.of(name),
            options=options,
            rng=chance,
            now_ms=self._clock_of(name),
            keys=self.keys,
        ) as client:
            yield client

    def start_client(
        self,
        body: Callable[[LedgerClient], Awaitable[None]],
        *,
        name: str | None = None,
        options: ClientOptions | None = None,
    ) -> SimProcess:
        """Runs `body` with a client, as a process that can be killed.

        An error of `body` ends the simulation, unless the process was killed.
        """
        assert self._nursery is not None, "the cluster is not open"
        node = name or self._client_name()
        process = SimProcess(node, lambda: self._freeze(node))

        async def run_client() -> None:
            async with self.client(node, options) as client:
                process.started.set()
                await body(client)

        async def run() -> None:
            await process.run(run_client)
            if process.error is not None:
                self.simulation.fail(process.error)

        self._nursery.start_soon(run)
        return process

    # Inside.

    def _client_name(self) -> str:
        self._clients += 1
        return f"client-{self._clients}"

    def _clock_of(self, node: str) -> Callable[[], int]:
        chance = self.simulation.chance(f"clock/{node}")
        skew_ms = chance.randint(-CLOCK_SKEW_MS_MAX, CLOCK_SKEW_MS_MAX)
        return lambda: self.simulation.now_ms(skew_ms + self._skews_ms.get(node, 0))

    def _freeze(self, node: str) -> None:
        self.network.freeze(node)
        self.metadata.freeze(node)
        if node in self._nodes:
            self._nodes[node].disk.freeze()

    def _judge_death(self, node: _Node, error: BaseException) -> None:
        leaves = list(leaves_of(error))
        names = ",".join(type(leaf).__name__ for leaf in leaves)
        self.simulation.trace("died", node.disk.name, names)
        node.disk.crash(CrashKind.PROCESS_KILLED)
        if (node.is_lost or node.is_changing) and all(
            isinstance(leaf, CookieMismatch) for leaf in leaves
        ):
            return  # as it must
        is_of_disk = any(_has_os_error(leaf) for leaf in leaves)
        is_of_world = all(isinstance(leaf, LedgerError | OSError) for leaf in leaves)
        if not (is_of_world and (is_of_disk or _is_retryable(leaves))):
            self.simulation.fail(leaves[0] if len(leaves) == 1 else error)


def _has_os_error(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _is_retryable(leaves: list[BaseException]) -> bool:
    return all(isinstance(leaf, LedgerError) and leaf.retry_is_safe for leaf in leaves)


def small_config(name: str, chance: random.Random) -> BookieConfig:
    """Returns settings for quick simulations, the same for every bookie: small files and caches."""
    del chance
    return BookieConfig(
        metadata_uri="memory:",
        host=name,
        port=BOOKIE_PORT,
        journal_directories=("/journal",),
        ledger_directories=("/ledgers",),
        frame_bytes_max=64 * KIB,
        journal_group_bytes_max=64 * KIB,
        journal_file_bytes_max=128 * KIB,
        journal_queue_bytes_max=256 * KIB,
        write_cache_bytes=256 * KIB,
        entry_log_bytes_max=256 * KIB,
        read_cache_bytes=256 * KIB,
        read_ahead_bytes=16 * KIB,
        checkpoint_interval_ms=1000,
        garbage_interval_ms=5000,
    )


def random_config(name: str, chance: random.Random) -> BookieConfig:
    """Returns any legal settings, above all tiny ones: each bookie of a cluster draws its own, and
    what clients see must not depend on them."""
    choice = chance.choice
    frame_bytes_max = choice((8 * KIB, 16 * KIB, 64 * KIB))
    journals, directories = choice((1, 1, 2, 3)), choice((1, 1, 2, 3))
    return dataclasses.replace(
        small_config(name, chance),
        journal_directories=tuple(["/journal", "/journal-1", "/journal-2"][:journals]),
        ledger_directories=tuple(["/ledgers", "/ledgers-1", "/ledgers-2"][:directories]),
        frame_bytes_max=frame_bytes_max,
        journal_group_wait_ms=choice((0, 2, 20)),
        journal_group_bytes_max=choice((1, 4 * KIB, 64 * KIB)),
        journal_group_entries_max=choice((0, 1, 10)),
        journal_flush_when_queue_empty=choice((True, False)),
        journal_file_bytes_max=frame_bytes_max * choice((2, 4, 16)),
        journal_files_recycled=choice((0, 1, 2)),
        journal_queue_bytes_max=choice((64 * KIB, MIB)),
        write_cache_bytes=frame_bytes_max * choice((2, 4, 16)) * directories,
        entry_log_bytes_max=frame_bytes_max * choice((1, 4, 32)),
        checkpoint_interval_ms=choice((50, 500, 5000)),
        garbage_interval_ms=choice((300, 3000)),
        minor_compaction_interval_ms=choice((500, 5000, 3_600_000)),
        minor_compaction_ms_max=choice((0, 100, 10_000)),
        major_compaction_ratio_max=choice((0.8, 1.0)),
        major_compaction_interval_ms=choice((1000, 20_000, 3_600_000)),
        major_compaction_ms_max=choice((0, 300, 10_000)),
        compaction_bytes_per_s_max=choice((0, 20 * KIB, MIB)),
        compaction_free_bytes_min=choice((0, MIB)),
        compaction_joins_small_logs=choice((False, True)),
        read_cache_bytes=choice((64 * KIB, MIB)) * directories,
        read_ahead_bytes=choice((0, 1000, 32 * KIB)),
        over_replicated_interval_ms=choice((2000, 20_000, 86_400_000)),
        over_replicated_age_ms_min=choice((0, 3000)),
        journal_loop_write_ms_max=choice((0, 2, 1000)),
    )


def simulate(
    async_fn: Callable[[SimCluster], Awaitable[ResultT]],
    seed: int = 0,
    *,
    bookies: int = 3,
    time_limit_s: float = 86_400.0,
) -> ResultT:
    """Runs `async_fn(cluster)` in a simulated cluster of `bookies`, all chance from `seed`.

    For users' tests: a plain function, called outside of trio. Virtual time costs nothing, and
    the same seed gives the same run. Raises what `async_fn` raises.
    """

    async def main(simulation: Simulation) -> ResultT:
        async with SimCluster(simulation, bookies=bookies) as cluster:
            return await async_fn(cluster)

    return run_simulated(main, seed, time_limit_s=time_limit_s)
