"""Spark's offsets of streams: how far a query has read each stream, as a readable dict.

Defines the JSON that Spark stores in its checkpoint. Later releases read it, so that a field must
never change its meaning. A stream that is not in the offsets has not been started. A dict of
another source must never be accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ledger.errors import InvalidArgument
from stream.core.position import Position

VERSION = 1
_OWNER_LENGTH_MAX = 64


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The first record of a stream that was not read, whether it is written yet or not.

    It is at `slot` of `entry` of `segment`; `sequence` is its number in the stream. `nbytes` are
    stored before it in its segment, where each record counts an equal share of its entry. `begin`
    is the sequence where reading this stream began. `created_ms` distinguishes the stream from a
    later one of the same name.

    `gone_ms` is set while the stream is in the trash: the time of its deletion. Its unread records
    have been reported as lost. If the stream is restored, reading continues here.
    """

    segment: int
    entry: int
    slot: int
    sequence: int
    nbytes: int
    begin: int
    created_ms: int
    gone_ms: int = 0

    @property
    def position(self) -> Position:
        return Position(self.segment, self.entry, self.slot)


def is_one_reading(start: StreamOffset, end: StreamOffset) -> bool:
    """Returns whether both offsets are of the same stream and of the same start of reading it.

    Spark does not store where a query began: for the first micro-batch it asks for the initial
    offset again after it has stored the end, and again after each restart. By then "the last ten
    records", or the first ones that retention has kept, are different records; the stored end
    holds the original begin.
    """
    return start.created_ms == end.created_ms and start.begin == end.begin


def advances(start: StreamOffset | None, end: StreamOffset) -> bool:
    """Returns whether records are to be read before `end`; `start` None: the stream is new."""
    if start is None or not is_one_reading(start, end):
        return end.begin < end.sequence
    return start.sequence < end.sequence


_OPTIONAL = "gone_ms"
_FIELDS = tuple(field.name for field in fields(StreamOffset) if field.name != _OPTIONAL)


class Offsets(Mapping[str, StreamOffset]):
    """Offsets by the full name of the stream ("ns/clicks", "ns/clicks#2"), sorted by name.

    `cursor_owner` is a number by which the cursors of a query are recognized as its own (option
    `cursor`); empty without them.
    """

    def __init__(self, streams: Mapping[str, StreamOffset], cursor_owner: str = "") -> None:
        self._streams = {name: streams[name] for name in sorted(streams)}
        self.cursor_owner = cursor_owner

    def __getitem__(self, name: str) -> StreamOffset:
        return self._streams[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._streams)

    def __len__(self) -> int:
        return len(self._streams)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {o.position}" for name, o in list(self._streams.items())[:20])
        return f"Offsets({shown}{', ...' if len(self) > 20 else ''})"

    def to_json(self) -> dict[str, Any]:
        """Returns the dict that Spark stores."""
        document: dict[str, Any] = {
            "version": VERSION,
            "streams": {name: _written(offset) for name, offset in self._streams.items()},
        }
        if self.cursor_owner:
            document["cursor_owner"] = self.cursor_owner
        return document

    @classmethod
    def from_json(cls, document: object) -> Offsets:
        """Reads a dict that `to_json` made, in this release or an earlier one.

        Raises InvalidArgument, with the reason, for anything else.
        """
        if not isinstance(document, dict) or "streams" not in document:
            raise _foreign(f"{str(document)[:200]!r} has no streams")
        version = document.get("version")
        if type(version) is not int or version < 1:
            raise _foreign(f"its version is {version!r}")
        if version > VERSION:
            raise _foreign(f"it has version {version}, this release reads up to {VERSION}")
        streams = document["streams"]
        if not isinstance(streams, dict):
            raise _foreign(f"its streams are {str(streams)[:200]!r}")
        owner = document.get("cursor_owner", "")
        if not isinstance(owner, str) or len(owner) > _OWNER_LENGTH_MAX:
            raise _foreign(f"its cursor_owner is {str(owner)[:200]!r}")
        found = {name: _read_offset(name, offset) for name, offset in streams.items()}
        return cls(found, owner)


def _written(offset: StreamOffset) -> dict[str, int]:
    document = asdict(offset)
    if not offset.gone_ms:
        del document[_OPTIONAL]
    return document


def _read_offset(name: object, document: object) -> StreamOffset:
    if not isinstance(name, str) or name.count("/") != 1:
        raise _foreign(f"it names a stream {str(name)[:200]!r}, which is not 'namespace/stream'")
    if not isinstance(document, dict):
        raise _foreign(f"stream {name!r} has {str(document)[:200]!r}")
    numbers: dict[str, int] = {}
    for field in (*_FIELDS, _OPTIONAL):
        number = document.get(field, 0 if field == _OPTIONAL else None)
        if type(number) is not int or number < 0:
            raise _foreign(f"stream {name!r} has {field} {number!r}, not a whole number >= 0")
        numbers[field] = number
    return StreamOffset(**numbers)


def _foreign(what: str) -> InvalidArgument:
    return InvalidArgument(
        f"an offset in the Spark checkpoint cannot be read: {what}. Cure: the checkpoint must be "
        f"one of a query that reads with format 'ledgerstream' (of this release or an earlier one)"
    )
