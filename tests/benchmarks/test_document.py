"""docs/performance.md: tables at their markers, results that are kept, the plot."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import document
from benchmarks.document import key_of, measure, plot, read, with_tables
from benchmarks.questions import QUESTIONS, Run
from benchmarks.settings import Settings

(RATE,) = (question for question in QUESTIONS if question.marker == "rate")


def result(system: str, rate: int, cpu_us: float, **more: Any) -> dict[str, Any]:
    return {
        "benchmark": "rate", "system": system, "about": f"{system} 1", "records_per_s": rate,
        "cpu_us_per_record": cpu_us, "p50_ms": 1.5, "p99_ms": 2.0,
        "settings": {"rate": rate, "size": 100},
        "calibration": {"loop_s": 0.6, "copy_s": 0.1, "sync_p50_ms": 0.2, "drift": 1.07}, **more,
    }  # fmt: skip


def test_the_document_has_a_marker_for_each_question_and_no_other() -> None:
    text = document.DOCUMENT.read_text(encoding="utf-8")
    assert text.count("<!-- table: ") == len(QUESTIONS) == text.count("<!-- end -->")
    assert with_tables(text, {}) == text


def test_tables_replace_what_was_measured_before_and_leave_the_text() -> None:
    text = document.DOCUMENT.read_text(encoding="utf-8")
    key = key_of(RATE, RATE.runs[0])
    one = with_tables(text, {key: [result("redis", 500, 3000.0)]})
    assert "| redis | 500 | 500 | 3,000.0 | 1,500.0 | 1.5 | 2.0 | 0.6 | 0.2 |" in one
    assert "redis 1.\nCalibration: loop 0.6 s, copy 0.1 s, sync 0.2 ms" in one
    assert "differed by 7% at most" in one
    other = with_tables(one, {key: [result("nats", 500, 10.0)]})
    assert "3,000.0" not in other
    assert other.count("](performance.svg)") == 1
    assert "| nats | 500 |" in other
    before, after = text.split("<!-- table: rate -->")
    assert other.startswith(before)
    assert other.endswith(after.split("<!-- end -->", 1)[1])


def test_the_plot_has_a_line_for_each_system_and_the_mean_of_ours() -> None:
    results = [
        result("ledgerstream", 500, 100.0),
        {"system": "kafka", "absent": "not here"},
        result("redis", 500, 50.0, tail_p50_ms=3.0),
        result("ledgerstream", 500, 300.0),
    ]
    assert document._mean(results[::3], "ledgerstream", 500, "cpu_us_per_record") == 200.0
    drawn = plot(results)
    assert drawn.count(">ledgerstream</text>") == drawn.count(">redis</text>") == 4
    assert "kafka" not in drawn


def test_measuring_goes_on_where_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, ran = tmp_path / "build" / "results.jsonl", list[str]()

    def planned(run: Run, _: Settings, show: Callable[[Run, dict[str, Any]], None]) -> None:
        show(run, result(run.name, 500, 1.0))
        if run.name == "idle" and not ran.count("idle"):
            ran.append("idle")
            raise KeyboardInterrupt
        ran.append(run.name)

    monkeypatch.setattr(document, "run_planned", planned)
    questions = [question for question in QUESTIONS if question.marker in {"rate", "idle"}]
    with pytest.raises(KeyboardInterrupt):
        measure(path, questions, Settings())
    assert list(read(path)) == [key_of(RATE, RATE.runs[0])]  # of the other one nothing
    measure(path, questions, Settings())
    assert ran == ["rate", "idle", "idle"]
    assert len(read(path)) == 2
    assert "[1/2] rate: " in capsys.readouterr().err
    measure(path, questions, Settings())
    assert len(ran) == 3
    assert all(json.loads(line)["run"] for line in path.read_text().splitlines())
