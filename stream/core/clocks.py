"""Decides whether a clock can be right, by the other times that are known.

What is deleted by age is deleted by the janitor's clock. If that is wrong by a year, a year of data
would be deleted; so a clock that other times contradict decides nothing. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from ledger.core.steady_clock import CLOCK_OFF_MS
from ledger.units import duration_text
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.streams import StreamMetadata

QUIET_MS: Final = 30 * 86_400_000
"""A time this far ahead of everything that is known needs another witness. Janitors that run leave
a mark, so that a namespace may well be quiet for longer."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CURE = (
    "Cure: correct the clock; if it is right, run `ledgerstream janitor --once --trust-clock` once"
)


def is_ahead(time_ms: int, now_ms: int) -> bool:
    """Whether a stored time is so far ahead of the clock that one of the two is wrong."""
    return time_ms - now_ms > CLOCK_OFF_MS


def moment_text(time_ms: int) -> str:
    """Returns a time as "2027-11-25 07:25 UTC", or in milliseconds if no calendar has it."""
    try:
        moment = _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return f"{time_ms} ms"
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def known_times(stream: StreamMetadata) -> Iterator[int]:
    """Yields the times that writers, not janitors, left in the metadata of a stream."""
    yield stream.created_ms
    for run in stream.pages.roots:
        yield from (run.created_ms, run.newest_ms)
    for segment in stream.segments:
        yield from (segment.created_ms, segment.sealed_ms, segment.last_time_ms)


def doubt_of_store(now_ms: int, store_ms: int) -> str | None:
    """Returns why the clock is in doubt beside that of the metadata store, None if it is not."""
    off_ms = now_ms - store_ms
    if abs(off_ms) <= CLOCK_OFF_MS:
        return None
    where = "ahead of" if off_ms > 0 else "behind"
    return (
        f"the clock of this machine says {moment_text(now_ms)}, {duration_text(abs(off_ms))} "
        f"{where} that of the metadata store: nothing is dropped or deleted. {_CURE}"
    )


def doubt_of_mark(now_ms: int, mark_ms: int) -> str | None:
    """Returns why the clock is in doubt beside the time of the last sweep of any janitor."""
    if not is_ahead(mark_ms, now_ms):
        return None
    return (
        f"the clock of this machine says {moment_text(now_ms)}, {duration_text(mark_ms - now_ms)} "
        f"behind the last sweep of a janitor: nothing is dropped or deleted. {_CURE}"
    )


def is_witnessed(now_ms: int, time_ms: int) -> bool:
    """Whether a known time shows that the clock is not far ahead."""
    return now_ms - time_ms <= QUIET_MS and not is_ahead(time_ms, now_ms)


def doubt_of_silence(policy: NamespaceMetadata | None, now_ms: int, newest_ms: int) -> str:
    """Returns why the clock is in doubt if nothing that is known is newer than `newest_ms`: in the
    namespace, or (None) the last sweep of a janitor."""
    known = "the last sweep of a janitor was at"
    if policy is not None:
        known = f"the newest time known in namespace {policy.name!r} is"
    return (
        f"the clock of this machine says {moment_text(now_ms)}, and {known} "
        f"{moment_text(newest_ms)}, {duration_text(now_ms - newest_ms)} before: nothing is dropped "
        f"or deleted. {_CURE}"
    )
