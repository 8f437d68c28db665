"""Tenants of simulated bookies while their rights change and bookies are killed, and a model of
what each answer may be.

A change of the permissions is in force at each bookie at some moment between its begin and
FOLLOW_S after its end. So an answer may be that of any table that can have been in force since its
request, or, if it returns data, since REPLY_S before the answer: long polls wait. It must never be
another: nothing is carried out or returned that no such table allows, and nothing is refused that
all of them allow.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

import trio

from bookie.config import BookieConfig
from bookie.testing import SimCluster, Simulation, run_simulated, small_config
from ledger.connection.connection import BookieConnection
from ledger.core.permissions import Grant, PermissionTable, Role
from ledger.errors import (
    BookieUnavailable,
    LedgerError,
    OperationTimeout,
    Status,
    Unauthorized,
)
from ledger.metastore.ledgers import LedgerStore
from ledger.metastore.permissions import Permissions
from ledger.wire.messages import ReadRequest, RequestBody
from tests.bookie.server.permitted_cluster import Named, metadata_of
from tests.bookie.server.test_server import add
from tests.sim.model import Violation

FOLLOW_S = 3.0
REPLY_S = 1.0
"""Longest time that a reply is in flight."""
RUN_S = 60.0
LEDGERS: dict[int, str | None] = {1: "a", 2: "a", 3: "b", 4: "b", 5: None}
USERS = ("alice", "bob", "mallory")
GRANTS = (
    *(Grant(user, role, on) for user in USERS for role in (Role.READ, Role.WRITE) for on in "ab"),
    *(Grant(user, Role.LEDGER) for user in USERS),
    Grant("alice", Role.WRITE, "*"),
)
"""What the operator grants and revokes."""


@dataclass
class Table:
    """A table of permissions, and since and until when it may have been in force somewhere."""

    table: PermissionTable
    since_s: float
    until_s: float = float("inf")


@dataclass
class Tenants:
    """One run: what was in force, and what was answered."""

    cluster: SimCluster
    chance: random.Random
    tables: list[Table] = field(default_factory=list)
    seen: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Answers, by kind of request and status."""

    def check(
        self, user: str, body: RequestBody, role: Role, begin_s: float, status: Status
    ) -> None:
        """Raises Violation for an answer that no table in force explains."""
        now = trio.current_time()
        if isinstance(body, ReadRequest):
            begin_s = max(begin_s, now - REPLY_S)
        namespace = LEDGERS[getattr(body, "ledger_id", 0)]
        may = {
            one.table.rights_of(user).allows_ledger(role, namespace)
            for one in self.tables
            if one.since_s <= now and begin_s <= one.until_s
        }
        is_refused = status is Status.UNAUTHORIZED
        if status is not Status.TOO_MANY_REQUESTS and (not is_refused) not in may:
            raise Violation(f"{user} got {status.name} for {body} from {begin_s} to {now}: {may}")
        self.seen[type(body).__name__, "refused" if is_refused else "answered"] += 1

    async def operate(self) -> None:
        """Grants and revokes as long as the run lasts."""
        permissions = Permissions(self.cluster.metadata.connect("operator"))
        while True:
            await trio.sleep(self.chance.uniform(0.2, 6.0))
            present = self.tables[-1]
            some = self.chance.sample(GRANTS, self.chance.randint(1, 4))
            is_grant = self.chance.random() < 0.5
            table = present.table.granted(some) if is_grant else present.table.revoked(some)
            changed = Table(table, trio.current_time())
            self.tables.append(changed)
            await (permissions.grant(some) if is_grant else permissions.revoke(some))
            present.until_s = trio.current_time() + FOLLOW_S

    async def kill(self) -> None:
        """Kills bookies and starts them again."""
        while True:
            await trio.sleep(self.chance.uniform(2.0, 15.0))
            name = self.chance.choice(self.cluster.bookies)
            await self.cluster.kill_bookie(name)
            await trio.sleep(self.chance.uniform(0.0, 2.0))
            await self.cluster.start_bookie(name)

    async def use(self, user: str, version: int) -> None:
        """Sends requests for all ledgers as a user, over one connection after the other."""
        while True:
            bookie = self.chance.choice(self.cluster.bookies)

            async def resolve(_: str, name: str = bookie) -> tuple[str, int]:
                return name, 3181

            connection = BookieConnection(
                bookie, version, outbox_bytes_max=1 << 20, auth=partial(Named, user)
            )
            async with trio.open_nursery() as nursery:
                network = self.cluster.network.of(f"{user}-{version}")
                nursery.start_soon(connection.run, network, resolve, 5.0)
                try:
                    try:
                        await connection.wait_connected()
                    except Unauthorized:
                        if version == 3:
                            raise
                        continue  # in v2 a bookie that dies meanwhile looks like a refusal
                    with trio.move_on_after(self.chance.uniform(1.0, 20.0)):
                        async with trio.open_nursery() as requests:
                            for _ in range(3):
                                requests.start_soon(self._ask, connection, user, version)
                except* (BookieUnavailable, OperationTimeout):
                    await trio.sleep(0.1)
                nursery.cancel_scope.cancel()

    async def _ask(self, connection: BookieConnection, user: str, version: int) -> None:
        while True:
            body, role = self._drawn(version)
            begin_s = trio.current_time()
            answer = await connection.call(body, 30.0)
            self.check(user, body, role, begin_s, answer.status)
            await trio.sleep(self.chance.uniform(0.0, 0.2))

    def _drawn(self, version: int) -> tuple[RequestBody, Role]:
        ledger_id = self.chance.choice(list(LEDGERS))
        kind = self.chance.random()
        if kind < 0.5:
            is_recovery = self.chance.random() < 0.3
            return add(ledger_id, self.chance.randrange(20), is_recovery=is_recovery), Role.WRITE
        if version == 2 or kind < 0.8:
            return ReadRequest(ledger_id, self.chance.randrange(20)), Role.READ
        wait_ms = self.chance.randrange(8000)
        poll = ReadRequest(ledger_id, -1, previous_lac=100, timeout_ms=wait_ms, is_piggyback=True)
        return poll, Role.READ


def permitting(name: str, chance: random.Random) -> BookieConfig:
    """Returns the settings of a bookie that enforces permissions."""
    return dataclasses.replace(small_config(name, chance), permissions=True)


def run_tenants(seed: int) -> Tenants:
    """Runs tenants for a minute. Raises Violation."""

    async def scenario(simulation: Simulation) -> Tenants:
        chance = simulation.chance("tenants")
        async with SimCluster(simulation, bookies=3, config=permitting) as cluster:
            run = Tenants(cluster, chance)
            run.tables.append(Table(PermissionTable(), trio.current_time()))
            ledgers = LedgerStore(cluster.metadata.connect("operator"))
            for ledger_id, namespace in LEDGERS.items():
                await ledgers.create(metadata_of(ledger_id, namespace))
            with trio.move_on_after(RUN_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(run.operate)
                    nursery.start_soon(run.kill)
                    for user in USERS:
                        for version in (2, 3):
                            nursery.start_soon(run.use, user, version)
            return run

    try:
        return run_simulated(scenario, seed)
    except* LedgerError as errors:
        raise errors.exceptions[0] from errors
