"""The call trace of one append stays within its budget, and its figures can be repeated."""

from __future__ import annotations

import sys

import pytest

from tools import append_trace

CALLS_MAX = 300
FILES_MAX = 36


def test_an_append_stays_within_its_budget_of_calls_and_files() -> None:
    trace = append_trace.trace_append()
    assert trace.calls.total() <= CALLS_MAX, trace.calls.most_common()
    assert len(trace.files) <= FILES_MAX, list(trace.files)
    assert trace.files.total() == trace.calls.total()
    # Both ends are in it.
    assert trace.calls["stream/writing/writer.py", "StreamWriter.append"] > 0
    assert trace.calls["bookie/storage/journal/journal.py", "Journal.queue"] > 0
    assert append_trace.trace_append().calls == trace.calls


def test_files_are_listed_in_the_order_of_entry(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["append_trace", "--files", "--calls"])
    append_trace.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(" files")
    assert lines[1].split()[1] == "stream/writing/writer.py"
    assert any("RecordAccumulator.take" in line for line in lines)
