"""Writers of open ledgers, which replace a bookie that does not acknowledge any more.

A writer notices it at its first append after the loss, when nothing was acknowledged for
`add_timeout_s`. What it stores is what `with_next_ensemble` permits.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from functools import partial

from benchmarks.scale.cluster import Cluster
from benchmarks.scale.costs import ENSEMBLE_CHANGE, Meter
from benchmarks.scale.events import Events
from ledger.core.metadata import with_next_ensemble
from ledger.core.placement.topology import Candidates


class Writers:
    """The writers of all streams, from the moment at which bookies are lost on.

    Args:
        lost: the bookies that accept nothing any more.
        notice_s: how long an append waits before the writer replaces a bookie.
    """

    def __init__(
        self,
        cluster: Cluster,
        lost: Collection[str],
        events: Events,
        meter: Meter,
        rng: random.Random,
        *,
        notice_s: float,
    ) -> None:
        self.changed_s: list[float] = []
        """When each ensemble was changed, ascending."""
        self.unsafe = 0
        """Open ledgers that the loss leaves without an ack quorum: their appends wait for it."""
        self._cluster = cluster
        self._lost = frozenset(lost)
        self._candidates: Candidates = cluster.candidates(without=tuple(lost))
        self._events = events
        self._meter = meter
        self._rng = rng
        interval_s = cluster.settings.append_interval_s
        for ledger_id in cluster.open_ledgers:
            gone = sum(one in self._lost for one in self._ensemble(ledger_id))
            if gone:
                self.unsafe += cluster.settings.write_quorum - gone < cluster.settings.ack_quorum
                first_s = events.now_s + rng.expovariate(1 / interval_s) + notice_s
                events.at(first_s, partial(self._change, ledger_id))

    def _ensemble(self, ledger_id: int) -> tuple[str, ...]:
        changed = self._cluster.changed.get(ledger_id)
        return (
            self._cluster.ensemble(ledger_id) if changed is None else changed.last_fragment.bookies
        )

    def _change(self, ledger_id: int) -> None:
        cluster, settings = self._cluster, self._cluster.settings
        stored = cluster.metadata(ledger_id)
        own = stored.last_fragment
        indices = [i for i, one in enumerate(own.bookies) if one in self._lost]
        ensemble = cluster.policy.replace(
            own.bookies, indices, settings.write_quorum, settings.ack_quorum,
            self._candidates, (), self._rng,
        )  # fmt: skip
        changed = with_next_ensemble(stored, own, cluster.entries(ledger_id), ensemble)
        assert changed is not None, "nobody else stores this ensemble"
        cluster.changed[ledger_id] = changed
        self.changed_s.append(self._events.now_s)
        self._meter.count("writers", self._events.now_s, ENSEMBLE_CHANGE)
