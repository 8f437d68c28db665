"""Finds, explains and reports records that a query has not read and that were deleted.

An error names the stream, the lost range and the rule that deleted it. For a query that may
continue without them, the records are counted and logged once. An unknown state must never count
as "nothing was lost".
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from connectors.spark.core.offsets import StreamOffset
from connectors.spark.source.stream_index import StreamIndex
from ledger.client import LedgerClient
from ledger.errors import FinalError, LedgerError
from ledger.units import duration_text, size_text
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.segments import Run, Segment
from stream.core.metadata.streams import StreamMetadata
from stream.core.position import Position
from stream.errors import NoSuchNamespace, NotInTrash
from stream.reading.seek import measure
from stream.store.streams import StreamStore

_log = logging.getLogger(__name__)


class DataLoss(FinalError):
    """Records were deleted before they were read, and the option failOnDataLoss is true."""


@dataclass(frozen=True, slots=True)
class LostRange:
    """The lost sequences `first` to `behind` - 1 of a stream that was created at `created_ms`.

    `behind` is None if the number of lost records is unknown.
    """

    stream: str
    created_ms: int
    first: int
    behind: int | None
    reason: str

    def __str__(self) -> str:
        if self.behind is None:
            lost = f"all records from sequence {self.first} on"
        elif self.behind == self.first + 1:
            lost = f"the record with sequence {self.first}"
        else:
            lost = (
                f"the records with sequences {self.first} to {self.behind - 1} "
                f"({self.behind - self.first:,} records)"
            )
        return f"stream {self.stream!r}: {lost} can no longer be read: {self.reason}"


class DataLossLog:
    """The lost records of a query. With `is_error` a loss is raised, else counted and logged."""

    def __init__(self, *, is_error: bool) -> None:
        self.records = 0
        self._is_error = is_error
        self._counted: dict[tuple[str, int], int] = {}
        """The sequence up to which the losses of each stream were counted."""

    def record(self, loss: LostRange) -> None:
        """Raises DataLoss, or counts and logs the loss, unless it was counted before."""
        if self._is_error:
            raise DataLoss(
                f"{loss}. Cure: start the query with a new Spark checkpoint, or continue "
                f"without these records (option failOnDataLoss=false counts and logs them)"
            )
        key = (loss.stream, loss.created_ms)
        counted = self._counted.get(key, loss.first)
        behind = loss.first if loss.behind is None else loss.behind
        if key in self._counted and behind <= counted:
            return
        self.records += max(0, behind - max(loss.first, counted))
        self._counted[key] = behind
        _log.warning("%s. The query continues without them", loss)


async def lost_by_truncation(
    index: StreamIndex, offset: StreamOffset, first: StreamOffset
) -> LostRange | None:
    """Returns the records between `offset` and `first`, where the stream begins now, or None."""
    if offset.sequence >= first.sequence:
        return None
    reason = await truncation_reason(index, first)
    return LostRange(index.name, offset.created_ms, offset.sequence, first.sequence, reason)


async def truncation_reason(index: StreamIndex, first: StreamOffset) -> str:
    """Returns why the records before `first` were truncated, as far as it can be determined."""
    begin = await index.ask(lambda known: known.first_available)
    what = f"the stream was truncated to {begin} (sequence {first.sequence})"
    try:
        policy, _ = await StreamStore(index.client.store).read_namespace(index.namespace)
    except LedgerError as error:
        return f"{what}; the policy of its namespace cannot be read ({error})"
    rule = await index.ask(lambda known: _retention_rule(known, policy))
    return f"{what} {rule}"


def _retention_rule(stream: StreamMetadata, policy: NamespaceMetadata) -> str:
    rules = []
    last = stream.last_where(
        lambda span: (
            stream.is_dropped(span)
            or (isinstance(span, Run) and Position(span.number, 0, 0) < stream.truncated_to)
        )
    )
    if last is not None and last.dropped_ms < 0:
        last = None
    if policy.retention_ms is not None and (
        last is None or last.dropped_ms - last.newest_ms > policy.retention_ms
    ):
        rules.append(f"retention_ms of {duration_text(policy.retention_ms)}")
    elif policy.retention_bytes is not None:
        rules.append(f"retention_bytes of {size_text(policy.retention_bytes)}")
    where = f"namespace {policy.name!r}"
    if not rules:
        taken = f"by hand: {where} has no retention that would have truncated it"
    else:
        taken = (
            f"by {rules[0]} of {where}, or by hand; keep records for longer than a query may be "
            f"stopped"
        )
    if last is None:
        return f"{taken}; it was purged from the trash"
    return (
        f"{taken}; in the trash for {duration_text(policy.trash_ms)}: "
        f"ledgerstream stream untruncate {policy.name}/{stream.name} restores it"
    )


async def lost_by_restore(
    index: StreamIndex, offset: StreamOffset
) -> tuple[LostRange | None, StreamOffset | None]:
    """Returns the loss, and where reading continues, if `offset` is of a history that was lost.

    Its sequence is then in the gap that the stream left when its metadata had been put back to an
    older state. Both are None otherwise, also at the begin of the gap.
    """
    if not index.metadata.restores:
        return None, None
    one, other = await index.ask(lambda known: _around(known, offset.sequence))
    if one is None or other is None:
        return None, None
    reason = (
        f"its metadata were put back to an older state, in which it ended at sequence "
        f"{one.next_sequence}; what it had behind that is lost (`ledgerstream metadata "
        f"restores`), and it continues at sequence {other.first_sequence}"
    )
    loss = LostRange(index.name, offset.created_ms, offset.sequence, None, reason)
    return loss, index.begin_of(other)


def _around(stream: StreamMetadata, sequence: int) -> tuple[Segment | None, Segment | None]:
    """Returns the segments around the gap that has this sequence, if one has. Raises
    PagesNeeded."""
    one = stream.last_where(lambda span: span.first_sequence <= sequence)
    other = stream.first_where(lambda span: span.is_open or span.next_sequence > sequence)
    if one is None or other is None or one.is_open or one.next_sequence >= sequence:
        return None, None
    return (one, other) if sequence < other.first_sequence else (None, None)


async def lost_by_deletion(
    client: LedgerClient, name: str, offset: StreamOffset
) -> tuple[LostRange | None, int]:
    """Returns the unread records of a deleted stream, and the time of its deletion.

    The first is None if all records were read or the loss has been reported; the second is 0 if
    the stream cannot be restored. Raises MetadataUnavailable, and what reading ledgers raises.
    """
    namespace, _, stream = name.partition("/")
    found = await _find_in_trash(client, namespace, stream, offset.created_ms)
    gone_ms = 0 if found is None or found.is_purged else found.deleted_ms
    is_counted = offset.gone_ms and (found is None or found.deleted_ms == offset.gone_ms)
    return None if is_counted else await _unread_range(client, name, offset, found), gone_ms


async def _unread_range(
    client: LedgerClient, name: str, offset: StreamOffset, found: StreamMetadata | None
) -> LostRange | None:
    if found is None:
        reason = (
            "the stream was deleted, and it is not in the trash of its namespace, so that it is "
            "unknown whether all its records had been read (or the checkpoint is of another "
            "cluster, or of another stream of this name)"
        )
        return LostRange(name, offset.created_ms, offset.sequence, None, reason)
    behind = found.next_sequence
    if found.open_segment is not None:
        _, behind = await measure(client, found)
    if behind <= offset.sequence:
        return None
    reason = "the stream was deleted"
    if not found.is_purged:
        whole = name.partition("#")[0]
        reason += f"; it is in the trash: ledgerstream stream undelete {whole} restores it"
    return LostRange(name, offset.created_ms, offset.sequence, behind, reason)


async def _find_in_trash(
    client: LedgerClient, namespace: str, stream: str, created_ms: int
) -> StreamMetadata | None:
    """Returns the deleted stream of this name that was created at this time, or None."""
    from stream.retention.trash import Trash  # few queries lose a stream

    try:
        listed = await StreamStore(client.store).list_trash(namespace)
    except NoSuchNamespace:
        return None
    for deleted, at_ms in reversed(listed):
        if deleted != stream:
            continue
        try:
            found, _ = await Trash(client, namespace).read(stream, at_ms)
        except NotInTrash:
            continue
        if found.created_ms == created_ms:
            return found
    return None
