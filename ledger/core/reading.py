"""Decides which replica is asked, when a further one is, and what the answers prove.

Shells: `ledger.reading.replica_call` and `replica_fetch`. It runs once per request of up to a
megabyte, not once per entry. It must never report an entry as absent unless *every* replica said
so explicitly: an error, a timeout, a wrong digest or "I may have forgotten" counts as silence, and
one silent replica outweighs any number of negative answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ledger.core.entry import Digest
from ledger.core.metadata import LedgerMetadata
from ledger.core.quorum import is_covered, write_set
from ledger.errors import (
    INVALID_ENTRY_ID,
    DigestMismatch,
    LedgerError,
    NoSuchEntry,
    NoSuchLedger,
    NotEnoughBookies,
    Unauthorized,
)

Buffer = bytes | bytearray | memoryview
Value = TypeVar("Value")

FAILURE_MEMORY_S = 60.0
"""How long a bookie that failed is asked last."""

FAILURES_MAX = 256


@dataclass(frozen=True, slots=True)
class ReadReplica:
    """Ask this bookie."""

    bookie: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Report `HedgeDelayElapsed` after `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class ReplicaAnswered(Generic[Value]):
    """A bookie returned a good answer."""

    bookie: str
    value: Value


@dataclass(frozen=True, slots=True)
class Failed:
    """NoSuchEntry and NoSuchLedger are explicit answers; all other errors count as silence."""

    bookie: str
    error: LedgerError


@dataclass(frozen=True, slots=True)
class HedgeDelayElapsed:
    """The time of a `Wait` has passed."""


class ReplicaOrder:
    """The order in which an entry's replicas are asked; remembers recent failures.

    `rotation` spreads readers over replicas; one reader stays with its replica, whose caches then
    hold the next entries. Its only input is the time that callers pass, in seconds. `arrange` puts
    replicas into another order, such as that of their distance.
    """

    def __init__(
        self,
        rotation: int,
        arrange: Callable[[Sequence[str]], Sequence[str]] | None = None,
    ) -> None:
        self._rotation = rotation
        self._arrange = arrange
        self._failed_s: dict[str, float] = {}

    def order(self, metadata: LedgerMetadata, entry_id: int, now_s: float) -> tuple[str, ...]:
        """Returns the bookies that may hold `entry_id`, in the order in which to ask them."""
        size, quorum = metadata.ensemble_size, metadata.write_quorum
        bookies = metadata.fragment_of(entry_id).bookies
        # If all hold every entry, the first replica must not depend on the entry id.
        indices = write_set(0 if size == quorum else entry_id, size, quorum)
        turn = self._rotation % quorum
        # A closed ledger may name a bookie twice: it is asked once.
        replicas = list(dict.fromkeys(bookies[i] for i in indices[turn:] + indices[:turn]))
        if self._arrange is not None:
            replicas = list(self._arrange(replicas))
        failed_s = self._failed_s
        if failed_s:
            for bookie in [b for b, at in failed_s.items() if at + FAILURE_MEMORY_S <= now_s]:
                del failed_s[bookie]
            # Those that never failed, then the one whose failure is longest ago.
            replicas.sort(key=lambda b: failed_s.get(b, float("-inf")))
        return tuple(replicas)

    def failed(self, bookie: str, now_s: float) -> None:
        self._failed_s.pop(bookie, None)
        self._failed_s[bookie] = now_s
        if len(self._failed_s) > FAILURES_MAX:
            del self._failed_s[next(iter(self._failed_s))]

    def served(self, bookie: str) -> None:
        self._failed_s.pop(bookie, None)


class ReplicaRead(Generic[Value]):
    """One read that any replica can answer: asks one, and on failure or after a delay the next.

    Arguments:
        what: names the read in errors ("entry 7 of ledger 3").
        order: the replicas, all different.
        hedge_s: after this long without an answer a further replica is asked as well.
        hedges_max: how often that is done.
    """

    def __init__(
        self, what: str, order: Sequence[str], hedge_s: float, *, hedges_max: int = 2
    ) -> None:
        assert order, "no replica to ask"
        self._hedges_max = hedges_max
        self._what = what
        self._order = order
        self._hedge_s = hedge_s
        self._asked = 0
        self._errors: dict[str, LedgerError] = {}
        self._got: ReplicaAnswered[Value] | None = None
        self.hedges = 0
        """Replicas asked without a failure before."""

    @property
    def finished(self) -> bool:
        return self._got is not None or len(self._errors) == len(self._order)

    @property
    def result(self) -> ReplicaAnswered[Value]:
        """The first good answer. Raises NoSuchEntry (or NoSuchLedger) only if all said so;
        otherwise one of the other errors, if possible one that can be retried."""
        if self._got is None:
            raise self._error()
        return self._got

    @property
    def slow(self) -> list[str]:
        """Bookies that did not answer, although one asked later did."""
        if self._got is None:
            return []
        before = self._order[: self._order.index(self._got.bookie)]
        return [bookie for bookie in before if bookie not in self._errors]

    @property
    def errors(self) -> dict[str, LedgerError]:
        """The error of each bookie that failed."""
        return self._errors

    def start(self) -> list[ReadReplica | Wait]:
        return self._ask_next() + self._wait()

    def handle(
        self, event: ReplicaAnswered[Value] | Failed | HedgeDelayElapsed
    ) -> list[ReadReplica | Wait]:
        match event:
            case ReplicaAnswered():
                self._got = event
                return []
            case Failed(bookie, error):
                self._errors[bookie] = error
                # If a hedge is in flight, its answer is awaited first.
                return [] if self._asked > len(self._errors) else self._ask_next()
            case HedgeDelayElapsed():
                if self._asked < len(self._order):
                    self.hedges += 1
                return self._ask_next() + self._wait()

    def _ask_next(self) -> list[ReadReplica | Wait]:
        if self._asked == len(self._order):
            return []
        self._asked += 1
        return [ReadReplica(self._order[self._asked - 1])]

    def _wait(self) -> list[ReadReplica | Wait]:
        """One delay runs at a time, and only while there is a bookie left to ask."""
        is_worth_it = self._asked < len(self._order) and self.hedges < self._hedges_max
        return [Wait(self._hedge_s)] if is_worth_it else []

    def history(self) -> str:
        """Returns which bookies were asked, and what they answered."""
        said = [f"{b}: {self._errors.get(b, 'no answer yet')}" for b in self._order[: self._asked]]
        return f"{self._what}: " + "; ".join(said)

    def _error(self) -> LedgerError:
        errors = list(self._errors.values())
        real = [e for e in errors if not isinstance(e, NoSuchEntry | NoSuchLedger)]
        retryable = [e for e in real if e.retry_is_safe]
        absent = [e for e in errors if isinstance(e, NoSuchEntry)] or errors
        kind = type((retryable or real or absent)[0])
        said = "; ".join(f"{bookie}: {error}" for bookie, error in self._errors.items())
        return kind(f"{self._what}: none of {len(errors)} replicas returned it ({said})")


class LacRead:
    """Determines the last add confirmed from the answers of the last ensemble's bookies.

    It finishes as soon as the silent bookies alone cannot have confirmed an entry.
    `ReplicaAnswered.value` is the bookie's LAC, -1 for one that holds nothing.
    """

    def __init__(self, metadata: LedgerMetadata) -> None:
        self._metadata = metadata
        self._bookies = metadata.last_fragment.bookies
        self._answered: list[int] = []
        self._errors: dict[str, LedgerError] = {}
        # A fragment begins after the last entry confirmed before it.
        self._claims = {metadata.last_fragment.first_entry_id - 1}
        self._is_covered = False

    @property
    def finished(self) -> bool:
        return self._is_covered or len(self._answered) + len(self._errors) == len(self._bookies)

    @property
    def claims(self) -> list[int]:
        """What bookies say to be confirmed, the greatest first, down to what metadata shows."""
        shown = self._metadata.last_fragment.first_entry_id - 1
        return sorted((claim for claim in self._claims if claim >= shown), reverse=True)

    @property
    def result(self) -> int:
        """The greatest claim. Raises NotEnoughBookies if too few answered, or Unauthorized if some
        of the others refused this client."""
        if self._is_covered:
            return self.claims[0]
        is_refused = any(isinstance(error, Unauthorized) for error in self._errors.values())
        raise (Unauthorized if is_refused else NotEnoughBookies)(
            f"ledger {self._metadata.ledger_id}: the last add confirmed is not known: of every "
            f"{self._metadata.write_quorum} consecutive bookies fewer than "
            f"{self._metadata.ack_quorum} may be silent; {self.history()}"
        )

    def start(self) -> list[ReadReplica]:
        return [ReadReplica(bookie) for bookie in self._bookies]

    def handle(self, event: ReplicaAnswered[int] | Failed) -> list[ReadReplica]:
        match event:
            case ReplicaAnswered(bookie, lac):
                self._claims.add(lac)
                self._answered.append(self._bookies.index(bookie))
            case Failed(bookie, NoSuchEntry() | NoSuchLedger()):
                self._answered.append(self._bookies.index(bookie))
            case Failed(bookie, error):
                self._errors[bookie] = error
        metadata = self._metadata
        self._is_covered = is_covered(
            metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum, self._answered
        )
        return []

    def history(self) -> str:
        silent = "; ".join(f"{bookie}: {error}" for bookie, error in self._errors.items())
        return f"{len(self._answered)} of {len(self._bookies)} answered, silent: {silent}"


def lac_of(
    digest: Digest, ledger_id: int, lac_body: Buffer | None, last_entry_body: Buffer | None
) -> tuple[int, int]:
    """Returns the LAC a bookie knows (the explicit one or that in its last entry, if greater) and
    the last entry that it has; -1 for none.

    Raises DigestMismatch if either is corrupt.
    """
    lac = last = -1
    if lac_body is not None:
        lac = digest.decode_lac(ledger_id, lac_body)
    if last_entry_body is not None:
        entry = digest.decode_entry(ledger_id, INVALID_ENTRY_ID, last_entry_body)
        lac, last = max(lac, entry.lac), entry.entry_id
    return lac, last


def span_end(metadata: LedgerMetadata, first: int, last: int, entries_max: int) -> int:
    """Returns the last entry that one request from `first` may ask for.

    If every bookie holds every entry, that is at most the end of the fragment. With striping a
    bookie holds no runs worth a batch, so each entry is requested alone.
    """
    assert 0 <= first <= last, f"{first}..{last}"
    if metadata.ensemble_size != metadata.write_quorum:
        return first
    end = min(last, first + max(entries_max, 1) - 1)
    after = metadata.fragment_index_of(first) + 1
    if after < len(metadata.fragments):
        end = min(end, metadata.fragments[after].first_entry_id - 1)
    return end


def good_prefix(
    digest: Digest, ledger_id: int, first: int, bodies: Sequence[Buffer]
) -> tuple[int, DigestMismatch | None]:
    """Returns how many of `bodies` are the entries first, first + 1, ... as written, and the error
    of the one after them."""
    for count, body in enumerate(bodies):
        try:
            digest.decode_entry(ledger_id, first + count, body)
        except DigestMismatch as error:
            return count, error
    return len(bodies), None
