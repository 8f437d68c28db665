"""The trash: what becomes of truncated segments and deleted streams.

Transitions of `StreamMetadata`, pure. Until its time has passed everything in the trash can be
restored; once segments are garbage nothing may restore them, because their ledgers are being
deleted. Shell: retention/trash.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ledger.errors import InvalidArgument, MetadataConflict
from stream.core.metadata.segments import Segment
from stream.core.metadata.streams import SegmentEnd, StreamMetadata
from stream.core.position import Position

PURGED_AT_ONCE: Final = 1000
"""Segments of pages that one change makes garbage; the rest follows."""


def purged(stream: StreamMetadata, through: int) -> StreamMetadata:
    """Returns the stream after segments up to number `through` left the trash: their ledgers are
    garbage, also those that they were on before a merge. Of those in pages only the first
    PURGED_AT_ONCE leave at once.

    Raises MetadataConflict if one of them is not truncated; MetadataCorrupt; PagesNeeded.
    """
    oldest, pages = stream.pages.without_first(through, PURGED_AT_ONCE)
    newest = [segment for segment in stream.segments if segment.number <= through]
    if pages:
        newest = []
    merged, pages = pages.without_purged(PURGED_AT_ONCE)
    going = [*oldest, *newest]
    for segment in going:
        if not stream.is_dropped(segment):
            raise MetadataConflict(
                f"stream {stream.name!r}: segment {segment.number} is not truncated, "
                f"it cannot be purged"
            )
    if not going and pages == stream.pages:
        return stream
    after = replace(stream, segments=stream.segments[len(newest) :], pages=pages)
    return _with_garbage(_without(stream, going, after), merged)


def _without(
    before: StreamMetadata, going: Sequence[Segment], after: StreamMetadata
) -> StreamMetadata:
    """Returns the stream `after` these segments left it: their ledgers are garbage, except the one
    that the next segment is on, too."""
    ledgers = dict.fromkeys(segment.ledger_id for segment in going)
    following = next(after.spans(), None)
    if following is not None:
        ledgers.pop(following.ledger_first, None)
    return replace(after, garbage=(*before.garbage, *ledgers))


def without_replaced(stream: StreamMetadata, until_ms: int) -> StreamMetadata:
    """Returns the stream once the ledgers of which the segments were merged up to this time are
    garbage: those of the first merge at once, the rest follows. Raises MetadataCorrupt if they are
    in use; PagesNeeded."""
    replaced = stream.pages.replaced
    if not replaced or replaced[0].replaced_ms > until_ms:
        return stream
    segments, pages = stream.pages.without_replaced()
    return _with_garbage(replace(stream, pages=pages), segments)


def _with_garbage(stream: StreamMetadata, segments: Sequence[Segment]) -> StreamMetadata:
    """Returns the stream with the ledgers of these segments as garbage."""
    ledgers = dict.fromkeys((*stream.garbage, *(segment.ledger_id for segment in segments)))
    return replace(stream, garbage=tuple(ledgers))


def first_recoverable(stream: StreamMetadata) -> Position:
    """Returns where the stream begins if all of its trash is restored. Raises PagesNeeded."""
    first = stream.first_where(lambda span: True)
    if first is None:
        return stream.truncated_to
    return min(stream.truncated_to, Position(first.number, 0, 0))


def untruncated(stream: StreamMetadata, position: Position | None) -> StreamMetadata:
    """Returns the stream beginning at `position` again, or as early as its trash allows (None).

    A position at or behind the present begin changes nothing. Raises InvalidArgument for one that
    was purged already; PagesNeeded.
    """
    first = first_recoverable(stream)
    begin = first if position is None else position
    if begin >= stream.truncated_to:
        return stream
    segment = stream.first_where(lambda span: True)
    oldest = stream.next_segment if segment is None else segment.number
    if begin < first and oldest > 1:
        raise InvalidArgument(
            f"stream {stream.name!r}: what is before {first} was purged and cannot be restored; "
            f"{position} is before it. Leave the position out to restore all there is"
        )
    begun = replace(stream, truncated_to=begin)
    return replace(
        begun,
        pages=stream.pages.unmarked(begun.dropped_in_pages()),
        segments=tuple(
            replace(segment, dropped_ms=-1)
            if segment.dropped_ms >= 0 and not begun.is_dropped(segment)
            else segment
            for segment in stream.segments
        ),
    )


def tombstone(stream: StreamMetadata, now_ms: int) -> StreamMetadata:
    """Returns what stays under the name of a deleted stream. Its epoch is higher, so that a writer
    notices."""
    return StreamMetadata(
        name=stream.name,
        created_ms=stream.created_ms,
        epoch=stream.epoch + 1,
        next_segment=stream.next_segment,
        is_deleted=True,
        deleted_ms=now_ms,
    )


def begun_at(stream: StreamMetadata, segment: int) -> StreamMetadata:
    """Returns an empty stream whose first segment has this number. Positions before it may have
    been given out by streams that are gone: they are refused, as those of truncated records."""
    if segment <= stream.next_segment:
        return stream
    return replace(stream, next_segment=segment, truncated_to=Position(segment, 0, 0))


def recreated(stream: StreamMetadata, dead: StreamMetadata) -> StreamMetadata:
    """Returns a new stream in place of a tombstone.

    Its epoch is one that no earlier writer holds, its creation time distinguishes its cursors from
    earlier ones, and no position of the earlier stream is one of its own.
    """
    assert dead.is_deleted, f"stream {dead.name!r} is in use"
    return replace(
        begun_at(stream, dead.next_segment),
        epoch=dead.epoch + 1,
        created_ms=max(stream.created_ms, dead.created_ms + 1),
    )


def trashed(stream: StreamMetadata, now_ms: int) -> StreamMetadata:
    """Returns a deleted stream as it is stored in the trash: complete."""
    return replace(stream, is_deleted=True, deleted_ms=now_ms)


def fenced_in_trash(stream: StreamMetadata, end: SegmentEnd, now_ms: int) -> StreamMetadata:
    """Returns a deleted stream with its last segment sealed: its writer was fenced."""
    alive = replace(stream, is_deleted=False)
    return replace(alive.sealed(alive.epoch, end, now_ms), is_deleted=True)


def undeleted(stream: StreamMetadata, name: str, epoch: int, next_segment: int) -> StreamMetadata:
    """Returns a stream from the trash, restored under `name`; `epoch` is above all that the name
    has had, and so are the numbers of segments from `next_segment` on."""
    assert stream.is_deleted, f"stream {stream.name!r} is not in the trash"
    assert not stream.is_purged, f"stream {stream.name!r} is being purged"
    assert epoch > stream.epoch, f"epoch {epoch} would let the earlier writer continue"
    return replace(
        stream,
        name=name,
        epoch=epoch,
        next_segment=max(stream.next_segment, next_segment),
        is_deleted=False,
        deleted_ms=-1,
        interrupted=None,
    )


def purged_whole(stream: StreamMetadata) -> StreamMetadata:
    """Returns a deleted stream that can no longer be restored: all its ledgers are garbage, or will
    be (`drained`)."""
    assert stream.is_deleted, f"stream {stream.name!r} is not in the trash"
    return replace(
        stream, prepared=None, interrupted=None, producers={}, is_purged=True,
        segments=(), garbage=stream.ledgers(),
    )  # fmt: skip


def drained(stream: StreamMetadata) -> StreamMetadata:
    """Returns a purged stream without the oldest segments of its pages, which are garbage then;
    first without those that were merged. Raises PagesNeeded."""
    assert stream.is_purged, f"stream {stream.name!r} is not purged"
    if stream.pages.replaced:
        return without_replaced(stream, stream.pages.replaced[0].replaced_ms)
    oldest, pages = stream.pages.without_first(stream.next_segment, PURGED_AT_ONCE)
    return _without(stream, oldest, replace(stream, pages=pages))
