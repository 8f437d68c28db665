"""Replaces bookies of a writer's ensemble that failed. One change at a time per ledger.

During a change the core confirms nothing: an entry must reach its ack quorum in the stored
ensemble. If there is no replacement, but every write set still has an ack quorum, the writer
continues with the working bookies and keeps looking (docs/adr/0010). So a cluster of three survives
the loss of one bookie, and uses it again when it returns, after a back-off that grows with repeated
failures. A writer with nothing in flight waits for its next append: when a bookie dies, ten
thousand idle ledgers change nothing, unless it stays away (`writing.idle_replacement`). An
unreachable metadata store is waited for, because whether there is a replacement is unknown then.

Bookies may accept connections and refuse every add. Each ensemble change costs a fragment in the
metadata permanently, so after replacements that acknowledged nothing the next change waits longer
(`core.bookie_backoff`), and the time after which a writer without an ack quorum gives up counts
from the first failure since an entry was acknowledged, however many changes came after it.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Protocol

import trio

from ledger.connection.connection import BookieConnection
from ledger.core.append import AppendCore
from ledger.core.bookie_backoff import BookieBackoff, ReplacementPace
from ledger.core.metadata import LedgerMetadata, with_next_ensemble
from ledger.core.placement.policies import placement_or_default
from ledger.core.placement.topology import Candidates
from ledger.errors import (
    BookieUnavailable,
    LedgerError,
    LedgerFenced,
    MetadataConflict,
    MetadataUnavailable,
    NoSuchLedger,
    NotEnoughBookies,
    Unauthorized,
)
from ledger.metastore.ledgers import CLIENT_TAG, client_path
from ledger.writing.force import force
from ledger.writing.send_loop import SendLoop

_LOOK_AGAIN_S = 0.25
_STEADY_S = 60.0
_OUTAGE_S_MAX = 120.0
"""How long a writer that needs the metadata store waits for one that is out of reach."""


class ChangingWriter(Protocol):
    """The writer, as seen by its ensemble change."""

    metadata: LedgerMetadata
    ledger_id: int
    error: LedgerError | None
    core: AppendCore
    connections: list[BookieConnection | None]

    @property
    def wire_version(self) -> int: ...

    def attach(self, index: int) -> None: ...

    def detach(self, index: int) -> None: ...

    def resend(self, indices: tuple[int, ...]) -> None: ...

    def settle(self) -> None: ...

    def confirmed_moved(self) -> None: ...

    def fail(self, error: LedgerError) -> None: ...


class EnsembleChange:
    """The ensemble changes of one writer. `begin` is called for each failure, `resume` when entries
    are sent while a bookie is failed; one task per writer works until no bookie is failed, or
    nothing is in flight."""

    def __init__(self, writer: ChangingWriter, loop: SendLoop) -> None:
        self._writer = writer
        self._loop = loop
        self._reasons: dict[str, LedgerError] = {}
        self._is_running = False
        self._is_wanted = False
        """Whether entries were sent since the last search for replacements."""
        self._prefers_itself = False
        self._look_at = -math.inf
        self._outage = ""
        self._refusal = ""
        """Why the ledger's placement permitted no replacement when one was searched last."""
        self._placement = placement_or_default(writer.metadata.custom)
        # A slow bookie is noticed only after the add timeout: it must have worked for longer.
        self._backoff = BookieBackoff(max(_STEADY_S, 4 * loop.options.add_timeout_s))
        self._pace = ReplacementPace()
        self._stalled_since: float | None = None
        """The first failure since an entry was acknowledged; outages of the store move it."""
        self._stalled_at = -1
        self.count = 0

    def begin(self, index: int, error: LedgerError) -> None:
        bookie = self._writer.metadata.last_fragment.bookies[index]
        self._reasons[bookie] = error
        core, now_s = self._writer.core, trio.current_time()
        is_busy = self._is_busy
        is_unproved = is_busy and self._pace.failed(index, core.acks_of(index))
        self._backoff.failed(bookie, now_s, is_unproved=is_unproved)
        if is_unproved:
            self._look_at = max(self._look_at, now_s + self._pace.pause_s)
        if is_busy:
            self.resume()
        else:
            self._loop.idle.add(self)

    @property
    def _is_busy(self) -> bool:
        core = self._writer.core
        return core.last_add_pushed > core.last_add_confirmed

    @property
    def wire_version(self) -> int:
        """The version in which the writer uses its bookies."""
        return self._writer.wire_version

    @property
    def failed_while_idle(self) -> tuple[str, ...]:
        """The failed bookies; none if replacements are searched for, or the writer has ended."""
        if self._is_running or self._is_busy or self._has_ended():
            return ()
        bookies = self._writer.metadata.last_fragment.bookies
        return tuple(bookies[index] for index in self._writer.core.failed)

    def renew(self, usable: Collection[str], *, is_due: bool) -> bool:
        """For an idle writer: uses a bookie of `usable` again without an ensemble change if it
        lacks nothing. Begins a change if one of them lacks something, or `is_due`; returns whether
        it did."""
        if not self.failed_while_idle:
            return False
        writer, core = self._writer, self._writer.core
        bookies = writer.metadata.last_fragment.bookies
        for index in [i for i in core.failed if bookies[i] in usable and not core.lacks(i)]:
            core.restored(index)
            self._backoff.taken(bookies[index], trio.current_time())
            writer.attach(index)
        is_wanted = any(is_due or bookies[index] in usable for index in core.failed)
        if is_wanted:
            self.resume(prefers_itself=True)
        return is_wanted

    def resume(self, *, prefers_itself: bool = False) -> None:
        """Continues to look for replacements: entries in flight belong to a failed bookie. With
        `prefers_itself` a bookie that has returned is its own replacement of first resort."""
        self._is_wanted, self._prefers_itself = True, prefers_itself
        self._note_stall()
        if not self._is_running:
            assert self._loop.nursery is not None, "the client is not open"
            self._is_running = True
            self._loop.nursery.start_soon(self._run)

    def _note_stall(self) -> None:
        acknowledged = self._writer.core.last_add_acknowledged
        if self._stalled_since is None or acknowledged > self._stalled_at:
            self._stalled_since, self._stalled_at = trio.current_time(), acknowledged

    async def _run(self) -> None:
        core = self._writer.core
        try:
            outage_end = trio.current_time() + _OUTAGE_S_MAX
            while core.failed and not self._has_ended():
                if core.can_continue_without_failed():
                    # Acks of the others count while a replacement is searched.
                    if core.is_suspended:
                        core.continue_without_failed()
                        self._writer.settle()
                    self._note_stall()
                if not self._is_wanted and not self._is_busy:
                    self._stalled_since = None
                    self._loop.idle.add(self, is_repeated=True)
                    return  # idle: the next append continues the search, or a look some time later
                if core.is_suspended and trio.current_time() >= self._deadline():
                    self._writer.fail(self._not_enough())
                    return
                if trio.current_time() < self._look_at:
                    can_wait = core.can_continue_without_failed()
                    until = self._look_at if can_wait else min(self._look_at, self._deadline())
                    await trio.sleep_until(until)
                    continue
                self._is_wanted = False
                self._look_at = trio.current_time() + _LOOK_AGAIN_S
                try:
                    change = await self._replacements()
                    outage_end, self._outage = trio.current_time() + _OUTAGE_S_MAX, ""
                except MetadataUnavailable as error:
                    change = None
                    self._outage = f"; the metadata store is unreachable: {error}"
                    self._wait_for_store(outage_end)
                if self._has_ended():
                    return
                if change is not None:
                    self._look_at = -math.inf
                    begun_s = trio.current_time()
                    await self._store(*change)
                    if self._stalled_since is not None:
                        self._stalled_since += trio.current_time() - begun_s
        except LedgerError as error:
            self._writer.fail(error)
        finally:
            self._is_running = False

    def _has_ended(self) -> bool:
        return self._writer.error is not None

    def _deadline(self) -> float:
        since_s = self._stalled_since
        assert since_s is not None, "no failure was noted"
        return since_s + self._loop.options.ensemble_change_timeout_s

    def _wait_for_store(self, outage_end: float) -> None:
        """Begins the time to give up from scratch, up to `outage_end`: while the store is
        unreachable, whether there is a replacement is unknown."""
        timeout_s = self._loop.options.ensemble_change_timeout_s
        assert self._stalled_since is not None
        until = min(trio.current_time(), outage_end - timeout_s)
        self._stalled_since = max(self._stalled_since, until)

    async def _replacements(self) -> tuple[tuple[str, ...], tuple[int, ...]] | None:
        """Returns a new ensemble and the indices that are new in it; None if nothing can be
        replaced.

        A failed bookie that has returned is its own replacement of last resort. Raises
        MetadataUnavailable.
        """
        writer = self._writer
        ensemble = writer.metadata.last_fragment.bookies
        replaced: list[int] = []
        candidates = await self._loop.bookies.candidates()
        for index in list(writer.core.failed):
            bookie = await self._reachable(ensemble, index, candidates)
            if bookie is not None:
                ensemble = (*ensemble[:index], bookie, *ensemble[index + 1 :])
                replaced.append(index)
        return (ensemble, tuple(replaced)) if replaced else None

    async def _reachable(
        self, ensemble: tuple[str, ...], index: int, candidates: Candidates
    ) -> str | None:
        """Returns a bookie for `index` that accepts a connection. During its back-off a bookie is
        used only if the ledger cannot be written without it."""
        now_s = trio.current_time()
        resting = [one for one in candidates.places if self._backoff.is_resting(one, now_s)]
        found = await self._reachable_without(ensemble, index, candidates, resting)
        if found is None and resting and not self._writer.core.can_continue_without_failed():
            found = await self._reachable_without(ensemble, index, candidates, [])
        return found

    async def _reachable_without(
        self, ensemble: tuple[str, ...], index: int, candidates: Candidates, without: list[str]
    ) -> str | None:
        itself = ensemble[index]
        can_return = itself in candidates.places and itself not in without
        if can_return and self._prefers_itself and await self._is_reachable(itself):
            return itself
        excluded, core = [*without], self._writer.core
        while True:
            try:
                chosen = self._placement.replace(
                    ensemble, (index,), core.write_quorum, core.ack_quorum, candidates, excluded,
                    self._loop.rng,
                )  # fmt: skip
            except NotEnoughBookies as error:
                self._refusal = "" if self._placement.is_default else f" ({error})"
                break
            if await self._is_reachable(chosen[index]):
                return chosen[index]
            excluded.append(chosen[index])
        return itself if can_return and await self._is_reachable(itself) else None

    async def _is_reachable(self, bookie: str) -> bool:
        try:
            await self._loop.pool.wait_connected(bookie, self._writer.wire_version)
        except (BookieUnavailable, Unauthorized):
            return False
        return True

    async def _store(self, ensemble: tuple[str, ...], replaced: tuple[int, ...]) -> None:
        """Stores the ensemble from the first unconfirmed entry on, then resends to it.

        After the request to the store, confirmation stays suspended until the outcome is known:
        an unknown outcome is requested again, never guessed.
        """
        writer, core = self._writer, self._writer.core
        core.is_suspended = True
        if core.is_sync_deferred:
            # The old ensemble keeps what was acknowledged there, which must be durable first.
            await force(writer, self._loop)
            if self._has_ended():
                return
        first = core.last_add_confirmed + 1
        own = writer.metadata.last_fragment

        def changed(stored: LedgerMetadata) -> LedgerMetadata | None:
            return with_next_ensemble(stored, own, first, ensemble)

        tag = writer.metadata.custom.get(CLIENT_TAG)
        client = None if tag is None else client_path(tag.decode())
        give_up_at = trio.current_time() + _OUTAGE_S_MAX
        while True:
            try:
                metadata = await self._loop.ledgers.update(
                    writer.ledger_id, changed, while_exists=client
                )
                break
            except (MetadataUnavailable, MetadataConflict) as error:
                if trio.current_time() >= give_up_at or self._has_ended():
                    raise MetadataUnavailable(
                        f"ledger {writer.ledger_id}: whether the new ensemble is stored is "
                        f"unknown ({error}); entries after {core.last_add_confirmed} are unknown"
                    ) from error
                await trio.sleep(_LOOK_AGAIN_S)
            except LedgerFenced as error:
                raise LedgerFenced(
                    f"{error}; confirmed up to entry {core.last_add_confirmed}"
                ) from error
            except NoSuchLedger as error:
                raise LedgerFenced(f"ledger {writer.ledger_id} was deleted") from error
        if self._has_ended():
            return
        self.count += 1
        missed = [own.bookies[index] for index in replaced if core.lacks(index)]
        self._loop.missed.record(writer.ledger_id, missed)
        for index in replaced:
            writer.detach(index)
            self._backoff.taken(ensemble[index], trio.current_time())
        writer.metadata = metadata
        core.ensemble_changed(replaced)
        self._pace.changed({index: core.acks_of(index) for index in replaced})
        for index in replaced:
            writer.attach(index)
        writer.resend(replaced)
        writer.settle()

    def _not_enough(self) -> LedgerError:
        core = self._writer.core
        bookies = self._writer.metadata.last_fragment.bookies
        reasons = [self._reasons.get(bookies[i]) for i in core.failed]
        failed = ", ".join(f"{bookies[i]} ({self._reasons.get(bookies[i])})" for i in core.failed)
        kind = Unauthorized if all(isinstance(r, Unauthorized) for r in reasons) else None
        return (kind or NotEnoughBookies)(
            f"ledger {self._writer.ledger_id}: needed {core.ack_quorum} of {core.write_quorum} "
            f"acks; failed: {failed}; no replacement found in "
            f"{self._loop.options.ensemble_change_timeout_s:g} s{self._refusal}; entries after "
            f"{core.last_add_confirmed} are unknown; recover the ledger to learn which exist"
        )
