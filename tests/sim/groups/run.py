"""One run of a consumer group under faults: members crash, lose sessions, are cut off and
reconnect, metadata answers late or not at all, partitions are added; then calm, and the checks.

Everything is drawn from the seed.
"""

from __future__ import annotations

import logging
import random
from contextlib import aclosing
from dataclasses import dataclass, replace

import trio

from bookie.testing.cluster import SimCluster, small_config
from bookie.testing.metastore import MetadataOptions
from bookie.testing.process import SimProcess
from bookie.testing.scheduler import Simulation, run_simulated
from ledger.client import LedgerClient
from ledger.errors import LedgerError
from stream.consuming.consumer import Consumer
from stream.consuming.delivery import Delivery
from stream.consuming.groups import GroupInfo
from stream.errors import MemberExists, PartitionLost
from stream.namespace import Namespace
from stream.store.streams import namespace_path
from tests.sim.groups.model import GroupModel

NAMESPACE, STREAM, GROUP = "faults", "s", "g"
TIME_LIMIT_S = 2000.0
_CALM_S = 200.0
_SLOTS = 4


class GroupWorkload:
    """Members in slots, each a process; a producer; and what happens to them."""

    def __init__(self, cluster: SimCluster, model: GroupModel, chance: random.Random) -> None:
        self.cluster = cluster
        self.model = model
        self.chance = chance
        self.is_calm = False
        self.is_written = False
        self._members: dict[int, SimProcess] = {}
        self._consumers: dict[int, Consumer] = {}
        self._incarnations = 0
        self.hand_over_s = chance.choice((0.5, 3.0, 10.0))
        self._calm_options = replace(cluster.metadata.options)

    async def prepare(self) -> None:
        async with self.cluster.client("preparer") as client:
            namespace = Namespace(client, NAMESPACE)
            await namespace.ensure(batch_bytes=self.chance.choice((1, 300)), roll_ms=5000)
            await namespace.create_stream(STREAM, partitions=self.chance.randint(1, 5))

    # The producer.

    async def produce(self, client: LedgerClient) -> None:
        """Appends to all partitions, also to those that are added, until it is calm."""
        namespace = Namespace(client, NAMESPACE)
        begun: dict[str, None] = {}
        async with trio.open_nursery() as nursery:
            while not self.is_calm:
                try:
                    for partition in await namespace.partitions(STREAM):
                        if partition not in begun:
                            begun[partition] = None
                            nursery.start_soon(self._append, namespace, partition)
                except LedgerError as error:
                    self.model.count(f"producer: {type(error).__name__}")
                await trio.sleep(0.5)
        self.is_written = True

    async def _append(self, namespace: Namespace, partition: str) -> None:
        chance = random.Random(self.chance.getrandbits(64))
        pause_s = chance.choice((0.1, 0.5, 2.0))
        number = 0
        while not self.is_calm:
            try:
                async with namespace.writer(partition) as writer:
                    until = number + chance.randint(1, 200)
                    while number < until and not self.is_calm:
                        number += 1
                        await writer.append(b"%d" % number)
                        await trio.sleep(chance.uniform(0, pause_s))
            except LedgerError as error:
                self.model.count(f"producer: {type(error).__name__}")
                await trio.sleep(0.2)

    # Members.

    def start_member(self, slot: int) -> None:
        self._incarnations += 1
        seed, incarnation = self.chance.getrandbits(64), self._incarnations
        is_named = self.chance.random() < 0.5

        async def be_member(client: LedgerClient) -> None:
            name = f"m{slot}" if is_named else f"x{incarnation}"
            await self._be_member(client, slot, name, random.Random(seed))

        self._members[slot] = self.cluster.start_client(be_member, name=f"member-{slot}")

    async def _be_member(
        self, client: LedgerClient, slot: int, name: str, chance: random.Random
    ) -> None:
        namespace = Namespace(client, NAMESPACE)
        is_patient = chance.random() < 0.7
        while True:
            try:
                async with namespace.consumer(
                    STREAM, GROUP, member=name, auto_advance=chance.random() < 0.6,
                    commit_interval_ms=chance.choice((0, 100, 1000)),
                    hand_over_s=self.hand_over_s,
                ) as consumer:  # fmt: skip
                    self._consumers[slot] = consumer
                    self.model.count("members")
                    stay_s = 1e9 if is_patient else chance.uniform(0.5, 8)
                    with trio.move_on_after(stay_s) as scope:
                        await self._consume(consumer, chance, scope)
            except MemberExists:
                self.model.count("members whose name was taken")
            except LedgerError as error:
                self.model.count(f"member: {type(error).__name__}")
                if not error.retry_is_safe:
                    raise
            self._consumers.pop(slot, None)
            await trio.sleep(chance.uniform(0, 2))

    async def _consume(
        self, consumer: Consumer, chance: random.Random, scope: trio.CancelScope
    ) -> None:
        is_auto, slowness_s = consumer.auto_advance, chance.choice((0.0, 0.01, 0.3))
        while True:
            if self.is_calm:
                slowness_s, scope.deadline = 0.0, 1e9
            if chance.random() < 0.3:
                item = await consumer.next_record()
                partition, records = item.partition, [item.record]
                delivered: Delivery | object = item
            else:
                delivery = await consumer.__anext__()
                partition, records = delivery.partition, delivery.batch.records()
                delivered = delivery
            for record in records:
                self.model.handed_out(partition, record)
            await trio.sleep(chance.uniform(0, slowness_s))
            for record in records:
                self.model.handled(partition, record)
            try:
                if not is_auto:
                    consumer.advance(delivered)  # type: ignore[arg-type]
                if chance.random() < 0.1:
                    await consumer.commit()
            except PartitionLost:
                self.model.count("partitions lost while at work")
            except LedgerError as error:
                self.model.count(f"commit: {type(error).__name__}")

    # Faults.

    async def inject_faults(self, seconds: float) -> None:
        chance, until_s = self.chance, trio.current_time() + seconds
        for slot in range(chance.randint(1, _SLOTS)):
            self.start_member(slot)
        pause_s = chance.choice((0.2, 0.5, 1.5))
        faults = (
            self._kill, self._kill, self._expire, self._expire, self._cut_off, self._slow_metadata,
            self._metadata_errors, self._quiet, self._grow, self._pause_all,
        )  # fmt: skip
        while trio.current_time() < until_s:
            await trio.sleep(chance.expovariate(1 / pause_s))
            fault = chance.choice(faults)
            self.model.count(f"fault {fault.__name__[1:]}")
            await fault()

    async def _kill(self) -> None:
        slot = self.chance.randrange(_SLOTS)
        if slot in self._members and self._members[slot].is_running:
            self._members[slot].kill()
            self._consumers.pop(slot, None)
        else:
            self.start_member(slot)

    async def _expire(self) -> None:
        self.cluster.metadata.expire(f"member-{self.chance.randrange(_SLOTS)}")

    async def _cut_off(self) -> None:
        name = f"member-{self.chance.randrange(_SLOTS)}"
        self.cluster.metadata.cut_off(name)
        if self.chance.random() < 0.7:
            self.cluster.metadata.expire(name)
        if self.chance.random() < 0.5:
            await trio.sleep(self.chance.uniform(0, 8))
            self.cluster.metadata.heal()

    async def _slow_metadata(self) -> None:
        delay_s = self.chance.choice((0.001, 0.05, 0.5))
        self.cluster.metadata.options = replace(self.cluster.metadata.options, delay_max_s=delay_s)

    async def _metadata_errors(self) -> None:
        self.cluster.metadata.options = MetadataOptions(
            delay_max_s=0.01,
            timeout_s=self.chance.choice((0.2, 2.0)),
            error_before_probability=self.chance.choice((0.0, 0.2)),
            error_after_probability=self.chance.choice((0.0, 0.2)),
            error_late_probability=self.chance.choice((0.0, 0.2)),
            late_max_s=self.chance.choice((0.1, 3.0)),
        )

    async def _quiet(self) -> None:
        self.cluster.metadata.options = replace(self._calm_options)
        self.cluster.metadata.heal()

    async def _grow(self) -> None:
        async with self.cluster.client("grower") as client:
            namespace = Namespace(client, NAMESPACE)
            try:
                there = len(await namespace.partitions(STREAM))
                if there < 8:
                    await namespace.grow_stream(STREAM, partitions=there + 1)
            except LedgerError as error:
                self.model.count(f"grow: {type(error).__name__}")

    async def _pause_all(self) -> None:
        """Every session is lost at once, as when the metadata store was restored."""
        for slot in range(_SLOTS):
            self.cluster.metadata.expire(f"member-{slot}")

    # The end.

    async def calm_down(self) -> None:
        await self._quiet()
        self.is_calm = True
        if not any(member.is_running for member in self._members.values()):
            self.start_member(0)

    def _is_at_rest(self, info: GroupInfo) -> bool:
        sizes = [sum(row.holder == member for row in info.partitions) for member in info.members]
        return (
            set(info.members) == {consumer.member for consumer in self._consumers.values()}
            and max(sizes, default=0) - min(sizes, default=0) <= 1
            and all(row.holder == row.assigned_to in info.members for row in info.partitions)
            and all(row.lag is not None and row.lag.records == 0 for row in info.partitions)
        )

    async def check(self, client: LedgerClient) -> None:
        """[G5] In calm every partition has its holder, and all is handled and committed."""
        namespace = Namespace(client, NAMESPACE)
        info, until_s = None, trio.current_time() + _CALM_S
        while not self.is_written or info is None or not self._is_at_rest(info):
            if trio.current_time() > until_s:
                self.model.violated(f"[G5] not at rest after {_CALM_S} s: {info}")
            await trio.sleep(2)
            info = await namespace.group(STREAM, GROUP)
        for partition in await namespace.partitions(STREAM):
            records = []
            async with (
                namespace.reader(partition) as reader,
                aclosing(reader.read_to_end()) as batches,
            ):
                async for batch in batches:
                    records += batch.records()
            self.model.whole(partition, records)


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """The report of a run without a violation."""

    counts: dict[str, int]
    trace_hash: str


def run_group_seed(seed: int, *, seconds: float = 20.0) -> GroupOutcome:
    """Runs one seed. Raises `Violation` or whatever else went wrong."""

    async def main(simulation: Simulation) -> GroupOutcome:
        async with SimCluster(simulation, bookies=3, config=small_config) as cluster:
            model = GroupModel(
                namespace_path(NAMESPACE), STREAM, GROUP, cluster.metadata.tree, simulation
            )
            workload = GroupWorkload(cluster, model, simulation.chance("group"))
            model.watch(workload.hand_over_s)
            await workload.prepare()
            cluster.start_client(workload.produce, name="producer")
            await workload.inject_faults(seconds)
            await workload.calm_down()
            async with cluster.client("checker") as client:
                await workload.check(client)
            return GroupOutcome(dict(sorted(model.counts.items())), simulation.trace_hash())

    logging.disable(logging.CRITICAL)
    try:
        return run_simulated(main, seed, time_limit_s=TIME_LIMIT_S)
    finally:
        logging.disable(logging.NOTSET)
