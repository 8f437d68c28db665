"""One loss, from its beginning until every ledger has all of its copies again.

The auditor's pass is that of `ledger.autorecovery.auditor`: a list of all ledgers, then their
metadata in steps, paced; what it concludes is computed by its own functions for each ledger.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from statistics import fmean

from benchmarks.scale import costs
from benchmarks.scale.cluster import Cluster, skew
from benchmarks.scale.costs import Cost, Meter
from benchmarks.scale.events import Events
from benchmarks.scale.workers import Healed, Marks, Scene, Worker
from benchmarks.scale.writers import Writers
from ledger.core.autorecovery.audit import CopyCounts, to_be_copied
from ledger.core.autorecovery.bookies import Bookies, LostBookies
from ledger.core.autorecovery.work_sharing import interval_s
from ledger.core.metadata import LedgerMetadata
from ledger.metastore.layout import Layout

STEP = 64
"""Ledgers that the auditor reads at once."""
_LIMIT_S = 30 * 86_400.0


@dataclass(slots=True)
class Audit:
    """What a pass over all ledgers concludes, before writers or workers change any."""

    counts: CopyCounts = field(default_factory=CopyCounts)
    concerned: list[int] = field(default_factory=list)
    """The ledgers of which copies are to be made, ascending."""


def audit(cluster: Cluster, bookies: Bookies) -> Audit:
    """Audits every ledger."""
    found = Audit()
    for metadata in cluster.all_metadata():
        found.counts.add(metadata, bookies)
        if to_be_copied(metadata, bookies):
            found.concerned.append(metadata.ledger_id)
    return found


def bookies_without(cluster: Cluster, lost: Sequence[str], awaited: Sequence[str]) -> Bookies:
    """Returns the bookies as auto-recovery sees them: all others are writable."""
    gone = dict.fromkeys(lost)
    writable = dict.fromkeys(name for name in cluster.names if name not in gone)
    return Bookies(writable=writable, awaited=tuple(awaited))


def bookies_emptying(cluster: Cluster, bookie: str) -> Bookies:
    """Returns the bookies while one of them is to be emptied."""
    writable = dict.fromkeys(name for name in cluster.names if name != bookie)
    return Bookies(writable=writable, read_only=(bookie,), emptying=(bookie,))


@dataclass(slots=True)
class Report:
    """What a loss came to."""

    lost: int
    copies_lost: int
    bytes_lost: int
    begun_s: float = 0.0
    """When the pass of the auditor began."""
    found_s: dict[int, float] = field(default_factory=dict)
    audited_s: float = 0.0
    whole_s: float = 0.0
    """When the last copy was made and its mark was deleted."""
    ended_s: float = 0.0
    """When the auditor knew it: the same, apart from a decommission."""
    meter: Meter = field(default_factory=Meter)
    marks: Marks = field(default_factory=lambda: Marks(1))
    healed: Healed = field(default_factory=Healed)
    changed_s: list[float] = field(default_factory=list)
    unsafe: int = 0
    copies_skew: float = 1.0
    reads_skew: float = 1.0
    adds_skew: tuple[float, float] = (1.0, 1.0)
    fill_skew: tuple[float, float] = (1.0, 1.0)

    @property
    def exposed_s(self) -> float:
        """The mean time from the loss until a ledger had all of its copies again."""
        return fmean(self.healed.healed_s.values()) if self.healed.healed_s else 0.0

    @property
    def finding_s(self) -> float:
        """The mean time from the loss until a ledger was marked."""
        return fmean(self.found_s.values()) if self.found_s else 0.0


class Healing:
    """One loss.

    Args:
        cluster: is changed.
        lost: the bookies that are gone, all at once.
        emptying: the bookie that is decommissioned instead.
        known: what the pass will conclude, if it was computed before.
        is_local: a copy is made in the rack of the lost one where that is as good, as writers
            replace bookies. Auto-recovery makes it anywhere.
    """

    def __init__(
        self,
        cluster: Cluster,
        lost: Sequence[str],
        rng: random.Random,
        *,
        emptying: str | None = None,
        known: Audit | None = None,
        is_local: bool = False,
    ) -> None:
        self.cluster, self._settings, self._rng = cluster, cluster.settings, rng
        self._lost = tuple(lost) if emptying is None else (emptying,)
        self._emptying = emptying
        self._known = known
        self._is_audited = False
        meter = Meter()
        workers = len(cluster.names) - len(lost)
        self.scene = Scene(
            cluster, Events(), meter, bookies_without(cluster, (), ()), cluster.candidates(),
            workers, Marks(workers), is_local, is_over=lambda: self._is_over,
        )  # fmt: skip
        self.report = Report(
            lost=len(self._lost), copies_lost=0,
            bytes_lost=sum(cluster.used[one] for one in self._lost), meter=meter,
            marks=self.scene.marks, healed=self.scene.healed,
        )  # fmt: skip
        self._marked = 0
        self._is_woken = False

    @property
    def _is_over(self) -> bool:
        """Whether all is audited, and nothing is marked that could be healed."""
        scene = self.scene
        return self._is_audited and len(scene.marks.since_s) == len(scene.healed.lost)

    @cached_property
    def _audit_per_s(self) -> float:
        return self._settings.options.metadata_reads_per_s

    def run(self) -> Report:
        """Simulates it to the end."""
        events, report, cluster = self.scene.events, self.report, self.cluster
        adds, fill = cluster.adds(), cluster.fill()
        notice_s = self._settings.add_timeout_s if self._emptying is None else 0.0
        writers = Writers(cluster, self._lost, events, report.meter, self._rng, notice_s=notice_s)
        if self._emptying is None:
            events.at(self._settings.session_timeout_s, self._sessions_ended)
        else:
            self._views()
            self._begin_audit()
        events.run(lambda: self._is_over or events.now_s > _LIMIT_S)
        report.whole_s = report.ended_s = events.now_s
        if self._emptying is not None:
            self._verify()
        events.run(lambda: events.now_s > report.ended_s + 600)  # the writers that append seldom
        report.changed_s, report.unsafe = writers.changed_s, writers.unsafe
        self._compare(adds, fill)
        return report

    # Who is lost.

    def _sessions_ended(self) -> None:
        """The registrations are gone: each process looks, and knows how long to wait."""
        events = self.scene.events
        self._views()
        up = [name for name in self.cluster.names if name not in dict.fromkeys(self._lost)]
        losses = LostBookies(self._settings.options.lost_bookie_recovery_delay_s)
        losses.observe(self.cluster.names, dict.fromkeys(up), events.now_s)
        loss_s = losses.next_loss_s(events.now_s)
        if loss_s is None:
            self._begin_audit()
            return

        def lost() -> None:
            assert losses.awaited(events.now_s) == []
            self._views()
            self._begin_audit()

        events.at(loss_s, lost)

    def _views(self) -> None:
        self.scene.meter.count("views", self.scene.events.now_s, costs.VIEW * self.scene.workers)

    # The auditor.

    def _begin_audit(self) -> None:
        scene, cluster = self.scene, self.cluster
        if self._emptying is None:
            scene.bookies = bookies_without(cluster, self._lost, ())
        else:
            scene.bookies = bookies_emptying(cluster, self._emptying)
        scene.candidates = cluster.candidates(without=self._lost)
        known = self._known or audit(cluster, scene.bookies)
        self.report.begun_s = scene.events.now_s
        self.report.copies_lost = len(known.concerned)
        lists = Cost(reads=len(ledger_lists(self._settings.ledgers)))
        scene.meter.count("auditor", scene.events.now_s, lists, self._audit_per_s)
        scene.events.after(
            lists.total / self._audit_per_s, lambda: self._step(known.concerned, 0, 0)
        )

    def _step(self, concerned: Sequence[int], at: int, read: int) -> None:
        """Reads on to the end of the step with the next ledger that is concerned, and marks it."""
        scene, ledgers = self.scene, self._settings.ledgers
        end = ledgers if at == len(concerned) else min((concerned[at] // STEP + 1) * STEP, ledgers)
        count = costs.READ_LEDGER * (end - read)
        scene.meter.count("auditor", scene.events.now_s, count, self._audit_per_s)

        def marked() -> None:
            following = at
            while following < len(concerned) and concerned[following] < end:
                self._examine(self.cluster.metadata(concerned[following]))
                following += 1
            if end == ledgers:
                self._is_audited = True
                self.report.audited_s = scene.events.now_s
                return
            cost = costs.MARK * (following - at)
            scene.meter.count("auditor", scene.events.now_s, cost, self._audit_per_s)
            scene.events.after(
                cost.total / self._audit_per_s, lambda: self._step(concerned, following, end)
            )

        scene.events.after(count.total / self._audit_per_s, marked)

    def _examine(self, metadata: LedgerMetadata) -> None:
        scene, now_s = self.scene, self.scene.events.now_s
        if to_be_copied(metadata, scene.bookies):
            scene.marks.add(metadata.ledger_id, now_s)
            self.report.found_s[metadata.ledger_id] = now_s
        if not self._is_woken:
            self._is_woken = True
            self._wake()

    def _wake(self) -> None:
        """The watch of the marks: each worker begins to look, at a time of its own."""
        scene = self.scene
        look_s = interval_s(scene.workers, self._settings.options.scan_interval_s)
        for place in range(scene.workers):
            worker = Worker(scene, place, random.Random(self._rng.getrandbits(64)))
            scene.events.after(self._rng.random() * look_s, worker.look)

    def _verify(self) -> None:
        """A full pass that finds the bookie named nowhere; then it may leave the cluster."""
        assert self._emptying is not None
        begin_s = self.scene.events.now_s
        reads = Cost(reads=self._settings.ledgers + len(ledger_lists(self._settings.ledgers)))
        self.scene.meter.count("auditor", begin_s, reads, self._audit_per_s)
        left = [
            one
            for one in self.cluster.changed
            if self._emptying
            in [b for f in self.cluster.metadata(one).fragments for b in f.bookies]
        ]
        assert not left, f"{len(left)} ledgers name {self._emptying}"
        self.report.ended_s = begin_s + reads.total / self._audit_per_s

    # What changed.

    def _compare(self, adds: dict[str, int], fill: dict[str, float]) -> None:
        report, gone = self.report, dict.fromkeys(self._lost)
        live = [name for name in self.cluster.names if name not in gone]
        adds_after, fill_after = self.cluster.adds(), self.cluster.fill()
        report.adds_skew = (skew([*adds.values()]), skew([adds_after[one] for one in live]))
        report.fill_skew = (skew([*fill.values()]), skew([fill_after[one] for one in live]))
        report.copies_skew = skew([report.healed.made.get(one, 0) for one in live])
        report.reads_skew = skew([report.healed.read.get(one, 0) for one in live])


@cache
def ledger_lists(ledgers: int) -> dict[str, int]:
    """Returns the nodes that a list of all ledgers asks for, with the bytes of their children."""
    lists: dict[str, dict[str, None]] = {}
    for ledger_id in range(ledgers):
        path = Layout.HIERARCHICAL.path("/ledgers", ledger_id)
        if ledger_id % 10_000 and ledger_id != ledgers - 1:
            above = path.rpartition("/")[0]
            lists[above][path.rpartition("/")[2]] = None
            continue
        parts = path[1:].split("/")
        for depth in range(1, len(parts)):
            lists.setdefault("/" + "/".join(parts[:depth]), {})[parts[depth]] = None
    return {path: list_bytes(names) for path, names in lists.items()}


def list_bytes(names: Sequence[str] | dict[str, None]) -> int:
    """Returns the bytes of the answer that lists children, as ZooKeeper encodes it."""
    return 20 + sum(4 + len(name) for name in names)
