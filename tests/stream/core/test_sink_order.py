"""Which batch may follow in a sink: of which query, of which run, with which number."""

from __future__ import annotations

import json

import pytest

from ledger.errors import MetadataCorrupt
from stream.core.sink_order import check_order, check_streams
from stream.core.sink_owner import RUNS_REMEMBERED_MAX, SinkOwner, SinkQuery, owner_after
from stream.core.sinks import CommittedRange, SinkMetadata, committed_now, decode_sink, encode_sink
from stream.errors import CommitOutOfOrder

ONE = SinkQuery(query_id="one", run_id="r1", name="orders", checkpoint="/cp/one")
TWO = SinkQuery(query_id="two", run_id="r2", checkpoint="/cp/two")
WRITE = SinkQuery(query_id="one", run_id="r1", is_consecutive=False)

_OLD = (
    b'{"batch_id":7,"committed_ms":1764000000000,"kind":"sink","nbytes":50,"origin":"%s",'
    b'"records":5,"sink_id":"k","stream_count":1,"streams":[["n/s",1,2,0,5,50]],"version":1}'
)
"""Bytes that a release without owners wrote."""
_NEW = (
    b'{"batch_id":7,"committed_ms":1764000000000,"kind":"sink","nbytes":50,"origin":"query one",'
    b'"owner":{"checkpoint":"/cp/one","created_ms":{"n/s":5},"name":"orders","query":"one",'
    b'"runs":[["r1",7]]},"records":5,"sink_id":"k","stream_count":1,'
    b'"streams":[["n/s",1,2,0,5,50]],"version":1}'
)


def sink_of(query: SinkQuery | None, batch_id: int = 7, origin: str | None = None) -> SinkMetadata:
    if origin is None:
        origin = "" if query is None else f"query {query.query_id}"
    owner = None if query is None else owner_after(query, batch_id, None, {"n/s": 5}, 10)
    share = CommittedRange("n/s", 1, 2, 0, 5, 50)
    return committed_now("k", batch_id, [share], 1764000000000, origin, owner)


def refusal(
    sink: SinkMetadata | None, batch_id: int, query: SinkQuery | None, origin: str | None = None
) -> str:
    if origin is None:
        origin = "" if query is None else f"query {query.query_id}"
    with pytest.raises(CommitOutOfOrder) as caught:
        check_order(sink, "k", batch_id, origin, query)
    assert "Cure: " in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def run(query_id: str, run_id: str) -> SinkQuery:
    return SinkQuery(query_id=query_id, run_id=run_id)


@pytest.mark.parametrize("batch_id", [0, 6, 7, 8, 12])
def test_a_batch_of_another_query_is_refused_whatever_its_number(batch_id: int) -> None:
    message = refusal(sink_of(ONE), batch_id, TWO)
    assert "query one (name orders, run r1, checkpoint /cp/one)" in message
    assert f" {batch_id} " in message
    assert "query two (run r2, checkpoint /cp/two)" in message
    cure = "sink forget k" if batch_id == 0 else f"sink reset k --batch {batch_id - 1}"
    assert f"`ledgerstream {cure}`" in message


def test_a_restart_from_the_same_checkpoint_continues() -> None:
    again = run("one", "r3")
    for batch_id in (7, 8):
        check_order(sink_of(ONE), "k", batch_id, "query one", again)
        check_order(sink_of(ONE), "k", batch_id, "query one", ONE)
    assert "committed batch 7 already, 6 is older" in refusal(sink_of(ONE), 6, again)


def test_batches_that_are_not_known_are_not_passed_over() -> None:
    message = refusal(sink_of(ONE), 10, ONE)
    assert "committed batch 7 last" in message
    assert "nothing is known of the batches 8 to 9" in message
    assert "put back to batch 7" in message
    assert "`ledgerstream sink reset k --batch 9`" in message
    message = refusal(None, 17, ONE)
    assert "nothing is known of its batches 0 to 16" in message
    assert "`ledgerstream sink reset k --batch 16`" in message
    check_order(None, "k", 0, "query one", ONE)
    check_order(None, "k", 17, "a write to n/s", WRITE)
    check_order(None, "k", 17)


def test_writes_of_an_application_may_leave_out_numbers_within_a_query() -> None:
    sink = sink_of(WRITE, origin="a write to n/s")
    check_order(sink, "k", 12, "a write to n/t", WRITE)
    check_order(sink, "k", 12, "a write to n/s")  # outside of any query, as far as is known
    other = SinkQuery(query_id="two", is_consecutive=False)
    assert "belongs to query one" in refusal(sink, 12, other, "a write to n/s")
    assert "of a write to n/t" in refusal(sink, 7, WRITE, "a write to n/t")


def test_a_write_does_not_take_the_sink_of_a_query() -> None:
    message = refusal(sink_of(ONE), 8, None, "a write to n/s")
    assert "this is batch 8 of a write to n/s" in message
    check_order(sink_of(ONE), "k", 8)  # Namespace.commit_segments names nothing


def test_a_run_repeats_only_the_batch_that_it_begins_with() -> None:
    """A copy of a Spark checkpoint is the same query: its rows would be dropped batch by batch."""
    copy = run("one", "r2")
    sink = sink_of(ONE, 7)
    check_order(sink, "k", 7, "query one", copy)
    assert sink.owner is not None
    noted = sink.owner.repeated("r2", 7)
    assert noted is not None
    assert noted.repeated("r2", 7) is None
    assert noted.last_run_id == "r1"
    check_order(committed_now("k", 7, [], 9, "query one", noted), "k", 7, "query one", copy)
    later = committed_now("k", 8, [], 9, "query one", owner_after(ONE, 8, noted, {}, 10))
    message = refusal(later, 8, copy)
    assert "was committed by query one (name orders, run r1, checkpoint /cp/one)" in message
    assert "this is query one (run r2)" in message
    check_order(later, "k", 8, "query one", ONE)  # its own commit, whose answer was lost
    check_order(later, "k", 8, "query one", run("one", "r3"))
    overtaken = committed_now("k", 9, [], 9, "query one", owner_after(copy, 9, later.owner, {}, 10))
    assert "run r2" in refusal(overtaken, 9, ONE)


def test_a_bounded_number_of_runs_and_streams_is_remembered() -> None:
    owner: SinkOwner | None = None
    for number in range(20):
        owner = owner_after(run("q", f"r{number}"), number, owner, {f"n/s{number}": number}, 3)
    assert owner is not None
    assert owner.runs == tuple((f"r{n}", n) for n in range(20 - RUNS_REMEMBERED_MAX, 20))
    assert dict(owner.created_ms) == {"n/s17": 17, "n/s18": 18, "n/s19": 19}
    noted = owner.repeated("late", 19)
    assert noted is not None
    assert len(noted.runs) == RUNS_REMEMBERED_MAX
    assert noted.last_run_id == "r19"


def test_a_stream_that_was_created_again_is_refused() -> None:
    sink = sink_of(ONE)
    check_streams(sink, ONE, {"n/s": 5, "n/new": 9})
    check_streams(sink, WRITE, {"n/s": 6})
    check_streams(sink_of(None), ONE, {"n/s": 6})
    with pytest.raises(CommitOutOfOrder, match="sink reset k --batch 7") as caught:
        check_streams(sink, run("one", "r9"), {"n/s": 6})
    assert "stream n/s was deleted and created again after query one (run r9)" in str(caught.value)
    empty = committed_now("k", 8, [], 9, "query one", owner_after(ONE, 8, sink.owner, {}, 10))
    with pytest.raises(CommitOutOfOrder):
        check_streams(empty, ONE, {"n/s": 6})


# Bytes


@pytest.mark.parametrize("origin", ["", "query one", "a write to n/s"])
def test_a_sink_of_an_earlier_release_opens_and_takes_its_query(origin: str) -> None:
    data = _OLD % origin.encode()
    sink = decode_sink("k", data)
    assert encode_sink(sink) == data
    assert (sink.batch_id, sink.origin, sink.owner) == (7, origin, None)
    check_order(sink, "k", 8, "query one", ONE)
    assert "batches 8 to 9" in refusal(sink, 10, ONE)
    if origin.startswith("query"):
        check_order(sink, "k", 7, "query one", ONE)
        message = refusal(sink, 8, TWO)
        assert "belongs to query one, which committed batch 7 last" in message
    else:
        check_order(sink, "k", 8, "query two", TWO)


def test_the_bytes_of_a_sink_with_an_owner() -> None:
    assert encode_sink(sink_of(ONE)) == _NEW
    assert decode_sink("k", _NEW) == sink_of(ONE)


@pytest.mark.parametrize(
    "change",
    [
        {"runs": 1}, {"runs": [["r", -1]]}, {"runs": [["r"]]}, {"runs": [["r", 1]] * 9},
        {"created_ms": {"n/s": "1"}}, {"created_ms": []}, {"query": 1}, {"name": None},
        {"more": 1},
    ],
)  # fmt: skip
def test_a_damaged_owner_is_refused(change: dict[str, object]) -> None:
    document = json.loads(_NEW)
    document["owner"] |= change
    with pytest.raises(MetadataCorrupt, match="sink 'k'"):
        decode_sink("k", json.dumps(document).encode())
