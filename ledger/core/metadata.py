"""The metadata of a ledger, and the only changes it may undergo.

`LedgerMetadata` is immutable: a transition returns a new one or raises. Its invariants always hold;
whether it is still the stored one only the metadata store knows. `ledger.core.metadata_format`
encodes it to bytes.

The functions at the end decide what a writer may do to stored metadata that others have changed.
While a ledger is open, others may move earlier fragments to other bookies, as Apache's
auto-recovery does, and any client may begin to recover it. Earlier fragments are taken as they are
stored; the last fragment is the writer's own, because its entries were acknowledged there. A client
that has recovered or closed the ledger decides where it ends.
"""

from __future__ import annotations

import enum
import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from ledger.core.entry import Digest, DigestType
from ledger.core.quorum import check_sizes
from ledger.errors import InvalidArgument, LedgerClosed, LedgerFenced, MetadataConflict

FORMAT_VERSION_MIN = 1
FORMAT_VERSION_MAX = 3
"""Versions of the stored bytes; a rewrite keeps the version that was read."""

OWN_KEY_TAG = "ledgerstream-key"
"""Custom metadata of a ledger whose password was generated for it alone (docs/adr/0027)."""
OWN_KEY_BYTES = 16
DERIVED_KEY_PREFIX = b"derived:"
"""Begins the value of that tag if the password is derived from a secret of the cluster, which the
rest names (`ledger.core.ledger_keys`). Then the metadata does not hold the password."""


_BOOKIE_ID = re.compile(r"[a-zA-Z0-9:-_.\-]+")
"""Apache's own pattern, in which `:-_` is a range of ASCII too."""


class LedgerState(enum.IntEnum):
    """OPEN -> IN_RECOVERY -> CLOSED, or OPEN -> CLOSED. The values are stored."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


@dataclass(frozen=True, slots=True)
class Fragment:
    """The ensemble of the entries from `first_entry_id` up to the next fragment."""

    first_entry_id: int
    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerMetadata:
    """Invariants: E >= write quorum >= ack quorum >= 1; fragments ascend strictly from entry 0,
    E different bookies each; only a closed ledger has a last entry and a length.

    `length` is the payload bytes of a closed ledger. `created_ms` is wall clock, -1 if unknown.
    `stores_created_ms`: whether the bytes contain it; otherwise it is that of their node.
    `c_token` identifies the create of one client; a rewrite by Apache's client drops it.
    `password`: of a derived key it is empty where the secret is unknown, and never stored.
    `unknown_fields`: fields that a later release wrote into version 3, kept on a rewrite.
    Construction raises InvalidArgument for anything else.
    """

    ledger_id: int
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    state: LedgerState = LedgerState.OPEN
    fragments: tuple[Fragment, ...]
    digest_type: DigestType | None
    password: bytes = field(default=b"", repr=False)
    last_entry_id: int = -1
    length: int = 0
    created_ms: int = -1
    stores_created_ms: bool = True
    custom: Mapping[str, bytes] = field(default_factory=dict, hash=False)
    c_token: int = 0
    unknown_fields: bytes = field(default=b"", repr=False)
    format_version: int = FORMAT_VERSION_MAX

    def __post_init__(self) -> None:
        object.__setattr__(self, "custom", MappingProxyType(dict(self.custom)))
        if self.ledger_id < 0:
            raise InvalidArgument(f"ledger id {self.ledger_id} is negative")
        check_sizes(self.ensemble_size, self.write_quorum, self.ack_quorum)
        if not FORMAT_VERSION_MIN <= self.format_version <= FORMAT_VERSION_MAX:
            raise InvalidArgument(
                f"metadata format version {self.format_version}; known are "
                f"{FORMAT_VERSION_MIN} to {FORMAT_VERSION_MAX}"
            )
        self._check_fragments()
        if self.is_closed:
            if self.last_entry_id < -1 or self.length < 0:
                raise InvalidArgument(
                    f"closed ledger {self.ledger_id} with last entry {self.last_entry_id} and "
                    f"length {self.length}"
                )
        elif self.last_entry_id != -1 or self.length != 0:
            raise InvalidArgument(
                f"ledger {self.ledger_id} is {self.state.name} but has last entry "
                f"{self.last_entry_id} and length {self.length}"
            )

    def _check_fragments(self) -> None:
        if not self.fragments or self.fragments[0].first_entry_id != 0:
            raise InvalidArgument(f"fragments of ledger {self.ledger_id} do not begin at entry 0")
        before = -1
        for fragment in self.fragments:
            if fragment.first_entry_id <= before:
                raise InvalidArgument(
                    f"fragments of ledger {self.ledger_id} do not ascend: {before} is followed by "
                    f"{fragment.first_entry_id}"
                )
            before = fragment.first_entry_id
            _check_ensemble(self, fragment.bookies)

    @property
    def has_own_key(self) -> bool:
        """Whether the password was generated for this ledger alone: see `OWN_KEY_TAG`."""
        return OWN_KEY_TAG in self.custom

    @property
    def has_derived_key(self) -> bool:
        """Whether the password is derived from a secret of the cluster: `DERIVED_KEY_PREFIX`."""
        return self.custom.get(OWN_KEY_TAG, b"").startswith(DERIVED_KEY_PREFIX)

    @property
    def is_key_missing(self) -> bool:
        """Whether the password is derived from a secret that is not known here."""
        return self.has_derived_key and not self.password

    @property
    def is_closed(self) -> bool:
        return self.state is LedgerState.CLOSED

    @property
    def last_fragment(self) -> Fragment:
        return self.fragments[-1]

    def fragment_index_of(self, entry_id: int) -> int:
        """Returns the index in `fragments` of the one that holds `entry_id` (>= 0)."""
        if entry_id < 0:
            raise InvalidArgument(f"entry id {entry_id} is negative")
        return bisect_right(self.fragments, entry_id, key=_first_entry_id) - 1

    def fragment_of(self, entry_id: int) -> Fragment:
        """Returns the fragment that holds `entry_id` (>= 0), whether or not the entry exists."""
        return self.fragments[self.fragment_index_of(entry_id)]

    def require_open(self) -> None:
        """Checks, before a writer changes anything, that no other client has taken over.

        Raises LedgerFenced in recovery, LedgerClosed when closed.
        """
        if self.is_closed:
            raise LedgerClosed(f"ledger {self.ledger_id} is closed at entry {self.last_entry_id}")
        if self.state is LedgerState.IN_RECOVERY:
            raise LedgerFenced(f"ledger {self.ledger_id} is being recovered by another client")

    def with_ensemble(self, first_entry_id: int, bookies: tuple[str, ...]) -> LedgerMetadata:
        """Returns metadata in which the ensemble is `bookies` from `first_entry_id` on: replaces
        the last fragment if it begins there, otherwise appends one. A writer calls
        `require_open` first; in recovery only the recovering client calls this.

        Raises LedgerClosed, InvalidArgument (wrong ensemble), or MetadataConflict if the last
        fragment begins later.
        """
        if self.is_closed:
            raise LedgerClosed(f"ledger {self.ledger_id} is closed: its ensembles are final")
        last = self.last_fragment
        if first_entry_id < last.first_entry_id:
            raise MetadataConflict(
                f"ledger {self.ledger_id}: new ensemble from entry {first_entry_id}, but another "
                f"begins at {last.first_entry_id}"
            )
        kept = self.fragments[:-1] if first_entry_id == last.first_entry_id else self.fragments
        return replace(self, fragments=(*kept, Fragment(first_entry_id, tuple(bookies))))

    def in_recovery(self) -> LedgerMetadata:
        """Returns metadata in recovery; itself if it is already. Raises LedgerClosed."""
        if self.is_closed:
            raise LedgerClosed(
                f"ledger {self.ledger_id} is closed at entry {self.last_entry_id}: there is "
                "nothing to recover"
            )
        if self.state is LedgerState.IN_RECOVERY:
            return self
        return replace(self, state=LedgerState.IN_RECOVERY)

    def closed(self, last_entry_id: int, length: int) -> LedgerMetadata:
        """Returns closed metadata with `last_entry_id` (-1: empty) and `length` in payload bytes.

        Closing again at the same end returns itself; another end raises LedgerClosed. A last
        fragment that begins after the end stays: it is empty.
        """
        if self.is_closed:
            if (self.last_entry_id, self.length) == (last_entry_id, length):
                return self
            raise LedgerClosed(
                f"ledger {self.ledger_id} is closed at entry {self.last_entry_id} with "
                f"{self.length} bytes; cannot close it at entry {last_entry_id} with {length}"
            )
        if last_entry_id < -1 or length < 0:
            raise InvalidArgument(
                f"ledger {self.ledger_id} cannot end at entry {last_entry_id} with {length} bytes"
            )
        return replace(
            self,
            state=LedgerState.CLOSED,
            last_entry_id=last_entry_id,
            length=length,
        )


def _first_entry_id(fragment: Fragment) -> int:
    return fragment.first_entry_id


def _check_ensemble(metadata: LedgerMetadata, bookies: tuple[str, ...]) -> None:
    ledger_id, ensemble_size = metadata.ledger_id, metadata.ensemble_size
    if len(bookies) != ensemble_size:
        raise InvalidArgument(
            f"ensemble of ledger {ledger_id} has {len(bookies)} bookies, must have {ensemble_size}"
        )
    # Tools have written such ensembles. Reading them is safe; counting their answers is not.
    if len(set(bookies)) != ensemble_size and not metadata.is_closed:
        raise InvalidArgument(f"ensemble of ledger {ledger_id} names a bookie twice: {bookies}")
    for bookie in bookies:
        if _BOOKIE_ID.fullmatch(bookie) is None:
            raise InvalidArgument(
                f"bookie id {bookie!r} in ledger {ledger_id}: allowed are a-z A-Z 0-9 . - _ : ; "
                "< = > ? @ [ \\ ] ^"
            )


def with_own_fragment(stored: LedgerMetadata, own: Fragment) -> LedgerMetadata:
    """Returns `stored` with the writer's last fragment. Raises LedgerFenced if they differ in more
    than bookies: a fragment less or more was stored by another writer."""
    last = stored.last_fragment
    if last == own:
        return stored
    if last.first_entry_id != own.first_entry_id:
        raise LedgerFenced(
            f"another client changed the ensemble of ledger {stored.ledger_id}: stored "
            f"{', '.join(last.bookies)} from entry {last.first_entry_id}, ours "
            f"{', '.join(own.bookies)} from entry {own.first_entry_id}"
        )
    return replace(stored, fragments=(*stored.fragments[:-1], own))


def with_next_ensemble(
    stored: LedgerMetadata, own: Fragment, first: int, ensemble: tuple[str, ...]
) -> LedgerMetadata | None:
    """Returns metadata with the writer's `ensemble` from entry `first` on; None if it is stored.

    Raises LedgerFenced if the ledger is not the writer's any more.
    """
    if stored.state is not LedgerState.OPEN:
        raise LedgerFenced(
            f"ledger {stored.ledger_id} is {stored.state.name.lower()}: another client took it over"
        )
    if stored.last_fragment == Fragment(first, ensemble):
        return None
    return with_own_fragment(stored, own).with_ensemble(first, ensemble)


def closed_by_writer(
    stored: LedgerMetadata, own: Fragment, last_entry_id: int, length: int
) -> LedgerMetadata | None:
    """Returns metadata closed where the writer ended; None if it is stored already.

    Raises LedgerFenced if another client closed the ledger at another entry, or is recovering it:
    then that client decides where it ends. A fragment that begins where this writer ended may be
    its own, stored by an ensemble change still in progress: it is empty, and stays.
    """
    if stored.is_closed:
        if (stored.last_entry_id, stored.length) == (last_entry_id, length):
            return None
        raise LedgerFenced(
            f"ledger {stored.ledger_id} was closed by another client at entry "
            f"{stored.last_entry_id}; this writer confirmed up to {last_entry_id}"
        )
    stored.require_open()
    ours, empty = stored, stored.fragments[-1:]
    if own.first_entry_id < empty[0].first_entry_id == last_entry_id + 1:
        ours = replace(stored, fragments=stored.fragments[:-1])
    else:
        empty = ()
    ours = with_own_fragment(ours, own)
    return replace(ours, fragments=ours.fragments + empty).closed(last_entry_id, length)


def digest_of(
    metadata: LedgerMetadata, password: bytes, digest_type: DigestType | None = None
) -> Digest:
    """Returns the digest of a ledger's entries. If the metadata is too old to name one, it is
    `digest_type`, or CRC32, the default of that time."""
    return Digest(metadata.digest_type or digest_type or DigestType.CRC32, password)
