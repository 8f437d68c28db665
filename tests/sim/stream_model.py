"""The oracle of streams: every value ever appended, where it was confirmed, where it was seen.

One position has one value forever, for writers and readers alike; a value lies at one position
at most. What was confirmed or seen is there until it is truncated.
"""

from __future__ import annotations

from collections.abc import Callable

from ledger.errors import LedgerError
from stream.core.entry.records import Record
from stream.core.position import BEGINNING, Position, Truncated
from stream.errors import TakenOver
from tests.sim.model import Violation


class ReadingModel:
    """What one reader got so far: its records must follow each other."""

    def __init__(self, model: StreamModel) -> None:
        self._model = model
        self._last: Record | None = None

    def got(self, record: Record) -> None:
        last, self._last = self._last, record
        if last is not None:
            if record.position <= last.position or record.sequence != last.sequence + 1:
                self._model.violated(
                    f"[I3] after record {last.sequence} at {last.position} a reader got record "
                    f"{record.sequence} at {record.position}"
                )
            if record.append_time_ms < last.append_time_ms:
                self._model.violated(f"append time went back at record {record.sequence}")
        self._model.seen(record)


class StreamModel:
    """Everything known of one stream."""

    def __init__(self, name: str, fail: Callable[[BaseException], None]) -> None:
        self.name = name
        self.counts: dict[str, int] = {}
        self.truncated_to = BEGINNING
        self.confirmed: dict[Position, bytes] = {}
        self._attempted: dict[bytes, str] = {}
        self._places: dict[bytes, Position] = {}
        self._values: dict[Position, bytes] = {}
        self._sequences: dict[Position, int] = {}
        self._last_of_writer: dict[str, Position] = {}
        self._fail = fail

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    def attempted(self, writer: str, value: bytes) -> None:
        assert value not in self._attempted, f"the workload repeats {value!r}"
        self._attempted[value] = writer

    def was_confirmed(self, writer: str, value: bytes, position: Position) -> None:
        self._put(value, position)
        last = self._last_of_writer.get(writer, BEGINNING)
        if position <= last:
            self.violated(f"[I7] {writer}: record confirmed at {position} after one at {last}")
        self._last_of_writer[writer] = position
        self.confirmed[position] = value
        self.count("records confirmed")

    def seen(self, record: Record) -> None:
        if record.value not in self._attempted:
            self.violated(f"[I2] {record.value[:40]!r} at {record.position} was never appended")
        self._put(record.value, record.position)
        sequence = self._sequences.setdefault(record.position, record.sequence)
        if sequence != record.sequence:
            self.violated(
                f"[I2] record at {record.position} has sequence {record.sequence}, "
                f"was {sequence} before"
            )
        self.count("records read")

    def _put(self, value: bytes, position: Position) -> None:
        there = self._values.setdefault(position, value)
        if there != value:
            self.violated(f"[I2] two records at {position}: {there[:40]!r} and {value[:40]!r}")
        place = self._places.setdefault(value, position)
        if place != position:
            self.violated(f"[I10] {value[:40]!r} lies at {place} and at {position}")

    def whole(self, records: list[Record]) -> None:
        """All that a fresh reader found in the sealed stream, from its begin to its end."""
        found = {record.position for record in records}
        for position in sorted(self._values):
            if position >= self.truncated_to and position not in found:
                what = "confirmed" if position in self.confirmed else "seen by a reader"
                self.violated(f"[I1] the record {what} at {position} is gone")
        if records and self.truncated_to == BEGINNING and records[0].sequence != 0:
            self.violated(f"[I1] the stream begins with record {records[0].sequence}")
        self.count("streams read whole")

    def writer_failed(self, error: LedgerError) -> None:
        self.count(f"stream writer: {type(error).__name__}")
        if not (error.retry_is_safe or isinstance(error, TakenOver)):
            self.violated(f"a writer of stream {self.name} failed for good: {error!r}")

    def refused(self, what: str, error: LedgerError) -> None:
        self.count(f"stream {what}: {type(error).__name__}")
        if error.retry_is_safe:
            return
        if isinstance(error, Truncated) and self.truncated_to > BEGINNING:
            return
        self.violated(f"[I11] {what} of stream {self.name} failed for good: {error!r}")

    def violated(self, text: str) -> None:
        error = Violation(f"stream {self.name}: {text}")
        self._fail(error)
        raise error
