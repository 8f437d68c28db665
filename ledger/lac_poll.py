"""One long poll: asks a bookie to answer when an entry after a known one is confirmed.

A second bookie is asked when the first says nothing for a while: it may lag behind, or hang.
The entry itself comes with the answer, so a tail needs one trip per wake-up.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

from ledger.bookie_pool import BookiePool
from ledger.core.entry import Digest, Entry
from ledger.core.reading import Ask, Failed, Got, Passed, ReplicaRead, Wait
from ledger.errors import (
    INVALID_ENTRY_ID,
    DigestMismatch,
    LedgerError,
    RemoteProtocolError,
    Status,
    error_of_status,
)
from ledger.options import ClientOptions
from ledger.replica_fetch import ReplicaFetch
from ledger.runtime.drive import drive
from ledger.wire.messages import ReadRequest, ReadResponse


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

    async def poll(self, known: int, poll_s: float, changed: trio.Event) -> PollAnswer | None:
        """The first answer of a bookie; None if none could answer or `changed` was set."""
        metadata = self._fetch.metadata
        began_s = trio.current_time()
        order = self._fetch.order.order(metadata, known + 1, began_s)
        what = f"long poll for entry {known + 1} of ledger {metadata.ledger_id}"
        read = ReplicaRead[PollAnswer](what, order, self._options.speculative_read_s, hedges_max=1)

        async def perform(action: Ask | Wait) -> Got[PollAnswer] | Failed | Passed:
            if isinstance(action, Wait):
                await trio.sleep(action.seconds)
                return Passed()
            left_s = max(began_s + poll_s - trio.current_time(), 0.001)
            try:
                return Got(action.bookie, await self._ask(action.bookie, known, left_s))
            except LedgerError as error:
                return Failed(action.bookie, error)

        answer: PollAnswer | None = None
        async with trio.open_nursery() as nursery:

            async def run() -> None:
                nonlocal answer
                try:
                    answer = (await drive(read, perform)).value
                except LedgerError:
                    pass  # no replica could say: the caller pauses and asks again
                nursery.cancel_scope.cancel()

            nursery.start_soon(run)
            await changed.wait()
            nursery.cancel_scope.cancel()
        # A bookie that was overtaken lags behind; one that just had nothing to say does not.
        overtaken = read.slow if answer is not None and answer.lac > known else []
        for bookie in [*read.errors, *overtaken]:
            self._fetch.order.failed(bookie, trio.current_time())
        return answer

    async def _ask(self, bookie: str, known: int, poll_s: float) -> PollAnswer:
        self.count += 1
        ledger_id = self._fetch.metadata.ledger_id
        response = await self._pool.call(
            bookie,
            ReadRequest(
                ledger_id,
                INVALID_ENTRY_ID,
                is_piggyback=True,
                previous_lac=known,
                timeout_ms=max(1, int(poll_s * 1000)),
            ),
            timeout_s=poll_s + self._options.read_timeout_s,
        )
        if response.status is not Status.OK:
            raise error_of_status(response.status, f"long poll at {bookie}")
        if not isinstance(response, ReadResponse):
            raise RemoteProtocolError(f"{bookie} answered a long poll with {response}")
        lac = -1 if response.max_lac is None else response.max_lac
        if response.body is None:
            return PollAnswer(lac, None)
        try:
            entry = self._digest.decode_entry(ledger_id, known + 1, response.body)
        except DigestMismatch:
            self._fetch.counts.digest_mismatches += 1
            raise
        return PollAnswer(max(lac, entry.lac), entry)
