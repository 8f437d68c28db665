"""Which entries are read from where, compared with a look at every copy of every entry."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.core.autorecovery.copy_plan import FAILURES_MAX, CopyPlan, Read
from ledger.core.availability import expected_ranges, missing_ranges
from ledger.core.copies import DOUBTFUL, BadCopy, CopyState
from ledger.core.entry import DigestType
from ledger.core.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.core.quorum import write_set
from tests.effort import scaled

SIZES = [(3, 3, 2), (2, 2, 2), (1, 1, 1), (4, 2, 2), (5, 3, 2), (3, 2, 1)]
STATES = [*CopyState, *[CopyState.WHOLE] * 10]


def metadata_of(
    entries: int, sizes: tuple[int, int, int], fragments: dict[int, Sequence[str]]
) -> LedgerMetadata:
    ensemble, write, ack = sizes
    return LedgerMetadata(
        ledger_id=5,
        ensemble_size=ensemble,
        write_quorum=write,
        ack_quorum=ack,
        state=LedgerState.CLOSED,
        fragments=tuple(Fragment(first, tuple(names)) for first, names in fragments.items()),
        digest_type=DigestType.CRC32C,
        last_entry_id=entries - 1,
    )


class World:
    """A ledger whose copies are in random states, and the answers of its bookies."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        sizes = rng.choice(SIZES)
        self.entries = rng.randrange(1, 150)
        starts = sorted({0, *(rng.randrange(self.entries) for _ in range(rng.randrange(3)))})
        names = [f"b{n}" for n in range(sizes[0] + 2)]
        self.target = names[-1]
        self.metadata = metadata_of(
            self.entries, sizes, {s: rng.sample(names, sizes[0]) for s in starts}
        )
        self.gone = {n: BadCopy(CopyState.UNREACHABLE, "") for n in names if rng.random() < 0.1}
        self.states: dict[tuple[str, int], CopyState] = {}
        share = rng.choice([0.0, 0.05, 1.0])
        for entry_id in range(self.entries):
            for name in self.holders(entry_id):
                state = rng.choice(STATES) if rng.random() < share else CopyState.WHOLE
                self.states[name, entry_id] = state
        expected = {n for a, b in self.wanted() for n in range(a, b + 1)}
        held = [(n, n) for n in sorted(rng.sample(sorted(expected), len(expected) // 4))]
        self.ranges = list(missing_ranges(self.wanted(), held))
        self.missing = expected - {n for n, _ in held}

    def wanted(self) -> list[tuple[int, int]]:
        if any(self.target in f.bookies for f in self.metadata.fragments):
            return list(expected_ranges(self.metadata, self.target))
        # The target shall take the place of another bookie.
        return list(expected_ranges(self.metadata, self.metadata.fragments[0].bookies[0]))

    def holders(self, entry_id: int) -> list[str]:
        metadata = self.metadata
        bookies = metadata.fragment_of(entry_id).bookies
        return [
            bookies[i]
            for i in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
            if bookies[i] != self.target
        ]

    def answer(self, plan: CopyPlan, read: Read, copied: list[int]) -> None:
        if read.source in self.gone:
            plan.gone(read.source, self.gone[read.source])
            plan.again(read.first, read.last)
            return
        if self.rng.random() < 0.1:  # no answer, this time
            plan.again(read.first, read.last)
            return
        states = [
            self.states.get((read.source, n), CopyState.MISSING)
            for n in range(read.first, read.last + 1)
        ]
        if not read.is_single:
            served = (CopyState.WHOLE, CopyState.DIFFERS, CopyState.CORRUPT)
            count = next((i for i, s in enumerate(states) if s not in served), len(states))
            if not count:
                plan.not_in_batch(read)
                return
            count = self.rng.randrange(1, count + 1)  # cut by its size
            if read.first + count <= read.last:
                plan.again(read.first + count, read.last)
            states = states[:count]
        for entry_id, state in enumerate(states, read.first):
            if state in (CopyState.WHOLE, CopyState.DIFFERS):
                plan.found(entry_id, entry_id)
                copied.append(entry_id)
            else:
                plan.bad(read.source, entry_id, BadCopy(state, state.value))


@settings(max_examples=scaled(ci=300, night=5000))
@given(st.randoms(use_true_random=False))
def test_every_entry_is_copied_if_a_source_has_it_and_reported_if_none_has(
    rng: random.Random,
) -> None:
    world = World(rng)
    plan = CopyPlan(world.metadata, world.target, world.ranges)
    copied, in_flight = list[int](), list[Read]()
    requests = 0

    def choose(sources: Sequence[str]) -> str | None:
        assert world.target not in sources
        return rng.choice(sources) if rng.random() < 0.8 else None

    while not plan.is_done or in_flight:
        read = plan.next_read(choose, rng.randrange(1, 40))
        if read is not None:
            requests += 1
            in_flight.append(read)
        if in_flight and rng.random() < 0.6:
            world.answer(plan, in_flight.pop(rng.randrange(len(in_flight))), copied)
        assert requests < 60 * world.entries + 100, "it makes no progress"
    assert len(copied) == len(set(copied)), "an entry was read twice"
    whole = (CopyState.WHOLE, CopyState.DIFFERS)
    readable = {
        n
        for n in world.missing
        if any(
            name not in world.gone and world.states[name, n] in whole for name in world.holders(n)
        )
    }
    assert set(copied) == readable
    lost = world.missing - readable
    assert plan.entries_failed == len(lost)
    assert sum(one.entries for one in plan.failures()) == len(lost)
    for n in lost:
        of_entry = [one for one in plan.failures() if one.first_entry <= n <= one.last_entry]
        assert any(_says(world, n, one.reason, is_doubt=one.is_doubt) for one in of_entry)


def _says(world: World, entry_id: int, reason: str, *, is_doubt: bool) -> bool:
    """Whether a reason names every holder, and a doubt exactly where there is one."""
    holders = world.holders(entry_id)
    states = {
        name: CopyState.UNREACHABLE if name in world.gone else world.states[name, entry_id]
        for name in holders
    }
    words = {
        CopyState.MISSING: "missing on",
        CopyState.CORRUPT: "corrupt on",
        CopyState.UNREADABLE: "cannot read it",
        CopyState.UNREACHABLE: "does not answer",
        CopyState.UNKNOWN: "may have lost it",
    }
    # A bookie that was given up may have answered for this entry before that.
    alternatives = [{states[name], world.states[name, entry_id]} & set(words) for name in holders]
    has_words = all(
        name in reason and any(words[state] in reason for state in options)
        for name, options in zip(holders, alternatives, strict=True)
    )
    doubts = [bool(options & set(DOUBTFUL)) for options in alternatives]
    return has_words and (is_doubt or not all(doubts) or not holders)


def test_a_ledger_without_any_source_is_given_up_in_one_step() -> None:
    metadata = metadata_of(10**8, (3, 3, 2), {0: ("b0", "b1", "b2")})
    plan = CopyPlan(metadata, "b2", [(0, 10**8 - 1)])
    for name in ("b0", "b1"):
        plan.gone(name, BadCopy(CopyState.MISSING, "it says: no such ledger"))
    assert plan.next_read(lambda sources: sources[0], 100) is None
    assert plan.is_done
    (failure,) = plan.failures()
    assert (failure.first_entry, failure.last_entry) == (0, 10**8 - 1)
    assert failure.entries == 10**8
    assert not failure.is_doubt
    assert failure.reason == "missing on b0, b1"


def test_giving_up_many_entries_of_a_striped_ledger_is_interrupted() -> None:
    metadata = metadata_of(5000, (3, 2, 1), {0: ("b0", "b1", "b2")})
    plan = CopyPlan(metadata, "b3", [(0, 4999)])
    for name in ("b0", "b1", "b2"):
        plan.gone(name, BadCopy(CopyState.UNREACHABLE, "down"))
    steps = 0
    while not plan.is_done:
        assert plan.next_read(lambda sources: sources[0], 100) is None
        steps += 1
    assert steps >= 5
    assert plan.entries_failed == 5000
    assert len(plan.failures()) == 3
    assert all(one.is_doubt for one in plan.failures())


def test_the_list_of_failures_is_bounded_and_the_rest_is_counted() -> None:
    metadata = metadata_of(10_000, (2, 2, 2), {0: ("b0", "b1")})
    plan = CopyPlan(metadata, "b1", [(0, 9999)])
    while (read := plan.next_read(lambda sources: sources[0], 1)) is not None:
        if read.first % 2:
            plan.found(read.first, read.first)
        else:
            plan.bad("b0", read.first, BadCopy(CopyState.CORRUPT, f"entry {read.first}"))
    assert plan.entries_failed == 5000
    assert len(plan.failures()) == FAILURES_MAX
    assert plan.failures()[0].reason == "corrupt on b0 (entry 0)"


def test_entries_that_are_given_up_in_any_order_are_one_run() -> None:
    plan = CopyPlan(metadata_of(10, (1, 1, 1), {0: ["b0"]}), "b1", [(0, 9)])
    for _ in range(10):
        assert plan.next_read(lambda sources: sources[0], 1) is not None
    for entry_id in (0, 2, 1, 9, 8, 3, 4, 7, 5, 6):
        plan.bad("b0", entry_id, BadCopy(CopyState.CORRUPT, f"entry {entry_id}"))
        assert plan.next_read(lambda sources: sources[0], 1) is None
    (failure,) = plan.failures()
    assert (failure.first_entry, failure.last_entry, failure.entries) == (0, 9, 10)
    assert failure.reason == "corrupt on b0 (entry 0)"


def test_the_sources_of_an_entry_are_asked_for_once_in_each_fragment_and_stripe() -> None:
    metadata = metadata_of(100, (3, 2, 1), {0: ("b0", "b1", "b2"), 50: ("b0", "b1", "b3")})
    asked: list[int] = []

    def holders(entry_id: int) -> list[str]:
        asked.append(entry_id)
        return ["b7", "b8"]

    plan = CopyPlan(metadata, "b8", [(0, 99)], holders)
    while (read := plan.next_read(lambda sources: sources[0], 10)) is not None:
        assert read.source == "b7"
    assert len(asked) == 6
