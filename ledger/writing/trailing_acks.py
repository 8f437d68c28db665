"""TrailingAcks: waits for the last acks of a ledger that is being closed.

A close needs the ack quorum of the last entry; a slower bookie that is well acknowledges it a
little later. This object takes the place of the writer on the connections that still owe acks,
without a task. What is missing when all have answered, are lost or refuse, or the add timeout is
over, is recorded; what arrives in time is not. A connection over which nothing was acknowledged
until then is closed: the next writers would lose their acks over it as well, and where ledgers are
rolled more often than that, no writer lives long enough to notice it.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from ledger.connection.connection import BookieConnection
from ledger.core.append import AppendCore, Marks
from ledger.core.metadata import LedgerMetadata
from ledger.errors import LedgerError, LedgerFenced, NoSuchLedger, OperationTimeout, Status
from ledger.wire.messages import ForceLedgerRequest, ResponseBody
from ledger.writing.send_loop import SendLoop


class EndingWriter(Protocol):
    """The writer, as seen from here."""

    metadata: LedgerMetadata
    ledger_id: int
    core: AppendCore
    connections: list[BookieConnection | None]


class TrailingAcks:
    """The bookies that lack confirmed entries of a writer that is ending. An AckSink.

    Nothing is recorded before its block ends: a replication worker has to find the ledger closed.
    """

    def __init__(self, writer: EndingWriter, loop: SendLoop) -> None:
        self._ledger_id = writer.ledger_id
        self._core = core = writer.core
        self._bookies = writer.metadata.last_fragment.bookies
        self._loop = loop
        self._owing: dict[int, BookieConnection] = {}
        self._acked_before: dict[int, int] = {}
        self._missed: dict[str, None] = {}
        self._is_released = False
        self._since_s = loop.watched_s
        for index, bookie in enumerate(self._bookies):
            connection = writer.connections[index]
            if not core.lacks(index):
                continue
            if connection is None or connection.error is not None or index in core.failed:
                self._missed[bookie] = None
            else:
                self._owing[index] = connection
                self._acked_before[index] = core.acked_up_to(index)
        if self._owing:
            loop.missed.begin(self)
            loop.add(self)
            for index, connection in list(self._owing.items()):
                connection.sinks[self._ledger_id] = self
                self._force(index)

    def __enter__(self) -> None:
        """The block stores the end of the ledger."""

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        """What is missing is recorded from now on, also if it is unknown whether the end is stored;
        not if another client decides where the ledger ends, or it was deleted."""
        if kind is not None and issubclass(kind, LedgerFenced | NoSuchLedger):
            self._missed.clear()
            for index in list(self._owing):
                self._settled(index, is_missed=False)
        else:
            self._is_released = True
            self._record()

    def _record(self) -> None:
        if self._is_released and self._missed:
            missed, self._missed = self._missed, {}
            self._loop.missed.record(self._ledger_id, missed)

    def _settled(self, index: int, *, is_missed: bool) -> None:
        """Notes the outcome of one bookie."""
        connection = self._owing.pop(index, None)
        if connection is None:
            return
        if connection.sinks.get(self._ledger_id) is self:
            del connection.sinks[self._ledger_id]
        if is_missed:
            self._missed[self._bookies[index]] = None
            self._record()
        if not self._owing:
            self._loop.remove(self)
            self._loop.missed.end(self)

    def _force(self, index: int) -> None:
        """With deferred sync an ack is not enough: asks the bookie to sync, once it has all."""
        core, connection = self._core, self._owing.get(index)
        if connection is None or not core.is_sync_deferred:
            return
        if core.acked_up_to(index) >= core.last_add_confirmed:
            forced = partial(self._forced, index, core.marks())
            connection.post(ForceLedgerRequest(self._ledger_id), forced)

    def _forced(self, index: int, marks: Marks, answer: ResponseBody | None) -> None:
        if answer is not None and answer.status is Status.OK:
            self._core.forced(marks, [index])
        self._settled(index, is_missed=self._core.lacks(index))

    # AckSink

    @property
    def bytes_pending(self) -> int:
        """None: all entries are confirmed, and no window holds them."""
        return 0

    def acked(self, bookie: str, first: int, last: int, *, is_unpolled: bool = False) -> None:
        index = self._bookies.index(bookie)
        try:
            self._core.acked(index, first, last)
        except LedgerError:
            self._settled(index, is_missed=True)
            return
        if not self._core.lacks(index):
            self._settled(index, is_missed=False)
        else:
            self._force(index)

    def refused(self, bookie: str, entry_id: int, status: Status) -> None:
        del status
        index = self._bookies.index(bookie)
        if entry_id > self._core.acked_up_to(index):  # otherwise it was sent twice
            self._settled(index, is_missed=True)

    def lost(self, bookie: str, error: LedgerError) -> None:
        del error
        self._settled(self._bookies.index(bookie), is_missed=True)

    def fail(self, error: LedgerError) -> None:
        del error
        self.give_up()

    def settle(self) -> None:
        pass

    # Watched, Doubt

    def check_progress(self, now_s: float) -> None:
        """Gives up when the add timeout is over, by the clock of the loop."""
        waited_s = now_s - self._since_s
        if waited_s <= self._loop.options.add_timeout_s:
            return
        for index, connection in list(self._owing.items()):
            mark = self._core.acked_up_to(index)
            # With deferred sync all may be acknowledged, and a sync be late.
            if self._acked_before[index] == mark < self._core.last_add_pushed:
                connection.close(
                    OperationTimeout(
                        f"bookie {connection.bookie} acknowledged nothing for {waited_s:.1f} s, "
                        f"entries of ledger {self._ledger_id} from {mark + 1} wait, which is closed"
                    )
                )
        self._end()

    def _end(self) -> None:
        for index in list(self._owing):
            self._settled(index, is_missed=True)

    def give_up(self) -> None:
        """Ends the wait: what is not acknowledged counts as missed, and is recorded now."""
        self._is_released = True
        self._record()
        self._end()
