"""What a check of a stopped bookie reports, and what is known of an entry without its password.

The shells are in `bookie.storage.check`. A finding is *damage* (something acknowledged cannot be
read here, or will not be found), a *doubt* (this is possible, and these bytes cannot decide it), or
a *note*.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

from crc32c import crc32c

from bookie.core.caches import Buffer
from bookie.core.journal import KEEP_INTERPRETER

HEADER_BYTES: Final = 32
FINDINGS_MAX: Final = 1000
"""The number of findings kept of each severity; further ones are only counted."""


class Severity(StrEnum):
    DAMAGE = "damage"
    DOUBT = "doubt"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, and where."""

    severity: Severity
    path: str
    what: str
    offset: int | None = None
    """The offset in the file, in bytes."""
    ledger_id: int | None = None
    first_entry: int | None = None
    last_entry: int | None = None
    cure: str = ""

    def __str__(self) -> str:
        where = self.path if self.offset is None else f"{self.path} at {self.offset}"
        whose = ""
        if self.ledger_id is not None:
            whose = f" ledger {self.ledger_id}"
            if self.first_entry is not None:
                whose += f" entries {self.first_entry}..{self.last_entry}"
        cure = f". Cure: {self.cure}" if self.cure else ""
        return f"{self.severity}: {where}:{whose} {self.what}{cure}"


@dataclass(slots=True)
class CheckReport:
    """The counts and findings of one check. Memory is bounded by FINDINGS_MAX."""

    journal_files: int = 0
    journal_groups: int = 0
    journal_frames: int = 0
    ledgers: int = 0
    ledgers_without_entries: int = 0
    """Ledgers in the index that are only fenced, or whose entries are all in the journal."""
    ledgers_in_limbo: int = 0
    tombstones: int = 0
    runs: int = 0
    entries: int = 0
    entry_logs: int = 0
    entry_log_bytes: int = 0
    """Bytes that were read and verified by the checksums of their records."""
    digests_verified: int = 0
    """Entries whose CRC32C or CRC32 is right."""
    digests_unknown: int = 0
    """Entries with another digest (HMAC), or none: only the checksums of their records protect
    them."""
    found: dict[Severity, int] = field(default_factory=lambda: dict.fromkeys(Severity, 0))
    findings: list[Finding] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        """Records a finding, unless there are too many of its severity."""
        self.found[finding.severity] += 1
        if self.found[finding.severity] <= FINDINGS_MAX:
            self.findings.append(finding)

    @property
    def is_clean(self) -> bool:
        return not (self.found[Severity.DAMAGE] or self.found[Severity.DOUBT])

    def summary(self) -> dict[str, Any]:
        """Returns everything but the findings, for people and programs."""
        counts = {name: getattr(self, name) for name in self.__slots__}
        del counts["findings"]
        return {"is_clean": self.is_clean, **counts, "found": dict(self.found)}

    def as_dict(self) -> dict[str, Any]:
        return {**self.summary(), "findings": [asdict(finding) for finding in self.findings]}


def is_entry_of(entry: Buffer, ledger_id: int, entry_id: int) -> bool:
    """Returns whether a reader that requests this entry would accept these bytes."""
    return bytes(entry[:16]) == ledger_id.to_bytes(8, "big") + entry_id.to_bytes(8, "big")


def digest_that_fits(entry: Buffer) -> str | None:
    """Returns "CRC32C" or "CRC32" if that digest is right. None means unknown: HMAC needs a
    password."""
    view = memoryview(entry)
    if len(view) >= HEADER_BYTES + 4:
        crc = crc32c(view[HEADER_BYTES + 4 :], crc32c(view[:HEADER_BYTES]), KEEP_INTERPRETER)
        if crc == int.from_bytes(view[HEADER_BYTES : HEADER_BYTES + 4], "big"):
            return "CRC32C"
    if len(view) >= HEADER_BYTES + 8:
        crc = zlib.crc32(view[HEADER_BYTES + 8 :], zlib.crc32(view[:HEADER_BYTES]))
        if crc == int.from_bytes(view[HEADER_BYTES : HEADER_BYTES + 8], "big"):
            return "CRC32"
    return None


@dataclass(frozen=True, slots=True)
class BodyCheck:
    """Adjacent entries, examined one by one."""

    strangers: list[int]
    """Ids of entries in whose place other bytes are stored."""
    unverified: list[int]
    """Ids of entries without a right CRC32C or CRC32: another digest, none, or damage."""
    digests_right: int

    @property
    def wrong_digests(self) -> list[int]:
        """The ids of entries whose digest is wrong. All entries of a ledger have one type of
        digest: if it is right for any, it must be right for all."""
        return self.unverified if self.digests_right else []


def check_entries(body: Buffer, lengths: Sequence[int], ledger_id: int, first: int) -> BodyCheck:
    """Checks entries of one ledger, beginning with entry `first`."""
    strangers: list[int] = []
    unverified: list[int] = []
    begin, view = 0, memoryview(body)
    for entry_id, length in enumerate(lengths, first):
        entry = view[begin : begin + length]
        begin += length
        if not is_entry_of(entry, ledger_id, entry_id):
            strangers.append(entry_id)
        elif digest_that_fits(entry) is None:
            unverified.append(entry_id)
    right = len(lengths) - len(strangers) - len(unverified)
    return BodyCheck(strangers, unverified, right)


def ranges_of(ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields ascending ids as pairs (first, last) of consecutive ones."""
    begin = 0
    for i in range(1, len(ids) + 1):
        if i == len(ids) or ids[i] != ids[i - 1] + 1:
            yield ids[begin], ids[i - 1]
            begin = i
