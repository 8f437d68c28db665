"""What was seen of a takeover, and what must hold of it.

Pure: no sockets and no clock, so that the judge is itself judged, by stories with known faults.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from ledger.core.metadata import LedgerMetadata
from tests.interop.takeover.plan import Language, Plan


@dataclass(frozen=True, slots=True)
class End:
    """Where a ledger ends, as somebody said."""

    last_entry_id: int
    length: int


@dataclass(slots=True)
class WriterSaw:
    """What the writer's own program was told."""

    acked: list[int] = field(default_factory=list)
    """Entry ids in the order of their acknowledgements."""
    wrong_ids: list[str] = field(default_factory=list)
    """Entries that got another id than their turn."""
    pushed: int = 0
    error: str | None = None
    """Name of the error that ended it."""
    closed_at: int | None = None
    """Its own close succeeded, at this entry."""


@dataclass(slots=True)
class Story:
    plan: Plan
    ledger_id: int
    writer: WriterSaw = field(default_factory=WriterSaw)
    recovered: dict[str, End] = field(default_factory=dict)
    """By recoverer."""
    retries: list[str] = field(default_factory=list)
    """Errors after which a recovery was tried again: allowed, but of interest."""
    metadata: End | None = None
    """None: not closed."""
    told: dict[str, End] = field(default_factory=dict)
    """By reader of the closed ledger."""
    read: dict[str, list[bytes]] = field(default_factory=dict)
    """Payloads of the whole ledger, by reader."""
    replica_faults: list[str] = field(default_factory=list)
    lengths: Collection[int] = ()
    """What the metadata may state instead of the entries' length: `misjudged_lengths`."""


FENCING_ERRORS = frozenset({"LedgerFenced", "LedgerClosed", "MetadataVersion"})
"""What a writer is told that was taken over. MetadataVersion: its close came too late."""


def lengths_by_java(sizes: Sequence[int], last_entry_id: int, last_acked: int) -> list[int]:
    """Lengths that Apache's recovery may give to a ledger that it closes at `last_entry_id`.

    It takes the length out of the entry that told the greatest LAC, which lies after that LAC,
    and corrects it only by entries that it adds again. If the LAC is the end, it finds none: what
    one bookie alone holds of the entry after it is overlooked when two others deny it. Then the
    length is that up to a later entry; `test_recovered_length` shows it, on Apache's bookies too.
    If the end is after what was acknowledged, something was found, and the length is right.

    Holds where Java recovers alone, and the last fragment is neither empty nor striped.

    Args:
        sizes: of all entries that the writer pushed, in bytes.
        last_acked: highest entry that was acknowledged to the writer: no LAC is greater.
    """
    totals = list(accumulate(sizes, initial=0))[last_entry_id + 1 :]
    return totals[:1] if last_entry_id > last_acked else totals


def misjudged_lengths(
    plan: Plan, metadata: LedgerMetadata, saw: WriterSaw, sizes: Sequence[int]
) -> list[int]:
    """What the length of a closed ledger may be without a fault of ours, `sizes` being those of
    all entries that were pushed; nothing if it must be right.

    Besides `lengths_by_java`: Apache's recovery finds nothing to add again in a last fragment that
    is empty, where the length may even be too small, or behind a gap of a striped ledger; and a
    recovery that follows another may be told a LAC that no writer was.
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


def faults(story: Story, expected: Sequence[bytes]) -> list[str]:
    """What is wrong with a story; `expected[i]` is what the writer gave for entry i."""
    found = [*story.writer.wrong_ids, *story.replica_faults]
    end = story.metadata
    if end is None:
        return [*found, "the ledger is not closed in its metadata"]
    for where, ends in (("recovery", story.recovered), ("reader", story.told)):
        found += [
            f"{where} by {who} says {told}, metadata {end}"
            for who, told in ends.items()
            if told != end
        ]
    if not story.recovered:
        found.append("nobody recovered the ledger")
    if not -1 <= end.last_entry_id < story.writer.pushed:
        found.append(f"last entry {end.last_entry_id}, but {story.writer.pushed} were appended")
    else:
        length = sum(map(len, expected[: end.last_entry_id + 1]))
        if length != end.length and end.length not in story.lengths:
            found.append(f"metadata says {end.length} bytes, the entries have {length}")
    found += _writer_faults(story.writer, end)
    for who, payloads in story.read.items():
        found += _payload_faults(who, payloads, end, expected)
    if set(story.read) != set(story.told):
        found.append(f"read by {sorted(story.read)}, opened by {sorted(story.told)}")
    return found


def _writer_faults(saw: WriterSaw, end: End) -> list[str]:
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
        found.append("the writer was never told that it lost the ledger")
    elif saw.error not in FENCING_ERRORS:
        found.append(f"the writer was told {saw.error}, not that it was fenced")
    return found


def _payload_faults(
    who: str, payloads: Sequence[bytes], end: End, expected: Sequence[bytes]
) -> list[str]:
    found = []
    if len(payloads) != end.last_entry_id + 1:
        found.append(f"{who} read {len(payloads)} entries of {end.last_entry_id + 1}")
    for entry_id, (is_, want) in enumerate(zip(payloads, expected, strict=False)):
        if is_ != want:
            found.append(
                f"{who}: entry {entry_id} has {len(is_)} bytes {is_[:16].hex()}..., written were "
                f"{len(want)} bytes {want[:16].hex()}..."
            )
    return found
