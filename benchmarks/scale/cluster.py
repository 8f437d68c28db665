"""A simulated cluster: where its bookies are, its ledgers' metadata, how many bytes each holds.

Ledgers are kept as numbers and made into `LedgerMetadata` when they are looked at; those that were
changed are kept as they are. A cluster that was built is shared: what happens to it happens to a
`copy`, which holds only what differs.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.scale.settings import ScaleSettings
from ledger.core.entry import DigestType
from ledger.core.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.core.placement.policies import PLACEMENT_TAG, PlacementPolicy
from ledger.core.placement.topology import Candidates, Location, Place, weights_of
from ledger.metastore.ledgers import CLIENT_TAG
from stream.takeover import APPLICATION_TAG, STREAM_TAG

_CREATED_MS = 1_700_000_000_000
_REFRESHES = 200
"""How often weights follow the free space while the ledgers are made."""


@dataclass(slots=True)
class Cluster:
    """Bookies by number, ledgers by id; those from `first_open` on are open, one for each stream.

    `weighted`: whether ensembles are chosen by free space.
    """

    settings: ScaleSettings
    policy: PlacementPolicy
    weighted: bool
    names: list[str] = field(default_factory=list)
    places: dict[str, Place] = field(default_factory=dict)
    capacity: dict[str, int] = field(default_factory=dict)
    sizes: array[int] = field(default_factory=lambda: array("q"))
    """Payload bytes of each ledger; of an open one those that were written so far."""
    ensembles: array[int] = field(default_factory=lambda: array("H"))
    changed: dict[int, LedgerMetadata] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    """Payload bytes of each bookie."""

    @property
    def _custom(self) -> dict[str, bytes]:
        return {} if self.policy.is_default else {PLACEMENT_TAG: self.policy.encode()}

    @property
    def first_open(self) -> int:
        return self.settings.ledgers - self.settings.streams

    @property
    def open_ledgers(self) -> range:
        return range(self.first_open, self.settings.ledgers)

    def copy(self) -> Cluster:
        """Returns a cluster that may be changed; what is large is shared."""
        return Cluster(
            self.settings, self.policy, self.weighted, list(self.names), dict(self.places),
            dict(self.capacity), self.sizes, self.ensembles, dict(self.changed), dict(self.used),
        )  # fmt: skip

    # Bookies.

    def add_bookies(self, count: int) -> list[str]:
        """Adds empty bookies, rack by rack, and returns their names."""
        settings, added = self.settings, []
        for number in range(len(self.names), len(self.names) + count):
            rack = number // settings.rack_bookies
            host = f"bookie-{number:04d}"
            name = f"{host}:3181"
            is_large = rack % round(1 / settings.large_part) == 0
            self.names.append(name)
            self.places[name] = Place(host, Location("region-1", f"rack-{rack:02d}"))
            self.capacity[name] = settings.capacity_bytes * (2 if is_large else 1)
            self.used[name] = 0
            added.append(name)
        return added

    def rack(self, number: int) -> list[str]:
        """Returns the bookies of a rack."""
        size = self.settings.rack_bookies
        return self.names[number * size : (number + 1) * size]

    def candidates(self, without: Sequence[str] = ()) -> Candidates:
        """Returns the bookies that may be chosen, with their weights if ensembles are weighted."""
        barred = dict.fromkeys(without)
        places = {name: place for name, place in self.places.items() if name not in barred}
        weights = None
        if self.weighted:
            free = {name: self.capacity[name] - self.used[name] for name in places}
            weights = weights_of(places, free)
        return Candidates(places, others=self.places, weights=weights)

    # Ledgers.

    def fragment_bytes(self, metadata: LedgerMetadata, first: int, last: int) -> int:
        """Returns the payload bytes of one bookie's copies of entries first..last."""
        share = metadata.write_quorum / metadata.ensemble_size
        return int(max(0, last - first + 1) * self.settings.entry_bytes * share)

    def entries(self, ledger_id: int) -> int:
        """Returns how many entries a ledger has; an open one those that are confirmed."""
        return max(1, self.sizes[ledger_id] // self.settings.entry_bytes)

    def ensemble(self, ledger_id: int) -> tuple[str, ...]:
        """Returns the first ensemble of a ledger that was not changed."""
        size = self.settings.ensemble_size
        numbers = self.ensembles[ledger_id * size : (ledger_id + 1) * size]
        return tuple([self.names[number] for number in numbers])

    def metadata(self, ledger_id: int) -> LedgerMetadata:
        """Returns the metadata of a ledger, as they are stored now."""
        found = self.changed.get(ledger_id)
        if found is not None:
            return found
        settings, is_open = self.settings, ledger_id >= self.first_open
        return LedgerMetadata(
            ledger_id=ledger_id,
            ensemble_size=settings.ensemble_size,
            write_quorum=settings.write_quorum,
            ack_quorum=settings.ack_quorum,
            state=LedgerState.OPEN if is_open else LedgerState.CLOSED,
            fragments=(Fragment(0, self.ensemble(ledger_id)),),
            digest_type=DigestType.CRC32C,
            last_entry_id=-1 if is_open else self.entries(ledger_id) - 1,
            length=0 if is_open else self.entries(ledger_id) * settings.entry_bytes,
            created_ms=_CREATED_MS,
            custom=self._custom,
        )

    def whole_metadata(self, ledger_id: int) -> LedgerMetadata:
        """Returns the metadata with all that a stream stores with its ledgers."""
        stream = f"streams-{ledger_id % 10}/stream-{ledger_id % self.settings.streams:06d}"
        custom = {
            APPLICATION_TAG: b"ledgerstream",
            STREAM_TAG: f"{stream}/1".encode(),
            CLIENT_TAG: f"{ledger_id * 0x9E3779B97F4A7C15 % 2**64:016x}".encode(),
        }
        found = self.metadata(ledger_id)
        return replace(found, custom={**found.custom, **custom}, c_token=ledger_id + 2**61)

    def all_metadata(self) -> Iterator[LedgerMetadata]:
        """Yields the metadata of all ledgers, by id."""
        for ledger_id in range(self.settings.ledgers):
            yield self.metadata(ledger_id)

    def moved(self, old: str, new: str, nbytes: int) -> None:
        """Records that the copy of some entries is at another bookie now."""
        self.used[old] -= nbytes
        self.used[new] += nbytes

    # Skew.

    def adds(self) -> dict[str, int]:
        """Returns how many open ledgers are written at each bookie."""
        found = dict.fromkeys(self.names, 0)
        for ledger_id in self.open_ledgers:
            changed = self.changed.get(ledger_id)
            last = self.ensemble(ledger_id) if changed is None else changed.last_fragment.bookies
            for bookie in last:
                found[bookie] += 1
        return found

    def fill(self) -> dict[str, float]:
        """Returns the part of its capacity that each bookie uses."""
        return {name: self.used[name] / self.capacity[name] for name in self.names}


def skew(values: Sequence[float]) -> float:
    """Returns the largest of the values over their mean; 1 if all are 0."""
    mean = sum(values) / len(values)
    return max(values) / mean if mean else 1.0


def build(settings: ScaleSettings, policy: PlacementPolicy, *, weighted: bool) -> Cluster:
    """Returns a cluster with all its ledgers, made one after the other."""
    rng = random.Random(f"{settings.seed} cluster")
    cluster = Cluster(settings, policy, weighted)
    cluster.add_bookies(settings.bookies)
    add_ledgers(cluster, settings.ledgers, rng)
    return cluster


def add_ledgers(cluster: Cluster, count: int, rng: random.Random) -> None:
    """Makes ledgers in ensembles that the policy chooses."""
    settings, numbers = cluster.settings, {name: i for i, name in enumerate(cluster.names)}
    sizes = (settings.ensemble_size, settings.write_quorum, settings.ack_quorum)
    # The mean of a log-normal distribution of sigma 1 is exp(mu + 1/2).
    mu = math.log(settings.ledger_bytes) - 0.5
    every = max(1, count // _REFRESHES)
    for made in range(count):
        if made % every == 0:
            candidates = cluster.candidates()
        nbytes = min(int(rng.lognormvariate(mu, 1.0)), settings.ledger_bytes_max)
        if len(cluster.sizes) >= cluster.first_open:
            nbytes = int(nbytes * rng.random())
        ensemble = cluster.policy.choose(*sizes, candidates, (), rng)
        cluster.sizes.append(nbytes)
        cluster.ensembles.extend([numbers[bookie] for bookie in ensemble])
        entries = max(1, nbytes // settings.entry_bytes)
        held = entries * settings.entry_bytes * settings.write_quorum // settings.ensemble_size
        for bookie in ensemble:
            cluster.used[bookie] += held
