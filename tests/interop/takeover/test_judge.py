"""The judge of takeovers detects faults, and a seed determines the plans."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from ledger.core.entry import Digest, DigestType
from ledger.core.metadata import Fragment, LedgerMetadata, LedgerState
from tests.interop.replicas import Replicas, replica_faults
from tests.interop.takeover.judge import (
    LedgerEnd,
    Observations,
    WriterResult,
    faults,
    lengths_by_java,
    misjudged_lengths,
)
from tests.interop.takeover.plan import Kind, Language, Plan, Recovery, make_plans
from tests.interop.versions import VERSIONS

OURS = tuple(f"ours-{n}" for n in range(5))
APACHES = tuple(f"apache-{n}" for n in range(5))


def plans(seed: int, count: int) -> list[Plan]:
    return make_plans(seed, range(count), versions=VERSIONS, ours=OURS, apaches=APACHES)


def test_the_seed_determines_the_plan() -> None:
    assert plans(7, 60) == plans(7, 60)
    assert plans(7, 60) != plans(8, 60)


def test_plans_are_spread_over_versions_wires_languages_and_bookies() -> None:
    made = plans(1, 192)
    killing = [plan for plan in made if plan.kill is not None]
    assert 3 * len(killing) == len(made)
    for some in (made, killing):
        counts = Counter((p.writer, p.version, p.is_v2, p.kind) for p in some)
        assert len(counts) == 2 * 3 * 2 * 4, "every combination, with a kill and without"
    assert {plan.recoveries[0].language for plan in made} == set(Language)
    assert all(plan.recoveries[0].language is not plan.writer for plan in made)


def test_a_plan_has_the_bookies_of_its_kind_and_a_spare_one() -> None:
    last = None
    for plan in plans(3, 200):
        assert len(set(plan.bookies)) == len(plan.bookies) > plan.shape.ensemble_size
        assert last not in plan.bookies, "the last victim is still starting"
        ours = sum(name in OURS for name in plan.ensemble)
        size = plan.shape.ensemble_size
        assert (
            ours
            == {
                Kind.OURS: size,
                Kind.APACHE: 0,
                Kind.TWO_OURS: 2,
                Kind.TWO_APACHE: size - 2,
            }[plan.kind]
        )
        last = plan.victim


PAYLOADS = [bytes([n]) * n for n in range(6)]


def good_takeover() -> Observations:
    """Returns six entries, of which four were acknowledged and recovery found five."""
    end = LedgerEnd(4, sum(range(5)))
    return Observations(
        plan=plans(1, 1)[0],
        ledger_id=1,
        writer=WriterResult(acked=[0, 1, 2, 3], pushed=6, error="LedgerFenced"),
        recovered={"java": end, "python": end},
        metadata=end,
        opened_ends={"java": end, "python": end},
        read={"java": PAYLOADS[:5], "python": PAYLOADS[:5]},
    )


def test_a_good_takeover_has_no_fault() -> None:
    assert faults(good_takeover(), PAYLOADS) == []


def _ends(observed: Observations, end: LedgerEnd) -> None:
    """Makes all clients agree on `end`."""
    observed.metadata = end
    observed.recovered = dict.fromkeys(observed.recovered, end)
    observed.opened_ends = dict.fromkeys(observed.opened_ends, end)
    observed.read = dict.fromkeys(observed.read, PAYLOADS[: end.last_entry_id + 1])


def _lose_acknowledged(observed: Observations) -> None:
    _ends(observed, LedgerEnd(2, 3))


def _flip_a_byte(observed: Observations) -> None:
    observed.read["java"] = [*PAYLOADS[:3], b"\x03\x03\x13", PAYLOADS[4]]


def _swap_entries(observed: Observations) -> None:
    observed.read["python"] = [PAYLOADS[1], PAYLOADS[0], *PAYLOADS[2:5]]


def _drop_an_entry(observed: Observations) -> None:
    observed.read["python"] = PAYLOADS[:4]


def _disagree(observed: Observations) -> None:
    observed.recovered["java"] = LedgerEnd(5, 15)


def _readers_disagree(observed: Observations) -> None:
    observed.opened_ends["python"] = LedgerEnd(3, 6)


def _wrong_length(observed: Observations) -> None:
    _ends(observed, LedgerEnd(4, 11))


def _invented_entry(observed: Observations) -> None:
    observed.writer.pushed = 4


def _leave_open(observed: Observations) -> None:
    observed.metadata = None


def _acknowledge_late(observed: Observations) -> None:
    observed.writer.acked += [4, 5]


def _acknowledge_with_a_gap(observed: Observations) -> None:
    observed.writer.acked = [0, 2, 3]


def _never_fence(observed: Observations) -> None:
    observed.writer.error = None


def _fail_otherwise(observed: Observations) -> None:
    observed.writer.error = "NotEnoughBookies"


def _close_elsewhere(observed: Observations) -> None:
    observed.writer.error, observed.writer.closed_at = None, 3


def _shift_ids(observed: Observations) -> None:
    observed.writer.wrong_ids.append("append 3 got entry id 4")


def _recover_nowhere(observed: Observations) -> None:
    observed.recovered.clear()


def _read_by_one(observed: Observations) -> None:
    del observed.read["java"]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_lose_acknowledged, "acknowledged, but after the last entry 2: [3]"),
        (_flip_a_byte, "java: entry 3 has 3 bytes"),
        (_swap_entries, "python: entry 0 has 1 bytes"),
        (_drop_an_entry, "python read 4 entries of 5"),
        (_disagree, "recovery by java reports"),
        (_readers_disagree, "reader by python reports"),
        (_wrong_length, "the metadata has 11 bytes, the entries have 10"),
        (_invented_entry, "last entry 4, but 4 were appended"),
        (_leave_open, "not closed in its metadata"),
        (_acknowledge_late, "acknowledged, but after the last entry 4: [5]"),
        (_acknowledge_with_a_gap, "out of order or with gaps"),
        (_never_fence, "never received a fencing error"),
        (_fail_otherwise, "received NotEnoughBookies"),
        (_close_elsewhere, "the writer closed at 3"),
        (_shift_ids, "got entry id 4"),
        (_recover_nowhere, "no client recovered"),
        (_read_by_one, "read by ['python'], opened by ['java', 'python']"),
    ],
)
def test_a_fault_is_noticed(spoil: Callable[[Observations], None], says: str) -> None:
    observed = copy.deepcopy(good_takeover())
    spoil(observed)
    assert any(says in fault for fault in faults(observed, PAYLOADS)), faults(observed, PAYLOADS)


def test_apaches_recovery_without_added_entries_may_use_the_length_of_a_later_entry() -> None:
    assert lengths_by_java([1, 2, 3, 4], 1, last_acked=1) == [3, 6, 10]
    assert lengths_by_java([1, 2, 3, 4], 1, last_acked=0) == [3], "it found entry 1"
    assert lengths_by_java([1, 2, 3, 4], 3, last_acked=3) == [10], "there is no later one"


def test_the_length_is_uncertain_only_if_apaches_recovery_may_have_added_no_entries() -> None:
    by_java = replace(plans(1, 1)[0], recoveries=(Recovery(Language.JAVA),))
    by_us = replace(by_java, recoveries=(Recovery(Language.PYTHON),))
    by_both = replace(by_java, recoveries=(Recovery(Language.PYTHON), Recovery(Language.JAVA)))
    empty = replace(METADATA, fragments=(Fragment(0, BOOKIES), Fragment(2, BOOKIES)))
    striped = replace(METADATA, write_quorum=2)
    sizes = [3, 4, 5]
    found, none_found = WriterResult(acked=[0]), WriterResult(acked=[0, 1])
    assert misjudged_lengths(by_java, empty, found, sizes) == [0, 3, 7, 12]
    assert misjudged_lengths(by_java, striped, found, sizes) == [0, 3, 7, 12]
    assert misjudged_lengths(by_java, METADATA, none_found, sizes) == [7, 12]
    assert misjudged_lengths(by_both, METADATA, found, sizes) == [7, 12]
    assert misjudged_lengths(by_java, METADATA, found, sizes) == []
    for metadata in (empty, striped, METADATA):
        assert misjudged_lengths(by_us, metadata, none_found, sizes) == []


def test_an_uncertain_length_is_one_of_the_possible_ones() -> None:
    observed = good_takeover()
    _wrong_length(observed)
    observed.lengths = [11]
    assert faults(observed, PAYLOADS) == []
    observed.lengths = [10, 12]
    assert faults(observed, PAYLOADS) == ["the metadata has 11 bytes, the entries have 10"]


# ---- replicas

BOOKIES = ("a:1", "b:1", "c:1")
METADATA = LedgerMetadata(
    ledger_id=9,
    ensemble_size=3,
    write_quorum=3,
    ack_quorum=2,
    state=LedgerState.CLOSED,
    fragments=(Fragment(0, BOOKIES),),
    digest_type=DigestType.CRC32C,
    last_entry_id=1,
    length=7,
)


def stored(entry_id: int, lac: int, length: int, payload: bytes) -> bytes:
    digest = Digest(DigestType.CRC32C)
    return b"".join(map(bytes, digest.encode_entry(9, entry_id, lac, length, payload)))


def held() -> list[dict[str, bytes | None]]:
    first, second = stored(0, -1, 3, b"abc"), stored(1, 0, 7, b"defg")
    return [dict.fromkeys(BOOKIES, first), dict.fromkeys(BOOKIES, second)]


def replica_faults_of(
    bodies: list[dict[str, bytes | None]],
    recovered_from: int | None = None,
    *,
    is_on_all: bool = False,
    metadata: LedgerMetadata = METADATA,
) -> list[str]:
    replicas = [Replicas(i, by_bookie) for i, by_bookie in enumerate(bodies)]
    return replica_faults(metadata, replicas, recovered_from=recovered_from, is_on_all=is_on_all)


def test_equal_replicas_have_no_fault() -> None:
    assert replica_faults_of(held(), is_on_all=True) == []


def test_a_recovered_entry_may_have_another_lac() -> None:
    bodies = held()
    bodies[1]["b:1"] = stored(1, -1, 7, b"defg")
    assert replica_faults_of(bodies, recovered_from=1) == []
    assert "differs from its other replicas" in replica_faults_of(bodies)[0]
    assert "differs from its other replicas" in replica_faults_of(bodies, recovered_from=2)[0]


def test_a_missing_replica_is_noticed_below_the_ack_quorum_or_if_all_are_due() -> None:
    bodies = held()
    bodies[0]["a:1"] = None
    assert replica_faults_of(bodies) == []
    assert "it must be on 3" in replica_faults_of(bodies, is_on_all=True)[0]
    bodies[0]["b:1"] = None
    assert "it must be on 2" in replica_faults_of(bodies)[0]


def test_a_bookie_that_was_not_read_may_hold_the_entry() -> None:
    bodies = held()
    del bodies[0]["a:1"]
    bodies[0]["b:1"] = None
    assert replica_faults_of(bodies) == []
    bodies[0]["c:1"] = None
    assert "it must be on 1" in replica_faults_of(bodies)[0]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (stored(1, 0, 7, b"defh"), "differs by more than LAC"),
        (stored(1, 0, 8, b"defg"), "length field 8, must be 7"),
        (stored(1, 1, 7, b"defg"), "LAC field 1"),
        (stored(1, 0, 7, b"defg")[:-1] + b"x", "CRC32C digest"),
        (stored(0, -1, 3, b"abc"), "was returned for entry 1"),
    ],
)
def test_a_spoilt_replica_is_noticed(body: bytes, says: str) -> None:
    bodies = held()
    bodies[1]["c:1"] = body
    found = replica_faults_of(bodies, recovered_from=0)
    assert any(says in fault for fault in found), found


def test_half_a_record_is_ignored_only_on_a_killed_apache_bookie() -> None:
    bodies = held()
    bodies[1]["c:1"] = stored(1, 0, 7, b"defg")[:-2] + b"\0\0"
    replicas = [Replicas(i, by_bookie) for i, by_bookie in enumerate(bodies)]
    found = replica_faults(METADATA, replicas, recovered_from=None, may_be_torn=("c:1",))
    assert found == []
    found = replica_faults(METADATA, replicas, recovered_from=None, may_be_torn=("b:1",))
    assert "CRC32C digest" in found[0]
    bodies[1]["a:1"] = None
    found = replica_faults(METADATA, replicas, recovered_from=None, may_be_torn=("c:1",))
    assert "it must be on 2" in found[0]


def test_a_wrong_length_in_the_metadata_is_noticed() -> None:
    assert (
        "the metadata says 8" in replica_faults_of(held(), metadata=replace(METADATA, length=8))[0]
    )
