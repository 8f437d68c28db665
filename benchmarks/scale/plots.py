"""The charts of docs/scale.md."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.charts import Chart, Line, svg
from benchmarks.scale.durability import chance
from benchmarks.scale.scenarios import COPY_RATES, Results, Run
from benchmarks.scale.settings import MIB

_POINTS = 240
_LOSSES = ("one bookie", "a rack", "at random")


def plot(results: Results) -> str:
    """Returns the file with all charts."""
    return svg([_operations(results), _times(results), _chances(results)])


def _operations(results: Results) -> Chart:
    """The operations of the metadata store after each loss; the most of each span."""
    rate = results.settings.copy_bytes_per_s
    series = {loss: _without_views(results.run(loss, rate)) for loss in _LOSSES}
    end = max(round(results.run(loss, rate).whole_s) for loss in _LOSSES) + 1
    step = max(1, -(-end // _POINTS))
    xs = list(range(0, end, step))

    def most(operations: Sequence[int], at: int) -> float:
        return max(operations[at : at + step], default=0)

    return Chart(
        "operations of the metadata store per second after the loss, without looks at the bookies",
        xs,
        [Line(loss, [most(series[loss], x) for x in xs]) for loss in _LOSSES],
        lambda seconds: f"{seconds / 60:.1f} min",
    )


def _without_views(run: Run) -> list[int]:
    """Leaves out the looks at the bookies: each is one second of requests of all processes."""
    look = run.most_per_s["views"]
    return [one - look if one >= look else one for one in run.operations]


def _times(results: Results) -> Chart:
    rates = [rate / MIB for rate in COPY_RATES]
    lines = [
        Line(f"{loss}", [results.run(loss, rate).whole_s for rate in COPY_RATES])
        for loss in _LOSSES
    ]
    lines += [
        Line(f"{loss}: found", [results.run(loss, rate).audited_s for rate in COPY_RATES])
        for loss in _LOSSES[:2]
    ]
    return Chart(
        "seconds until all copies are there again, by MiB/s that each worker copies",
        rates, lines, lambda rate: f"{rate:.0f} MiB/s", is_log=True,
    )  # fmt: skip


def _chances(results: Results) -> Chart:
    settings = results.settings
    found = sorted(results.chances, key=lambda one: one.width)
    found = [one for one in found if not one.placement.startswith("random")]
    return Chart(
        "chance per year that some ledger loses all copies, by scatter width (over racks)",
        [one.width for one in found],
        [
            Line("independent failures", [chance(one.independent_per_year) for one in found]),
            Line(
                "after power failures",
                [chance(one.outage_expected * settings.outages_per_year) for one in found],
            ),
        ],
        lambda width: f"{width:.0f} bookies",
        is_log=True,
    )
