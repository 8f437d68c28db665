"""The document says what a run found, and is the one of the full size."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from benchmarks.children import ROOT
from benchmarks.scale import document as module
from benchmarks.scale.document import document, duration, probability, size
from benchmarks.scale.plots import plot
from benchmarks.scale.scenarios import COPY_RATES, Results, simulate
from benchmarks.scale.settings import FULL, SMALL

_PAGE = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def results() -> Results:
    return simulate(replace(SMALL, ledgers=2000, streams=200, outage_trials=500))


def test_every_loss_is_in_the_tables(results: Results) -> None:
    text = document(results)
    runs = dict.fromkeys((one.loss, one.placement, one.copy_bytes_per_s) for one in results.runs)
    assert len(runs) == len(results.runs) == 13
    for loss in ("one bookie", "a rack", "at random"):
        for rate in COPY_RATES:
            run = results.run(loss, rate)
            assert duration(run.whole_s) in text
            assert f"{run.ledgers:,}" in text
    assert all(one.lost_ledgers == 0 for one in results.runs if one.bookies_lost <= 5)
    assert all(one.out_of_order == 0 for one in results.runs)
    for line in text.splitlines():
        if line.startswith("|"):
            assert "nan" not in line
            assert not line.startswith("| |")
    with pytest.raises(KeyError):
        results.run("a flood", COPY_RATES[0])


def test_tables_are_whole(results: Results) -> None:
    columns = 0
    for line in document(results).splitlines():
        found = line.count("|") if line.startswith("|") else 0
        assert not found or not columns or found == columns, line
        columns = found


def test_the_plot_is_an_image_with_a_line_for_each_loss(results: Results) -> None:
    image = ElementTree.fromstring(plot(results))
    lines = [one for one in image.iter() if one.tag.endswith("polyline")]
    assert len(lines) == 3 + 5 + 2
    assert all(re.fullmatch(r"[-0-9., ]+", one.attrib["points"]) for one in lines)


def test_two_processes_find_what_one_finds(results: Results) -> None:
    again = simulate(results.settings, 2)
    again.seconds = results.seconds
    assert again == results


def test_the_page_is_of_a_run_with_the_settings_of_today() -> None:
    head, inputs = _PAGE.partition("\n## ")[0], "\n".join(module._model(Results(FULL)))
    assert head.strip() == "\n".join(module._head(Results(FULL))).strip(), "run it again"
    assert inputs in _PAGE, "run `python -m benchmarks.scale` again"
    for section in re.findall(r"^## (.+)$", document_headings(), re.MULTILINE):
        assert f"## {section}" in _PAGE


def document_headings() -> str:
    return "\n".join(re.findall(r'"(## .+)"', (ROOT / "benchmarks/scale/document.py").read_text()))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (duration(99), "99 s"), (duration(330), "5.5 min"), (duration(7200), "2.0 h"),
        (duration(1_000_000), "11.6 days"), (size(3.2e12), "3.2 TB"), (size(999), "999 B"),
        (size(1.5e6), "1.5 MB"), (probability(0.5), "50 %"), (probability(2e-8), "2e-08"),
        (probability(0), "0"),
    ],
)  # fmt: skip
def test_figures_are_for_people(found: str, expected: str) -> None:
    assert found == expected
