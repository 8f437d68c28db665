"""What compaction reads in the index, and how it moves runs there.

Must never make an entry point to bytes that are not its newest: a run moves only as far as the
index still points to where it was copied from. Nothing here awaits; callers go in steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from bookie.core.entry_log import RUN_HEADER_BYTES
from bookie.storage.index.index import (
    ENTRY_ID_MAX,
    Index,
    PlacedRun,
    decode_run,
    ledger_of_run_key,
    run_key,
    run_pair,
)
from bookie.storage.index.key_value import KeyValue
from ledger.errors import BookieIoError

_FIRST_KEY = run_key(0, 0)
_END_KEY = b"F"


class LiveBytes:
    """Bytes of the records that the index needs, by entry log."""

    def __init__(self) -> None:
        self.by_log: dict[int, int] = {}
        self.damaged_ledgers: dict[int, None] = {}
        """Ledgers with a run record that cannot be read: it may point into any log."""


def record_bytes(run: PlacedRun) -> int:
    """Returns what a run takes in an entry log, with its header."""
    return RUN_HEADER_BYTES + 4 * len(run.lengths) + sum(run.lengths)


class Move(NamedTuple):
    """Entries that were copied: where they were, and where their copy begins."""

    old: PlacedRun
    log_id: int
    offset: int

    def of(self, part: PlacedRun) -> PlacedRun:
        """Returns the new place of a part of the old run."""
        offset = self.offset + part.offset - self.old.offset
        return part._replace(log_id=self.log_id, offset=offset)


class CompactionIndex:
    """The moves of compaction in one index; works on the same store as `index`."""

    RUNS_PER_STEP = 50
    """About 0.5 ms, during which no other task runs."""

    def __init__(self, index: Index, pairs: KeyValue) -> None:
        self._index = index
        self._pairs = pairs

    def count_live_bytes(self, live: LiveBytes) -> Iterator[None]:
        """Counts all runs, in steps. Between them the index may change: then a log's sum is between
        its old and its new value. Raises BookieIoError."""
        key = _FIRST_KEY
        while True:
            pairs = list(islice(self._pairs.items(key, _END_KEY), self.RUNS_PER_STEP))
            for key, value in pairs:
                try:
                    run = decode_run(key, value)
                except BookieIoError:
                    live.damaged_ledgers[ledger_of_run_key(key)] = None
                    continue
                size = record_bytes(run)
                live.by_log[run.log_id] = live.by_log.get(run.log_id, 0) + size
            if len(pairs) < self.RUNS_PER_STEP:
                return
            key += b"\0"
            yield

    def points_into(self, log_id: int, ledger_id: int) -> Iterator[bool]:
        """Yields whether any run of the ledger is in the log; the last value is the answer.

        True ends it at once. For a sealed log False stays true: newer runs go to other logs, and
        what cuts an older run in two does so at entries not examined yet, or takes all of it that
        was. Raises BookieIoError if a record cannot be read.
        """
        at = 0
        while True:
            runs = list(islice(self._index.runs(ledger_id, at), self.RUNS_PER_STEP))
            is_found = any(run.log_id == log_id for run in runs)
            yield is_found
            if is_found or len(runs) < self.RUNS_PER_STEP or runs[-1].last >= ENTRY_ID_MAX - 1:
                return
            at = runs[-1].last + 1

    def parts_of(self, run: PlacedRun) -> list[PlacedRun]:
        """Returns what the index still points to of bytes that were written as `run`."""
        key, value = run_pair(run)
        if self._pairs.get(key) == value:
            return [run]
        end = run.offset + sum(run.lengths)
        return [
            part
            for part in self._index.runs(run.ledger_id, run.first, run.last)
            if part.log_id == run.log_id and run.offset <= part.offset < end
        ]

    def move(self, moves: Sequence[Move]) -> Iterator[int]:
        """Makes the index point to the copies, in steps of one batch; each yields the bytes it
        moved. Not durable before a flush. The caller holds the storage's write lock, and has
        written the new log's record before."""
        for begin in range(0, len(moves), self.RUNS_PER_STEP):
            puts: list[tuple[bytes, bytes]] = []
            moved_bytes = 0
            for move in moves[begin : begin + self.RUNS_PER_STEP]:
                for part in self.parts_of(move.old):
                    puts.append(run_pair(move.of(part)))
                    moved_bytes += sum(part.lengths)
            if puts:
                self._pairs.write(puts)
            yield moved_bytes
