"""The cluster that is simulated, and what is assumed of machines and people."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ledger.autorecovery.options import AutoRecoveryOptions
from ledger.options import ClientOptions

MIB, GIB, TIB = 1 << 20, 1 << 30, 1 << 40
YEAR_S = 365.25 * 86_400
BOOKIES_MAX = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleSettings:
    """Settings of a simulated cluster."""

    bookies: int = 1000
    racks: int = 50
    ledgers: int = 1_000_000
    streams: int = 100_000
    """Each has one open ledger, the last ones of `ledgers`."""
    seed: int = 1

    ensemble_size: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2

    ledger_bytes: int = 256 * MIB
    """Mean payload of a ledger; sizes are spread log-normally."""
    ledger_bytes_max: int = 2 * GIB
    entry_bytes: int = 16 * 1024
    capacity_bytes: int = 2 * TIB
    large_part: float = 0.25
    """The part of the bookies, rack by rack, that have twice the capacity."""
    append_interval_s: float = 10.0
    """Mean time between two appends to a stream (a Poisson process)."""

    copy_bytes_per_s: int = int(AutoRecoveryOptions().copy_bytes_per_s)
    """What a worker copies per second; each bookie runs one worker."""
    bookie_bytes_per_s: int = 128 * MIB
    """What a bookie can read for copies per second, and as much can it write for them."""
    options: AutoRecoveryOptions = field(
        default_factory=lambda: AutoRecoveryOptions(metadata_reads_per_s=2000.0)
    )
    """Here and below, the metadata store of a large cluster bears more than the defaults ask."""
    operations_per_s: float = 4000.0
    """Requests to the metadata store that all workers together send per second."""
    add_timeout_s: float = ClientOptions().add_timeout_s
    session_timeout_s: float = 5.0
    """After this long a bookie whose machine is gone is not registered any more."""
    request_s: float = 0.002
    """One request to the metadata store, and its answer."""

    failures_per_year: float = 0.04
    """How often one bookie loses its data for good."""
    outages_per_year: float = 1.0
    """How often power fails for the whole cluster."""
    outage_loss_part: float = 0.01
    """The part of the bookies that lose their data in such an outage."""
    outage_trials: int = 20_000

    @property
    def rack_bookies(self) -> int:
        return self.bookies // self.racks

    @property
    def outage_bookies(self) -> int:
        """How many bookies do not return after a power failure."""
        return max(self.write_quorum, round(self.bookies * self.outage_loss_part))

    def with_copy_rate(self, copy_bytes_per_s: int) -> ScaleSettings:
        return replace(self, copy_bytes_per_s=copy_bytes_per_s)


FULL = ScaleSettings()
SMALL = ScaleSettings(
    bookies=50, racks=10, ledgers=5000, streams=500, outage_loss_part=0.06, outage_trials=2000,
    ledger_bytes=64 * MIB,
)  # fmt: skip
"""Of a size that tests can bear."""


def checked(settings: ScaleSettings) -> ScaleSettings:
    """Returns the settings. Raises SystemExit for a cluster that cannot be."""
    s = settings
    reasons = {
        f"{s.bookies} bookies are not spread evenly over {s.racks} racks": (
            s.racks < 1 or s.bookies % s.racks
        ),
        f"{s.racks} racks are not more than the ensemble size, {s.ensemble_size}": (
            s.racks <= s.ensemble_size
        ),
        f"{s.streams} streams have an open ledger each, and there are {s.ledgers} ledgers": (
            not 0 < s.streams < s.ledgers
        ),
        f"{s.bookies} bookies are too many: at most {BOOKIES_MAX}": s.bookies > BOOKIES_MAX,
        "a rate is not positive": min(
            s.copy_bytes_per_s, s.bookie_bytes_per_s, s.operations_per_s,
            s.options.metadata_reads_per_s, s.failures_per_year, s.ledger_bytes,
        ) <= 0,
    }  # fmt: skip
    for reason, is_wrong in reasons.items():
        if is_wrong:
            raise SystemExit(f"python -m benchmarks.scale: {reason}")
    return settings
