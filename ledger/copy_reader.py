"""CopyReader: reads the copies that one bookie has of a ledger's entries. For `ledger.verify`.

Unlike `replica_fetch` it never asks another bookie instead: each copy is read where the metadata
says that it is. Every answer is classified by what it proves (`core.copies`). A bookie that does
not answer is asked again a few times, and then not for a while.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import trio

from ledger.connection.pool import BookiePool
from ledger.core.copies import BadCopy, Copy, CopyState
from ledger.core.entry import Digest
from ledger.errors import (
    DigestMismatch,
    LedgerClosed,
    LedgerError,
    OperationTimeout,
    RemoteProtocolError,
    Status,
    TooManyRequests,
)
from ledger.options import ClientOptions
from ledger.wire.messages import (
    FRAME_BYTES_MAX,
    BatchReadRequest,
    BatchReadResponse,
    Buffer,
    ListEntriesRequest,
    ReadRequest,
    ReadResponse,
)

_TRIES_MAX = 4
_PAUSE_S = 0.2
"""After the first failure; doubles."""
_LEFT_ALONE_S = 15.0
"""How long a bookie that did not answer is not asked."""
_SINGLES_AT_ONCE = 32
_STATE_OF_STATUS = {
    Status.NO_SUCH_ENTRY: CopyState.MISSING,
    Status.NO_SUCH_LEDGER: CopyState.MISSING,
    Status.UNKNOWN_LEDGER_STATE: CopyState.UNKNOWN,
}
_IO_ERROR = BadCopy(CopyState.UNREADABLE, "it says: io error")
_LIMBO = BadCopy(CopyState.UNKNOWN, "it says: unknown ledger state")


class SilentBookies:
    """Which bookies did not answer recently, and why. Verifications that share it wait for a silent
    bookie only once."""

    def __init__(self) -> None:
        self._until: dict[str, tuple[float, str]] = {}

    def reason(self, bookie: str) -> str:
        """Returns why the bookie is not asked now; "" if it may be asked."""
        until_s, reason = self._until.get(bookie, (0.0, ""))
        return reason if trio.current_time() < until_s else ""

    def note(self, bookie: str, reason: str) -> None:
        """Records that the bookie did not answer."""
        self._until[bookie] = trio.current_time() + _LEFT_ALONE_S, reason


class CopyReader:
    """Reads copies of the entries of one ledger; any number of bookies at once."""

    def __init__(
        self,
        ledger_id: int,
        digest: Digest,
        pool: BookiePool,
        options: ClientOptions,
        silent: SilentBookies,
    ) -> None:
        self._ledger_id = ledger_id
        self._digest = digest
        self._pool = pool
        self._options = options
        self._silent = silent
        self._limbo: dict[str, bool] = {}

    async def read(self, bookie: str, entry_ids: Sequence[int]) -> dict[int, Copy]:
        """Returns the bookie's copy of each of these ascending entries, in this order.

        Raises LedgerClosed if the client is closed; all other failures are in the copies.
        """
        found: dict[int, Copy] = {}
        reason = self._silent.reason(bookie)
        if not reason:
            reason = await self._read_with_tries(bookie, entry_ids, found)
            if reason:
                self._silent.note(bookie, reason)
        if any(copy is _IO_ERROR for copy in found.values()) and await self._is_limbo(bookie):
            found = {e: _LIMBO if copy is _IO_ERROR else copy for e, copy in found.items()}
        unreachable = BadCopy(CopyState.UNREACHABLE, reason)
        return {entry_id: found.get(entry_id, unreachable) for entry_id in entry_ids}

    async def _is_limbo(self, bookie: str) -> bool:
        """Whether the bookie may have lost entries of this ledger: v2 reports that as an I/O error,
        so it takes a v3 request to find out."""
        if bookie not in self._limbo:
            try:
                answer = await self._pool.call(
                    bookie,
                    ListEntriesRequest(self._ledger_id),
                    timeout_s=self._options.read_timeout_s,
                )
            except LedgerError:
                return False
            self._limbo[bookie] = answer.status is Status.UNKNOWN_LEDGER_STATE
        return self._limbo[bookie]

    async def _read_with_tries(
        self, bookie: str, entry_ids: Sequence[int], found: dict[int, Copy]
    ) -> str:
        """Reads the entries not yet `found`; returns why it gave up, "" if it did not."""
        reason, failures = "", 0
        while failures < _TRIES_MAX:
            if failures:
                await trio.sleep(_PAUSE_S * 2 ** (failures - 1))
            before = len(found)
            try:
                await self._read_all(bookie, [e for e in entry_ids if e not in found], found)
            except LedgerClosed:
                raise
            except LedgerError as error:
                reason = f"{type(error).__name__}: {error}"
                if isinstance(error, OperationTimeout):
                    failures += 2  # after such a long silence it is asked only once more
                else:
                    failures = 1 if len(found) > before else failures + 1
            else:
                return ""
        return reason

    async def _read_all(
        self, bookie: str, entry_ids: Sequence[int], found: dict[int, Copy]
    ) -> None:
        for first, last in _runs(entry_ids):
            at = first
            while at <= last:
                at = await self._read_some(bookie, at, last, found)

    async def _read_some(self, bookie: str, first: int, last: int, found: dict[int, Copy]) -> int:
        """Reads some of first..last, at least one; returns the next entry to read."""
        size_max = min(2 * self._options.batch_read_bytes, FRAME_BYTES_MAX - 1024)
        count = last - first + 1
        answer = None
        if count > 1:
            answer = await self._pool.read_batch(
                bookie,
                BatchReadRequest(self._ledger_id, first, count, size_max),
                timeout_s=self._options.read_timeout_s,
            )
        if answer is None or answer.status in (Status.NO_SUCH_ENTRY, Status.IO_ERROR):
            # No batch reads, or a bad first entry: single reads distinguish the entries.
            end = min(last, first + _SINGLES_AT_ONCE - 1)
            await self._read_singles(bookie, range(first, end + 1), found)
            return end + 1
        if answer.status is not Status.OK:
            bad = bad_copy(answer.status, bookie)
            found.update(dict.fromkeys(range(first, last + 1), bad))
            return last + 1
        if not isinstance(answer, BatchReadResponse) or not 0 < len(answer.bodies) <= count:
            raise RemoteProtocolError(f"{bookie} answered a batch read of {count} with no batch")
        self._check(first, answer.bodies, found)
        return first + len(answer.bodies)

    async def _read_singles(
        self, bookie: str, entry_ids: Sequence[int], found: dict[int, Copy]
    ) -> None:
        failures: list[LedgerError] = []

        async def read_one(entry_id: int) -> None:
            try:
                found[entry_id] = await self._read_one(bookie, entry_id)
            except LedgerError as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            for entry_id in entry_ids:
                nursery.start_soon(read_one, entry_id)
        if failures:
            raise failures[0]

    async def _read_one(self, bookie: str, entry_id: int) -> Copy:
        answer = await self._pool.call(
            bookie,
            ReadRequest(self._ledger_id, entry_id),
            timeout_s=self._options.read_timeout_s,
        )
        if answer.status is Status.IO_ERROR and isinstance(answer, ReadResponse) and answer.body:
            return self._damaged(bookie, entry_id, answer.body)
        if answer.status is not Status.OK:
            return bad_copy(answer.status, bookie)
        if not isinstance(answer, ReadResponse) or answer.body is None:
            raise RemoteProtocolError(f"{bookie} answered a read without an entry: {answer}")
        return self._checked(entry_id, answer.body)

    def _check(self, first: int, bodies: Sequence[Buffer], found: dict[int, Copy]) -> None:
        try:
            entries = self._digest.decode_many(self._ledger_id, first, bodies)
        except DigestMismatch:
            for entry_id, body in enumerate(bodies, first):
                found[entry_id] = self._checked(entry_id, body)
        else:
            found.update(zip(range(first, first + len(entries)), entries, strict=True))

    def _damaged(self, bookie: str, entry_id: int, body: Buffer) -> BadCopy:
        """Returns the copy that a bookie refuses to serve, because its bytes do not match the
        checksums stored with them."""
        checked = self._checked(entry_id, body)
        why = checked.detail if isinstance(checked, BadCopy) else "its stored checksum is wrong"
        return BadCopy(CopyState.CORRUPT, f"damaged on bookie {bookie}, which found it: {why}")

    def _checked(self, entry_id: int, body: Buffer) -> Copy:
        try:
            return self._digest.decode_entry(self._ledger_id, entry_id, body)
        except DigestMismatch as error:
            return BadCopy(CopyState.CORRUPT, str(error))


def bad_copy(status: Status, bookie: str) -> BadCopy:
    """Returns what a status other than OK proves. Raises TooManyRequests, to be asked again."""
    if status is Status.TOO_MANY_REQUESTS:
        raise TooManyRequests(f"bookie {bookie} is overloaded")
    if status is Status.IO_ERROR:
        return _IO_ERROR
    words = status.name.lower().replace("_", " ")
    return BadCopy(_STATE_OF_STATUS.get(status, CopyState.UNREADABLE), f"it says: {words}")


def _runs(entry_ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields (first, last) of each run of consecutive ids; they ascend."""
    if entry_ids and entry_ids[-1] - entry_ids[0] + 1 == len(entry_ids):
        yield entry_ids[0], entry_ids[-1]
        return
    first = last = -1
    for entry_id in entry_ids:
        if first >= 0 and entry_id != last + 1:
            yield first, last
            first = -1
        first, last = (entry_id if first < 0 else first), entry_id
    if first >= 0:
        yield first, last
