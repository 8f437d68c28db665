"""Whether the id of a new ledger is free, and which one is tried next."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ledger.core.ledger_claims import CLAIM_TRIES_MAX, JUMP_IDS_MAX, LedgerClaim, next_beyond
from ledger.core.quorum import write_set
from ledger.errors import Status

ANSWERS = st.sampled_from([None, Status.OK, Status.READ_ONLY, Status.UNAUTHORIZED])


@st.composite
def claims(draw: st.DrawFn) -> tuple[int, int, int, list[Status | None]]:
    ensemble_size = draw(st.integers(1, 5))
    write_quorum = draw(st.integers(1, ensemble_size))
    ack_quorum = draw(st.integers(1, write_quorum))
    answers = draw(st.lists(ANSWERS, min_size=ensemble_size, max_size=ensemble_size))
    return ensemble_size, write_quorum, ack_quorum, answers


@given(claims())
def test_one_refusal_is_enough_and_all_answers_decide(
    case: tuple[int, int, int, list[Status | None]],
) -> None:
    *sizes, answers = case
    claim = LedgerClaim(*sizes)
    decided = [claim.is_decided]
    for count, answer in enumerate(answers, 1):
        claim.answered(answer)
        assert claim.is_taken == (Status.UNAUTHORIZED in answers[:count])
        decided.append(claim.is_decided)
    refusals = [count for count, one in enumerate(answers, 1) if one is Status.UNAUTHORIZED]
    first = min(refusals, default=len(answers))
    assert decided == [False] * first + [True] * (len(answers) + 1 - first)


@given(claims())
def test_enough_answers_are_an_ack_quorum_of_every_write_quorum(
    case: tuple[int, int, int, list[Status | None]],
) -> None:
    ensemble_size, write_quorum, ack_quorum, answers = case
    claim = LedgerClaim(ensemble_size, write_quorum, ack_quorum)
    known = []
    for index, answer in enumerate(answers):
        if claim.is_decided:
            break
        claim.answered(answer)
        if answer is not None and answer is not Status.UNAUTHORIZED:
            known.append(index)
        if claim.is_enough and not claim.is_taken:
            for entry_id in range(ensemble_size):
                members = write_set(entry_id, ensemble_size, write_quorum)
                assert len(set(members) & set(known)) >= ack_quorum


@given(claims())
def test_a_client_is_refused_if_the_bookies_that_let_it_in_are_too_few(
    case: tuple[int, int, int, list[Status | None]],
) -> None:
    *sizes, _ = case
    for refusing in range(sizes[0] + 1):
        claim = LedgerClaim(*sizes)
        for _ in range(sizes[0] - refusing):
            claim.answered(Status.OK)
        assert claim.is_refused(refusing) is not claim.is_enough


def test_jumps_double_up_to_a_limit() -> None:
    beyond, skipped = 10, []
    for tries in range(1, CLAIM_TRIES_MAX + 1):
        skipped.append(next_beyond(beyond, tries) - beyond)
        beyond = next_beyond(beyond, tries) + 1
    assert skipped[:6] == [0, 1, 3, 7, 15, 31]
    assert max(skipped) == skipped[-1] == JUMP_IDS_MAX
    assert sum(skipped) < 3 * 10**7
