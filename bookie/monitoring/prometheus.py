"""Exports a bookie's metrics with prometheus-client, in a registry that is passed in.

They are collected on request, from `bookie.monitoring.bookie_metrics` and one snapshot: metrics
that no client reads cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from bookie.core.metrics import Distribution, Kind, Metric, Number, S
from bookie.monitoring.bookie_metrics import BOOKIE, JOURNAL, PREFIX
from bookie.monitoring.directory_metrics import DIRECTORY
from bookie.monitoring.healing_metrics import HEALING
from bookie.monitoring.snapshot import Observer, Snapshot
from ledger.metastore.bookies import OUR_SOFTWARE

_FAMILY = {
    Kind.COUNTER: CounterMetricFamily,
    Kind.GAUGE: GaugeMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}


class BookieMetrics(Collector):
    """A collector of one bookie's numbers: each request takes a snapshot, `collect` exports it."""

    def __init__(self, observer: Observer, registry: CollectorRegistry) -> None:
        self._observer = observer
        self._registry = registry
        self._snapshot: Snapshot | None = None
        registry.register(self)
        ProcessCollector(registry=registry)

    def describe(self) -> Iterable[Family]:
        """Returns the names for the registry without collecting anything."""
        described = [(one.kind, one.name, one.help) for one in BOOKIE]
        described += [(one.kind, one.name, one.help) for one in HEALING]
        described += [(one.kind, one.name, one.help) for one in JOURNAL]
        described += [(one.kind, one.name, one.help) for one in DIRECTORY]
        return [_FAMILY[kind](f"{PREFIX}{name}", text) for kind, name, text in described]

    async def exposition(self, accept: str) -> tuple[bytes, str]:
        """Returns the current text of all metrics, in the format of the `Accept` header, and its
        content type."""
        self._snapshot = await self._observer.snapshot() if self._observer.is_ready else None
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def collect(self) -> Iterator[Family]:
        """Yields the metrics of the last snapshot; before the bookie serves, only its status."""
        snapshot = self._snapshot
        if snapshot is None:
            yield GaugeMetricFamily(f"{PREFIX}server_status", BOOKIE[0].help, -1)
            return
        about = GaugeMetricFamily(
            f"{PREFIX}about", "Always 1; who this is.", labels=("bookie", "software")
        )
        about.add_metric((snapshot.bookie_id, OUR_SOFTWARE), 1)
        yield about
        yield from _families(BOOKIE, None, [snapshot])
        healing = snapshot.healing
        yield from _families(HEALING, None, [] if healing is None else [healing])
        yield from _families(JOURNAL, "journal", snapshot.journals)
        yield from _families(DIRECTORY, "directory", snapshot.directories)


def _families(
    metrics: Iterable[Metric[S]], scope: str | None, sources: Sequence[S]
) -> Iterator[Family]:
    for metric in metrics:
        labels = (*((scope,) if scope else ()), *metric.labels)
        family = _FAMILY[metric.kind](f"{PREFIX}{metric.name}", metric.help, labels=labels)
        for number, source in enumerate(sources):
            values = (str(number),) if scope else ()
            _add(family, values, metric.read(source))
        yield family


def _add(family: Family, labels: tuple[str, ...], number: Number) -> None:
    if number is None:
        return
    if isinstance(family, HistogramMetricFamily):
        assert isinstance(number, Distribution), family.name
        family.add_metric(labels, _buckets(number), number.total)
        return
    assert isinstance(family, CounterMetricFamily | GaugeMetricFamily), family.name
    assert not isinstance(number, Distribution), family.name
    found = number if isinstance(number, Mapping) else {(): number}
    for own, value in found.items():
        family.add_metric((*labels, *own), value)


def _buckets(found: Distribution) -> list[tuple[str, float]]:
    """Returns cumulative buckets, as Prometheus wants them."""
    buckets: list[tuple[str, float]] = []
    below = 0
    for bound, count in zip(found.bounds, found.counts, strict=False):
        below += count
        buckets.append((f"{bound:g}" if bound < 1e6 else f"{bound:.0f}", below))
    buckets.append(("+Inf", found.count))
    return buckets
