"""Judges a takeover: the observations of all clients, and the rules that they must satisfy.

Pure: uses no sockets and no clock, so that observations with known faults can test the judge.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from ledger.core.metadata import LedgerMetadata
from tests.interop.takeover.plan import Language, Plan


@dataclass(frozen=True, slots=True)
class LedgerEnd:
    """The end of a ledger, as one of the clients reports it."""

    last_entry_id: int
    length: int


@dataclass(slots=True)
class WriterResult:
    """The results that the writer's own program received."""

    acked: list[int] = field(default_factory=list)
    """Entry ids in the order of their acknowledgements."""
    wrong_ids: list[str] = field(default_factory=list)
    """Entries whose id is not the next one."""
    pushed: int = 0
    error: str | None = None
    """The name of the error that ended the writer."""
    closed_at: int | None = None
    """The last entry of its own successful close."""


@dataclass(slots=True)
class Observations:
    """The observations of one takeover."""

    plan: Plan
    ledger_id: int
    writer: WriterResult = field(default_factory=WriterResult)
    recovered: dict[str, LedgerEnd] = field(default_factory=dict)
    """The end of the ledger by recoverer."""
    retries: list[str] = field(default_factory=list)
    """Errors after which a recovery was retried: allowed, but reported."""
    metadata: LedgerEnd | None = None
    """The end in the metadata; None: not closed."""
    opened_ends: dict[str, LedgerEnd] = field(default_factory=dict)
    """The end of the closed ledger by reader."""
    read: dict[str, list[bytes]] = field(default_factory=dict)
    """Payloads of the whole ledger, by reader."""
    replica_faults: list[str] = field(default_factory=list)
    lengths: Collection[int] = ()
    """Values that the metadata may have instead of the entries' length: `misjudged_lengths`."""


FENCING_ERRORS = frozenset({"LedgerFenced", "LedgerClosed", "MetadataVersion"})
"""Errors of a writer after a takeover. MetadataVersion: its close came too late."""


def lengths_by_java(sizes: Sequence[int], last_entry_id: int, last_acked: int) -> list[int]:
    """Returns lengths that Apache's recovery may give a ledger that it closes at `last_entry_id`.

    It takes the length from the entry with the greatest LAC, which is after that LAC, and corrects
    it only by entries that it adds again. If the LAC is the end, there are none: an entry after it
    that only one bookie holds is ignored when two others do not have it. Then the length is that up
    to a later entry; `test_recovered_length` reproduces this, also on Apache's bookies. If the end
    is after the last acknowledged entry, the recovery has added entries, and the length is right.

    This holds if Java recovers alone and the last fragment is neither empty nor striped.

    Args:
        sizes: sizes of all entries that the writer pushed, in bytes.
        last_acked: highest entry that was acknowledged to the writer: no LAC is greater.
    """
    totals = list(accumulate(sizes, initial=0))[last_entry_id + 1 :]
    return totals[:1] if last_entry_id > last_acked else totals


def misjudged_lengths(
    plan: Plan, metadata: LedgerMetadata, saw: WriterResult, sizes: Sequence[int]
) -> list[int]:
    """Returns the acceptable wrong lengths of a closed ledger; none if the length must be right.

    `sizes` are those of all pushed entries. Besides `lengths_by_java`: Apache's recovery adds no
    entries again in an empty last fragment, where the length may even be too small, or after a gap
    of a striped ledger. A recovery that follows another may read a LAC that no writer received.
    """
    if all(recovery.language is not Language.JAVA for recovery in plan.recoveries):
        return []
    is_empty = metadata.last_entry_id < metadata.last_fragment.first_entry_id
    is_striped = metadata.write_quorum < metadata.ensemble_size
    if is_empty or is_striped:
        return list(accumulate(sizes, initial=0))
    is_alone = len(plan.recoveries) == 1
    last_acked = max(saw.acked, default=-1) if is_alone else metadata.last_entry_id
    lengths = lengths_by_java(sizes, metadata.last_entry_id, last_acked)
    return lengths if len(lengths) > 1 else []


def faults(observed: Observations, expected: Sequence[bytes]) -> list[str]:
    """Returns the faults of a takeover; `expected[i]` is the payload of entry i."""
    found = [*observed.writer.wrong_ids, *observed.replica_faults]
    end = observed.metadata
    if end is None:
        return [*found, "the ledger is not closed in its metadata"]
    for where, ends in (("recovery", observed.recovered), ("reader", observed.opened_ends)):
        found += [
            f"{where} by {name} reports {found_end}, metadata {end}"
            for name, found_end in ends.items()
            if found_end != end
        ]
    if not observed.recovered:
        found.append("no client recovered the ledger")
    if not -1 <= end.last_entry_id < observed.writer.pushed:
        found.append(f"last entry {end.last_entry_id}, but {observed.writer.pushed} were appended")
    else:
        length = sum(map(len, expected[: end.last_entry_id + 1]))
        if length != end.length and end.length not in observed.lengths:
            found.append(f"the metadata has {end.length} bytes, the entries have {length}")
    found += _writer_faults(observed.writer, end)
    for name, payloads in observed.read.items():
        found += _payload_faults(name, payloads, end, expected)
    if set(observed.read) != set(observed.opened_ends):
        found.append(f"read by {sorted(observed.read)}, opened by {sorted(observed.opened_ends)}")
    return found


def _writer_faults(saw: WriterResult, end: LedgerEnd) -> list[str]:
    found = []
    lost = [entry_id for entry_id in saw.acked if entry_id > end.last_entry_id]
    if lost:
        found.append(f"acknowledged, but after the last entry {end.last_entry_id}: {lost}")
    if saw.acked != list(range(len(saw.acked))):
        found.append(f"acknowledged out of order or with gaps: {saw.acked}")
    if saw.closed_at is not None:
        if saw.closed_at != end.last_entry_id:
            found.append(f"the writer closed at {saw.closed_at}, the end is {end.last_entry_id}")
    elif saw.error is None:
        found.append("the writer never received a fencing error")
    elif saw.error not in FENCING_ERRORS:
        found.append(f"the writer received {saw.error}, which is not a fencing error")
    return found


def _payload_faults(
    name: str, payloads: Sequence[bytes], end: LedgerEnd, expected: Sequence[bytes]
) -> list[str]:
    found = []
    if len(payloads) != end.last_entry_id + 1:
        found.append(f"{name} read {len(payloads)} entries of {end.last_entry_id + 1}")
    for entry_id, (is_, want) in enumerate(zip(payloads, expected, strict=False)):
        if is_ != want:
            found.append(
                f"{name}: entry {entry_id} has {len(is_)} bytes {is_[:16].hex()}..., but "
                f"{len(want)} bytes were written: {want[:16].hex()}..."
            )
    return found
