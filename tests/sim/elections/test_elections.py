"""Elections of an auditor while sessions expire, processes die, and metadata cannot be reached.

At every moment at most one process is the auditor by its vote: another one that believes so has
lost its own. When the faults are over, exactly one believes so within a bounded virtual time, and
the tree holds votes of all processes that live, and of no other. A create that was carried out late
may have left a second vote, behind the first; it ends with it.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest
import trio

from bookie.testing.metastore import MetadataOptions, SimMetadata, SimMetadataStore
from bookie.testing.scheduler import Simulation, run_simulated
from ledger.metastore import election
from ledger.metastore.base import Delete
from ledger.metastore.election import AuditorElection, Term, _Candidate, votes_in_order
from ledger.metastore.memory import MemoryStore
from tests.effort import scaled

ROOT = "/ledgers"
PATH = f"{ROOT}/underreplication/auditorelection"
NODES = ("b1", "b2", "b3", "b4")
FAULTS = 25
SEEDS = scaled(ci=15, night=3000)
BUG_SEEDS = 40
SETTLED_S = 12.0
"""A dead session ends within 2 s, an answer fails within 2 s, a change is up to 3 s late."""
TROUBLE = MetadataOptions(
    delay_max_s=0.02,
    timeout_s=1.0,
    error_before_probability=0.05,
    error_after_probability=0.08,
    error_late_probability=0.08,
    late_max_s=3.0,
)


@dataclass(eq=False)
class Process:
    """One candidate, which stands again whenever its term is over or it chose to leave."""

    name: str
    store: SimMetadataStore
    election: AuditorElection
    life: trio.CancelScope = field(default_factory=trio.CancelScope)
    standing: trio.CancelScope = field(default_factory=trio.CancelScope)
    term: Term | None = None

    @property
    def believes(self) -> bool:
        return self.term is not None and not self.term.is_over

    async def run(self, terms: list[str]) -> None:
        with self.life:
            while True:
                self.standing = trio.CancelScope()
                with self.standing:
                    async with self.election.elected(self.name) as self.term:
                        terms.append(self.name)
                        try:
                            await self.term.wait_over()
                        finally:
                            self.term = None
                await trio.sleep(0.01)


class World:
    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.metadata = SimMetadata(simulation)
        self.chance = simulation.chance("elections")
        self.processes: dict[str, Process] = {}
        self.operator = MemoryStore(self.metadata.tree, simulation.now_ms)
        self.terms: list[str] = []
        self.twice_believed = 0

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for name in NODES:
                self.start(name, nursery)
            nursery.start_soon(self.check_always)
            self.metadata.options = TROUBLE
            for _ in range(FAULTS):
                await trio.sleep(self.chance.expovariate(1.5))
                self.strike(nursery)
            self.calm()
            await self.check_settled()
            for _ in range(2):  # each auditor hands over
                await self.hand_over()
            nursery.cancel_scope.cancel()

    def start(self, name: str, nursery: trio.Nursery) -> None:
        store = self.metadata.connect(name)
        rng = random.Random(self.chance.random())
        process = Process(name, store, AuditorElection(store, ROOT, rng))
        self.processes[name] = process
        nursery.start_soon(process.run, self.terms)

    def strike(self, nursery: trio.Nursery) -> None:
        name = self.chance.choice(NODES)
        if self.chance.random() < 0.5:
            name = next((one.name for one in self.processes.values() if one.believes), name)
        kind = self.chance.choice(("die", "expire", "cut off", "heal", "leave", "delete"))
        self.simulation.trace("strike", kind, name)
        if kind == "die":
            self.processes[name].life.cancel()
            self.start(name, nursery)
        elif kind == "expire":
            self.metadata.expire(name)
        elif kind == "cut off":
            self.metadata.cut_off(name)
        elif kind == "heal":
            self.metadata.heal()
        elif kind == "leave":
            self.processes[name].standing.cancel()
        elif votes := self.votes():  # an operator deletes a vote
            vote = Delete(f"{PATH}/{self.chance.choice(votes)}")
            self.operator.apply([vote])

    def calm(self) -> None:
        self.metadata.heal()
        self.metadata.options = MetadataOptions()

    def votes(self) -> list[str]:
        return votes_in_order(self.metadata.tree.children(PATH))

    def voters(self) -> set[bytes]:
        """Returns the different data of all votes."""
        nodes = [self.metadata.tree.get(f"{PATH}/{vote}") for vote in self.votes()]
        return {node.data for node in nodes if node is not None}

    def living(self) -> set[bytes]:
        """Returns the data that the votes of the living processes have."""
        elections = [one.election for one in self.processes.values()]
        return {one._data for each in elections for one in each._candidates.values()}

    def believers(self) -> list[Process]:
        return [one for one in self.processes.values() if one.believes]

    async def check_always(self) -> None:
        while True:
            votes = self.votes()
            believers = self.believers()
            self.twice_believed += len(believers) > 1
            for one in believers:
                assert one.term is not None
                name = one.term.vote.rpartition("/")[2]
                if name in votes and votes[0] != name:
                    self.simulation.fail(
                        AssertionError(f"{one.name} is auditor by {name}: {votes}")
                    )
            await trio.sleep(0.01)

    async def check_settled(self) -> None:
        """Exactly one is the auditor within the time; everybody reads its name."""
        since = trio.current_time()
        while len(self.believers()) != 1 or self.voters() != self.living():
            assert trio.current_time() < since + SETTLED_S, (
                f"after {SETTLED_S} s: believers {[one.name for one in self.believers()]}, "
                f"votes {self.votes()}"
            )
            await trio.sleep(0.05)
        await trio.sleep(SETTLED_S)  # nothing late changes it
        (auditor,) = self.believers()
        assert self.voters() == self.living(), self.votes()
        for one in self.processes.values():
            assert await one.election.auditor() == auditor.name
        named = self.metadata.tree.get(PATH)
        assert named is not None
        assert named.data == b'bookieId: "%s"\n' % auditor.name.encode()

    async def hand_over(self) -> None:
        (auditor,) = self.believers()
        auditor.standing.cancel()
        await trio.sleep(0.5)
        assert self.believers() != [auditor]
        await self.check_settled()


def run_world(seed: int) -> World:
    worlds: list[World] = []

    async def main(simulation: Simulation) -> None:
        worlds.append(World(simulation))
        await worlds[0].run()

    run_simulated(main, seed, time_limit_s=1e5)
    return worlds[0]


def test_exactly_one_is_auditor_after_every_trouble() -> None:
    terms = twice = 0
    for seed in range(SEEDS):
        world = run_world(seed)
        terms += len(world.terms)
        twice += world.twice_believed > 0
    assert terms > 5 * SEEDS, "the auditor no longer changes"
    assert twice > 0, "no two processes believed at once: the faults are too gentle"


Patch = Callable[[pytest.MonkeyPatch], None]


def forget_strays(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: _Candidate) -> list[str]:
        return []

    monkeypatch.setattr(_Candidate, "_own_votes", nothing)


def watch_only_the_predecessor(monkeypatch: pytest.MonkeyPatch) -> None:
    whole: Callable[..., Awaitable[None]] = _Candidate._wait_any_gone

    async def one(self: _Candidate, _vote: str, predecessor: str) -> None:
        await whole(self, predecessor)

    monkeypatch.setattr(_Candidate, "_wait_any_gone", one)


def count_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(election, "votes_in_order", lambda names: sorted(names, reverse=True))


def never_look_at_the_own_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(_self: _Candidate, _term: Term) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(_Candidate, "watch", nothing)


def run_worlds(count: int) -> None:
    for seed in range(count):
        run_world(seed)


@pytest.mark.parametrize(
    "plant",
    [forget_strays, watch_only_the_predecessor, count_wrongly, never_look_at_the_own_vote],
)
def test_a_planted_bug_is_found(plant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, BaseExceptionGroup)) as found:
        run_worlds(BUG_SEEDS)
    assert isinstance(found.value, AssertionError) or found.group_contains(AssertionError)


def test_the_same_seed_gives_the_same_run() -> None:
    assert run_world(3).simulation.trace_hash() == run_world(3).simulation.trace_hash()
