"""Finds the end of a ledger whose writer is gone, and closes it there. Shell: `ledger.recovery`.

It returns actions and handles events. It must never close a ledger before an entry that was
acknowledged, nor take silence for "no": only an explicit and truthful "I do not hold it" proves
anything. Nor does it believe what a bookie claims about entries that it cannot be shown
(`ledger.core.recovery_claims`). Where that is not enough, it ends with RecoveryIncomplete and the
count of answers; any client may try again later. docs/recovery.md has the steps and their proof.
"""

from __future__ import annotations

import enum
from collections import deque

from ledger.core.entry import Digest, Entry
from ledger.core.metadata import LedgerMetadata, LedgerState
from ledger.core.quorum import is_covered, negatives_needed, write_set
from ledger.core.recovery_adds import RecoveryAdds
from ledger.core.recovery_claims import Claims, EntryRead
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

WINDOW_ENTRIES = 16
_WINDOW_ENTRIES_FIRST = 2
"""Most ledgers end here: each entry read beyond the end costs a question to all of its replicas."""

_NEGATIVES = (Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER)


class Phase(enum.Enum):
    """The steps of a recovery, in order."""

    FENCING = "fencing"
    CHECKING = "checking"
    READING = "reading"
    MEASURING = "measuring"
    CLOSING = "closing"
    FINISHED = "finished"


class RecoveryCore:
    """Recovery of one ledger whose stored state is IN_RECOVERY.

    Args:
        metadata: as stored; `StoreClosed` must be conditional on exactly this version.
        digest: of the ledger's digest type and password.
        window_entries: entries read and added again at the same time; fewer at first.
        salt: 64 random bits, by which it is drawn what has to stand behind a claim.
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        digest: Digest,
        *,
        window_entries: int = WINDOW_ENTRIES,
        salt: int = 0,
    ) -> None:
        assert window_entries >= 1, window_entries
        self._digest = digest
        self._window_entries_max = window_entries
        self._salt = salt
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
        self._claims = Claims(metadata)
        self._claimed = -1
        """The claim that is checked before reading begins."""
        self._checks: dict[int, EntryRead] = {}
        """Reads that decide about claims, not about the end."""
        self._lengths: dict[int, int] = {}
        """The ledger's length up to an entry, for entries that were returned before reading."""
        self._reads: dict[int, EntryRead] = {}
        self._window_entries = min(_WINDOW_ENTRIES_FIRST, self._window_entries_max)
        self._next_read = self._next_add = 0
        self._end: int | None = None
        self._adds = RecoveryAdds(metadata, self._attempt, self._first - 1)

    @property
    def _first(self) -> int:
        return self._stored.last_fragment.first_entry_id

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

    @property
    def set_aside(self) -> dict[str, int]:
        """By bookie, what it claimed to be the last add confirmed, if that is after the end."""
        if self._end is None:
            return {}
        return self._claims.after(self._end)

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
            return self._check_next()
        if len(self._answered) + len(self._silent) < stored.ensemble_size:
            return []
        return self._finish(self._not_covered())

    def _note_last(self, event: Answered | NoAnswer) -> str | None:
        """Notes what the answer claims. Returns None, or why the answer counts as silence."""
        if isinstance(event, NoAnswer):
            self._is_unauthorized |= event.is_unauthorized
            return event.reason
        if event.status in _NEGATIVES:
            return None
        if event.status is not Status.OK:
            self._is_unauthorized |= event.status is Status.UNAUTHORIZED
            return event.status.name
        entry = self._decode(event.action.bookie, INVALID_ENTRY_ID, event.body or b"")
        if isinstance(entry, str):
            return entry
        self._lengths[entry.entry_id] = entry.length
        return None

    def _decode(self, bookie: str, entry_id: int, body: Buffer) -> Entry | str:
        """Returns the entry, or what is wrong with its bytes."""
        try:
            entry = self._digest.decode_entry(self._stored.ledger_id, entry_id, body)
        except DigestMismatch as error:
            return f"bad entry ({error})"
        self._claims.note(bookie, entry)
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

    # Checking what was claimed

    def _check_next(self) -> list[Action]:
        """Checks the greatest claim that was not checked yet; without one, reading begins where
        the last fragment does. To begin early costs time, and loses nothing."""
        self._phase = Phase.CHECKING
        claimed = self._claims.next_start()
        if claimed is None:
            return self._begin_reading(self._first - 1)
        self._claimed = claimed
        return self._begin_checks([claimed]) + self._checked()

    def _begin_checks(self, entry_ids: list[int]) -> list[Action]:
        actions: list[Action] = []
        for entry_id in entry_ids:
            if entry_id not in self._checks:
                replicas = self._claims.order(entry_id, self._replicas(entry_id))
                order = self._by_answers(replicas)
                read = EntryRead(entry_id, order, is_fencing=True, is_check=True)
                self._checks[entry_id] = read
                actions += self._ask(read, 1)
        return actions

    def _checked(self) -> list[Action]:
        """Begins to read after a claim if it, and entries drawn before it, are shown."""
        claimed = self._claimed
        read = self._checks[claimed]
        if not self._claims.is_trusted(read, claimed):
            if not read.is_exhausted:
                return []
            self._claims.reject(claimed)
            return self._check_next()
        probes = self._claims.probes(claimed, self._salt)
        if actions := self._begin_checks(probes):
            return actions
        checks = [self._checks[probe] for probe in probes]
        untrusted = [c for c in checks if not self._claims.is_trusted(c, claimed)]
        if any(check.is_exhausted for check in untrusted):
            return self._check_next()
        if untrusted:
            return []
        assert read.found is not None
        self._lengths[claimed] = read.found.length
        return self._begin_reading(claimed)

    # Reading forward

    def _begin_reading(self, confirmed: int) -> list[Action]:
        self._phase = Phase.READING
        self._adds = RecoveryAdds(self._stored, self._attempt, confirmed)
        self._next_read = self._next_add = confirmed + 1
        return self._proceed()

    def _begin_read(self, entry_id: int, *, is_fencing: bool) -> list[Action]:
        order = self._by_answers(self._replicas(entry_id))
        read = self._reads[entry_id] = EntryRead(entry_id, order, is_fencing)
        return self._ask(read, 1)

    def _by_answers(self, replicas: list[str]) -> tuple[str, ...]:
        # Those that answered before come first, so that a dead bookie costs one timeout and
        # not one per entry; sorting is stable, so the load stays spread.
        return tuple(sorted(replicas, key=lambda b: b in self._silent or b not in self._answered))

    def _ask(self, read: EntryRead, count: int) -> list[Action]:
        bookies = read.order[read.asked : read.asked + count]
        read.asked += len(bookies)
        return [
            ReadEntry(self._attempt, b, read.entry_id, read.is_fencing, read.is_check)
            for b in bookies
        ]

    def _replicas(self, entry_id: int) -> list[str]:
        stored = self._stored
        indices = write_set(entry_id, stored.ensemble_size, stored.write_quorum)
        bookies = stored.fragment_of(entry_id).bookies
        return [bookies[i] for i in indices]

    def _entry_read(self, event: Answered | NoAnswer) -> list[Action]:
        action = event.action
        assert isinstance(action, ReadEntry)
        reads = self._checks if action.is_check else self._reads
        read = reads.get(action.entry_id)
        if read is None or (read.found is not None and not read.is_check):
            return []
        self._note_read(read, event)
        if read.is_check:
            return self._check_answered(read)
        actions = self._ask(read, len(read.order)) if read.found is None else []
        if self._phase is Phase.MEASURING:
            return actions + self._measured(read)
        return actions + self._proceed()

    def _note_read(self, read: EntryRead, event: Answered | NoAnswer) -> None:
        """Notes what a replica answered about one entry."""
        bookie = event.action.bookie
        if isinstance(event, NoAnswer):
            self._silent[bookie] = read.silent[bookie] = event.reason
        elif event.status in _NEGATIVES:
            read.negative.append(bookie)
        elif event.status is not Status.OK:
            read.silent[bookie] = event.status.name
        else:
            entry = self._decode(bookie, read.entry_id, event.body or b"")
            if isinstance(entry, Entry):
                read.holders.append(bookie)
                read.found, read.body = entry, event.body or b""
            else:
                read.silent[bookie] = entry

    def _check_answered(self, read: EntryRead) -> list[Action]:
        if self._phase not in (Phase.CHECKING, Phase.READING):
            return []
        claimed = max(self._claimed, read.entry_id)
        is_shown = self._claims.is_shown(read, claimed)
        actions = [] if is_shown else self._ask(read, len(read.order))
        return actions + (self._checked() if self._phase is Phase.CHECKING else self._proceed())

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
            self._window_entries = min(2 * self._window_entries, self._window_entries_max)
        if self._end is None and read:
            judged = self._judge(read)
            if isinstance(judged, LedgerError):
                return self._finish(judged)
            actions += judged
        self._adds.confirm()
        if self._end is None:
            while self._next_read <= self._adds.confirmed + self._window_entries:
                actions += self._begin_read(self._next_read, is_fencing=True)
                self._next_read += 1
        elif self._adds.is_settled:
            assert self._adds.confirmed == self._end, self.history()
            actions += self._begin_closing()
        return actions

    def _judge(self, read: EntryRead) -> list[Action] | LedgerError:
        """Decides whether the first entry not found ends the ledger.

        If enough bookies deny it, too few are left for an ack quorum; and since these are fenced,
        it was not acknowledged to a writer, and cannot be any more. Claims that it was are set
        aside if what they name is denied as well. Otherwise bookies may have lost data.
        """
        stored = self._stored
        needed = negatives_needed(stored.write_quorum, stored.ack_quorum)
        is_denied = len(read.negative) >= needed
        claims = self._claims.up_from(read.entry_id)
        if (claims and not read.is_exhausted) or not (is_denied or read.is_exhausted):
            return []
        if not is_denied:
            return self._undecided(
                read,
                f"that it was never acknowledged takes {needed} explicit negatives (write quorum "
                f"{stored.write_quorum} - ack quorum {stored.ack_quorum} + 1), there are "
                f"{len(read.negative)}",
            )
        if silent := self._claims.silent_claimants(read):
            return self._undecided(
                read, f"{', '.join(silent)} claimed it to be confirmed, and is silent now"
            )
        named = [claimed for claimed in claims if claimed != read.entry_id]
        actions = self._begin_checks(named)
        checks = [self._checks[claimed] for claimed in named]
        for check in checks:
            is_shown = self._claims.is_shown(check, check.entry_id)
            if is_shown or (check.is_exhausted and not self._claims.is_refuted(check)):
                return self._undecided(
                    read,
                    f"entry {check.entry_id} is claimed to be confirmed ({check.arithmetic()}), "
                    f"yet {len(read.negative)} bookies do not have entry {read.entry_id}: a "
                    "replica has lost data, or an entry was forged",
                )
        if all(check.is_exhausted for check in checks):
            self._end = read.entry_id - 1
            self._reads.clear()
        return actions

    def _undecided(self, read: EntryRead, why: str) -> LedgerError:
        return RecoveryIncomplete(
            f"ledger {self._stored.ledger_id}: cannot decide about entry {read.entry_id}: {why} "
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

    def _measured(self, read: EntryRead) -> list[Action]:
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
