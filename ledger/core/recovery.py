"""Finds the end of a ledger whose writer is gone, and closes it there. Shell: `ledger.recovery`.

It returns actions and handles events. It must never close a ledger before an entry that was
acknowledged, nor take silence for "no": only an explicit and truthful "I do not hold it" proves
anything. Where that is not enough, it ends with RecoveryIncomplete and the count of answers; any
client may try again later. docs/recovery.md has the steps and their proof.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field

from ledger.core.entry import Digest, Entry
from ledger.core.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.core.quorum import is_covered, negatives_needed, write_set
from ledger.core.recovery_adds import RecoveryAdds
from ledger.core.recovery_events import (
    Action,
    AddEntry,
    Answered,
    BookieChosen,
    Buffer,
    Event,
    LedgerConflicted,
    LedgerStored,
    NoAnswer,
    ReadEntry,
    ReadLast,
    StoreClosed,
)
from ledger.errors import (
    INVALID_ENTRY_ID,
    DigestMismatch,
    LedgerError,
    MetadataConflict,
    RecoveryIncomplete,
    Status,
    Unauthorized,
)

HISTORY_EVENTS_MAX = 64
ATTEMPTS_MAX = 8
"""How often other clients may change the metadata before recovery gives up."""

_NEGATIVES = (Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER)


class Phase(enum.Enum):
    """The steps of a recovery, in order."""

    FENCING = "fencing"
    READING = "reading"
    MEASURING = "measuring"
    CLOSING = "closing"
    FINISHED = "finished"


@dataclass(slots=True)
class _Read:
    """One entry that is being read: from one replica first, then from all others at once."""

    entry_id: int
    order: tuple[str, ...]
    is_fencing: bool
    asked: int = 0
    negative: list[str] = field(default_factory=list)
    silent: dict[str, str] = field(default_factory=dict)
    found: Entry | None = None
    body: Buffer = b""

    @property
    def is_exhausted(self) -> bool:
        return len(self.negative) + len(self.silent) == len(self.order)

    def arithmetic(self) -> str:
        said = [f"{b}: no such entry" for b in self.negative]
        said += [f"{b}: {reason}" for b, reason in self.silent.items()]
        return "; ".join(said)


class RecoveryCore:
    """Recovery of one ledger whose stored state is IN_RECOVERY.

    Args:
        metadata: as stored; `StoreClosed` must be conditional on exactly this version.
        digest: of the ledger's digest type and password.
        window_entries: entries read and added again at the same time.
    """

    def __init__(
        self, metadata: LedgerMetadata, digest: Digest, *, window_entries: int = 16
    ) -> None:
        assert window_entries >= 1, window_entries
        self._digest = digest
        self._window_entries = window_entries
        self._attempt = 0
        self._result: LedgerMetadata | LedgerError | None = None
        self._history: deque[str] = deque(maxlen=HISTORY_EVENTS_MAX)
        self._reset(metadata)

    def _reset(self, metadata: LedgerMetadata) -> None:
        assert metadata.state is LedgerState.IN_RECOVERY, metadata
        self._attempt += 1
        self._phase = Phase.FENCING
        self._stored = metadata
        self._answered: list[str] = []
        self._silent: dict[str, str] = {}
        self._is_unauthorized = False
        # The greatest LAC seen in any entry with a valid digest: entries up to it were
        # acknowledged. Reading starts after the one known when fencing was done.
        self._lac_proven = metadata.last_fragment.first_entry_id - 1
        self._lengths: dict[int, int] = {}
        """The ledger's length up to an entry, for the entries that fencing returned."""
        self._reads: dict[int, _Read] = {}
        self._next_read = self._next_add = 0
        self._end: int | None = None
        self._adds = RecoveryAdds(metadata, self._attempt, self._lac_proven)

    @property
    def finished(self) -> bool:
        return self._result is not None

    @property
    def result(self) -> LedgerMetadata:
        """The closed metadata, stored by this client or another. Raises the error if it failed."""
        assert self._result is not None, self.history()
        if isinstance(self._result, LedgerError):
            raise self._result
        return self._result

    @property
    def phase(self) -> Phase:
        return self._phase

    def history(self) -> str:
        """Returns the last events and actions, oldest first, one per line."""
        return "\n".join(self._history)

    def start(self) -> list[Action]:
        """Returns the actions that fence all bookies of the last ensemble."""
        bookies = self._stored.last_fragment.bookies
        return self._issue([ReadLast(self._attempt, bookie) for bookie in bookies])

    def handle(self, event: Event) -> list[Action]:
        """Returns the actions after `event`. Answers to an earlier attempt are ignored."""
        assert not self.finished, f"event after the end: {event}\n{self.history()}"
        self._history.append(f"< {event}")
        if event.action.attempt != self._attempt:
            return []
        match event:
            case Answered(ReadLast(), _, _) | NoAnswer(ReadLast(), _):
                actions = self._last_read(event)
            case Answered(ReadEntry(), _, _) | NoAnswer(ReadEntry(), _):
                actions = self._entry_read(event)
            case Answered(AddEntry(), _, _) | NoAnswer(AddEntry(), _):
                actions = self._entry_added(event)
            case BookieChosen():
                actions = self._adds.chosen(event) + self._proceed()
            case LedgerStored():
                actions = self._finish(event.action.closed)
            case LedgerConflicted():
                actions = self._conflicted(event.metadata)
        return self._issue(actions)

    def _issue(self, actions: list[Action]) -> list[Action]:
        self._history.extend(f"> {action}" for action in actions)
        return actions

    def _finish(self, result: LedgerMetadata | LedgerError) -> list[Action]:
        self._phase = Phase.FINISHED
        self._result = result
        self._history.append(f"= {result}")
        return []

    # Fencing

    def _last_read(self, event: Answered | NoAnswer) -> list[Action]:
        bookie = event.action.bookie
        reason = self._note_last(event)
        if reason is None:
            self._answered.append(bookie)
        else:
            self._silent[bookie] = reason
        if self._phase is not Phase.FENCING:
            return []  # a late answer: it fenced one more bookie, which can only help
        fragment, stored = self._stored.last_fragment, self._stored
        answered = [i for i, b in enumerate(fragment.bookies) if b in self._answered]
        if is_covered(stored.ensemble_size, stored.write_quorum, stored.ack_quorum, answered):
            return self._begin_reading()
        if len(self._answered) + len(self._silent) < stored.ensemble_size:
            return []
        return self._finish(self._not_covered())

    def _note_last(self, event: Answered | NoAnswer) -> str | None:
        """Notes the LAC in the answer. Returns None, or why the answer counts as silence."""
        if isinstance(event, NoAnswer):
            self._is_unauthorized |= event.is_unauthorized
            return event.reason
        if event.status in _NEGATIVES:
            return None
        if event.status is not Status.OK:
            self._is_unauthorized |= event.status is Status.UNAUTHORIZED
            return event.status.name
        entry = self._decode(INVALID_ENTRY_ID, event.body or b"")
        if isinstance(entry, str):
            return entry
        self._lengths[entry.entry_id] = entry.length
        return None

    def _decode(self, entry_id: int, body: Buffer) -> Entry | str:
        """Returns the entry, or what is wrong with its bytes."""
        try:
            entry = self._digest.decode_entry(self._stored.ledger_id, entry_id, body)
        except DigestMismatch as error:
            return f"bad entry ({error})"
        self._lac_proven = max(self._lac_proven, entry.lac)
        return entry

    def _not_covered(self) -> LedgerError:
        stored = self._stored
        said = "; ".join(f"{b}: {reason}" for b, reason in self._silent.items())
        text = (
            f"ledger {stored.ledger_id}: cannot fence: in every {stored.write_quorum} bookies "
            f"in a row (write quorum) fewer than {stored.ack_quorum} (ack quorum) may be silent; "
            f"{len(self._answered)} of {stored.ensemble_size} answered, silent are {said}. "
            "The ledger stays in recovery; open it again when these bookies are back"
        )
        return Unauthorized(text) if self._is_unauthorized else RecoveryIncomplete(text)

    # Reading forward

    def _begin_reading(self) -> list[Action]:
        self._phase = Phase.READING
        self._adds = RecoveryAdds(self._stored, self._attempt, self._lac_proven)
        self._next_read = self._next_add = self._lac_proven + 1
        return self._proceed()

    def _begin_read(self, entry_id: int, *, is_fencing: bool) -> list[Action]:
        fragment = self._stored.fragment_of(entry_id)
        replicas = self._write_set(fragment, entry_id)
        # Those that answered before come first, so that a dead bookie costs one timeout and
        # not one per entry; sorting is stable, so the load stays spread.
        order = sorted(replicas, key=lambda b: b in self._silent or b not in self._answered)
        read = self._reads[entry_id] = _Read(entry_id, tuple(order), is_fencing)
        return self._ask(read, 1)

    def _ask(self, read: _Read, count: int) -> list[Action]:
        bookies = read.order[read.asked : read.asked + count]
        read.asked += len(bookies)
        return [ReadEntry(self._attempt, b, read.entry_id, read.is_fencing) for b in bookies]

    def _write_set(self, fragment: Fragment, entry_id: int) -> list[str]:
        stored = self._stored
        indices = write_set(entry_id, stored.ensemble_size, stored.write_quorum)
        return [fragment.bookies[i] for i in indices]

    def _entry_read(self, event: Answered | NoAnswer) -> list[Action]:
        action = event.action
        assert isinstance(action, ReadEntry)
        read = self._reads.get(action.entry_id)
        if read is None or read.found is not None:
            return []
        if isinstance(event, NoAnswer):
            self._silent[action.bookie] = read.silent[action.bookie] = event.reason
        elif event.status in _NEGATIVES:
            read.negative.append(action.bookie)
        elif event.status is not Status.OK:
            read.silent[action.bookie] = event.status.name
        else:
            entry = self._decode(action.entry_id, event.body or b"")
            if isinstance(entry, Entry):
                read.found, read.body = entry, event.body or b""
            else:
                read.silent[action.bookie] = entry
        actions = self._ask(read, len(read.order)) if read.found is None else []
        if self._phase is Phase.MEASURING:
            return actions + self._measured(read)
        return actions + self._proceed()

    def _proceed(self) -> list[Action]:
        """Returns all actions that the state of reads and adds allows, in entry order."""
        if self._phase is not Phase.READING:
            return []
        if (failure := self._adds.unreachable()) is not None:
            return self._finish(failure)
        actions: list[Action] = []
        while (read := self._reads.get(self._next_add)) and read.found is not None:
            # In order only, so that no entry after a gap is ever added again.
            actions += self._adds.begin(read.found, read.body)
            del self._reads[self._next_add]
            self._next_add += 1
        if self._end is None and read and (failure := self._judge(read)) is not None:
            return self._finish(failure)
        self._adds.confirm()
        if self._end is None:
            while self._next_read <= self._adds.confirmed + self._window_entries:
                actions += self._begin_read(self._next_read, is_fencing=True)
                self._next_read += 1
        elif self._adds.is_settled:
            assert self._adds.confirmed == self._end, self.history()
            actions += self._begin_closing()
        return actions

    def _judge(self, read: _Read) -> LedgerError | None:
        """Decides whether the first entry not found ends the ledger."""
        stored = self._stored
        needed = negatives_needed(stored.write_quorum, stored.ack_quorum)
        if len(read.negative) >= needed and read.entry_id > self._lac_proven:
            # Too few bookies are left for an ack quorum, and those that said no are fenced: this
            # entry was not acknowledged to a writer, and cannot be any more.
            self._end = read.entry_id - 1
            self._reads.clear()
            return None
        if not read.is_exhausted:
            return None
        if read.entry_id <= self._lac_proven:
            why = (
                f"entry {self._lac_proven} is known to be confirmed, yet {len(read.negative)} "
                f"bookies do not have entry {read.entry_id}: a replica has lost data"
            )
        else:
            why = (
                f"that it was never acknowledged takes {needed} explicit negatives (write quorum "
                f"{stored.write_quorum} - ack quorum {stored.ack_quorum} + 1), there are "
                f"{len(read.negative)}"
            )
        return RecoveryIncomplete(
            f"ledger {stored.ledger_id}: cannot decide about entry {read.entry_id}: {why} "
            f"({read.arithmetic()}). The ledger stays in recovery; open it again later"
        )

    # Adding again

    def _entry_added(self, event: Answered | NoAnswer) -> list[Action]:
        assert isinstance(event.action, AddEntry)
        actions: list[Action] = []
        if isinstance(event, NoAnswer):
            actions = self._adds.failed(event.action, event.reason)
        elif event.status is not Status.OK:
            actions = self._adds.failed(event.action, event.status.name)
        else:
            self._adds.acked(event.action)
        return actions + self._proceed()

    # Closing

    def _begin_closing(self) -> list[Action]:
        last = self._adds.confirmed
        length = 0 if last < 0 else self._lengths.get(last, self._adds.length)
        if length is not None:
            return self._close(length)
        # No entry followed the last confirmed one: the length is only in that entry.
        self._phase = Phase.MEASURING
        return self._begin_read(last, is_fencing=False)

    def _measured(self, read: _Read) -> list[Action]:
        if read.found is not None:
            return self._close(read.found.length)
        if not read.is_exhausted:
            return []
        return self._finish(
            RecoveryIncomplete(
                f"ledger {self._stored.ledger_id}: entry {read.entry_id} is confirmed and holds "
                f"the ledger's length, but no replica returned it ({read.arithmetic()}). "
                "The ledger stays in recovery; open it again later"
            )
        )

    def _close(self, length: int) -> list[Action]:
        self._phase = Phase.CLOSING
        closed = self._adds.metadata.closed(self._adds.confirmed, length)
        return [StoreClosed(self._attempt, closed)]

    def _conflicted(self, metadata: LedgerMetadata) -> list[Action]:
        if metadata.is_closed:
            return self._finish(metadata)
        if self._attempt == ATTEMPTS_MAX:
            return self._finish(
                MetadataConflict(
                    f"ledger {metadata.ledger_id}: metadata changed {ATTEMPTS_MAX} times during "
                    "recovery; try again when fewer clients change it"
                )
            )
        self._reset(metadata)
        return self.start()
