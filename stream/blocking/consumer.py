"""stream.consuming.consumer for threads.

Generated from stream/consuming/consumer.py by `make faces`. Not to be edited.
"""

from __future__ import annotations

from stream.blocking.bridge import Bridge
from stream.blocking.opening import Opened
from stream.consuming.consumer import Consumer as TrioConsumer
from stream.consuming.consumer import RecordIterator as TrioRecordIterator
from stream.consuming.delivery import Delivery, RecordDelivery
from stream.core.position import Position
from stream.reading.lag import CursorLag


class Consumer(Opened):
    """An iterator of `Delivery`. Made by `Namespace.consumer`.

    A request for the next one says that all before it are handled; they are committed in the
    background and when a partition is handed over. With `auto_advance=False` call `advance`; then
    several tasks may request deliveries at the same time. When the block ends, the last delivery
    counts as handled only after `commit`, or if it was advanced.
    """

    _bridge: Bridge
    _inner: TrioConsumer

    @classmethod
    def _of(cls, bridge: Bridge, holder: TrioConsumer) -> Consumer:
        made = cls.__new__(cls)
        made._bridge, made._inner = bridge, holder
        return made

    @property
    def group(self) -> str:
        return self._inner.group

    @property
    def member(self) -> str:
        return self._inner.member

    @property
    def stream(self) -> str:
        return self._inner.stream

    @property
    def partitions(self) -> list[str]:
        """The partitions that this member holds now, in their order."""
        return self._inner.partitions

    def __iter__(self) -> Consumer:
        return self

    def __next__(self) -> Delivery:
        """Returns the next records of any partition; waits forever if there are none.

        Raises Truncated, NoSuchStream, MemberExists, and what reading raises permanently.
        """
        inner = self._inner
        return self._bridge.call(lambda: anext(inner), inner._take_back)

    def records(self) -> RecordIterator:
        """Returns the same records one by one. May be mixed with batches: nothing is left out."""
        return RecordIterator._of(self._bridge, self._inner.records())

    def next_record(self) -> RecordDelivery:
        """Returns the next record of any partition; see `__next__`."""
        inner = self._inner
        taken = self._bridge.call(inner._next_delivered_record, inner._take_back_record)
        return taken[0]

    def advance(self, handled: Delivery | RecordDelivery) -> None:
        """Marks everything of this partition up to and including these records as handled.

        It is committed in the background, at most once per interval. Raises PartitionLost if
        another member has the partition by now: what is not committed is handled again there.
        """
        self._bridge.ask(lambda: self._inner.advance(handled))

    def commit(self) -> dict[str, Position]:
        """Stores now what is handled; with `auto_advance`, all that was delivered.

        Returns the committed position of each partition that is still ours; a missing one was lost
        to another member. Raises MetadataUnavailable: some may be stored, all are tried again in
        the background.
        """
        return self._bridge.call(lambda: self._inner.commit())

    def lag(self) -> dict[str, CursorLag]:
        """Returns how far each partition of this member is behind its end, asked of the bookies.

        Raises NoSuchStream, and what reading ledgers raises.
        """
        return self._bridge.call(lambda: self._inner.lag())

    def close(self) -> None:
        """Leaves the group, of a consumer that was opened without a block. Idempotent."""
        self._leave()


class RecordIterator:
    """Records of a consumer. It owns nothing: drop it, and another one continues."""

    _bridge: Bridge
    _inner: TrioRecordIterator

    @classmethod
    def _of(cls, bridge: Bridge, holder: TrioRecordIterator) -> RecordIterator:
        made = cls.__new__(cls)
        made._bridge, made._inner = bridge, holder
        return made

    def __iter__(self) -> RecordIterator:
        return self

    def __next__(self) -> RecordDelivery:
        inner = self._inner._consumer
        taken = self._bridge.call(inner._next_delivered_record, inner._take_back_record)
        return taken[0]
