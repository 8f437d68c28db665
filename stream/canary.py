"""The canary appends to a stream of its own forever, and checks that all promises are kept.

Each round appends a record, waits until a reader that follows the stream has it, and reads every
copy of it at the bookies that its receipt names; then it reads the copies of an older record, so
that a bookie that loses data later is found too. Its stream is bounded: it begins a new segment now
and then and deletes what it no longer checks. It must never touch a stream that holds other
records.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from ledger.core.copies import CopyVerdict
from ledger.errors import InvalidArgument, LedgerError
from ledger.runtime.background import open_background
from stream.core.entry.records import Record
from stream.core.position import LATEST, Position
from stream.core.receipt import Receipt
from stream.errors import NotInTrash, TakenOver
from stream.namespace import Namespace
from stream.reading.reader import StreamReader
from stream.verify import StreamReport
from stream.writing.writer import StreamWriter

MARK = b"ledgerstream-canary "
_TRIM_EVERY = 50
_SEEN_MAX = 1000
_READ_AGAIN_S = 1.0
_FAULTS_REPORTED_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryOptions:
    """Options of a canary. Frozen. Raises InvalidArgument for a value that can never work."""

    interval_s: float = 10.0
    """Seconds from the end of a round to the begin of the next."""

    timeout_s: float = 30.0
    """How long each of appending, following and verifying may take."""

    record_bytes: int = 256

    remembered: int = 1000
    """Receipts kept, of which each round verifies one again, at random. After this many rounds a
    new segment is begun, so that the stream holds at most about three times as many records."""

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("interval_s", self.interval_s, 0.05, 86_400.0),
            ("timeout_s", self.timeout_s, 0.1, 3600.0),
            ("record_bytes", self.record_bytes, 64, 4096),
            ("remembered", self.remembered, 1, 100_000),
        ):
            if not low <= value <= high:
                raise InvalidArgument(f"canary: {name} is {value:g}, legal is {low:g} to {high:g}")


@dataclass(slots=True, kw_only=True)
class CanaryRound:
    """What one round found. Times are ms; None for steps that were not reached.

    `verdict` is DAMAGE if a promise was broken, DOUBT if something failed or could not be checked,
    REDUCED if there are fewer copies than there should be. `alerts` give the reasons as text.
    """

    number: int
    time_ms: int
    verdict: CopyVerdict = CopyVerdict.WHOLE
    alerts: list[tuple[CopyVerdict, str]] = field(default_factory=list)
    position: Position | None = None
    append_ms: float | None = None
    tail_ms: float | None = None
    verify_ms: float | None = None
    acks: tuple[str, ...] = ()
    not_yet: tuple[str, ...] = ()
    checked_again: Position | None = None

    def alert(self, verdict: CopyVerdict, text: str) -> None:
        """Notes that something is not as it should be."""
        self.verdict = max(self.verdict, verdict)
        self.alerts.append((verdict, text))

    def as_dict(self) -> dict[str, object]:
        """Returns the JSON object of the round."""
        return {
            "round": self.number,
            "time_ms": self.time_ms,
            "verdict": self.verdict.name.lower(),
            "position": None if self.position is None else str(self.position),
            "append_ms": self.append_ms,
            "tail_ms": self.tail_ms,
            "verify_ms": self.verify_ms,
            "acks": list(self.acks),
            "not_yet": list(self.not_yet),
            "checked_again": None if self.checked_again is None else str(self.checked_again),
            "alerts": [
                {"verdict": verdict.name.lower(), "text": text} for verdict, text in self.alerts
            ],
        }


class Canary:
    """Checks one stream, of which it is the only writer.

    Args:
        namespace: of the stream, with its client open.
        stream: created if it does not exist; everything in it belongs to the canary.
    """

    def __init__(
        self, namespace: Namespace, stream: str, options: CanaryOptions | None = None
    ) -> None:
        self._namespace = namespace
        self._stream = stream
        self._options = options or CanaryOptions()
        self._run_id = namespace.client.rng.getrandbits(64)
        self._receipts: deque[Receipt] = deque()
        self._appended: OrderedDict[bytes, None] = OrderedDict()
        """Values that were appended and that the tail may show; those of unknown outcome may or may
        not be shown."""
        self._seen: OrderedDict[Position, bytes] = OrderedDict()
        self._tail_moved = trio.Event()
        self._next_sequence = -1
        self._found: list[tuple[CopyVerdict, str]] = []
        """What the tail noticed since the last round."""

    async def run(
        self,
        on_round: Callable[[CanaryRound], None],
        *,
        rounds: int | None = None,
        stop_on_violation: bool = False,
    ) -> CopyVerdict:
        """Runs forever, or for `rounds` rounds, or until a promise was broken; then returns the
        worst verdict.

        Failures are reported by `on_round` and tried again. Raises TakenOver if another writer took
        the stream over, InvalidArgument if it holds other records, NoSuchNamespace.
        """
        if rounds is not None and rounds < 1:
            raise InvalidArgument(f"canary: {rounds} rounds, need at least 1")
        await self._namespace.ensure_stream(self._stream)
        await self._check_own()
        async with self._namespace.writer(self._stream):
            pass  # records of an earlier canary in flight are in the stream now, or never will be
        worst, number, is_over = CopyVerdict.WHOLE, 0, False
        async with open_background() as nursery:
            await nursery.start(self._follow)
            while not is_over:
                report = CanaryRound(number=number + 1, time_ms=self._namespace.client.now_ms())
                try:
                    async with self._namespace.writer(self._stream) as writer:
                        for _ in range(self._options.remembered):
                            number += 1
                            report = await self._round(writer, number)
                            worst = max(worst, report.verdict)
                            on_round(report)
                            is_over = number == rounds or (
                                stop_on_violation and worst is CopyVerdict.DAMAGE
                            )
                            if is_over or writer.error is not None:
                                break
                            await trio.sleep(self._options.interval_s)
                except TakenOver:
                    raise
                except LedgerError as error:
                    if report.number > number:  # else that round has reported it
                        number += 1
                        report.alert(
                            CopyVerdict.DOUBT, f"no writer: {type(error).__name__}: {error}"
                        )
                        worst = max(worst, report.verdict)
                        on_round(report)
                        is_over = number == rounds
                    await trio.sleep(0 if is_over else self._options.interval_s)
        return worst

    async def _check_own(self) -> None:
        for record in await self._namespace.read_last(self._stream, 1):
            if not record.value.startswith(MARK):
                raise InvalidArgument(
                    f"stream {self._stream!r} has records that are not a canary's, and a canary "
                    f"deletes the records of its stream: give it a stream of its own"
                )

    # One round

    async def _round(self, writer: StreamWriter, number: int) -> CanaryRound:
        report = CanaryRound(number=number, time_ms=self._namespace.client.now_ms())
        value = self._value(number)
        self._appended[value] = None
        if len(self._appended) > _SEEN_MAX:
            self._appended.popitem(last=False)
        try:
            receipt = await self._append(writer, value, report)
            if receipt is not None:
                await self._wait_seen(receipt, value, report)
                await self._check(receipt, report)
                self._receipts.append(receipt)
        except TakenOver:
            raise
        except LedgerError as error:
            report.alert(CopyVerdict.DOUBT, f"append failed: {type(error).__name__}: {error}")
        await self._check_older_record(report)
        found, self._found = self._found, []
        for verdict, text in found:
            report.alert(verdict, text)
        if number % _TRIM_EVERY == 0 or len(self._receipts) > self._options.remembered:
            await self._trim(report)
        return report

    def _value(self, number: int) -> bytes:
        head = MARK + f"{self._run_id:016x} {number} ".encode()
        return head + self._namespace.client.rng.randbytes(self._options.record_bytes - len(head))

    async def _append(
        self, writer: StreamWriter, value: bytes, report: CanaryRound
    ) -> Receipt | None:
        began_s = trio.current_time()
        with trio.move_on_after(self._options.timeout_s):
            await writer.wait_room()
            ticket = writer.receipt_of(writer.append_nowait(value))
            report.position = await ticket.wait()
            report.append_ms = _ms_since(began_s)
            receipt = await ticket.receipt()
            report.acks, report.not_yet = receipt.bookies, receipt.not_yet
            return receipt
        report.alert(
            CopyVerdict.DOUBT, f"append was not confirmed in {self._options.timeout_s:g} s: unknown"
        )
        return None

    async def _wait_seen(self, receipt: Receipt, value: bytes, report: CanaryRound) -> None:
        began_s = trio.current_time()
        with trio.move_on_after(self._options.timeout_s):
            while receipt.position not in self._seen:
                await self._tail_moved.wait()
            report.tail_ms = round((report.append_ms or 0.0) + _ms_since(began_s), 3)
            if self._seen[receipt.position] != value:
                report.alert(
                    CopyVerdict.DAMAGE, f"the tail shows another record at {receipt.position}"
                )
            return
        report.alert(
            CopyVerdict.DOUBT,
            f"the tail has not shown {receipt.position} in {self._options.timeout_s:g} s; it is "
            f"at sequence {self._next_sequence}",
        )

    async def _check(self, receipt: Receipt, report: CanaryRound) -> None:
        began_s = trio.current_time()
        found = await self._verified(receipt, report)
        if found is not None:
            report.verify_ms = _ms_since(began_s)

    async def _check_older_record(self, report: CanaryRound) -> None:
        older = len(self._receipts) - (report.position is not None)
        if older > 0:
            receipt = self._receipts[self._namespace.client.rng.randrange(older)]
            report.checked_again = receipt.position
            await self._verified(receipt, report)

    async def _verified(self, receipt: Receipt, report: CanaryRound) -> StreamReport | None:
        """Verifies the record's copies and adds what is wrong to the report."""
        found: StreamReport | None = None
        with trio.move_on_after(self._options.timeout_s):
            try:
                found = await self._namespace.verify(self._stream, receipt=receipt)
            except LedgerError as error:
                # Truncated, too: no other client may delete records of this stream.
                kind = CopyVerdict.DOUBT if error.retry_is_safe else CopyVerdict.DAMAGE
                report.alert(kind, f"{receipt.position}: {type(error).__name__}: {error}")
                return None
        if found is None:
            report.alert(
                CopyVerdict.DOUBT,
                f"{receipt.position} was not verified in {self._options.timeout_s:g} s",
            )
        elif found.verdict is not CopyVerdict.WHOLE:
            report.alert(found.verdict, f"{receipt.position}: {_summary(found)}")
        return found

    async def _trim(self, report: CanaryRound) -> None:
        """Deletes what is no longer checked; whole segments only, and permanently."""
        while len(self._receipts) > self._options.remembered:
            self._receipts.popleft()
        if not self._receipts:
            return
        with trio.move_on_after(self._options.timeout_s):
            try:
                await self._namespace.truncate(self._stream, self._receipts[0].position)
                await self._namespace.purge(self._stream)
            except NotInTrash:
                return
            except LedgerError as error:
                report.alert(CopyVerdict.DOUBT, f"not trimmed: {type(error).__name__}: {error}")

    # Following

    async def _follow(self, task_status: trio.TaskStatus[None]) -> None:
        """Reads what is appended from now on; after a failure it resumes where it was."""
        start: Position | None = None
        is_first = True
        while True:
            try:
                async with self._namespace.reader(self._stream, start=start or LATEST) as reader:
                    if is_first:
                        is_first = False
                        task_status.started()
                    await self._read(reader)
            except LedgerError as error:
                if is_first:
                    raise
                start = reader.position
                self._found.append((CopyVerdict.DOUBT, f"tail: {type(error).__name__}: {error}"))
                del self._found[:-_FAULTS_REPORTED_MAX]
            await trio.sleep(_READ_AGAIN_S)

    async def _read(self, reader: StreamReader) -> None:
        async for record in reader:
            self._take(record)

    def _take(self, record: Record) -> None:
        """Notes a record that the tail shows."""
        self._check_order(record)
        self._seen[record.position] = record.value
        if len(self._seen) > _SEEN_MAX:
            self._seen.popitem(last=False)
        moved, self._tail_moved = self._tail_moved, trio.Event()
        moved.set()

    def _check_order(self, record: Record) -> None:
        """Checks that each record was appended once, in order, and nothing else."""
        if self._next_sequence not in (-1, record.sequence):
            self._found.append(
                (
                    CopyVerdict.DAMAGE,
                    f"the tail went from sequence {self._next_sequence - 1} to {record.sequence} "
                    f"at {record.position}",
                )
            )
        self._next_sequence = record.sequence + 1
        if record.value not in self._appended:
            self._found.append(
                (
                    CopyVerdict.DAMAGE,
                    f"the record at {record.position} was not appended by this canary, or is "
                    f"there twice",
                )
            )
        self._appended.pop(record.value, None)
        del self._found[:-_FAULTS_REPORTED_MAX]


def _ms_since(began_s: float) -> float:
    return round(1000 * (trio.current_time() - began_s), 3)


def _summary(report: StreamReport) -> str:
    """Returns what is wrong with the copies of one record, as text."""
    problems: list[str] = []
    for segment in report.segments:
        if segment.problem:
            problems.append(segment.problem)
        if segment.ledger is not None:
            problems += [
                f"{fault.state.value} at {fault.bookie} ({fault.detail})"
                for fault in segment.ledger.faults[:_FAULTS_REPORTED_MAX]
            ]
    return "; ".join(problems)
