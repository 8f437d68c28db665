"""Recovery in thousands of random histories, with active writers, faults and several recoverers."""

from __future__ import annotations

import random

import pytest

from ledger.core.metadata import LedgerState
from ledger.core.recovery_events import ReadEntry
from ledger.errors import RecoveryIncomplete, Status
from tests.effort import stride
from tests.ledger.core.simulated_recovery import (
    Recoverer,
    SimulatedRecovery,
    make_body,
    make_metadata,
)

SIZES = [(1, 1, 1), (3, 3, 2), (3, 2, 2), (3, 3, 3), (3, 2, 1), (4, 3, 2), (5, 3, 2), (3, 3, 1)]


def run_history(seed: int, *, is_attacked: bool = False) -> str:
    """Runs one random history: a writer that may continue, faults, and recoverers that may vanish;
    and frames that were forged, if it `is_attacked`.

    It returns the kind of its outcome, for the count at the end of the test.
    """
    rng = random.Random(seed)
    sizes = rng.choice(SIZES)
    world = SimulatedRecovery(
        rng, make_metadata(*sizes, state=LedgerState.OPEN), spares=rng.randrange(3)
    )
    names = list(world.bookies)
    world.loss = rng.choice([0.0, 0.0, 0.02, 0.1])
    world.fence_loss = rng.choice([0.0, 0.3])
    world.slow = tuple(rng.sample(names, rng.randrange(3))) if len(names) > 1 else ()
    faults = rng.choice([0.0, 0.0, 0.01])
    recoverers: list[Recoverer] = []
    for _ in range(rng.randrange(10, 400)):
        if is_attacked and rng.random() < 0.02:
            world.forge()
        dice = rng.random()
        if dice < 0.10:
            for _ in range(rng.choice([1, 1, 4])):
                world.writer.append()
        elif dice < 0.11:
            world.writer.replace()
        elif dice < 0.125 and len(recoverers) < 4:
            recoverers.append(Recoverer(world, rng.choice([1, 2, 16])))
        elif dice < 0.125 + faults:
            bookie = world.bookies[rng.choice(names)]
            bookie.is_down = not bookie.is_down
        elif dice < 0.125 + 2 * faults:
            world.bookies[rng.choice(names)].fault = rng.choice(
                [Status.IO_ERROR, Status.UNKNOWN_LEDGER_STATE, None]
            )
        elif dice < 0.126 + 2 * faults and recoverers:
            # Its requests still arrive, but its responses are dropped.
            recoverers.pop(0).error = RecoveryIncomplete("crashed")
        else:
            world.step()
    finish(world, recoverers)
    return f"{len(world.metadata.fragments)} fragments, {world.metadata.last_entry_id >= 0}"


def finish(world: SimulatedRecovery, recoverers: list[Recoverer]) -> None:
    """Ends the faults, closes the ledger, delivers late messages, and checks all invariants."""
    world.heal()
    final = Recoverer(world, world.rng.choice([1, 3, 16]))
    for _ in range(20):
        world.run(final)
        if final.result is not None:
            break
        # Earlier faults may have reached it as late responses; now there are none left.
        final = Recoverer(world, 16)
    assert final.result is not None, final.error
    while world.step():
        pass
    world.check()
    for recoverer in recoverers:
        if recoverer.result is not None:
            assert recoverer.result == world.metadata, "two recoverers disagree"


def run_duel(seed: int) -> None:
    """Runs an active writer of one or two entries against one recoverer.

    The history is short, so that rare orders of a few messages are frequent. Adds to all bookies
    but one are slow, and fences get lost.
    """
    rng = random.Random(seed)
    sizes = rng.choice([(3, 3, 2), (3, 3, 2), (3, 2, 2), (4, 3, 2), (4, 4, 3)])
    world = SimulatedRecovery(rng, make_metadata(*sizes, state=LedgerState.OPEN), spares=0)
    world.fence_loss = 0.3
    for _ in range(rng.randrange(1, 3)):
        world.writer.append()
    for _ in range(rng.randrange(5)):
        world.step()
    recoverers = [Recoverer(world, rng.choice([1, 2]))]
    world.slow = tuple(rng.sample(list(world.bookies), sizes[0] - 1))
    while not recoverers[0].is_done and world.step():
        pass
    world.slow = ()
    finish(world, recoverers)


@pytest.mark.parametrize("block", range(4))
def test_no_order_of_a_few_messages_loses_a_confirmed_entry(block: int) -> None:
    for seed in range(block * 700, block * 700 + 700, stride(ci=8)):
        try:
            run_duel(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("block", range(4))
def test_every_history_ends_closed_with_all_confirmed_entries(block: int) -> None:
    kinds: dict[str, int] = {}
    for seed in range(block * 200, block * 200 + 200, stride(ci=8)):
        try:
            kind = run_history(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        kinds[kind] = kinds.get(kind, 0) + 1
    # The histories are varied enough: some have entries and ensemble changes.
    assert len(kinds) >= 3, kinds


@pytest.mark.parametrize("block", range(4))
def test_no_forged_claim_moves_an_end_or_keeps_a_ledger_open(block: int) -> None:
    for seed in range(block * 200, block * 200 + 200, stride(ci=8)):
        try:
            run_history(seed, is_attacked=True)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def questions(entries: int, window: int, *, lag: int = 0) -> int:
    """Returns how many questions a recovery asks about a ledger with `entries` entries, of which b2
    lacks the last `lag`."""
    world = SimulatedRecovery(random.Random(3), make_metadata(state=LedgerState.OPEN), spares=0)
    for name, bookie in world.bookies.items():
        held = entries - (lag if name == "b2" else 0)
        bookie.entries = {e: make_body(e, e - 1) for e in range(held)}
    world.writer.pushed = world.writer.confirmed = entries - 1
    recoverer = Recoverer(world, window)
    asked = len(world.under_way)
    while not recoverer.is_done:
        before = {id(m) for m in world.under_way}
        assert world.step()
        asked += sum(
            m[0] == "act" and isinstance(m[2], ReadEntry) and id(m) not in before
            for m in world.under_way
        )
    world.check()
    return asked


def test_a_recovery_asks_no_more_than_one_that_believes_claims() -> None:
    """With a window of 16 entries, that one asked 41 to 48 questions about each of these."""
    found = [questions(entries, 16) for entries in (0, 1, 16, 1_000, 100_000)]
    assert max(found) <= 41, found
    assert found[0] <= 12, found  # a ledger without entries: no claim, nothing to check
    assert questions(1_000, 16, lag=300) <= 41


def test_confirmed_entries_survive_without_the_lac() -> None:
    """Without any LAC recovery still finds every entry from the last fragment on."""
    world = SimulatedRecovery(random.Random(5), make_metadata(state=LedgerState.OPEN))
    for _ in range(20):
        world.writer.append()
    while world.step():
        pass
    assert world.writer.confirmed == 19
    for bookie in world.bookies.values():
        bookie.entries = {e: make_body(e, -1) for e in bookie.entries}
    recoverer = Recoverer(world, 4)
    world.run(recoverer)
    assert recoverer.result is not None
    assert (recoverer.result.last_entry_id, recoverer.result.length) == (19, 100)
