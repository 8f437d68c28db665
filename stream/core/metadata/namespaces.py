"""The policy of a namespace, and when it makes a writer roll.

Decisions are sums over metadata with the time as an argument; they change nothing. What the policy
drops is decided in core/retention.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from ledger.core.placement.policies import PlacementKind, PlacementPolicy
from ledger.core.steady_clock import CLOCK_OFF_MS
from ledger.errors import InvalidArgument
from stream.core.entry.compression import Compression
from stream.core.entry.format import RECORD_BYTES_MAX
from stream.core.names import check_name

DIGESTS = ("CRC32", "HMAC", "CRC32C", "DUMMY")
BOOKIES_MAX = 255
PLACEMENT_LENGTH_MAX = 1000
_OPTIONAL = ("retention_ms", "retention_bytes", "streams_max", "bytes_per_s_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceMetadata:
    """How streams of a namespace are written and kept. Running writers follow changes.

    A retention of None keeps data forever. `retention_cursors` are names of cursors: records that
    one of them has not passed are kept, however old they are. What retention or truncation drops
    stays in the trash for `trash_ms`. `placement` are patterns of preferred bookie ids, separated
    by commas ("rack1-*"); `placement_policy`, `placement_min` and `placement_enforce` are how far
    the copies of an entry must be apart (`ledger.core.placement.policies.PlacementPolicy`).
    `bytes_per_s_max` limits what the writer of each stream may append.
    `batch_bytes` is the size at which a batch of records is sent without waiting; `linger_ms` is
    how long a batch may wait for more (0: it is sent at the end of the scheduler's tick, and grows
    by itself under load).
    """

    name: str
    created_ms: int = 0
    ensemble_size: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2
    digest_type: str = "CRC32C"
    roll_ms: int = 3_600_000
    roll_bytes: int = 256 << 20
    retention_ms: int | None = None
    retention_bytes: int | None = None
    retention_cursors: tuple[str, ...] = ()
    trash_ms: int = 3_600_000
    placement: str = ""
    record_bytes_max: int = RECORD_BYTES_MAX
    streams_max: int | None = None
    bytes_per_s_max: int | None = None
    compression: str = "none"
    batch_bytes: int = 60_000
    linger_ms: int = 0
    placement_policy: str = "default"
    placement_min: int = 0
    placement_enforce: bool = False

    def __post_init__(self) -> None:
        check_name(self.name, "namespace")
        for setting, low, high in (
            ("created_ms", 0, 1 << 62),
            ("ensemble_size", 1, BOOKIES_MAX),
            ("write_quorum", 1, self.ensemble_size),
            ("ack_quorum", 1, self.write_quorum),
            ("roll_ms", 1000, 1 << 40),
            ("roll_bytes", 1 << 16, 1 << 40),
            ("retention_ms", 0, 1 << 50),
            ("retention_bytes", 0, 1 << 60),
            ("trash_ms", 0, 1 << 50),
            ("record_bytes_max", 1, RECORD_BYTES_MAX),
            ("streams_max", 0, 1 << 40),
            ("bytes_per_s_max", 1, 1 << 50),
            ("batch_bytes", 1, RECORD_BYTES_MAX),
            ("linger_ms", 0, 60_000),
        ):
            value = getattr(self, setting)
            if value is None and setting in _OPTIONAL:
                continue
            if type(value) is not int or not low <= value <= high:
                raise InvalidArgument(
                    f"namespace {self.name!r}: {setting} is {value!r}, legal is {low} to {high}"
                )
        if self.digest_type not in DIGESTS:
            raise InvalidArgument(
                f"namespace {self.name!r}: digest {self.digest_type!r} is not one of {DIGESTS}"
            )
        if not isinstance(self.placement, str) or len(self.placement) > PLACEMENT_LENGTH_MAX:
            raise InvalidArgument(
                f"namespace {self.name!r}: placement must be patterns of bookie ids separated by "
                f"commas, at most {PLACEMENT_LENGTH_MAX} characters"
            )
        try:
            self.bookie_placement.check(self.write_quorum, self.ack_quorum)
        except InvalidArgument as error:
            raise InvalidArgument(f"namespace {self.name!r}: {error}") from None
        if not isinstance(self.retention_cursors, tuple) or len(self.retention_cursors) > 100:
            raise InvalidArgument(
                f"namespace {self.name!r}: retention_cursors must be a tuple of at most 100 names"
            )
        for cursor in self.retention_cursors:
            check_name(cursor, "cursor")
        if not isinstance(self.compression, str):
            raise InvalidArgument(f"namespace {self.name!r}: compression must be a name")
        Compression.named(self.compression)

    @property
    def bookie_placement(self) -> PlacementPolicy:
        """How far the copies of an entry must be apart."""
        kind = cast(PlacementKind, self.placement_policy)
        return PlacementPolicy(kind, self.placement_min, self.placement_enforce)

    @property
    def preferred_bookies(self) -> tuple[str, ...]:
        """The patterns of `placement`, one by one."""
        words = (word.strip() for word in self.placement.split(","))
        return tuple(word for word in words if word)


def should_roll(*, since_ms: int, nbytes: int, now_ms: int, policy: NamespaceMetadata) -> bool:
    """Whether the open segment, with `nbytes` of records since `since_ms`, is old or large enough
    to be sealed. An empty segment is never rolled. One that began in the future is, because it
    would not be for as long as the clock was wrong."""
    if nbytes <= 0:
        return False
    if since_ms - now_ms > CLOCK_OFF_MS:
        return True
    return nbytes >= policy.roll_bytes or now_ms - since_ms >= policy.roll_ms


def should_prepare(*, since_ms: int, nbytes: int, now_ms: int, policy: NamespaceMetadata) -> bool:
    """Whether the next ledger should be made now: half way to a roll."""
    if nbytes <= 0:
        return False
    return 2 * nbytes >= policy.roll_bytes or 2 * (now_ms - since_ms) >= policy.roll_ms
