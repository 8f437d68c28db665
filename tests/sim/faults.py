"""The atlas of faults: what happens to bookies, disks, network, metadata and clients.

Only faults that the quorums must survive: what a bookie has synced stays, so any number of
bookies may die at once. Each kind says how it is repaired; `calm` ends everything.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import trio

from bookie.testing.cluster import SimCluster
from bookie.testing.disk import CrashKind, DiskOptions
from bookie.testing.metastore import MetadataOptions
from bookie.testing.network import NetworkOptions
from tests.sim.directory_changes import DirectoryChanges
from tests.sim.workload import Workload

Fault = Callable[[], Awaitable[None]]


class Faults:
    """Draws faults from the seed, one after the other and overlapping, until `calm`.

    Each seed uses its own part of the atlas: rare kinds must not drown in frequent ones.
    """

    def __init__(
        self,
        cluster: SimCluster,
        workload: Workload,
        *,
        pause_mean_s: float,
        loses_disk: bool = False,
        rots: bool = False,
        loses_unsynced: bool = True,
        gains_directories: bool = False,
    ) -> None:
        """`loses_disk`: one bookie loses its disk for good, or continues without a directory.
        `rots`: bits of the entry logs of one bookie flip. With either, every ack quorum must be 2
        or more. `loses_unsynced`: machines stop, too, and not only processes; and writes and syncs
        fail. `gains_directories`: bookies are given more ledger directories."""
        self.cluster = cluster
        self.workload = workload
        self.chance: random.Random = cluster.simulation.chance("faults")
        self.counts: dict[str, int] = {}
        self._pause_mean_s = pause_mean_s
        self._loses_disk = loses_disk
        self._rots = rots
        self._gains_directories = gains_directories
        self._crash_kinds = list(CrashKind) if loses_unsynced else [CrashKind.PROCESS_KILLED]
        self._loses_unsynced = loses_unsynced
        self.changes = DirectoryChanges(
            cluster, self._crash_kinds, self._restart_after, workload.model.forgetful
        )
        self._network_options = replace(cluster.network.options)
        self._metadata_options = replace(cluster.metadata.options)
        self._disk_options = {name: replace(cluster.disk(name).options) for name in cluster.bookies}
        atlas: list[Fault] = [
            self._kill_one,
            self._kill_some,
            self._kill_all,
            self._kill_in_operation,
            self._kill_in_start,
            self._clock_jump,
            self._partition,
            self._one_way_block,
            self._clog,
            self._reset,
            self._storm,
            self._slow_disk,
            self._read_errors,
            self._failing_writes,
            self._full_disk,
            self._disks_at_once,
            self._disks_of_one,
            self._metadata_errors,
            self._metadata_cut_off,
            self._session_lost,
            self._kill_client,
            self._pause_client,
        ]
        self.kinds = self.chance.sample(atlas, self.chance.randint(3, len(atlas)))

    async def run(self, seconds: float) -> None:
        """Injects faults for `seconds` of virtual time, then ends all faults."""
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                if self._loses_disk:
                    nursery.start_soon(self._lose_disk, seconds)
                if self._gains_directories:
                    nursery.start_soon(self.changes.run)
                if self._rots:
                    nursery.start_soon(self._rot)
                while True:
                    await trio.sleep(self.chance.expovariate(1 / self._pause_mean_s))
                    fault = self.chance.choice(self.kinds)
                    name = fault.__name__.strip("_")
                    self.counts[name] = self.counts.get(name, 0) + 1
                    self.cluster.simulation.trace("fault", name)
                    nursery.start_soon(fault)
        self.calm()

    def calm(self) -> None:
        """Ends all faults; bookies that are down stay down."""
        cluster = self.cluster
        self.counts |= self.changes.counts
        cluster.simulation.trace("calm")
        cluster.network.options = replace(self._network_options)
        cluster.metadata.options = replace(self._metadata_options)
        cluster.network.heal()
        cluster.metadata.heal()
        for name in cluster.bookies:
            self._restore_disk(name)
            cluster.disk(name).on_operation = None

    # Bookies.

    async def _kill_one(self) -> None:
        name = self._bookie()
        await self.cluster.kill_bookie(
            name, self._crash_kind(), is_silent=self.chance.random() < 0.4
        )
        await self._restart_after(name, self.chance.expovariate(1))

    async def _kill_some(self) -> None:
        """Any number of bookies, more than the quorums can do without."""
        names = self.chance.sample(
            self.cluster.bookies, self.chance.randint(1, len(self.cluster.bookies))
        )
        kind = self._crash_kind()
        for name in names:
            await self.cluster.kill_bookie(name, kind)
        seconds = self.chance.expovariate(0.5)
        for name in names:
            await self._restart_after(name, seconds)
            seconds = 0.0

    async def _kill_in_operation(self) -> None:
        """In the middle of an operation of its disk, a few operations from now."""
        name = self._bookie()
        await self._kill_after_operations(name, self.chance.randint(1, 40))
        await self._restart_after(name, self.chance.expovariate(2))

    async def _kill_in_start(self) -> None:
        """Again and again while it replays and checks."""
        name = self._bookie()
        await self.cluster.kill_bookie(name, self._crash_kind())
        for _ in range(self.chance.randint(1, 4)):
            if not self.cluster.is_up(name):
                self.cluster.begin_bookie(name)
            await self._kill_after_operations(name, self.chance.randint(1, 30))
        await self._restart_after(name, 0.1)

    async def _kill_after_operations(self, name: str, operations: int) -> None:
        disk, kind, killed = self.cluster.disk(name), self._crash_kind(), trio.Event()

        def count(_kind: str, _path: str) -> None:
            nonlocal operations
            operations -= 1
            if operations <= 0:
                disk.on_operation = None
                self.cluster.kill_bookie_now(name, kind)
                killed.set()

        disk.on_operation = count
        with trio.move_on_after(1):
            await killed.wait()
        disk.on_operation = None
        await self.cluster.kill_bookie(name, kind)

    async def _clock_jump(self) -> None:
        hours_ms = self.chance.choice((-7_200_000, -10_000, 10_000, 7_200_000))
        self.cluster.jump_clock(self.chance.choice(self._nodes()), hours_ms)

    async def _kill_all(self) -> None:
        kind = self._crash_kind()
        for name in self.cluster.bookies:
            await self.cluster.kill_bookie(name, kind)
        for name in self.cluster.bookies:
            await self._restart_after(name, self.chance.uniform(0, 0.5))

    async def _restart_after(self, name: str, seconds: float) -> None:
        await trio.sleep(seconds)
        if not self.cluster.is_up(name):
            await self.cluster.start_bookie(name)

    # Network.

    async def _partition(self) -> None:
        nodes = self._nodes()
        self.chance.shuffle(nodes)
        cut = self.chance.randint(1, len(nodes) - 1)
        self.cluster.network.partition(nodes[:cut], nodes[cut:])
        await self._heal_after(self.chance.expovariate(0.7))

    async def _one_way_block(self) -> None:
        source, target = self.chance.sample(self._nodes(), 2)
        self.cluster.network.block(source, target)
        await self._heal_after(self.chance.expovariate(0.5))

    async def _heal_after(self, seconds: float) -> None:
        await trio.sleep(seconds)
        self.cluster.network.heal()

    async def _clog(self) -> None:
        source, target = self.chance.sample(self._nodes(), 2)
        self.cluster.network.clog(source, target, self.chance.expovariate(0.7))

    async def _reset(self) -> None:
        self.cluster.network.reset(self.chance.choice(self._nodes()))

    async def _storm(self) -> None:
        """Everything is split, slow and short of buffers for a while."""
        self.cluster.network.options = NetworkOptions(
            latency_max_s=self.chance.choice((0.002, 0.05)),
            spike_probability=0.1,
            split_probability=0.5,
            early_wake_probability=0.2,
            buffer_bytes=self.chance.choice((200, 5000, 100_000)),
        )
        await trio.sleep(self.chance.expovariate(1))
        self.cluster.network.options = replace(self._network_options)

    # Disks.

    async def _slow_disk(self, name: str | None = None) -> None:
        await self._with_disk(
            name,
            slow_factor=self.chance.choice((10.0, 100.0)),
            seconds=self.chance.expovariate(0.5),
        )

    async def _read_errors(self) -> None:
        await self._with_disk(
            read_error_probability=self.chance.choice((0.1, 1.0)),
            cached_read_probability=0.0,
            seconds=self.chance.expovariate(0.5),
        )

    async def _failing_writes(self, name: str | None = None) -> None:
        if not self._loses_unsynced:
            return  # a journal that failed may have lost what it did not sync
        which = self.chance.choice(("write_error_probability", "sync_error_probability"))
        await self._with_disk(name, **{which: 0.2}, seconds=self.chance.uniform(0, 0.5))

    async def _disks_at_once(self) -> None:
        """One is slow, one fails its syncs, one is full, for a while: nobody is spared."""
        async with trio.open_nursery() as nursery:
            for fault in (self._slow_disk, self._failing_writes, self._full_disk):
                nursery.start_soon(fault)

    async def _disks_of_one(self) -> None:
        """The same to one bookie, whose directories may be disks of their own."""
        name = self._bookie()
        async with trio.open_nursery() as nursery:
            for fault in (self._slow_disk, self._failing_writes, self._full_disk):
                nursery.start_soon(fault, name)

    async def _full_disk(self, name: str | None = None) -> None:
        """For a while; then there is room again, and who died of it is started."""
        name, volume = self._disk_of(name)
        disk = self.cluster.disk(name)
        used = disk.used_bytes_of(volume)
        disk.volumes.options[volume].capacity_bytes = used + self.chance.randint(0, 50_000)
        await trio.sleep(self.chance.expovariate(0.7))
        self._restore_disk(name, volume)
        await self._restart_after(name, self.chance.expovariate(2))

    async def _with_disk(self, name: str | None = None, *, seconds: float, **how: float) -> None:
        name, volume = self._disk_of(name)
        for field, value in how.items():
            setattr(self.cluster.disk(name).volumes.options[volume], field, value)
        await trio.sleep(seconds)
        self._restore_disk(name, volume)
        # A bookie whose disk failed is dead; its operator starts it again.
        await self._restart_after(name, self.chance.expovariate(2))

    def _disk_of(self, name: str | None) -> tuple[str, str]:
        """A bookie, and one of its disks if it has several."""
        name = name or self._bookie()
        return name, self.chance.choice(self.cluster.disk(name).volumes.with_files)

    async def _lose_disk(self, seconds: float) -> None:
        """Some time within `seconds`, all of it or one directory. Its operator gives that up, if it
        is one of several ledger directories, or adds a new bookie for the lost one."""
        chance = self.cluster.simulation.chance("lost disk")
        await trio.sleep(chance.uniform(0, 0.8 * seconds))
        async with self.changes.operator:
            name = chance.choice(self.cluster.bookies)
            config = self.cluster.config(name)
            directories = (*config.journal_directories, *config.ledger_directories)
            self.counts["lose_disk"] = 1
            self._restore_disk(name)
            with trio.CancelScope(shield=True):  # calm would come between, and it stay half lost
                lost = chance.choice(("", *directories))
                await self.cluster.lose_disk(name, lost)
                if {lost} < {*config.ledger_directories} and chance.random() < 0.8:
                    await self.changes.drop(name, lost)
                    return
                new = self.cluster.add_bookie()
                self._disk_options[new] = replace(self.cluster.disk(new).options)
                await self.cluster.start_bookie(new)

    async def _rot(self) -> None:
        """Bits of entry logs flip, always of the same bookie: the others have a copy of all."""
        chance = self.cluster.simulation.chance("rot")
        disk = self.cluster.disk(chance.choice(self.cluster.bookies))
        while True:
            await trio.sleep(chance.expovariate(2))
            logs = [path for path in sorted(disk.inodes) if path.endswith(".log")]
            sizes = [disk.inodes[path].size for path in logs]
            if sum(sizes):
                [path] = chance.choices(logs, sizes)
                for _ in range(chance.choice((1, 1, 20))):
                    offset = chance.randrange(disk.inodes[path].size)
                    disk.flip_bit(path, offset, chance.randrange(8))
                self.counts["rot"] = self.counts.get("rot", 0) + 1

    def _restore_disk(self, name: str, volume: str | None = None) -> None:
        """All of them, or one of several: the others keep their faults."""
        for mounted, options in self.cluster.disk(name).volumes.options.items():
            if volume in (None, mounted):
                for field in DiskOptions.__dataclass_fields__:
                    setattr(options, field, getattr(self._disk_options[name], field))

    # Metadata.

    async def _metadata_errors(self) -> None:
        self.cluster.metadata.options = MetadataOptions(
            delay_max_s=self.chance.choice((0.005, 0.2)),
            timeout_s=0.5,
            error_before_probability=0.1,
            error_after_probability=0.2,
            error_late_probability=0.1,
            late_max_s=1.0,
        )
        try:
            await trio.sleep(self.chance.expovariate(0.7))
        finally:  # calm may be late: a bookie that starts is waited for
            self.cluster.metadata.options = replace(self._metadata_options)

    async def _metadata_cut_off(self) -> None:
        await self._cut_off(self.chance.choice(self._nodes()), self.chance.expovariate(1))

    async def _cut_off(self, node: str, seconds: float) -> None:
        """Keeps the metadata store from a node for some seconds, or until it is cancelled."""
        self.cluster.metadata.cut_off(node)
        try:
            await trio.sleep(seconds)
        finally:
            self.cluster.metadata.heal()

    async def _session_lost(self) -> None:
        name = self.chance.choice(self._nodes())
        self.cluster.metadata.expire(name)
        self.workload.orphan(name)

    # Clients.

    async def _kill_client(self) -> None:
        name = self.chance.choice(list(self.workload.processes))
        process = self.workload.processes[name]
        if self.workload.is_stopping or not process.is_running:
            return
        self.cluster.simulation.trace("kill", name)
        process.kill()
        self.workload.orphan(name)
        await process.finished.wait()
        await trio.sleep(self.chance.expovariate(2))
        if not self.workload.is_stopping and not self.workload.processes[name].is_running:
            self.workload.start_actor(name)

    async def _pause_client(self) -> None:
        """A client whose machine stands still: what it sent arrives late, and so does all."""
        name = self.chance.choice(list(self.workload.processes))
        seconds = self.chance.expovariate(0.5)
        for bookie in self.cluster.bookies:
            self.cluster.network.clog(name, bookie, seconds)
            self.cluster.network.clog(bookie, name, seconds)

    # Choosing.

    def _bookie(self) -> str:
        return self.chance.choice(self.cluster.bookies)

    def _nodes(self) -> list[str]:
        return [*self.cluster.bookies, *self.workload.processes]

    def _crash_kind(self) -> CrashKind:
        return self.chance.choice(self._crash_kinds)
