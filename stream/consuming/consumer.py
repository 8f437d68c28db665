"""Consumer: one member of a consumer group; what the group's other members do not get, it gets.

Core: core/metadata/groups.py. Every record is handed out at least once; what
was committed never goes back; only partitions that move to another member pause. Must never
commit what was not handled, nor at the epoch of another.
"""

from __future__ import annotations

import logging
import math
from collections import deque

import trio

from ledger.errors import InvalidArgument, LedgerClosed, LedgerError, RetryableError
from stream.consuming.assigned_partition import RETRY_S, HeldPartition, HoldState, Seat
from stream.consuming.coordinator import Coordinator
from stream.consuming.delivery import Delivery, Part, RecordDelivery
from stream.consuming.membership import Membership
from stream.core.metadata.groups import GroupMetadata
from stream.core.position import EARLIEST, Position, Start
from stream.errors import PartitionLost
from stream.reading.lag import CursorLag

_log = logging.getLogger(__name__)

LEAVE_TIMEOUT_S = 5.0
"""How long the end of a block waits for the last commits and the farewell."""


class Consumer:
    """Made by `Namespace.consumer`; an `async with` object, an async iterator of `Delivery`.

    To ask for the next delivery says that all before it are handled; they are committed in the
    background and when a partition is handed over. With `auto_advance=False` call `advance`;
    then several tasks may ask at the same time. When the block ends, what was handed out last
    counts as handled only after `commit`, or if it was advanced.
    """

    def __init__(
        self, seat: Seat, *, partitions: list[str], start: Start, auto_advance: bool
    ) -> None:
        self.group = seat.groups.name
        self.member = seat.member
        self.stream = seat.groups.stream
        self._seat = seat
        self._start = start
        self.auto_advance = auto_advance
        self._known = partitions
        self._first_partitions = len(partitions)
        self._wanted: list[str] = []
        self._held: dict[str, HeldPartition] = {}
        self._offers: deque[HeldPartition] = deque()
        self._something = trio.Event()
        self._is_asked = False
        self._in_hand: tuple[HeldPartition, Position, int] | None = None
        self._parts: deque[Part] = deque()
        """Batches that are handed out record by record; of several tasks, a few."""
        self._error: LedgerError | None = None
        self._nursery: trio.Nursery | None = None
        self._resets: int | None = None

    @property
    def partitions(self) -> list[str]:
        """Those this member holds now, in their order."""
        holding = {name for name, held in self._held.items() if held.state is HoldState.HOLDING}
        return [name for name in self._held if name in holding]

    # Asking.

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Delivery:
        """The next records of any partition; waits for ever if there are none.

        Raises Truncated, NoSuchStream, MemberExists, and what reading raises for good.
        """
        self._settle()
        part = self._rest_of_part()
        if part is not None:
            held, delivery = part
        else:
            held, delivery = await self._next_delivery()
        self._hand_out(held, delivery.batch.after, delivery.epoch)
        return delivery

    def records(self) -> RecordIterator:
        """The same, record by record. May be mixed with batches: nothing is left out."""
        return RecordIterator(self)

    async def next_record(self) -> RecordDelivery:
        """The next record of any partition; see `__anext__`."""
        return (await self._next_of_part())[0]

    async def _next_of_part(self) -> tuple[RecordDelivery, Part]:
        self._settle()
        while True:
            part = self._current_part()
            if part is not None:
                record = part.records[part.index]
                part.index += 1
                if part.index == len(part.records):
                    self._parts.remove(part)
                self._hand_out(part.held, record.position.after, part.delivery.epoch)
                taken = RecordDelivery(part.delivery.partition, record, part.delivery.epoch)
                return taken, part
            found = await self._next()
            if found is None:
                continue
            held, delivery = found
            try:
                records = delivery.batch.records()
            except LedgerError as error:
                self._error = error  # to go on behind it would leave records out
                raise
            self._parts.append(Part(held, delivery, records))

    def _current_part(self) -> Part | None:
        """The first that may go on now. Those in doubt stay: nobody reads their rest again."""
        for part in list(self._parts):
            if part.is_lost:
                self._parts.remove(part)
            elif part.is_current:
                return part
        return None

    def _rest_of_part(self) -> tuple[HeldPartition, Delivery] | None:
        part = self._current_part()
        if part is None:
            return None
        self._parts.remove(part)
        rest = part.delivery.batch.since(part.records[part.index].position.slot)
        return part.held, part.delivery._replace(batch=rest)

    async def _next_delivery(self) -> tuple[HeldPartition, Delivery]:
        while True:
            found = await self._next() or self._rest_of_part()
            if found is not None:
                return found

    async def _next(self) -> tuple[HeldPartition, Delivery] | None:
        """What is offered; None if the rest of a batch may go on that could not before."""
        if self.auto_advance and self._is_asked:
            raise trio.BusyResourceError(
                f"two tasks ask consumer {self.member!r} at once, but with auto_advance asking "
                f"says that what was handed out is handled: use auto_advance=False and advance()"
            )
        self._is_asked = True
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            while True:
                if self._error is not None:
                    raise self._error
                if self._current_part() is not None:
                    return None  # before what follows it
                if (found := self._take_offer()) is not None:
                    return found
                if self._something.is_set():  # else others wait for this very one
                    self._something = trio.Event()
                with trio.move_on_after(RETRY_S if self._parts else math.inf):
                    await self._something.wait()
        finally:
            self._is_asked = False

    def _take_offer(self) -> tuple[HeldPartition, Delivery] | None:
        while self._offers:
            held = self._offers.popleft()
            if held.error is not None:
                self._error = held.error
                raise held.error
            batch = held.take()
            if batch is not None:
                return held, Delivery(held.partition, batch, held.epoch)
        return None

    def _hand_out(self, held: HeldPartition, to: Position, epoch: int) -> None:
        held.handed_out(to)
        if self.auto_advance:
            self._in_hand = (held, to, epoch)

    def _take_back(self, delivery: Delivery) -> None:
        """It never reached who asked for it: it is handed out again."""
        held = self._held.get(delivery.partition)
        if held is None:
            return
        try:
            self._put_back(Part(held, delivery, delivery.batch.records()), 0)
        except LedgerError as error:
            self._error = error

    def _take_back_record(self, taken: tuple[RecordDelivery, Part]) -> None:
        delivery, part = taken
        self._put_back(part, delivery.record.position.slot - part.records[0].position.slot)

    def _put_back(self, part: Part, index: int) -> None:
        self._in_hand = None
        if part.is_lost or index >= part.index > 0:
            return
        part.held.taken_back(part.records[index].position, part.handed_out_to)
        part.index = index
        if not any(each is part for each in self._parts):
            self._parts.appendleft(part)
        self._something.set()

    # Handling.

    def _settle(self) -> None:
        """What was handed out last is handled."""
        if self._in_hand is not None:
            held, to, epoch = self._in_hand
            self._in_hand = None
            held.handled(to, epoch)  # if it was lost meanwhile, another handles it again

    def advance(self, handled: Delivery | RecordDelivery) -> None:
        """Everything of this partition up to and with these records is handled.

        Committed in the background, at most once per interval. Raises PartitionLost if another
        member has the partition by now: what is not committed is handled again there.
        """
        if isinstance(handled, Delivery):
            to = handled.batch.after
        elif isinstance(handled, RecordDelivery):
            to = handled.record.position.after
        else:
            raise InvalidArgument(
                f"advance takes a Delivery or a RecordDelivery, not {type(handled).__name__}"
            )
        held = self._held.get(handled.partition)
        if held is None or not held.handled(to, handled.epoch):
            raise PartitionLost(handled.partition, handled.epoch)

    async def commit(self) -> dict[str, Position]:
        """Stores now what is handled, with `auto_advance` all that was handed out.

        Returns the committed position of each partition that is still ours; one that is missing
        was lost to another member. Raises MetadataUnavailable: some may be stored, all are tried
        again in the background.
        """
        self._settle()
        committed: dict[str, Position] = {}
        for name, held in list(self._held.items()):
            cursor = held.cursor
            if cursor is None or cursor.error is not None:
                continue
            try:
                committed[name] = await cursor.commit()
            except RetryableError:
                raise
            except LedgerError as error:
                _log.info("partition=%s: not committed: %s", name, error)
        return committed

    async def lag(self) -> dict[str, CursorLag]:
        """How far each partition of this member is behind its end, asked of metadata and bookies.

        Raises NoSuchStream, and what reading ledgers raises.
        """
        cursors = {name: held.cursor for name, held in self._held.items()}
        return {
            name: await cursor.lag()
            for name, cursor in cursors.items()
            if cursor is not None and cursor.error is None
        }

    # Partitions that come and go. No awaits here: wishes and tasks change together.

    def note_group(self, group: GroupMetadata | None) -> None:
        """The assignment changed; it is a wish for what to hold."""
        self._wanted = [] if group is None else group.partitions_of(self.member)
        if group is not None:
            self._first_partitions = group.first_partitions
            if self._resets not in (None, group.resets):
                self._check_all()
            self._resets = group.resets
            self._known = list(group.assignment)
        for name, held in self._held.items():
            if name not in self._wanted:
                held.leave()
        for name in self._wanted:
            if name not in self._held:
                self._begin(name)

    def _begin(self, partition: str) -> None:
        assert self._nursery is not None, "the consumer is open"
        # The group has seen nothing of a partition that was added later.
        is_first = self._known.index(partition) < self._first_partitions
        start = self._start if is_first else EARLIEST
        held = HeldPartition(self._seat, partition, start, self._note_offer)
        self._held[partition] = held
        self._nursery.start_soon(self._run_held, held)

    async def _run_held(self, held: HeldPartition) -> None:
        await held.run()
        if held.error is not None:
            return  # whoever asks is told
        del self._held[held.partition]
        if held.partition in self._wanted:
            self._begin(held.partition)  # it came back while it was being handed over

    def _note_offer(self, held: HeldPartition) -> None:
        self._offers.append(held)
        self._something.set()

    # Being a member.

    def note_lost(self) -> None:
        """The others take us for dead: nothing is handed out before it was looked at again."""
        for held in self._held.values():
            held.is_suspended = True

    def note_again(self) -> None:
        self._check_all()

    def _check_all(self) -> None:
        if self._nursery is not None:
            for held in self._held.values():
                self._nursery.start_soon(self._check, held)

    async def _check(self, held: HeldPartition) -> None:
        while (cursor := held.cursor) is not None and cursor.error is None:
            try:
                await cursor.check()
            except RetryableError:
                await trio.sleep(RETRY_S)
            except LedgerError:
                return  # it was lost, and takes care of itself
            else:
                held.is_suspended = False
                return

    async def run(self, coordinator: Coordinator, membership: Membership) -> None:
        """Until cancelled; what ends it is told to whoever asks."""
        try:
            await coordinator.run(membership)
        except LedgerError as error:
            self._error = error
            self._something.set()
            # The others need not wait until somebody asks here.
            self.note_group(None)
            await membership.vanish()

    def begin(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

    async def leave(self, membership: Membership) -> None:
        """Commits and releases all that is held, then leaves the group. Its tasks have ended."""
        self._nursery = None
        self._error = self._error or LedgerClosed(
            f"consumer {self.member!r} of group {self.group!r} is closed"
        )
        has_left = False
        with trio.move_on_after(LEAVE_TIMEOUT_S, shield=True):
            async with trio.open_nursery() as nursery:
                for held in self._held.values():
                    nursery.start_soon(self._release, held)
            has_left = await membership.end()
        if not has_left:
            try:
                self._seat.client.start_background(membership.vanish)
            except LedgerClosed:
                pass  # then the session ends too, and the member with it

    async def _release(self, held: HeldPartition) -> None:
        cursor = held.cursor
        if cursor is None or cursor.error is not None:
            return
        try:
            await cursor.release()
        except LedgerError as error:
            _log.info("partition=%s: left without a commit: %s", held.partition, error)
        finally:
            cursor.close()


class RecordIterator:
    """Records of a consumer. Holds nothing: it may simply be dropped, and another one goes on."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def __aiter__(self) -> RecordIterator:
        return self

    async def __anext__(self) -> RecordDelivery:
        return await self._consumer.next_record()
