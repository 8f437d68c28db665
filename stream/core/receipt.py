"""Receipts: what a writer knows of one durable record, to be verified against the bookies.

The JSON form is for files and programs: fields are only ever added, and what is not known is left
out of an object, never guessed. Verification is in stream/verify.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ledger.errors import InvalidArgument
from ledger.shown_text import escaped_json
from stream.core.metadata.documents import whole_number
from stream.core.names import check_name
from stream.core.position import Position

_KIND = "ledgerstream-receipt"
_VERSION = 1
_TEXT_MAX = 100_000


@dataclass(frozen=True, slots=True)
class ReceiptAck:
    """A bookie that acknowledged that it has fsynced the record's entry, and how many ms after the
    entry was sent the acknowledgement arrived."""

    bookie: str
    after_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Where a record is, and which bookies have acknowledged that it is on disk.

    `digest` is stored with the entry on every bookie; it covers the whole entry, of which the
    record is one part, and is None if it is not known. `acks` are in the order in which they
    arrived. `not_yet` are bookies that should store the entry and had not acknowledged it when the
    receipt was made; most do a moment later. `is_recovered`: the writer's ledger failed and
    recovery confirmed the record. Times are ms since the Unix epoch.
    """

    namespace: str
    stream: str
    position: Position
    sequence: int
    ledger_id: int
    append_time_ms: int
    digest_type: str
    digest: bytes | None
    acks: tuple[ReceiptAck, ...]
    not_yet: tuple[str, ...]
    is_recovered: bool = False

    @property
    def entry_id(self) -> int:
        """Id of the record's entry in the ledger."""
        return self.position.entry

    @property
    def bookies(self) -> tuple[str, ...]:
        """Bookies that acknowledged that they have fsynced the entry."""
        return tuple(ack.bookie for ack in self.acks)

    def as_dict(self) -> dict[str, object]:
        """Returns the JSON object."""
        fields: dict[str, object] = {
            "kind": _KIND,
            "version": _VERSION,
            "stream": f"{self.namespace}/{self.stream}",
            "position": str(self.position),
            "sequence": self.sequence,
            "ledger_id": self.ledger_id,
            "entry_id": self.entry_id,
            "append_time_ms": self.append_time_ms,
            "digest_type": self.digest_type,
            "acks": [{"bookie": ack.bookie, "after_ms": ack.after_ms} for ack in self.acks],
            "not_yet": list(self.not_yet),
        }
        if self.digest is not None:
            fields["digest"] = self.digest.hex()
        if self.is_recovered:
            fields["is_recovered"] = True
        return fields

    def to_json(self) -> str:
        """Returns the JSON object in one line."""
        return escaped_json(json.dumps(self.as_dict(), separators=(",", ":"), ensure_ascii=False))

    @classmethod
    def from_json(cls, text: str | bytes) -> Receipt:
        """Parses what `to_json` returned. Raises InvalidArgument, which says what is wrong."""
        try:
            if len(text) > _TEXT_MAX:
                raise ValueError(f"{len(text)} bytes, a receipt has at most {_TEXT_MAX}")
            return cls._of(json.loads(text))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            what = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise InvalidArgument(
                f"this is not a receipt, which is one line of `append --receipts`: {what}"
            ) from None

    @classmethod
    def _of(cls, fields: object) -> Receipt:
        if not isinstance(fields, dict) or fields.get("kind") != _KIND:
            raise ValueError(f"it is not a JSON object of the kind {_KIND!r}")
        if fields["version"] != _VERSION:
            raise ValueError(f"version {fields['version']!r}; this release reads {_VERSION}")
        namespace, slash, stream = str(fields["stream"]).partition("/")
        if not slash:
            raise ValueError(f"stream {fields['stream']!r} is not NAMESPACE/STREAM")
        position = Position.parse(str(fields["position"]))
        if fields["entry_id"] != position.entry:
            raise ValueError(f"entry {fields['entry_id']!r} is not that of position {position}")
        digest = fields.get("digest")
        return cls(
            namespace=check_name(namespace, "namespace"),
            stream=check_name(stream),
            position=position,
            sequence=whole_number(fields["sequence"]),
            ledger_id=whole_number(fields["ledger_id"]),
            append_time_ms=whole_number(fields["append_time_ms"]),
            digest_type=str(fields["digest_type"]),
            digest=None if digest is None else bytes.fromhex(digest),
            acks=tuple(
                ReceiptAck(str(ack["bookie"]), float(ack["after_ms"])) for ack in fields["acks"]
            ),
            not_yet=tuple(str(bookie) for bookie in fields["not_yet"]),
            is_recovered=bool(fields.get("is_recovered", False)),
        )
