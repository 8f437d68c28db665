"""`retention explain` of streams with few and with many segments."""

from __future__ import annotations

from stream.cli.retention import _run_row, _runs
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.retention import Cause, SegmentPlan, Verdict

HOUR_MS = 3_600_000


def segment(number: int, verdict: Verdict, *, is_open: bool = False) -> SegmentPlan:
    return SegmentPlan(
        number=number,
        ledger_id=number,
        verdict=verdict,
        cause=Cause.AGE if verdict is Verdict.DROP else Cause.WITHIN_LIMITS,
        records=0 if is_open else 10,
        nbytes=0 if is_open else 1024,
        newest_ms=-1 if is_open else number * HOUR_MS,
        due_ms=None,
        policy=NamespaceMetadata(name="demo", created_ms=0, retention_ms=HOUR_MS),
        now_ms=2000 * HOUR_MS,
    )


def test_neighbours_with_the_same_fate_share_a_row() -> None:
    dropped = [segment(number, Verdict.DROP) for number in range(1, 501)]
    kept = [segment(number, Verdict.KEEP) for number in range(501, 1078)]
    rows = [_run_row(run) for run in _runs([*dropped, *kept, segment(1078, Verdict.KEEP)])]
    assert [(row["segment"], row["what"], row["records"], row["bytes"]) for row in rows] == [
        ("1..500", "dropped", 5000, 500 * 1024),
        ("501..1078", "kept", 5780, 578 * 1024),
    ]
    assert rows[0]["when"] == "now"
    assert rows[0]["newest record"] == "1970-01-21T20:00:00.000Z"
    assert rows[0]["why"] == dropped[0].reason


def test_an_open_segment_has_no_newest_record() -> None:
    [alone] = _runs([segment(7, Verdict.KEEP, is_open=True)])
    row = _run_row(alone)
    assert (row["segment"], row["records"], row["newest record"]) == ("7", None, None)
    row = _run_row([segment(6, Verdict.KEEP), segment(7, Verdict.KEEP, is_open=True)])
    assert (row["segment"], row["records"], row["newest record"]) == ("6..7", 10, None)
