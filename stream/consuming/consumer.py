"""Consumer: one member of a consumer group; its members share the partitions of a stream.

Cores: core/metadata/groups.py, core/metadata/cursors.py. Every record is delivered at least once; a
committed position never moves back; only partitions that move to another member pause. Must never
commit what was not handled, nor at the epoch of another member.
"""

from __future__ import annotations

import logging
import math
from collections import deque

import trio

from ledger.errors import InvalidArgument, LedgerClosed, LedgerError, RetryableError
from ledger.runtime.opening import Closable
from stream.consuming.assigned_partition import RETRY_S, AssignedPartition, HoldState, MemberContext
from stream.consuming.coordinator import Coordinator
from stream.consuming.delivery import DeliveredBatch, Delivery, RecordDelivery
from stream.consuming.membership import Membership
from stream.core.metadata.groups import GroupMetadata
from stream.core.position import EARLIEST, Position, Start
from stream.errors import PartitionLost
from stream.reading.lag import CursorLag

_log = logging.getLogger(__name__)

LEAVE_TIMEOUT_S = 5.0
"""How long the end of a block waits for the last commits and for leaving the group."""


class Consumer(Closable):
    """An async iterator of `Delivery`. Made by `Namespace.consumer`.

    A request for the next one says that all before it are handled; they are committed in the
    background and when a partition is handed over. With `auto_advance=False` call `advance`; then
    several tasks may request deliveries at the same time. When the block ends, the last delivery
    counts as handled only after `commit`, or if it was advanced.
    """

    def __init__(
        self, context: MemberContext, *, partitions: list[str], start: Start, auto_advance: bool
    ) -> None:
        self.group = context.groups.name
        self.member = context.member
        self.stream = context.groups.stream
        self._context = context
        self._start = start
        self.auto_advance = auto_advance
        self._known = partitions
        self._first_partitions = len(partitions)
        self._wanted: list[str] = []
        self._assigned: dict[str, AssignedPartition] = {}
        self._offers: deque[AssignedPartition] = deque()
        self._offered = trio.Event()
        self._is_waiting = False
        self._outstanding: tuple[AssignedPartition, Position, int] | None = None
        self._delivered: deque[DeliveredBatch] = deque()
        """Batches that are being delivered record by record; with several tasks, a few."""
        self._error: LedgerError | None = None
        self._nursery: trio.Nursery | None = None
        self._resets: int | None = None

    @property
    def partitions(self) -> list[str]:
        """The partitions that this member holds now, in their order."""
        holding = {
            name for name, assigned in self._assigned.items() if assigned.state is HoldState.HOLDING
        }
        return [name for name in self._assigned if name in holding]

    # Deliveries

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Delivery:
        """Returns the next records of any partition; waits forever if there are none.

        Raises Truncated, NoSuchStream, MemberExists, and what reading raises permanently.
        """
        self._acknowledge()
        delivered = self._rest_of_batch()
        if delivered is not None:
            assigned, delivery = delivered
        else:
            assigned, delivery = await self._next_delivery()
        self._hand_out(assigned, delivery.batch.after, delivery.epoch)
        return delivery

    def records(self) -> RecordIterator:
        """Returns the same records one by one. May be mixed with batches: nothing is left out."""
        return RecordIterator(self)

    async def next_record(self) -> RecordDelivery:
        """Returns the next record of any partition; see `__anext__`."""
        return (await self._next_delivered_record())[0]

    async def _next_delivered_record(self) -> tuple[RecordDelivery, DeliveredBatch]:
        self._acknowledge()
        while True:
            delivered = self._current_batch()
            if delivered is not None:
                record = delivered.records[delivered.index]
                delivered.index += 1
                if delivered.index == len(delivered.records):
                    self._delivered.remove(delivered)
                self._hand_out(delivered.assigned, record.position.after, delivered.delivery.epoch)
                taken = RecordDelivery(
                    delivered.delivery.partition, record, delivered.delivery.epoch
                )
                return taken, delivered
            found = await self._next()
            if found is None:
                continue
            assigned, delivery = found
            try:
                records = delivery.batch.records()
            except LedgerError as error:
                self._error = error  # continuing behind it would skip records
                raise
            self._delivered.append(DeliveredBatch(assigned, delivery, records))

    def _current_batch(self) -> DeliveredBatch | None:
        """Returns the first batch that may be delivered now; unverified ones wait."""
        for delivered in list(self._delivered):
            if delivered.is_lost:
                self._delivered.remove(delivered)
            elif delivered.is_current:
                return delivered
        return None

    def _rest_of_batch(self) -> tuple[AssignedPartition, Delivery] | None:
        delivered = self._current_batch()
        if delivered is None:
            return None
        self._delivered.remove(delivered)
        rest = delivered.delivery.batch.since(delivered.records[delivered.index].position.slot)
        return delivered.assigned, delivered.delivery._replace(batch=rest)

    async def _next_delivery(self) -> tuple[AssignedPartition, Delivery]:
        while True:
            found = await self._next() or self._rest_of_batch()
            if found is not None:
                return found

    async def _next(self) -> tuple[AssignedPartition, Delivery] | None:
        """Returns what is offered; None if the rest of an earlier batch may be delivered."""
        if self.auto_advance and self._is_waiting:
            raise trio.BusyResourceError(
                f"two tasks use consumer {self.member!r} at once, but with auto_advance "
                f"a request says that what was delivered is handled: use auto_advance=False and "
                f"advance()"
            )
        self._is_waiting = True
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            while True:
                if self._error is not None:
                    raise self._error
                if self._current_batch() is not None:
                    return None  # it precedes what follows it
                if (found := self._take_offer()) is not None:
                    return found
                if self._offered.is_set():  # otherwise other tasks wait for this event
                    self._offered = trio.Event()
                with trio.move_on_after(RETRY_S if self._delivered else math.inf):
                    await self._offered.wait()
        finally:
            self._is_waiting = False

    def _take_offer(self) -> tuple[AssignedPartition, Delivery] | None:
        while self._offers:
            assigned = self._offers.popleft()
            if assigned.error is not None:
                self._error = assigned.error
                raise assigned.error
            batch = assigned.take()
            if batch is not None:
                return assigned, Delivery(assigned.partition, batch, assigned.epoch)
        return None

    def _hand_out(self, assigned: AssignedPartition, to: Position, epoch: int) -> None:
        assigned.note_handed_out(to)
        if self.auto_advance:
            self._outstanding = (assigned, to, epoch)

    def _take_back(self, delivery: Delivery) -> None:
        """Takes back a delivery that never reached the caller: it is delivered again."""
        assigned = self._assigned.get(delivery.partition)
        if assigned is None:
            return
        try:
            self._put_back(DeliveredBatch(assigned, delivery, delivery.batch.records()), 0)
        except LedgerError as error:
            self._error = error

    def _take_back_record(self, taken: tuple[RecordDelivery, DeliveredBatch]) -> None:
        delivery, delivered = taken
        self._put_back(
            delivered, delivery.record.position.slot - delivered.records[0].position.slot
        )

    def _put_back(self, delivered: DeliveredBatch, index: int) -> None:
        self._outstanding = None
        if delivered.is_lost or index >= delivered.index > 0:
            return
        delivered.assigned.note_undelivered(
            delivered.records[index].position, delivered.handed_out_to
        )
        delivered.index = index
        if not any(each is delivered for each in self._delivered):
            self._delivered.appendleft(delivered)
        self._offered.set()

    # Handling

    def _acknowledge(self) -> None:
        """Marks the last delivery as handled."""
        if self._outstanding is not None:
            assigned, to, epoch = self._outstanding
            self._outstanding = None
            assigned.handled(to, epoch)  # if it was lost meanwhile, another member handles it again

    def advance(self, handled: Delivery | RecordDelivery) -> None:
        """Marks everything of this partition up to and including these records as handled.

        It is committed in the background, at most once per interval. Raises PartitionLost if
        another member has the partition by now: what is not committed is handled again there.
        """
        if isinstance(handled, Delivery):
            to = handled.batch.after
        elif isinstance(handled, RecordDelivery):
            to = handled.record.position.after
        else:
            raise InvalidArgument(
                f"advance takes a Delivery or a RecordDelivery, not {type(handled).__name__}"
            )
        assigned = self._assigned.get(handled.partition)
        if assigned is None or not assigned.handled(to, handled.epoch):
            raise PartitionLost(handled.partition, handled.epoch)

    async def commit(self) -> dict[str, Position]:
        """Stores now what is handled; with `auto_advance`, all that was delivered.

        Returns the committed position of each partition that is still ours; a missing one was lost
        to another member. Raises MetadataUnavailable: some may be stored, all are tried again in
        the background.
        """
        self._acknowledge()
        committed: dict[str, Position] = {}
        for name, assigned in list(self._assigned.items()):
            cursor = assigned.cursor
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
        """Returns how far each partition of this member is behind its end, asked of the bookies.

        Raises NoSuchStream, and what reading ledgers raises.
        """
        cursors = {name: assigned.cursor for name, assigned in self._assigned.items()}
        return {
            name: await cursor.lag()
            for name, cursor in cursors.items()
            if cursor is not None and cursor.error is None
        }

    # Assignment. No awaits here: the wanted partitions and their tasks change together.

    def note_group(self, group: GroupMetadata | None) -> None:
        """Notes a changed assignment, which says what this member should hold."""
        self._wanted = [] if group is None else group.partitions_of(self.member)
        if group is not None:
            self._first_partitions = group.first_partitions
            if self._resets not in (None, group.resets):
                self._check_all()
            self._resets = group.resets
            self._known = list(group.assignment)
        for name, assigned in self._assigned.items():
            if name not in self._wanted:
                assigned.leave()
        for name in self._wanted:
            if name not in self._assigned:
                self._begin(name)

    def _begin(self, partition: str) -> None:
        assert self._nursery is not None, "the consumer is open"
        # The group has read nothing of a partition that was added later.
        is_first = self._known.index(partition) < self._first_partitions
        start = self._start if is_first else EARLIEST
        assigned = AssignedPartition(self._context, partition, start, self._note_offer)
        self._assigned[partition] = assigned
        self._nursery.start_soon(self._run_assigned, assigned)

    async def _run_assigned(self, assigned: AssignedPartition) -> None:
        await assigned.run()
        if assigned.error is not None:
            return  # the next request raises it
        del self._assigned[assigned.partition]
        if assigned.partition in self._wanted:
            self._begin(assigned.partition)  # it was assigned again during the handover

    def _note_offer(self, assigned: AssignedPartition) -> None:
        self._offers.append(assigned)
        self._offered.set()

    # Membership

    def note_lost(self) -> None:
        """Suspends delivery until a check: the others consider this member dead."""
        for assigned in self._assigned.values():
            assigned.is_suspended = True

    def note_rejoined(self) -> None:
        """Notes that the member is visible again, and checks its partitions."""
        self._check_all()

    def _check_all(self) -> None:
        if self._nursery is not None:
            for assigned in self._assigned.values():
                self._nursery.start_soon(self._check, assigned)

    async def _check(self, assigned: AssignedPartition) -> None:
        while (cursor := assigned.cursor) is not None and cursor.error is None:
            try:
                await cursor.check()
            except RetryableError:
                await trio.sleep(RETRY_S)
            except LedgerError:
                return  # it was lost, and its task ends
            else:
                assigned.is_suspended = False
                return

    async def run(self, coordinator: Coordinator, membership: Membership) -> None:
        """Runs until cancelled; the error that ends it is raised by the next request."""
        try:
            await coordinator.run(membership)
        except LedgerError as error:
            self._error = error
            self._offered.set()
            self.note_group(None)  # the others need not wait until this member requests again
            await membership.remove_eventually()

    def begin(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

    def _description(self) -> str:
        held = ", ".join(self.partitions) or "nothing yet"
        return f"{self.member!r} of group {self.group!r} at {self.stream!r}, holds {held}"

    async def leave(self, membership: Membership) -> None:
        """Commits and releases what is assigned, then leaves the group. Its tasks have ended."""
        self._nursery = None
        closed = LedgerClosed(f"consumer {self.member!r} of group {self.group!r} is closed")
        self._error = self._error or closed
        has_left = False
        with trio.move_on_after(LEAVE_TIMEOUT_S, shield=True):
            async with trio.open_nursery() as nursery:
                for assigned in self._assigned.values():
                    nursery.start_soon(self._release, assigned)
            has_left = await membership.end()
        if not has_left:
            try:
                self._context.client.start_background(membership.remove_eventually)
            except LedgerClosed:
                pass  # then the session ends too, and the member's node with it

    async def _release(self, assigned: AssignedPartition) -> None:
        cursor = assigned.cursor
        if cursor is None or cursor.error is not None:
            return
        try:
            await cursor.release()
        except LedgerError as error:
            _log.info("partition=%s: left without a commit: %s", assigned.partition, error)
        finally:
            cursor.end()


class RecordIterator:
    """Records of a consumer. It owns nothing: drop it, and another one continues."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def __aiter__(self) -> RecordIterator:
        return self

    async def __anext__(self) -> RecordDelivery:
        return await self._consumer.next_record()
