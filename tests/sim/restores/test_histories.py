"""Random histories in which metadata and disks are put back to different moments.

Whatever was put back: no record of one stream is in another, none is in a stream twice, records are
in the order in which they were appended, and a record that was acknowledged is read, or its loss is
named: by the count of restores, by the bookies that were put back, or by an error.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
import trio

from bookie.testing import SimCluster, run_simulated
from bookie.testing.disk import DiskBackup
from bookie.testing.scheduler import Simulation
from ledger.errors import LedgerError
from ledger.metastore.memory import TreeBackup
from ledger.metastore.restores import RestoreLog
from stream.core.position import Position
from stream.namespace import Namespace
from tests.effort import scaled
from tests.sim.page_limits import page_limits

STREAMS = ("a", "b", "c")
HISTORIES = scaled(ci=30, night=1000)
PATIENCE_S = 60.0


class _Died(Exception):
    """A writer ends without closing its segment."""


@dataclass
class Moment:
    """Copies of everything, made at one moment."""

    metadata: TreeBackup
    disks: dict[str, DiskBackup]


@dataclass
class History:
    """A run, and the acknowledgements that its writers received."""

    cluster: SimCluster
    chance: random.Random
    appended: int = 0
    acknowledged: dict[str, dict[bytes, Position]] = field(default_factory=dict)
    attempted: dict[bytes, str] = field(default_factory=dict)
    appended_at: dict[bytes, int] = field(default_factory=dict)
    """The number of moments there were before each acknowledged record."""
    moments: list[Moment] = field(default_factory=list)
    is_put_back: bool = False
    refusals: int = 0
    named: int = 0

    async def write(self) -> None:
        """Appends some records to one or two streams, with a roll now and then."""
        for stream in self.chance.sample(STREAMS, self.chance.randint(1, 2)):
            async with self.cluster.client() as client:
                namespace = Namespace(client, "ns")
                try:
                    with trio.fail_after(PATIENCE_S):
                        await namespace.ensure(roll_bytes=1 << 16)
                        async with namespace.writer(stream, create=True) as writer:
                            for _ in range(self.chance.randint(1, 8)):
                                await self._append(writer, stream)
                            if self.chance.random() < 0.5:
                                raise _Died
                except _Died:
                    pass  # its segment stays open
                except (LedgerError, trio.TooSlowError):
                    # Only a history that lost something may refuse to continue.
                    assert self.is_put_back
                    self.refusals += 1

    async def _append(self, writer: object, stream: str) -> None:
        value = b"%s %d" % (stream.encode(), self.appended)
        self.appended += 1
        self.attempted[value] = stream
        position = await writer.append(value)  # type: ignore[attr-defined]
        places = self.acknowledged.setdefault(stream, {})
        assert position not in places.values(), f"{stream}: {position} was given out twice"
        places[value] = position
        self.appended_at[value] = len(self.moments)

    async def stop(self) -> None:
        for bookie in self.cluster.bookies:
            await self.cluster.kill_bookie(bookie)

    async def copy(self) -> None:
        """Makes copies while everything is stopped."""
        await self.stop()
        disks = {name: self.cluster.disk(name).backup() for name in self.cluster.bookies}
        self.moments.append(Moment(self.cluster.metadata.tree.backup(), disks))
        await self.cluster.start_all()

    async def put_back(self) -> None:
        """Puts metadata and disks back to moments of their own, or leaves them as they are."""
        await self.stop()
        now = len(self.moments)
        newest = chosen = self._moment(0.6)
        disks = self.chance.choice((0.0, 0.3, 0.9))
        if chosen < now:
            self.cluster.metadata.tree.put_back(self.moments[chosen].metadata)
        for name in self.cluster.bookies:
            chosen = self._moment(disks)
            newest = max(newest, chosen)
            if chosen < now:
                self.cluster.disk(name).put_back(self.moments[chosen].disks[name])
        self.is_put_back = True
        self._forget_after(newest)
        await self.cluster.start_all()

    def _moment(self, probability: float) -> int:
        """Returns the moment to which something is put back; their number if it stays as it is."""
        now = len(self.moments)
        return self.chance.randrange(now) if self.chance.random() < probability else now

    def _forget_after(self, moment: int) -> None:
        """Nothing in the cluster remembers what happened after the newest moment of its parts."""
        for places in self.acknowledged.values():
            for value in [each for each in places if self.appended_at[each] > moment]:
                del places[value]

    async def check(self) -> None:
        async with self.cluster.client() as client:
            restores = len(await RestoreLog(client.store).read())
            for stream, places in self.acknowledged.items():
                await self._check_stream(client, stream, places, restores)

    async def _check_stream(
        self, client: object, stream: str, places: dict[bytes, Position], restores: int
    ) -> None:
        namespace = Namespace(client, "ns")  # type: ignore[arg-type]
        found: list[tuple[Position, bytes]] = []
        is_whole = True
        try:
            with trio.fail_after(PATIENCE_S):
                # Otherwise the last records of a writer that died are known once it is replaced.
                await namespace.seal_stream(stream)
                async with namespace.reader(stream) as reader:
                    async for batch in reader.read_to_end():
                        found += [(r.position, r.value) for r in batch.records()]
        except (LedgerError, trio.TooSlowError):
            assert self.is_put_back
            is_whole = False
        values = [value for _, value in found]
        assert all(self.attempted[value] == stream for value in values), f"{stream}: {values}"
        numbers = [int(value.split()[1]) for value in values]
        assert numbers == sorted(set(numbers)), f"{stream}: {numbers}"
        for position, value in found:
            assert places.get(value, position) == position
        if not self.is_put_back:
            assert is_whole
            assert set(values) >= set(places)
        elif is_whole:
            await self._check_lost(namespace, stream, dict(found), set(places) - set(values))

    async def _check_lost(
        self, namespace: Namespace, stream: str, found: dict[Position, bytes], lost: set[bytes]
    ) -> None:
        """Checks that no position of a lost record denotes another one."""
        for value in lost:
            position = self.acknowledged[stream][value]
            assert position not in found, f"{stream}: {position} was {value!r}"
            try:
                async with namespace.reader(stream, start=position) as reader:
                    async for batch in reader.read_to_end():
                        read = next(iter(batch.records()))
                        raise AssertionError(f"{stream}: {position} was {value!r}, is {read}")
            except LedgerError:
                self.named += 1


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_no_history_mixes_streams_or_denotes_two_records_by_one_position(seed: int) -> None:
    async def main(simulation: Simulation) -> None:
        async with SimCluster(simulation) as cluster:
            history = History(cluster, random.Random(seed))
            await history.copy()
            for _ in range(history.chance.randint(2, 3)):
                await history.write()
                await history.copy()
            await history.write()
            if history.chance.random() < 0.1:
                await history.check()
            await history.put_back()
            if history.chance.random() < 0.5:
                await trio.sleep(30)  # several rounds of garbage collection
            for _ in range(2):
                await history.write()
            await history.check()

    with page_limits():
        run_simulated(main, seed, time_limit_s=3600)
