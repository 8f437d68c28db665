"""Settings of auto-recovery."""

from __future__ import annotations

from dataclasses import dataclass

from ledger.autorecovery.copier import CopierOptions

COPIES_AT_ONCE_MAX = 32
"""Each may hold one batch beyond the memory that all share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoRecoveryOptions:
    """The settings of auto-recovery in one process."""

    lost_bookie_recovery_delay_s: float = 60.0
    """How long a single bookie that is down is waited for before its ledgers are copied, unless
    the cluster has a delay of its own (`ledgerstream autorecovery delay`)."""

    open_ledger_grace_s: float = 30.0
    """How long the last fragment of an open ledger, of which a bookie is lost, is left to a writer
    that is not known to be gone; then it is recovered, which fences that writer. A ledger
    whose writer is known to be alive is never recovered."""

    ledgers_at_once: int = 16
    """How many ledgers a worker heals at the same time."""

    copy_bytes_per_s: int = 64 * 1024 * 1024
    """Bytes of entries that a worker copies per second; 0: no bound."""

    metadata_reads_per_s: float = 1000.0
    """Metadata of ledgers that the auditor reads per second, less what it needs for its marks."""

    metadata_operations_per_s: float = 300.0
    """Operations of the metadata store that all workers of the cluster together send per second; 0:
    no bound. Each has an equal part, also while others have nothing to do."""

    entry_checks_per_s: float = 200.0
    """Bookies that the auditor asks per second which entries of a ledger they hold."""

    ledger_check_interval_s: float = 86_400.0
    """How often the metadata of all ledgers are read, also if no bookie was lost."""

    entry_check_interval_s: float = 604_800.0
    """How often all bookies are asked which entries they hold; 0: never."""

    scan_interval_s: float = 2.0
    """How often a worker looks for marks while there are any. Without marks it does not look."""

    def copier_options(self) -> CopierOptions:
        """Returns the limits of the copies of this process."""
        return CopierOptions(
            bytes_per_s=self.copy_bytes_per_s,
            ledgers_at_once=min(self.ledgers_at_once, COPIES_AT_ONCE_MAX),
        )
