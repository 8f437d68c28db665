"""Copier: copies entries of ledgers to one bookie, for a replication worker, a decommission or a
rebalance.

Only the fixed part of a ledger is copied, which no writer and no recovery changes: all of a closed
one, and what is before the last fragment of another. Metadata is never changed here. All copies of
a process share its limits: a rate, the bytes in flight at each bookie, and the ledgers at once.
They yield to users: the bytes in flight shrink when a bookie needs longer to answer than it used
to.

Its connections are its own, so that no ack is taken for one of a writer of the same client. Memory:
`held_bytes_max`, one batch more for each ledger that is copied, and what the requests in flight
return beyond the estimate (at most one entry each); for each target `target_bytes_max` and one
batch more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Self

import trio

from ledger.autorecovery.copy_reads import Source
from ledger.autorecovery.ledger_copy import LedgerCopy
from ledger.client import LedgerClient
from ledger.copy_reader import SilentBookies
from ledger.core.autorecovery.copy_plan import CopyFailure, CopyPlan, Holders
from ledger.core.autorecovery.copy_rate import DelayWindow, TokenBucket
from ledger.core.availability import Range, fixed_part
from ledger.core.ledger_keys import check_key_known
from ledger.core.metadata import LedgerMetadata
from ledger.errors import InvalidArgument, LedgerClosed, MetadataUnavailable
from ledger.runtime.background import open_background

_MIB = 1024 * 1024
_UP_FOR_S = 5.0
"""How long the list of registered bookies is used before it is read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopierOptions:
    """The limits of all copies of one process. Raises InvalidArgument for values that can never
    work."""

    bytes_per_s: int = 64 * _MIB
    """Bytes of entries that are read per second; 0: no bound."""

    ledgers_at_once: int = 16
    """Ledgers that are copied at the same time; others wait."""

    held_bytes_max: int = 32 * _MIB
    """Bytes that are being read or wait to be sent, of all ledgers together. Each may have one
    request more, and holds at most `read_ahead_bytes` of the client."""

    target_bytes_max: int = 8 * _MIB
    """Bytes in flight to one bookie."""

    source_bytes_max: int = 8 * _MIB
    """Bytes in flight from one bookie."""

    delay_target_ms: float = 5.0
    """The time that copies may add to the response time of a bookie, in milliseconds. Above it,
    fewer bytes are in flight."""

    def __post_init__(self) -> None:
        if self.bytes_per_s < 0:
            raise InvalidArgument(f"bytes_per_s is {self.bytes_per_s}; it is 0 (no bound) or more")
        for name, value in asdict(self).items():
            if name != "bytes_per_s" and value <= 0:
                raise InvalidArgument(f"{name} is {value}; it must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport:
    """What a copy did.

    `entries` and `payload_bytes` are what the target acknowledged as synced. `failures` are the
    entries that no source gave, up to `FAILURES_MAX` runs of them; `entries_failed` counts all.
    `is_stopped`: it was not wanted any more. `target_error`: why the target takes no more; "" if it
    does.
    """

    ledger_id: int
    target: str
    entries: int
    payload_bytes: int
    failures: tuple[CopyFailure, ...] = ()
    entries_failed: int = 0
    is_stopped: bool = False
    target_error: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether the target has all of the ranges now."""
        return not (self.entries_failed or self.is_stopped or self.target_error)


class Copier:
    """Copies entries to bookies, within limits that all its copies share. An `async with` object.

    Args:
        client: must be open for as long as the copier; its pool is not used.
        options: the limits.
    """

    def __init__(self, client: LedgerClient, options: CopierOptions | None = None) -> None:
        self.copier_options = options or CopierOptions()
        self.options = client.options
        self.keys = client.ledgers.keys
        self.pool = client.pool.separate()
        self.bucket = TokenBucket(self.copier_options.bytes_per_s)
        self.silent = SilentBookies()
        self.held_bytes = 0
        self.held_bytes_max = self.copier_options.held_bytes_max
        self.entries = 0
        self.payload_bytes = 0
        self._bookies = client.bookies
        self._slots = trio.Semaphore(self.copier_options.ledgers_at_once)
        self._active: dict[tuple[int, str], LedgerCopy] = {}
        self._sources: dict[str, Source] = {}
        self._targets: dict[str, DelayWindow] = {}
        self._up: frozenset[str] = frozenset()
        self._up_until_s = 0.0
        self._background: AbstractAsyncContextManager[trio.Nursery] | None = None

    async def __aenter__(self) -> Self:
        self._background = open_background()
        self.pool.start(await self._background.__aenter__())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._background is not None
        background, self._background = self._background, None
        self.pool.close_all()
        await background.__aexit__(None, None, None)

    async def copy(
        self,
        metadata: LedgerMetadata,
        target: str,
        ranges: Sequence[Range],
        *,
        sources: Holders | None = None,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> CopyReport:
        """Copies the entries of `ranges`, which `target` lacks (`ledger.core.availability`), and
        returns when the target has acknowledged all that some source has.

        Entries that no source gives are reported with what each of them said; doubts (timeouts, I/O
        errors, an unknown ledger state) as doubts. May be cancelled at any time: entries that were
        sent may still be stored.

        Args:
            metadata: of the ledger; entries are asked for and checked by it.
            target: a bookie id. It need not be in the metadata.
            ranges: ascending ranges of entries, without overlaps, in the fixed part of the ledger.
            sources: returns the bookies that may have an entry, best first; called once for each
                fragment and stripe. None: the write set of the entry. The target is left out.
            is_wanted: asked before each batch; False stops the copy.

        Raises InvalidArgument for other ranges or if the same ledger is being copied to this
        target; LedgerClosed if the copier is not open; Unauthorized if the ledger's key is derived
        from a secret that is unknown here.
        """
        _check_ranges(metadata, ranges)
        check_key_known(metadata)
        if self._background is None:
            raise LedgerClosed("the copier is not open")
        key = metadata.ledger_id, target
        async with self._slots:
            if key in self._active:
                raise InvalidArgument(
                    f"ledger {metadata.ledger_id} is being copied to {target} already"
                )
            up = await self._registered()
            plan = CopyPlan(metadata, target, ranges, sources)
            copying = LedgerCopy(self, metadata, target, plan, up=up, is_wanted=is_wanted)
            self._active[key] = copying
            try:
                await copying.run()
            finally:
                del self._active[key]
        error = copying.target_error
        return CopyReport(
            ledger_id=metadata.ledger_id,
            target=target,
            entries=copying.entries,
            payload_bytes=copying.payload_bytes,
            failures=plan.failures(),
            entries_failed=plan.entries_failed,
            is_stopped=copying.is_stopped,
            target_error=f"{type(error).__name__}: {error}" if error is not None else "",
        )

    async def _registered(self) -> frozenset[str]:
        now_s = trio.current_time()
        if now_s >= self._up_until_s:
            self._up_until_s = now_s + _UP_FOR_S  # others need not read it as well
            try:
                found = [*await self._bookies.available(), *await self._bookies.read_only()]
            except MetadataUnavailable:
                return self._up  # which bookie is asked first is no reason to fail
            self._up = frozenset(found)
        return self._up

    # ---- the limits, for the copies

    def source(self, bookie: str) -> Source:
        """Returns what is known of a bookie that is read from."""
        found = self._sources.get(bookie)
        if found is None:
            found = self._sources[bookie] = Source(
                self._new_window(self.copier_options.source_bytes_max)
            )
        return found

    def target(self, bookie: str) -> DelayWindow:
        """Returns the window of a bookie that is written to."""
        found = self._targets.get(bookie)
        if found is None:
            found = self._targets[bookie] = self._new_window(self.copier_options.target_bytes_max)
        return found

    def _new_window(self, bytes_max: int) -> DelayWindow:
        return DelayWindow(bytes_max, self.copier_options.delay_target_ms / 1000)

    def wake_all(self) -> None:
        """Has the copies that wait for capacity look for it; there are `ledgers_at_once` at
        most."""
        for one in self._active.values():
            if one.is_blocked:
                one.wake()

    def count(self, entries: int, payload_bytes: int) -> None:
        """Entries were acknowledged by a target."""
        self.entries += entries
        self.payload_bytes += payload_bytes


def _check_ranges(metadata: LedgerMetadata, ranges: Sequence[Range]) -> None:
    last_fixed = fixed_part(metadata).last_entry_id
    before = -1
    for first, last in ranges:
        if not before < first <= last <= last_fixed:
            raise InvalidArgument(
                f"entries {first}..{last} of ledger {metadata.ledger_id}: ranges ascend without "
                f"overlaps, and end at entry {last_fixed}, the last one that cannot change"
            )
        before = last
