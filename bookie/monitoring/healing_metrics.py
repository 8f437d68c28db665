"""The metrics of auto-recovery in a bookie's process. Without it there are no samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from bookie.core.metrics import Metric, Number, counter, gauge

if TYPE_CHECKING:
    from ledger.autorecovery.published import AuditReport, HealingNow


def _audited(read: Callable[[AuditReport], Number]) -> Callable[[HealingNow], Number]:
    """Returns a reader of the newest audit; only the auditor has one."""
    return lambda healing: None if healing.audit is None else read(healing.audit)


HEALING: Final[tuple[Metric[HealingNow], ...]] = (
    counter(
        "ledgers_healed",
        "Ledgers whose mark was removed because their copies are complete.",
        "NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED",
        lambda h: h.ledgers_healed,
    ),
    counter(
        "healed_entries",
        "Entries copied between bookies.",
        "NUM_ENTRIES_WRITTEN",
        lambda h: h.entries_copied,
    ),
    counter(
        "healed_bytes",
        "Payload bytes of these entries.",
        "NUM_BYTES_WRITTEN",
        lambda h: h.bytes_copied,
    ),
    gauge("healing_ledgers", "Ledgers that are being healed now.", "", lambda h: h.in_progress),
    gauge("healing_backlog", "Marked ledgers that wait for this worker.", "", lambda h: h.backlog),
    gauge(
        "healing_held",
        "Marked ledgers that cannot be healed now; `autorecovery list` has the reasons.",
        "",
        lambda h: h.held,
    ),
    gauge(
        "healing_held_with_loss",
        "Of these, ledgers with entries of which no copy is known.",
        "",
        lambda h: h.held_with_loss,
    ),
    gauge(
        "is_auditor",
        "1: this process is the auditor of the cluster; 0: it is not.",
        "",
        lambda h: h.is_auditor,
    ),
    counter(
        "audits",
        "Passes over the metadata of all ledgers that were completed.",
        "AUDIT_BOOKIES_TIME_count",
        lambda h: h.audits,
    ),
    gauge(
        "audited_ledgers",
        "Ledgers in the newest audit. This and the following are exported by the auditor only.",
        "",
        _audited(lambda a: a.ledgers),
    ),
    gauge("audited_bytes", "Their payload; 0 for open ones.", "", _audited(lambda a: a.bytes)),
    gauge(
        "ledgers_below_write_quorum",
        "Ledgers of which live bookies have fewer copies than the write quorum.",
        "NUM_UNDER_REPLICATED_LEDGERS",
        _audited(lambda a: a.ledgers_below_write_quorum),
    ),
    gauge(
        "bytes_below_write_quorum",
        "Their payload.",
        "",
        _audited(lambda a: a.bytes_below_write_quorum),
    ),
    gauge(
        "ledgers_below_ack_quorum",
        "Ledgers with fewer copies than the ack quorum; they are not counted above.",
        "",
        _audited(lambda a: a.ledgers_below_ack_quorum),
    ),
    gauge(
        "bytes_below_ack_quorum",
        "Their payload.",
        "",
        _audited(lambda a: a.bytes_below_ack_quorum),
    ),
    gauge(
        "ledgers_without_copy",
        "Ledgers with entries whose bookies are all lost.",
        "",
        _audited(lambda a: a.ledgers_without_copy),
    ),
    gauge("bytes_without_copy", "Their payload.", "", _audited(lambda a: a.bytes_without_copy)),
    gauge(
        "ledgers_failing_placement",
        "Ledgers that keep less of their placement than it requires.",
        "NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY",
        _audited(lambda a: a.placement_fail),
    ),
    gauge(
        "ledgers_softly_placed",
        "Ledgers that keep what their placement requires, and less than what it wants.",
        "",
        _audited(lambda a: a.placement_soft),
    ),
)
"""Metrics of auto-recovery."""
