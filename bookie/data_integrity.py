"""Data integrity check: entries that a bookie may have lost are unknown until they are copied back.

A bookie that starts with an unverified directory (`bookie.core.integrity_state`) serves nothing
before every ledger with this bookie in its metadata has a state here, fenced and *in limbo*: an
entry that is missing is then "unknown", which no reader and no recovery takes as proof that it
never existed. A ledger that is closed and complete here is not put in limbo.

Then `LimboRepair` works in the background: once a ledger is closed, it fetches the missing entries
from the other bookies. Ledgers that stay open stay in limbo: to close one fences its writer, which
is an operator's decision (`ledgerstream ledger recover`). Their entries that can no longer change
are fetched all the same, so that there are as many copies as before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from bookie.core.integrity_state import IntegrityStage, IntegrityState
from bookie.named_ledgers import in_steps, may_hold, read_metadata
from bookie.server.requests import Requests
from bookie.storage.bookie_storage import BookieStorage
from bookie.storage.ledger_storage import LedgerStorage
from ledger.connection.claims import check_key_at, must_show_key
from ledger.core.availability import Range, expected_ranges, fixed_part
from ledger.core.entry import Digest, DigestType
from ledger.core.ledger_keys import check_key_known, master_key_of
from ledger.core.metadata import LedgerMetadata
from ledger.errors import (
    BookieIoError,
    LedgerError,
    NoSuchLedger,
    RetryableError,
    Status,
)
from ledger.metastore.ledgers import LedgerStore
from ledger.wire.messages import AddRequest, Request, ResponseBody

if TYPE_CHECKING:
    from ledger.client import LedgerClient
    from ledger.reading.reader import LedgerReader

_log = logging.getLogger(__name__)

REPAIR_INTERVAL_S = 30.0
_LEDGERS_PER_STEP = 100
_ENTRIES_PER_READ = 64
_RANGES_PER_ROUND = 1000
_FAILURES_MAX = 64
"""A round leaves a ledger after this number of entries that no bookie returned."""
_FETCHED_TO_MAX = 100_000


async def put_in_limbo(storage: BookieStorage, ledgers: LedgerStore, bookie_id: str) -> int:
    """Puts ledgers in limbo, after the replay and before anything is served; returns how many.

    Raises MetadataUnavailable: nothing may be served, and the caller must try again. Also raises
    the errors of storage.
    """
    unverified = {
        number: directory
        for number, directory in enumerate(storage.directories)
        if (state := directory.integrity.state) is not None
        and state.stage is IntegrityStage.LEDGERS_UNKNOWN
    }
    layout = storage.layout
    has_dropped = layout.layout is not None and bool(layout.layout.unsettled)
    if not unverified and not has_dropped:
        return 0
    found: dict[int, int] = {}
    ids = [
        one
        for one in await ledgers.list()
        if layout.may_lack(one) or layout.directory_of(one) in unverified
    ]
    for step in in_steps(ids):
        last_ids: dict[int, dict[int, int]] = {}
        for ledger_id, metadata in (await read_metadata(ledgers, step)).items():
            number = layout.directory_of(ledger_id)
            directory = storage.directories[number]
            is_limbo = _settle(storage, directory, metadata, ledger_id, bookie_id)
            found[number] = found.get(number, 0) + is_limbo
            if metadata is not None and metadata.is_closed:
                last_ids.setdefault(number, {})[ledger_id] = metadata.last_entry_id
        for number, closed in last_ids.items():
            await storage.directories[number].history.closed(closed)
        for number in found:
            if storage.directories[number].task.is_due:
                await storage.directories[number].checkpoint()
    for number in sorted({*unverified, *found}):
        directory = storage.directories[number]
        await directory.checkpoint()  # stores the states before the record that all have one
        await _ledgers_known(directory, found.get(number, 0))
    return sum(found.values())


async def _ledgers_known(directory: LedgerStorage, found: int) -> None:
    state = directory.integrity.state or IntegrityState(
        IntegrityStage.LEDGERS_IN_LIMBO, "a ledger directory was dropped"
    )
    if not found and not await directory.integrity.ledgers_in_limbo(-1, 1):
        await directory.integrity.set_state(None)  # the bookie really is new, or had none there
        return
    is_first = state.stage is IntegrityStage.LEDGERS_UNKNOWN
    directory.integrity.statistics.ledgers = found if is_first else None  # others may be in limbo
    await directory.integrity.set_state(state._replace(stage=IntegrityStage.LEDGERS_IN_LIMBO))
    _log.warning(
        "ledgers in limbo directory=%s ledgers=%d cause=%s",
        directory.directory,
        found,
        state.reason,
    )


def _settle(
    storage: BookieStorage,
    directory: LedgerStorage,
    metadata: LedgerMetadata | None,
    ledger_id: int,
    bookie_id: str,
) -> bool:
    """Gives a ledger its state; returns whether it is in limbo now."""
    state = storage.state(ledger_id)
    if state is not None and state.is_deleted:
        return False
    if state is None and not may_hold(metadata, bookie_id):
        return False
    key = b"" if metadata is None else master_key_of(metadata)
    if state is None:
        state = storage.create(ledger_id, key)
    elif not state.master_key:
        state.master_key = key
    state.is_limbo = not (
        metadata is not None
        and metadata.is_closed
        and not directory.integrity.missing(ledger_id, expected_ranges(metadata, bookie_id), 1)
    )
    state.fence()
    storage.state_changed(state)
    return state.is_limbo


def _learn_key(directory: LedgerStorage, metadata: LedgerMetadata) -> None:
    """Sets the master key of a ledger whose metadata could not be read when it was put in limbo.
    Without it no entry could be stored for it, nor could a client fence it here."""
    state = directory.state(metadata.ledger_id)
    if state is not None and not state.is_key_known and not state.is_deleted:
        state.master_key = master_key_of(metadata)
        directory.state_changed(state)


class LimboRepair:
    """Ends limbo ledger by ledger, in rounds, with one read at a time.

    Args:
        open_client: returns a client of the cluster; called only if there is a ledger to repair.
    """

    def __init__(
        self,
        storage: BookieStorage,
        requests: Requests,
        bookie_id: str,
        open_client: Callable[[], LedgerClient],
    ) -> None:
        self._storage = storage
        self._requests = requests
        self._bookie_id = bookie_id
        self._open_client = open_client
        self.round_ended = trio.Event()
        """Set at the end of the current or next round, and then replaced."""
        self._fetched_to: dict[int, int] = {}
        """The entry up to which an open ledger is complete here."""
        self._resume_after: dict[int, int] = {}
        """The entry after which the next round continues with a ledger that it had to leave."""

    async def run(self) -> None:
        """Returns when all directories are verified. Raises StorageFailed, and BookieIoError if
        the state of a directory cannot be read."""
        while any(directory.integrity.state for directory in self._storage.directories):
            async with self._open_client() as client:
                for directory in self._storage.directories:
                    if directory.integrity.state is not None:
                        await self._try_directory(directory, client)
            self.round_ended.set()
            self.round_ended = trio.Event()
            await trio.sleep(REPAIR_INTERVAL_S)

    async def _try_directory(self, directory: LedgerStorage, client: LedgerClient) -> None:
        statistics = directory.integrity.statistics
        try:
            if statistics.ledgers is None:
                statistics.ledgers = await directory.integrity.count_in_limbo()
            statistics.ledgers = await self._repair_directory(directory, client)
        except BookieIoError as error:
            # Part of the index cannot be read. The rest is served as before.
            _log.error("limbo continues directory=%s cause=%s", directory.directory, error)

    async def _repair_directory(self, directory: LedgerStorage, client: LedgerClient) -> int:
        """Returns how many ledgers stay in limbo. Raises BookieIoError, StorageFailed."""
        left, after = 0, -1
        statistics = directory.integrity.statistics
        while ids := await directory.integrity.ledgers_in_limbo(after, _LEDGERS_PER_STEP):
            for ledger_id in ids:
                state = directory.state(ledger_id)
                if state is None or state.is_deleted or not state.is_limbo:
                    continue
                is_whole = await self._repair(directory, client, ledger_id)
                state = directory.state(ledger_id)
                if state is None or state.is_deleted:  # it must not be stored again
                    continue
                if is_whole:
                    state.is_limbo = False
                    directory.state_changed(state)
                    self._fetched_to.pop(ledger_id, None)
                    statistics.ledgers_repaired += 1
                    statistics.ledgers = max(0, (statistics.ledgers or 0) - 1)
                else:
                    left += 1
            after = ids[-1]
        if not left:
            await directory.task.made()
            await directory.integrity.set_state(None)
            _log.info("no ledger is in limbo any more directory=%s", directory.directory)
        return left

    async def _repair(self, directory: LedgerStorage, client: LedgerClient, ledger_id: int) -> bool:
        """Repairs a ledger; returns whether it is complete and closed."""
        try:
            metadata = await client.ledger_metadata(ledger_id)
            check_key_known(metadata)
            await self._check_sources(client, metadata)
            _learn_key(directory, metadata)
            if metadata.is_closed:
                await directory.history.closed({ledger_id: metadata.last_entry_id})
            fixed = fixed_part(metadata)
            if not metadata.is_closed and self._fetched_to.get(ledger_id) == fixed.last_entry_id:
                return False
            if not await self._fetch(directory, client, fixed):
                return False
        except NoSuchLedger:
            return False  # garbage collection removes it
        except LedgerError as error:
            self._log_kept(ledger_id, error)
            return False
        if not metadata.is_closed:
            if len(self._fetched_to) >= _FETCHED_TO_MAX:
                self._fetched_to.clear()  # each costs another search of the index
            self._fetched_to[ledger_id] = fixed.last_entry_id
        return metadata.is_closed

    async def _check_sources(self, client: LedgerClient, metadata: LedgerMetadata) -> None:
        """Raises Unauthorized if another bookie has the ledger under another key than its metadata
        implies: then entries must not be stored here under that one. One that does not answer
        proves nothing: the repair does not wait for bookies that are lost."""
        if not must_show_key(metadata, client.ledgers.keys):
            return
        bookies = {one for fragment in metadata.fragments for one in fragment.bookies}
        timeout_s = client.options.read_timeout_s
        for bookie in sorted(bookies - {self._bookie_id}):
            with suppress(RetryableError):
                await check_key_at(client.pool, bookie, metadata, timeout_s=timeout_s)

    async def _fetch(
        self, directory: LedgerStorage, client: LedgerClient, metadata: LedgerMetadata
    ) -> bool:
        """Copies the missing entries. Returns False if some are on no bookie or were skipped; the
        others are copied all the same. Raises LedgerError."""
        begun_after = after = self._resume_after.pop(metadata.ledger_id, -1)
        failed = 0
        while missing := await self._missing(directory, metadata, after):
            for first, last in missing:
                async with client.reader_of(metadata, password=metadata.password) as reader:
                    for begin in range(first, last + 1, _ENTRIES_PER_READ):
                        end = min(begin + _ENTRIES_PER_READ - 1, last)
                        failed += await self._copy(directory, reader, metadata, begin, end)
                        if failed >= _FAILURES_MAX:
                            # All others may be down. The next round continues after it.
                            self._resume_after[metadata.ledger_id] = end
                            return False
            after = missing[-1][1]
        return not failed and begun_after < 0

    async def _missing(
        self, directory: LedgerStorage, metadata: LedgerMetadata, after: int
    ) -> list[Range]:
        """Returns ranges of entries after `after` that are neither in the index nor in the write
        cache."""

        def ask(count_max: int) -> list[Range]:
            expected = expected_ranges(metadata, self._bookie_id)
            behind = ((max(one[0], after + 1), one[1]) for one in expected if one[1] > after)
            return directory.integrity.missing(metadata.ledger_id, behind, count_max)

        if not ask(1):
            return []
        await directory.task.made()  # so that the index has all
        return ask(_RANGES_PER_ROUND)

    async def _copy(
        self,
        directory: LedgerStorage,
        reader: LedgerReader,
        metadata: LedgerMetadata,
        first: int,
        last: int,
    ) -> int:
        """Copies entries; returns how many no other bookie returned. Raises LedgerError if one
        cannot be stored here."""
        digest = Digest(metadata.digest_type or DigestType.CRC32, metadata.password)
        key, ledger_id = master_key_of(metadata), metadata.ledger_id
        failed, ranges = 0, [(first, last)]
        while ranges:
            begin, end = ranges.pop(0)
            try:
                entries = await reader.read(begin, end)
            except LedgerError as error:
                if begin == end:
                    failed += 1
                    self._log_kept(ledger_id, error)
                else:  # one lost entry must not prevent copies of the others
                    middle = (begin + end) // 2
                    ranges[:0] = [(begin, middle), (middle + 1, end)]
                continue
            adds = []
            for entry in entries:
                body = b"".join(
                    digest.encode_entry(
                        ledger_id, entry.entry_id, entry.lac, entry.length, entry.payload
                    )
                )
                adds.append(AddRequest(ledger_id, entry.entry_id, key, body, is_recovery=True))
            await self._store(adds)
            directory.integrity.statistics.entries_copied += len(adds)
        return failed

    def _log_kept(self, ledger_id: int, error: LedgerError) -> None:
        _log.warning("ledger stays in limbo ledger=%d cause=%s", ledger_id, error)

    async def _store(self, adds: list[AddRequest]) -> None:
        """Adds entries as recovery does, and waits until they are durable."""
        await self._storage.wait_capacity()
        failed: list[Status] = []
        waiting, done = len(adds), trio.Event()

        def reply(answer: ResponseBody) -> None:
            nonlocal waiting
            if answer.status is not Status.OK:
                failed.append(answer.status)
            waiting -= 1
            if not waiting:
                done.set()

        for add in adds:
            request = Request(2, 0, add)
            if not self._requests.answer_nowait(request, reply, lambda: False):
                await self._requests.answer(request, reply, lambda: False)
        await done.wait()
        if failed:
            raise BookieIoError(
                f"ledger {adds[0].ledger_id}: {len(failed)} copied entries were not stored here: "
                f"{failed[0].name}"
            )
