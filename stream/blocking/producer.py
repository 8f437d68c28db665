"""stream.writing.producer for threads.

Generated from stream/writing/producer.py by `make faces`. Not to be edited.
"""

from __future__ import annotations

from collections.abc import Iterable

from stream.blocking.bridge import Bridge
from stream.blocking.tickets import Producing
from stream.bridge.writing import StreamAppends
from stream.core.arguments import Time, columns_of
from stream.core.entry.encoder import Headers
from stream.core.position import Position
from stream.writing.producer import Producer as TrioProducer


class Producer(Producing):
    """Made by `StreamWriter.producer`; ends with its writer.

    A producer numbers its records from 0 without gaps. Guarantees: a record is in the stream once,
    however often it is appended, by whatever writers; records of a producer are in the order of
    their numbers. After an error whose outcome is unknown, open a writer, get the producer again
    and append from `last_sequence + 1` on, or from any record before it: known ones are skipped.
    """

    _bridge: Bridge
    _inner: TrioProducer

    _appends: StreamAppends

    @classmethod
    def _of(cls, bridge: Bridge, holder: TrioProducer, appends: StreamAppends) -> Producer:
        made = cls.__new__(cls)
        made._bridge, made._inner = bridge, holder
        made._appends = appends
        return made

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record that is durable in the stream; -1 for none."""
        return self._inner.last_sequence

    @property
    def next_sequence(self) -> int:
        """Sequence of the next record; all before it were taken."""
        return self._inner.next_sequence

    def append(
        self,
        value: bytes,
        sequence: int,
        *,
        key: bytes | None = None,
        event_time_ms: Time | None = None,
        headers: Headers | None = None,
    ) -> Position | None:
        """Appends the record with this number; returns when it is durable.

        Returns its position, or None if it was there before and its position is no longer known.
        Waits for an earlier try of the same record that is still in flight. Raises ProducerGap if
        a record before it is missing (concurrent calls must be made in order), and the errors of
        `StreamWriter.append`.
        """
        return self._append_numbered(value, sequence, key, event_time_ms, headers)

    def append_many(
        self,
        values: Iterable[bytes],
        first_sequence: int,
        *,
        keys: Iterable[bytes | None] | None = None,
        event_times: Iterable[Time | None] | None = None,
        headers: Iterable[Headers | None] | None = None,
    ) -> tuple[Position, Position] | None:
        """Appends records numbered from `first_sequence` on; returns when all are durable.

        Records at the front that were appended before are skipped. Returns the positions of the
        first and the last of the others, None if there are none. Raises the same as `append`.
        """
        values, keys, event_times, headers = columns_of(values, keys, event_times, headers)
        return self._bridge.call(
            lambda: self._appends.in_turn(
                lambda: self._inner.append_many(
                    values, first_sequence, keys=keys, event_times=event_times, headers=headers
                )
            )
        )
