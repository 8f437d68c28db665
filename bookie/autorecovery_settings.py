"""Settings of auto-recovery in the process of a bookie: a section of its settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bookie.config_sections import MIB, check_minimums
from ledger.runtime.config import setting

if TYPE_CHECKING:
    from ledger.autorecovery.options import AutoRecoveryOptions


@dataclass(frozen=True, kw_only=True)
class AutoRecoverySettings:
    """Settings of auto-recovery."""

    autorecovery: bool = setting(
        False,
        unit="",
        apache="autoRecoveryDaemonEnabled",
        reason="Whether the bookie's process also finds and heals ledgers that lack copies;"
        " `standalone` sets it. Otherwise `ledgerstream autorecovery run` does that.",
    )
    lost_bookie_recovery_delay_s: int = setting(
        60,
        unit="s",
        apache="lostBookieRecoveryDelay",
        reason="How long a single bookie that is down is waited for before its ledgers are copied;"
        " `ledgerstream autorecovery delay` sets it for the whole cluster.",
    )
    open_ledger_grace_s: int = setting(
        30,
        unit="s",
        apache="openLedgerRereplicationGracePeriod",
        reason="How long an open ledger that lost a bookie is left to its writer before it is"
        " recovered and closed. The ledger of a client that is known to be alive never is.",
    )
    autorecovery_copy_bytes_per_s_max: int = setting(
        64 * MIB,
        unit="bytes/s",
        apache="replicationRateByBytes",
        reason="Payload that this process copies per second; 0 is no limit.",
    )
    autorecovery_ledgers_at_once: int = setting(
        16,
        unit="ledgers",
        apache="",
        reason="How many ledgers this process heals at the same time.",
    )
    autorecovery_metadata_reads_per_s_max: int = setting(
        1000,
        unit="ledgers/s",
        apache="",
        reason="How many ledgers per second the auditor looks up in the metadata store, less what"
        " it needs to mark those that lack copies.",
    )
    autorecovery_metadata_operations_per_s_max: int = setting(
        300,
        unit="operations/s",
        apache="",
        reason="How many operations of the metadata store all processes of the cluster together"
        " send per second to heal ledgers, each an equal part of them: a ledger takes ten. The"
        " default leaves the processors to users on small machines; 0 is no limit.",
    )

    def check(self) -> None:
        """Raises InvalidArgument if these settings are out of range."""
        zero = (
            "lost_bookie_recovery_delay_s",
            "open_ledger_grace_s",
            "autorecovery_copy_bytes_per_s_max",
            "autorecovery_metadata_operations_per_s_max",
        )
        check_minimums(AutoRecoverySettings, self, may_be_zero=zero)

    def autorecovery_options(self) -> AutoRecoveryOptions:
        """Returns the options of auto-recovery in this process."""
        from ledger.autorecovery.options import AutoRecoveryOptions  # most processes need none

        return AutoRecoveryOptions(
            lost_bookie_recovery_delay_s=self.lost_bookie_recovery_delay_s,
            open_ledger_grace_s=self.open_ledger_grace_s,
            copy_bytes_per_s=self.autorecovery_copy_bytes_per_s_max,
            ledgers_at_once=self.autorecovery_ledgers_at_once,
            metadata_reads_per_s=self.autorecovery_metadata_reads_per_s_max,
            metadata_operations_per_s=self.autorecovery_metadata_operations_per_s_max,
        )
