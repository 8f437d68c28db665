"""Counts what operators need to know of a journal: once per group, never per frame."""

from __future__ import annotations

from dataclasses import dataclass

from bookie.core.journal import Mark, Trigger
from bookie.core.metrics import COUNTS, SECONDS, SIZES, Distribution, Histogram

_UNCOUNTED_MAX = 100
"""Groups that are counted together: a histogram that is not in the processor's caches costs as much
as the checksum of a group."""


@dataclass(frozen=True, slots=True)
class JournalStatistics:
    groups: int
    entries: int
    bytes: int
    """With headers and padding."""
    syncs: int
    rolls: int
    sync_seconds_max: float
    late_groups: int
    """Groups acknowledged before they were synced (`journal_sync_data = false`)."""
    loop_groups: int
    """Groups that were written and synced in the event loop (`journal_loop_write_ms_max`)."""
    unsynced_bytes: int
    """Bytes of groups in the page cache that a loss of power could lose, acknowledged or not."""
    queued_bytes: int
    """Bytes of frames that are not accepted yet."""
    queued_entries: int
    mark: Mark
    """The end of what is durable."""
    sync_seconds: Distribution
    """The time of one write and its sync; of the sync alone where it comes later."""
    add_seconds: Distribution
    """The time from the first frame of a group until the group is acknowledged."""
    group_entries: Distribution
    group_bytes: Distribution
    file_creation_seconds: Distribution
    """How long a group waited for the next file."""
    flushes: dict[Trigger, int]
    """Groups by the trigger of their commit."""


class JournalMetrics:
    """The counters of one journal; `statistics` returns a snapshot."""

    def __init__(self) -> None:
        self.rolls = self.loop_groups = self._syncs = self._late_groups = 0
        self._groups = self._entries = self._bytes = 0
        self._sync_seconds_max = 0.0
        self._sync_seconds = Histogram(SECONDS)
        self._add_seconds = Histogram(SECONDS)
        self._group_entries = Histogram(COUNTS)
        self._group_bytes = Histogram(SIZES)
        self._file_creation_seconds = Histogram(SECONDS)
        self._flushes = dict.fromkeys(Trigger, 0)
        self._uncounted: list[tuple[int, int, float, float | None, Trigger]] = []

    def synced(self, seconds: float) -> None:
        """Counts a sync that came after the acknowledgements, or the one of a whole file."""
        self._syncs += 1
        self._sync_seconds_max = max(self._sync_seconds_max, seconds)
        self._sync_seconds.observe(seconds)

    def group_written(
        self, entries: int, nbytes: int, add_s: float, sync_s: float | None, trigger: Trigger
    ) -> None:
        """Counts a group that is acknowledged now, `add_s` after its first frame, because of
        `trigger`. Its write and sync took `sync_s`; None: it is synced later."""
        self._uncounted.append((entries, nbytes, add_s, sync_s, trigger))
        if len(self._uncounted) >= _UNCOUNTED_MAX:
            self._count()

    def _count(self) -> None:
        groups, self._uncounted = self._uncounted, []
        self._groups += len(groups)
        for entries, nbytes, add_s, sync_s, trigger in groups:
            self._flushes[trigger] += 1
            if sync_s is None:
                self._late_groups += 1
            else:
                self.synced(sync_s)
            self._entries += entries
            self._bytes += nbytes
            self._add_seconds.observe(add_s)
            self._group_entries.observe(entries)
            self._group_bytes.observe(nbytes)

    def file_begun(self, wait_s: float) -> None:
        """Counts a new file, for which the journal waited `wait_s`."""
        self._syncs += 1
        self._file_creation_seconds.observe(wait_s)

    def statistics(
        self, *, queued_bytes: int, queued_entries: int, mark: Mark, unsynced_bytes: int
    ) -> JournalStatistics:
        self._count()
        return JournalStatistics(
            groups=self._groups,
            entries=self._entries,
            bytes=self._bytes,
            syncs=self._syncs,
            rolls=self.rolls,
            sync_seconds_max=self._sync_seconds_max,
            late_groups=self._late_groups,
            loop_groups=self.loop_groups,
            unsynced_bytes=unsynced_bytes,
            queued_bytes=queued_bytes,
            queued_entries=queued_entries,
            mark=mark,
            sync_seconds=self._sync_seconds.distribution(),
            add_seconds=self._add_seconds.distribution(),
            group_entries=self._group_entries.distribution(),
            group_bytes=self._group_bytes.distribution(),
            file_creation_seconds=self._file_creation_seconds.distribution(),
            flushes=dict(self._flushes),
        )
