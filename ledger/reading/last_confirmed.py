"""One long poll: asks a bookie to answer when an entry after a known one is confirmed.

Others are asked when the first says nothing for a while: it may lag behind, or hang, or the
writer does without it.
The entry itself comes with the answer, so a tail needs one trip per wake-up.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

from ledger.connection.pool import BookiePool
from ledger.core.entry import Digest, Entry
from ledger.core.reading import ReplicaRead
from ledger.errors import (
    INVALID_ENTRY_ID,
    DigestMismatch,
    LedgerError,
    RemoteProtocolError,
    Status,
    error_of_status,
)
from ledger.options import ClientOptions
from ledger.reading.replica_call import ReplicaCall
from ledger.reading.replica_fetch import ReplicaFetch
from ledger.wire.messages import ReadRequest, ReadResponse, ResponseBody


@dataclass(frozen=True, slots=True)
class PollAnswer:
    """`entry` is the one after the known one, if it came along."""

    lac: int
    entry: Entry | None


class LacPoll:
    """Polls for one reader; shares its order of replicas."""

    def __init__(
        self, fetch: ReplicaFetch, digest: Digest, pool: BookiePool, options: ClientOptions
    ) -> None:
        self.count = 0
        """Polls sent."""
        self._fetch = fetch
        self._digest = digest
        self._pool = pool
        self._options = options
        self._running: dict[ReplicaCall[PollAnswer], None] = {}

    def interrupt(self) -> None:
        """Ends the polls under way: there is something to look up first."""
        for call in self._running:
            call.interrupt()

    async def poll(self, known: int, poll_s: float) -> PollAnswer | None:
        """The first answer of a bookie; None if none could answer, or after `interrupt`."""
        metadata = self._fetch.metadata
        ledger_id = metadata.ledger_id
        began_s = trio.current_time()
        order = self._fetch.order.order(metadata, known + 1, began_s)
        what = f"long poll for entry {known + 1} of ledger {ledger_id}"
        # So many together that one of them is in every ack quorum, and hears what is confirmed.
        hedges_max = max(1, metadata.write_quorum - metadata.ack_quorum)
        hedge_s = self._options.speculative_read_s
        read = ReplicaRead[PollAnswer](what, order, hedge_s, hedges_max=hedges_max)

        def request(_bookie: str) -> ReadRequest:
            self.count += 1
            left_s = max(began_s + poll_s - trio.current_time(), 0.001)
            return ReadRequest(
                ledger_id,
                INVALID_ENTRY_ID,
                is_piggyback=True,
                previous_lac=known,
                timeout_ms=max(1, int(left_s * 1000)),
            )

        def take(bookie: str, response: ResponseBody) -> PollAnswer:
            return self._taken(bookie, response, known)

        timeout_s = poll_s + self._options.read_timeout_s
        call = ReplicaCall(self._pool, read, request, take, timeout_s=timeout_s)
        self._running[call] = None
        answer: PollAnswer | None = None
        try:
            answer = await call.run()
        except LedgerError:
            pass  # no replica could say: the caller pauses and asks again
        finally:
            del self._running[call]
        # A bookie that was overtaken lags behind; one that just had nothing to say does not.
        overtaken = read.slow if answer is not None and answer.lac > known else []
        for bookie in [*read.errors, *overtaken]:
            self._fetch.order.failed(bookie, trio.current_time())
        return answer

    def _taken(self, bookie: str, response: ResponseBody, known: int) -> PollAnswer:
        if response.status is not Status.OK:
            raise error_of_status(response.status, f"long poll at {bookie}")
        if not isinstance(response, ReadResponse):
            raise RemoteProtocolError(f"{bookie} answered a long poll with {response}")
        lac = -1 if response.max_lac is None else response.max_lac
        if response.body is None:
            return PollAnswer(lac, None)
        try:
            entry = self._digest.decode_entry(
                self._fetch.metadata.ledger_id, known + 1, response.body
            )
        except DigestMismatch:
            self._fetch.counts.digest_mismatches += 1
            raise
        return PollAnswer(max(lac, entry.lac), entry)
