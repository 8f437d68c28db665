"""stream.retention.janitor for threads.

Generated from stream/retention/janitor.py by `make faces`. Not to be edited.
"""

from __future__ import annotations

from stream.blocking.bridge import Bridge
from stream.blocking.client import LedgerClient
from stream.retention.janitor import ORPHAN_AGE_MS, SINK_ORPHAN_AGE_MS, SweepReport
from stream.retention.janitor import Janitor as TrioJanitor
from stream.retention.segment_merger import MergeReport
from stream.retention.segment_merging import MERGE_BYTES_PER_S, REPLACED_MS


class Janitor:
    """Cleans up one namespace.

    Args:
        client: of the cluster; the caller keeps it open.
        namespace: its name.
        orphan_age_ms: how old a ledger that no stream names must be before it is deleted.
        sink_orphan_age_ms: the same for a ledger that a sink's task made, while its batch is not
            committed; the batch fails if it takes longer.
        trust_clock: sweep although the clock of this machine is in doubt (ClockInDoubt).
        merge_bytes_per_s: payload of small segments that is copied per second, to merge them; 0:
            nothing is merged.
        replaced_ms: how long the ledgers of merged segments are kept.
    """

    _bridge: Bridge
    _inner: TrioJanitor

    def __init__(
        self,
        client: LedgerClient,
        namespace: str,
        *,
        orphan_age_ms: int = ORPHAN_AGE_MS,
        sink_orphan_age_ms: int = SINK_ORPHAN_AGE_MS,
        trust_clock: bool = False,
        merge_bytes_per_s: float = MERGE_BYTES_PER_S,
        replaced_ms: int = REPLACED_MS,
    ) -> None:
        self._bridge = client._bridge
        self._inner = TrioJanitor(
            client._inner,
            namespace,
            orphan_age_ms=orphan_age_ms,
            sink_orphan_age_ms=sink_orphan_age_ms,
            trust_clock=trust_clock,
            merge_bytes_per_s=merge_bytes_per_s,
            replaced_ms=replaced_ms,
        )

    @classmethod
    def _of(cls, bridge: Bridge, holder: TrioJanitor) -> Janitor:
        made = cls.__new__(cls)
        made._bridge, made._inner = bridge, holder
        return made

    def run(self, interval_s: float) -> None:
        """Sweeps forever, `interval_s` apart, and merges segments beside that; failures are logged
        and tried again."""
        self._bridge.call(lambda: self._inner.run(interval_s))

    def merge(self, limit_s: float | None = None) -> MergeReport:
        """Merges small segments of the streams that sweeps found since the last call: a few times
        in each, at `merge_bytes_per_s`. May run beside `sweep`.

        Does nothing if there is nothing to merge, or another client does it. `limit_s`: no merge
        begins that takes longer, about, and none lasts more than twice that or ten seconds. A
        stream of which a merge failed counts as a failure, and is tried again later. Raises
        MetadataUnavailable.
        """
        return self._bridge.call(lambda: self._inner.merge(limit_s))

    def sweep(self) -> SweepReport:
        """Checks every stream, the trash and every orphan once.

        A failure is counted, and does not keep the other streams from being cleaned up. Raises
        NoSuchNamespace, ClockInDoubt (nothing was changed), MetadataUnavailable.
        """
        return self._bridge.call(lambda: self._inner.sweep())
