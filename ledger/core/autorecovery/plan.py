"""Which copies of a ledger are missing, and where they are to be made. Pure.

Only what no writer can change any more is planned (`availability.fixed_part`): the copies of a
closed ledger, and those of an open one before its last fragment. Two kinds of steps make a ledger
whole:

- `Fill`: a bookie that is writable gets the entries that it lacks. The metadata does not change.
- `Move`: a copy at a bookie that is lost, read-only or being emptied is made at another bookie,
  which then takes its place in the ensemble of that fragment.

A `Hold` says why a step is not possible now. A copy is never moved away from a bookie if not all of
its entries could be copied: that bookie may be the last one to have them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ledger.core.autorecovery.bookies import Bookies, BookieState
from ledger.core.availability import Range, fixed_part, fragment_bounds
from ledger.core.metadata import Fragment, LedgerMetadata
from ledger.core.quorum import holds, write_set
from ledger.errors import InvalidArgument, MetadataConflict, NotEnoughBookies

Choose = Callable[[LedgerMetadata, Fragment, int], str]
"""Returns a bookie for a place in an ensemble, which is not in the ensemble. Raises
NotEnoughBookies, with a reason for people."""


@dataclass(frozen=True, slots=True)
class Fill:
    """`bookie` gets the entries in `ranges`, which it lacks."""

    bookie: str
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """The copy at `index` of the ensemble of fragment `number` moves from `old` to `new`."""

    number: int
    index: int
    first_entry_id: int
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Hold:
    """A copy that cannot be made now, and why.

    The reason may change with the state of one of `bookies`, with that of any bookie if it
    `is_of_cluster`, and with time; after `retry_s` seconds at the latest, if that is known. One
    that should pass soon, and unseen, is looked at after `first_pause_s`, which doubles.
    """

    reason: str
    bookies: tuple[str, ...] = ()
    is_of_cluster: bool = False
    retry_s: float | None = None
    first_pause_s: float | None = None
    is_loss: bool = False
    """No bookie that is up has a copy, and those that had one are lost or deny it."""


@dataclass(slots=True)
class Plan:
    """What makes a ledger whole, as far as that is possible now."""

    fills: list[Fill] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    is_end_unsafe: bool = False
    """The last fragment of an open ledger names bookies that are lost or being emptied."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing is to be done, and nothing is held up."""
        return not (self.fills or self.moves or self.holds or self.is_end_unsafe)


def plan(
    metadata: LedgerMetadata,
    bookies: Bookies,
    lacking: Mapping[str, Sequence[Range]],
    choose: Choose,
) -> Plan:
    """Returns the steps for a ledger. `lacking`: the entries that live bookies were found to lack;
    those that are not in it are taken to have what they should."""
    found = Plan()
    fixed = fixed_part(metadata)
    named = dict.fromkeys(one for fragment in metadata.fragments for one in fragment.bookies)
    for bookie in named:
        if lacking.get(bookie) and bookies.state_of(bookie) is BookieState.WRITABLE:
            found.fills.append(Fill(bookie, tuple(lacking[bookie])))
    for number, fragment in enumerate(metadata.fragments):
        if not metadata.is_closed and number == len(metadata.fragments) - 1:
            found.is_end_unsafe = any(_is_to_leave(one, bookies) for one in fragment.bookies)
            for bookie in fragment.bookies:
                if bookies.state_of(bookie) is BookieState.AWAITED:
                    found.holds.append(_awaited(bookie))
            break
        _plan_fragment(found, fixed, number, bookies, lacking, choose)
    return found


def _is_to_leave(bookie: str, bookies: Bookies) -> bool:
    return bookies.state_of(bookie) in (BookieState.LOST, BookieState.EMPTYING)


def _awaited(bookie: str) -> Hold:
    """Returns why a ledger waits for a bookie, also if nothing lacks a copy: to another process the
    bookie may be lost already, and its mark would be deleted here."""
    return Hold(f"bookie {bookie} is down and may return", (bookie,))


def _plan_fragment(
    found: Plan,
    fixed: LedgerMetadata,
    number: int,
    bookies: Bookies,
    lacking: Mapping[str, Sequence[Range]],
    choose: Choose,
) -> None:
    fragment = fixed.fragments[number]
    first, last = fragment_bounds(fixed, number)
    ensemble = fragment.bookies
    for index, bookie in enumerate(fragment.bookies):
        state = bookies.state_of(bookie)
        if state is BookieState.WRITABLE:
            continue
        if state is BookieState.READ_ONLY and not any(
            begin <= last and first <= end for begin, end in lacking.get(bookie, ())
        ):
            continue
        if state is BookieState.AWAITED:
            found.holds.append(_awaited(bookie))
            continue
        lost = _without_live_copy(fixed, number, index, bookies)
        if lost is not None:
            holders = ", ".join(fragment.bookies)
            reason = f"no live copy of entries {lost[0]} to {lost[1]}; last holders {holders}"
            may_return = any(one in bookies.awaited for one in fragment.bookies)
            found.holds.append(Hold(reason, fragment.bookies, is_loss=not may_return))
            continue
        try:
            new = choose(fixed, replace(fragment, bookies=ensemble), index)
        except NotEnoughBookies as error:
            found.holds.append(Hold(str(error), is_of_cluster=True))
            continue
        assert new not in ensemble, f"{new} is in the ensemble already"
        ensemble = (*ensemble[:index], new, *ensemble[index + 1 :])
        found.moves.append(Move(number, index, fragment.first_entry_id, bookie, new))


def _without_live_copy(
    fixed: LedgerMetadata, number: int, index: int, bookies: Bookies
) -> Range | None:
    """Returns the first and the last entry that the bookie at `index` should hold and no live
    bookie should; None if there is none."""
    fragment, (first, last) = fixed.fragments[number], fragment_bounds(fixed, number)
    if first > last or all(bookies.is_live(one) for one in fragment.bookies):
        return None
    size, quorum = fixed.ensemble_size, fixed.write_quorum
    is_live = [bookies.is_live(one) for one in fragment.bookies]
    # The write sets repeat with each `size` entries: those at both ends show all of them.
    ends = (
        *range(first, min(first + size, last + 1)),
        *range(max(first, last + 1 - size), last + 1),
    )
    lost = [
        entry_id
        for entry_id in ends
        if holds(index, entry_id, size, quorum)
        and not any(is_live[i] for i in write_set(entry_id, size, quorum))
    ]
    return (min(lost), max(lost)) if lost else None


def copies_left(
    metadata: LedgerMetadata, bookies: Bookies, *, are_awaited_live: bool = False
) -> int:
    """Returns how many live copies the entries have of which there are fewest; the write quorum if
    the ledger has no entries. The last fragment of an open ledger counts. `are_awaited_live`:
    copies on bookies that may return count, too."""
    size, quorum = metadata.ensemble_size, metadata.write_quorum
    least = quorum
    for number, fragment in enumerate(metadata.fragments):
        live = [
            bookies.is_live(one) or (are_awaited_live and one in bookies.awaited)
            for one in fragment.bookies
        ]
        if all(live):
            continue
        if metadata.is_closed and not _has_entries(metadata, number):
            continue
        least = min(
            least, min(sum(live[i] for i in write_set(c, size, quorum)) for c in range(size))
        )
    return least


def _has_entries(metadata: LedgerMetadata, number: int) -> bool:
    return metadata.fragments[number].first_entry_id <= metadata.last_entry_id


def with_moved_copy(
    stored: LedgerMetadata, first_entry_id: int, old: str, new: str
) -> LedgerMetadata | None:
    """Returns metadata in which `new` has taken the place of `old` in the fragment that begins at
    `first_entry_id`; None if `old` is not there any more.

    Raises MetadataConflict if the fragment is gone, or is the last one of a ledger that is not
    closed: that belongs to its writer. Raises InvalidArgument if `new` is in the ensemble already,
    because one bookie is one copy.
    """
    begins = [fragment.first_entry_id for fragment in stored.fragments]
    if first_entry_id not in begins:
        raise MetadataConflict(
            f"ledger {stored.ledger_id} has no fragment that begins at entry {first_entry_id} now"
        )
    number = begins.index(first_entry_id)
    fragment = stored.fragments[number]
    if not stored.is_closed and number == len(stored.fragments) - 1:
        raise MetadataConflict(
            f"ledger {stored.ledger_id} is {stored.state.name.lower()}: its last fragment belongs "
            "to its writer"
        )
    if old not in fragment.bookies:
        return None
    if new in fragment.bookies:
        raise InvalidArgument(
            f"bookie {new} is in the ensemble of ledger {stored.ledger_id} from entry "
            f"{first_entry_id} already: one bookie is one copy"
        )
    ensemble = tuple(new if one == old else one for one in fragment.bookies)
    fragments = list(stored.fragments)
    fragments[number] = Fragment(first_entry_id, ensemble)
    return replace(stored, fragments=tuple(fragments))
