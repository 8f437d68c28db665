"""Metadata of a cursor: a durable position by name, and the member that holds it.

Immutable; a transition returns the next value. Must never move back except by `moved`, which the
user of the cursor notices, and never have one epoch with two holders. Store: store/cursors.py.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from ledger.errors import FinalError, LedgerError, MetadataCorrupt
from stream.core.metadata.documents import dump_document, load_document, text_value, whole_number
from stream.core.position import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorMetadata:
    """A cursor. Everything before `position` has been handled.

    `stream_created_ms` distinguishes the stream from another one of the same name. `token` is that
    of the object that committed last, empty if the cursor was set by hand or released. `holder` is
    the member of a consumer group that handles the records behind it, empty if there is none;
    `epoch` counts holders. A deleted cursor stays for a while, so that its versions never begin
    again and a commit that arrives very late cannot match.
    """

    name: str
    stream: str
    stream_created_ms: int
    position: Position
    changed_ms: int
    token: str = ""
    holder: str = ""
    epoch: int = 0
    is_deleted: bool = False

    def committed(self, position: Position, token: str, now_ms: int) -> CursorMetadata:
        """Returns the cursor after the user with this token handled all before `position`."""
        assert position >= self.position, f"{self.position} cannot go back to {position}"
        return replace(self, position=position, token=token, changed_ms=now_ms)

    def acquired(self, holder: str, token: str, now_ms: int) -> CursorMetadata:
        """Returns the cursor with another holder and the next epoch: the previous holder can commit
        nothing more."""
        return replace(
            self, holder=holder, token=token, epoch=self.epoch + 1, changed_ms=now_ms
        )  # fmt: skip

    def released(self, position: Position, now_ms: int) -> CursorMetadata:
        """Returns the cursor after its holder handled all before `position` and released it."""
        assert position >= self.position, f"{self.position} cannot go back to {position}"
        return replace(self, position=position, token="", holder="", changed_ms=now_ms)

    def moved(self, position: Position, now_ms: int) -> CursorMetadata:
        """Returns the cursor set by hand, forward or back; its user notices at the next commit."""
        return replace(self, position=position, token="", holder="", changed_ms=now_ms)

    def deleted(self, now_ms: int) -> CursorMetadata:
        return replace(self, token="", holder="", is_deleted=True, changed_ms=now_ms)


_NAMES = tuple(field.name for field in fields(CursorMetadata))


def encode_cursor(cursor: CursorMetadata) -> bytes:
    """Returns the JSON of a cursor."""
    values = {name: getattr(cursor, name) for name in _NAMES}
    return dump_document("cursor", _what(cursor.name), values | {"position": str(cursor.position)})


def decode_cursor(name: str, data: bytes) -> CursorMetadata:
    """Returns the cursor in these bytes. Raises MetadataCorrupt."""
    document = load_document("cursor", _what(name), _NAMES, data)
    try:
        if document["name"] != name:
            raise ValueError(f"it is cursor {document['name']!r}")
        if document["is_deleted"] not in (True, False):
            raise ValueError("is_deleted is neither true nor false")
        return CursorMetadata(
            name=name,
            stream=text_value(document["stream"]),
            stream_created_ms=whole_number(document["stream_created_ms"]),
            position=Position.parse(text_value(document["position"])),
            changed_ms=whole_number(document["changed_ms"]),
            token=text_value(document["token"]),
            holder=text_value(document["holder"]),
            epoch=whole_number(document["epoch"]),
            is_deleted=bool(document["is_deleted"]),
        )
    except (ValueError, LedgerError) as error:
        raise MetadataCorrupt(f"{_what(name)}: {error}") from None


def _what(name: str) -> str:
    return f"metadata of cursor {name!r}"


class CursorMoved(FinalError):
    """Another client moved, acquired or deleted the cursor; this object can commit nothing more.

    `ours` is the position that was to be committed, `theirs` where the cursor is now (None: it was
    deleted).
    """

    def __init__(
        self, stream: str, cursor: str, ours: Position, theirs: Position | None
    ) -> None:  # fmt: skip
        now = "was deleted" if theirs is None else f"is at {theirs} now"
        super().__init__(
            f"cursor {cursor!r} of stream {stream!r} {now}, changed by another client; {ours} was "
            f"not committed. Open the cursor again to continue from where it is; if this happens "
            f"often, two processes use one cursor: give each its own, or use a consumer group"
        )
        self.stream = stream
        self.cursor = cursor
        self.ours = ours
        self.theirs = theirs

    def __reduce__(
        self,
    ) -> tuple[type[CursorMoved], tuple[str, str, Position, Position | None]]:
        return type(self), (self.stream, self.cursor, self.ours, self.theirs)
