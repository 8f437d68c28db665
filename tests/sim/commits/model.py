"""What must be in streams that sinks commit to beside writers: the oracle of run.py.

Each batch once, whole, over all its streams, in the order of its sink; each acknowledged record of
a writer once, where it was said to be; sequences without a gap, append times that never go back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from stream.core.entry.records import Record
from stream.core.position import Position
from tests.sim.model import Violation

Batch = tuple[str, int]


@dataclass(slots=True)
class Attempt:
    """Ledgers that a driver wrote for a batch: how many records for which stream."""

    batch: Batch
    shares: dict[str, int]
    is_confirmed: bool = False


@dataclass(slots=True)
class CommitModel:
    attempts: dict[str, Attempt] = field(default_factory=dict)
    committed: set[Batch] = field(default_factory=set)
    own: dict[bytes, str] = field(default_factory=dict)
    """Records of writers that were appended or tried to be, and to which stream."""
    places: dict[bytes, Position] = field(default_factory=dict)
    sequences: dict[bytes, int] = field(default_factory=dict)
    refused: set[bytes] = field(default_factory=set)
    produced: dict[tuple[str, str], int] = field(default_factory=dict)
    """Last sequence of each producer that was confirmed, by stream and name."""
    seen: dict[tuple[str, Position], bytes] = field(default_factory=dict)
    """What readers saw."""
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    def batch_done(self, name: str, is_repeat: bool) -> None:
        """A commit of this attempt returned."""
        attempt = self.attempts[name]
        self.committed.add(attempt.batch)
        self.count("repeated" if is_repeat else "committed")
        if is_repeat:
            return
        attempt.is_confirmed = True
        rivals = [
            other
            for other, at in self.attempts.items()
            if at.batch == attempt.batch and at.is_confirmed and other != name
        ]
        if rivals:
            raise Violation(f"batch {attempt.batch} was committed by {name} and by {rivals}")

    def appended(self, value: bytes, place: Position) -> None:
        self.count("appended")
        there = self.places.setdefault(value, place)
        if there != place:
            raise Violation(f"{value!r} was confirmed at {there} and at {place}")

    def read(self, stream: str, record: Record) -> None:
        self.count("read")
        there = self.seen.setdefault((stream, record.position), record.value)
        if there != record.value:
            raise Violation(f"{stream} {record.position} was {there!r} and is {record.value!r}")

    # In the end

    def check(
        self, found: dict[str, list[Record]], first_of: dict[str, Position], is_whole: bool
    ) -> None:
        """`found`: all that is in each stream; `is_whole`: nothing was purged."""
        for stream, records in found.items():
            self._check_order(stream, records, is_whole)
            self._check_writers(stream, records, first_of[stream])
            for record in records:
                if self.seen.get((stream, record.position), record.value) != record.value:
                    raise Violation(f"{stream} {record.position}: a reader saw something else")
            there = {record.position for record in records}
            for of, position in self.seen:
                if of == stream and position >= first_of[stream] and position not in there:
                    raise Violation(f"{stream} {position}: a reader saw it, and it is not there")
        self._check_batches(found, is_whole)

    def _check_order(self, stream: str, records: Sequence[Record], is_whole: bool) -> None:
        if is_whole and records and records[0].sequence != 0:
            raise Violation(f"{stream} begins at {records[0]}")
        for one, other in pairwise(records):
            if other.sequence != one.sequence + 1 or other.position <= one.position:
                raise Violation(f"{stream}: {other} follows {one}")
            if other.append_time_ms < one.append_time_ms:
                raise Violation(f"{stream}: append time goes back from {one} to {other}")

    def _check_writers(self, stream: str, records: Sequence[Record], first: Position) -> None:
        places: dict[bytes, Position] = {}
        produced: dict[str, int] = {}
        for record in records:
            value = record.value
            if value.startswith(b"k/"):
                continue
            if value in places:
                raise Violation(f"{stream}: {value!r} is at {places[value]} and {record.position}")
            places[value] = record.position
            if self.own.get(value) != stream:
                raise Violation(f"{stream}: {value!r} was never appended to it")
            if value in self.refused:
                raise Violation(f"{stream}: {value!r} was refused, and is at {record.position}")
            if self.sequences.get(value, record.sequence) != record.sequence:
                raise Violation(f"{stream}: {record} was to be at {self.sequences[value]}")
            if value.startswith(b"p/"):
                _, name, number, *_ = value.decode().split("/")
                last = produced.get(name, -1 if first == Position(1, 0, 0) else int(number) - 1)
                if int(number) != last + 1:
                    raise Violation(f"{stream}: producer {name}: {number} follows {last}")
                produced[name] = int(number)
        for value, place in self.places.items():
            if self.own[value] == stream and place >= first and places.get(value) != place:
                raise Violation(f"{stream}: {value!r} was confirmed at {place}, not there")
        for (of, name), confirmed in self.produced.items():
            if of == stream and first == Position(1, 0, 0) and produced.get(name, -1) < confirmed:
                raise Violation(f"{stream}: producer {name} had {confirmed} confirmed")

    def _check_batches(self, found: dict[str, list[Record]], is_whole: bool) -> None:
        parts: dict[str, dict[str, list[int]]] = {}
        for stream, records in found.items():
            last: dict[str, int] = {}
            for record in records:
                if not record.value.startswith(b"k/"):
                    continue
                _, name, number, *_ = record.value.decode().split("/")
                parts.setdefault(name, {}).setdefault(stream, []).append(int(number))
                sink, batch = self.attempts[name].batch
                if last.get(sink, -1) > batch:
                    raise Violation(f"{stream}: {sink} {batch} behind {last[sink]}")
                last[sink] = batch
        winners: dict[Batch, str] = {}
        for name, shares in parts.items():
            attempt = self.attempts[name]
            rival = winners.setdefault(attempt.batch, name)
            if rival != name:
                raise Violation(f"batch {attempt.batch} is there by {rival} and by {name}")
            whole = {stream: list(range(count)) for stream, count in attempt.shares.items()}
            if is_whole and shares != whole:
                raise Violation(f"batch {attempt.batch} of {name}: {shares}, not {attempt.shares}")
            for stream, numbers in shares.items():
                if numbers != whole[stream][-len(numbers) :]:
                    raise Violation(f"{stream}: {name} has {numbers}")
        if not is_whole:
            return
        for name, attempt in self.attempts.items():
            if attempt.is_confirmed and attempt.shares and name not in parts:
                raise Violation(f"{name} committed {attempt.batch}, which is not there")
        for done in self.committed:
            if done not in winners and not any(
                at.batch == done and not at.shares for at in self.attempts.values()
            ):
                raise Violation(f"batch {done} was committed, and is nowhere")
