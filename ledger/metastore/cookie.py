"""The cookie: which directories and which cluster belong to a bookie, and its text form.

It is stored in the metadata store and as file `VERSION` in every directory; all must be equal, so
that a bookie never starts again with an emptied disk. The text form is Apache's, in both
directions.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledger.errors import InvalidArgument, MetadataCorrupt
from ledger.proto.data_formats_pb2 import CookieFormat

LAYOUT_VERSION = 5
"""First line of the text; 4 has the same form, 3 has no protobuf, older ones are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cookie:
    """The identity of a bookie's data. A bookie starts only if all its cookies are equal."""

    bookie_id: str
    journal_directories: tuple[str, ...]
    ledger_directories: tuple[str, ...]
    instance_id: str = ""
    index_directories: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        named = (*self.journal_directories, *self.ledger_directories, *self.index_directories)
        for directory in named:
            if not directory or any(mark in directory for mark in ",\t\n"):
                raise InvalidArgument(
                    f"directory {directory!r} cannot be in a cookie: it is empty or contains a"
                    " comma, tab or line break"
                )
        if not self.journal_directories or not self.ledger_directories:
            raise InvalidArgument("a cookie names at least one journal and one ledger directory")


def encode_cookie(cookie: Cookie) -> bytes:
    """Returns the text, as Apache's bookies of layout version 5 write it."""
    message = CookieFormat(
        bookieHost=cookie.bookie_id,
        journalDir=",".join(cookie.journal_directories),
        ledgerDirs=_counted(cookie.ledger_directories),
    )
    if cookie.instance_id:
        message.instanceId = cookie.instance_id
    if cookie.index_directories:
        message.indexDirs = _counted(cookie.index_directories)
    from google.protobuf import text_format  # slow to import, and clients need none

    text: str = text_format.MessageToString(message, as_utf8=False)
    return f"{LAYOUT_VERSION}\n{text}".encode()


def decode_cookie(data: bytes) -> Cookie:
    """Returns the cookie in a text. Raises MetadataCorrupt."""
    from google.protobuf import text_format

    try:
        first, _, rest = data.decode().partition("\n")
        version = int(first)
    except ValueError:
        raise MetadataCorrupt(f"cookie does not begin with a version: {data[:40]!r}") from None
    try:
        if version in (4, LAYOUT_VERSION):
            return _of_message(text_format.Parse(rest, CookieFormat()))
        if version == 3:
            bookie_id, journal, ledgers = rest.splitlines()[:3]
            return Cookie(
                bookie_id=bookie_id,
                journal_directories=tuple(journal.split(",")),
                ledger_directories=_uncounted(ledgers),
            )
    except (text_format.ParseError, ValueError) as error:
        raise MetadataCorrupt(f"cookie of version {version} cannot be read: {error}") from error
    raise MetadataCorrupt(f"cookie has layout version {version}; 3 to {LAYOUT_VERSION} are known")


def _of_message(message: CookieFormat) -> Cookie:
    return Cookie(
        bookie_id=message.bookieHost,
        journal_directories=tuple(message.journalDir.split(",")),
        ledger_directories=_uncounted(message.ledgerDirs),
        instance_id=message.instanceId,
        index_directories=_uncounted(message.indexDirs) if message.indexDirs else (),
    )


def _counted(directories: tuple[str, ...]) -> str:
    return "\t".join([str(len(directories)), *directories])


def _uncounted(text: str) -> tuple[str, ...]:
    count, *directories = text.split("\t")
    if int(count) != len(directories):
        raise ValueError(f"{count} directories announced, {len(directories)} named")
    return tuple(directories)
