"""Settings of a namespace on the command line, in units people use, and shown the same way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, cast

from cyclopts import Parameter

from ledger.cli.output import UsageError, time_of
from ledger.units import duration_text, size_text

if TYPE_CHECKING:
    from stream.core.metadata.namespaces import NamespaceMetadata
    from stream.retention.policies import NamespaceSettings

_NO_LIMIT = ("ever", "none")


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions:
    """Settings of a namespace. Those left out keep their value, or get the default."""

    ensemble_size: int | None = None
    """Bookies a segment is spread over."""
    write_quorum: int | None = None
    """Copies of each entry."""
    ack_quorum: int | None = None
    """Copies that must be synced before an append is confirmed."""
    digest_type: Literal["CRC32C", "CRC32", "HMAC", "DUMMY"] | None = None
    """Checksum of entries."""
    placement: str | None = None
    """Bookies to prefer, as patterns of their ids: "rack1-*,rack2-*"; "none" for any. A policy
    (default, rack, region, zone) may be among them, or alone: --placement rack."""
    placement_policy: Literal["default", "rack", "region", "zone"] | None = None
    """Spread the copies of each entry over racks, regions or zones."""
    placement_min: int | None = None
    """How many racks, regions or zones the copies of each entry must be in; 0 is 2."""
    placement_enforce: bool | None = None
    """Rather create no segment, and replace no bookie, than break the minimum."""
    roll_ms: str | None = None
    """Age at which a segment is sealed and the next begun."""
    roll_bytes: str | None = None
    """Size at which a segment is sealed and the next begun."""
    retention_ms: str | None = None
    """Drop sealed segments whose newest record is older; "ever" keeps all."""
    retention_bytes: str | None = None
    """Drop the oldest sealed segments beyond N bytes, counting all partitions of a stream
    together; "ever" keeps all."""
    retention_cursors: str | None = None
    """Drop nothing these cursors have not passed: "billing,search"; "none" for no cursor."""
    trash_ms: str | None = None
    """How long dropped or deleted data can be restored; 0: not at all."""
    record_bytes_max: str | None = None
    """Largest record."""
    streams_max: str | None = None
    """Most streams in the namespace; "none" for any number."""
    bytes_per_s_max: str | None = None
    """What the writer of each stream may append in a second; "none" for any amount."""
    compression: Literal["none", "zstd", "lz4"] | None = None
    """Compression of the records in an entry."""
    batch_bytes: str | None = None
    """A batch of records of this size is sent at once."""
    linger_ms: str | None = None
    """How long a smaller batch may wait for more."""

    def given(self) -> NamespaceSettings:
        """The settings that were given. Raises InvalidArgument naming the option."""
        from ledger.errors import InvalidArgument
        from stream.retention.policies import NamespaceSettings

        settings: dict[str, Any] = {}
        for option, word in asdict(self).items():
            if word is not None:
                try:
                    if option == "placement":
                        settings |= _placement(word)
                    else:
                        settings[option] = _parsed(option, word)
                except InvalidArgument as error:
                    raise UsageError(f"--{option.replace('_', '-')}: {error}") from None
        return cast(NamespaceSettings, settings)


def _parsed(option: str, word: Any) -> Any:
    from ledger.units import parse_duration_ms, parse_size_bytes

    is_none = isinstance(word, str) and word.strip().lower() in _NO_LIMIT
    match option:
        case "retention_cursors":
            return () if is_none else _names(word)
        case "streams_max":
            return None if is_none else _whole(word)
        case "retention_ms" | "retention_bytes" | "bytes_per_s_max" if is_none:
            return None
        case _ if option.endswith("_ms"):
            return parse_duration_ms(word)
        case _ if option.endswith(("_bytes", "_bytes_max")) or option == "bytes_per_s_max":
            return parse_size_bytes(word)
    return word


def _placement(word: str) -> dict[str, str]:
    """Returns the policy among the words, and the patterns, as far as there are any."""
    from ledger.core.placement.policies import KINDS

    if word.strip().lower() in _NO_LIMIT:
        return {"placement": ""}
    words = _names(word)
    kinds = [one for one in words if one in KINDS]
    if not kinds:
        return {"placement": word}
    patterns = ",".join(one for one in words if one not in KINDS)
    if len(kinds) > 1:
        raise UsageError(f"{word!r} names {len(kinds)} policies; give one of {', '.join(KINDS)}")
    return {"placement_policy": kinds[0]} | ({"placement": patterns} if patterns else {})


def _names(word: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in word.split(",") if name.strip())


def _whole(word: str) -> int:
    from ledger.errors import InvalidArgument

    if not (word.isascii() and word.isdigit() and len(word) <= 12):
        raise InvalidArgument(f"{word[:40]!r}: write a whole number, or none")
    return int(word)


_UNITS: dict[str, Callable[[int], str]] = {"ms": duration_text, "bytes": size_text}


def policy_facts(policy: NamespaceMetadata, *, is_for_people: bool) -> dict[str, Any]:
    """The settings by name; for people with times and sizes in their units beside the numbers."""
    facts: dict[str, Any] = {}
    for field in fields(policy):
        value = getattr(policy, field.name)
        if field.name == "created_ms":
            continue
        if is_for_people:
            value = _shown(field.name, value)
        facts[field.name] = value
    return facts | {"created": time_of(policy.created_ms)}


def _shown(setting: str, value: Any) -> Any:
    if setting in ("retention_ms", "retention_bytes") and value is None:
        return "ever"
    if setting.endswith("_max") and value is None:
        return "no limit"
    if value == 0 and setting.endswith("_ms"):
        return "0"
    if setting == "bytes_per_s_max":
        return f"{value:,} ({size_text(value)}/s)"
    if type(value) is int and value >= 1000:
        for ending, shown in _UNITS.items():
            if setting.removesuffix("_max").endswith(f"_{ending}"):
                return f"{value:,} ({shown(value)})"
    return "-" if value in ((), "") else value
