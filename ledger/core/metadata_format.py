"""Encodes ledger metadata to bytes, in the three versions that Apache BookKeeper has used.

Every version begins with a text line that names it. Version 1 is text lines, 2 is protobuf text, 3
is protobuf binary after its length (docs/formats.md). It must never guess: incomplete or invalid
bytes raise MetadataCorrupt with the ledger id and the cause.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from ledger.core.entry import DigestType
from ledger.core.metadata import (
    DERIVED_KEY_PREFIX,
    OWN_KEY_TAG,
    Fragment,
    LedgerMetadata,
    LedgerState,
)
from ledger.errors import InvalidArgument, MetadataCorrupt
from ledger.proto.data_formats_pb2 import LedgerMetadataFormat

_VERSION_KEY = b"BookieMetadataFormatVersion\t"
_CLOSED = "CLOSED"
_IN_RECOVERY_ENTRY_ID = -102
"""In version 1, in place of the last entry of a closed ledger: "in recovery"."""
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_DIGEST_TYPE_FIELD = LedgerMetadataFormat.DESCRIPTOR.fields_by_name["digestType"].number
_VARINT_BYTES_MAX = 5
_BYTES_MAX = 4 << 20
"""A node has 1 MiB, unless operators of Apache BookKeeper raised jute.maxbuffer."""
_TEXT_MARKS = b":,{<"
"""There is one of them in each field and each element of protobuf text."""
_TEXT_MARKS_MAX = 100_000
"""A fragment of three bookies has 10; 8,000 of them fill a node of 1 MiB."""
_TEXT_LINE_COST_MAX = 500_000_000
"""For each field that it does not know, the parser copies the line it is on, several times."""
_ESCAPE = re.compile(r"""\\(?:([abfnrtvxXuU'"\\]|[0-3][0-7]{2}|[0-7]{1,2}(?![0-7]))|)""")
"""Group 1 is empty for an escape sequence about which the parser would warn and guess."""


class _Malformed(Exception):
    """The cause; `decode` adds the ledger and raises MetadataCorrupt."""


def encode(metadata: LedgerMetadata) -> bytes:
    """Returns the bytes to store, in the version that the metadata names.

    Version 1 has no digest type, password, ack quorum, creation time or custom metadata: they are
    lost. Version 2 loses the create token and unknown fields. Raises InvalidArgument for a number
    too large for the format.
    """
    head = _VERSION_KEY + b"%d\n" % metadata.format_version
    if metadata.format_version == 1:
        return head + _encode_lines(metadata).encode()
    try:
        message = _to_message(metadata)
    except ValueError as error:
        raise InvalidArgument(f"metadata of ledger {metadata.ledger_id}: {error}") from error
    if metadata.format_version == 2:
        return head + text_format.MessageToString(message, as_utf8=False).encode()
    body = message.SerializeToString(deterministic=True) + metadata.unknown_fields
    return head + _varint(len(body)) + body


def decode(ledger_id: int, data: bytes, node_created_ms: int = -1) -> LedgerMetadata:
    """Returns the metadata in `data`, which is stored under `ledger_id`.

    Args:
        node_created_ms: creation time of the node, used if the bytes do not say one.

    A missing ack quorum is the write quorum, as old clients meant it. Raises MetadataCorrupt for
    everything that is not sound metadata.
    """
    try:
        return _decode(ledger_id, data, node_created_ms)
    except (_Malformed, InvalidArgument) as error:
        raise MetadataCorrupt(
            f"metadata of ledger {ledger_id} ({len(data)} bytes): {error}"
        ) from error


def _decode(ledger_id: int, data: bytes, node_created_ms: int) -> LedgerMetadata:
    if len(data) > _BYTES_MAX:
        raise _Malformed(f"more than {_BYTES_MAX} bytes")
    line, newline, body = data.partition(b"\n")
    if not line.startswith(_VERSION_KEY) or not newline:
        raise _Malformed(f"does not begin with the line {_VERSION_KEY.decode().strip()} <version>")
    version = line[len(_VERSION_KEY) :]
    if version == b"1":
        return _decode_lines(ledger_id, body, node_created_ms)
    message = LedgerMetadataFormat()
    try:
        if version == b"2":
            _check_cost(body)
            text = body.decode()
            if any(match[1] is None for match in _ESCAPE.finditer(text)):
                raise _Malformed("version 2 body cannot be parsed: unknown escape sequence")
            text_format.Parse(text, message, allow_unknown_field=True)
        elif version == b"3":
            message.ParseFromString(_delimited(body))
        else:
            raise _Malformed(
                f"format version {version[:20]!r} is unknown; this release reads 1, 2 and 3"
            )
    except text_format.ParseError as error:
        # The parser's message quotes the line, which may be that of the password.
        at = f"line {error.GetLine()}, column {error.GetColumn()}"
        raise _Malformed(f"version 2 body cannot be parsed at {at}") from None
    except (DecodeError, ValueError) as error:
        raise _Malformed(f"version {version.decode()} body cannot be parsed: {error}") from error
    except RecursionError:
        raise _Malformed("version 2 body cannot be parsed: braces in braces") from None
    return _from_message(ledger_id, message, int(version), node_created_ms)


def _check_cost(body: bytes) -> None:
    """Raises _Malformed for protobuf text that would keep the parser busy for seconds."""
    marks = cost = 0
    for line in body.split(b"\n"):
        marks_of_line = sum(map(line.count, (b"%c" % mark for mark in _TEXT_MARKS)))
        marks += marks_of_line
        cost += marks_of_line * len(line)
    if marks > _TEXT_MARKS_MAX:
        raise _Malformed(f"version 2 body has {marks} fields, limit {_TEXT_MARKS_MAX}")
    if cost > _TEXT_LINE_COST_MAX:
        raise _Malformed("version 2 body cannot be parsed: too many fields on one line")


# ---- versions 2 and 3: one message, two renderings


def _to_message(metadata: LedgerMetadata) -> LedgerMetadataFormat:
    message = LedgerMetadataFormat(
        quorumSize=metadata.write_quorum,
        ensembleSize=metadata.ensemble_size,
        length=metadata.length,
        lastEntryId=metadata.last_entry_id,
        state=LedgerMetadataFormat.State.ValueType(metadata.state),
        ackQuorumSize=metadata.ack_quorum,
    )
    for fragment in metadata.fragments:
        message.segment.add(firstEntryId=fragment.first_entry_id, ensembleMember=fragment.bookies)
    if metadata.digest_type is not None:
        message.digestType = LedgerMetadataFormat.DigestType.ValueType(metadata.digest_type)
        message.password = b"" if metadata.has_derived_key else metadata.password
    if metadata.stores_created_ms and metadata.created_ms >= 0:
        message.ctime = metadata.created_ms
    for key in sorted(metadata.custom):
        message.customMetadata.add(key=key, value=metadata.custom[key])
    if metadata.format_version >= 3:
        message.cToken = metadata.c_token
    return message


def _from_message(
    ledger_id: int, message: LedgerMetadataFormat, version: int, node_created_ms: int
) -> LedgerMetadata:
    if not message.IsInitialized():
        raise _Malformed("one of quorumSize, ensembleSize, length, state, firstEntryId is missing")
    unknown: Any = UnknownFieldSet(message)
    if any(field.field_number == _DIGEST_TYPE_FIELD for field in unknown):
        raise _Malformed("digest type is none of those this release knows")
    digest_type: DigestType | None = None
    if message.HasField("digestType") or message.HasField("password"):
        digest_type = DigestType(message.digestType)  # the default is the one Apache assumes
    state = LedgerState(message.state)
    is_closed = state is LedgerState.CLOSED
    custom = {_text(pair.key): pair.value for pair in message.customMetadata}
    # A password beside a derived key is not the one that is derived: another one put it there.
    is_derived = custom.get(OWN_KEY_TAG, b"").startswith(DERIVED_KEY_PREFIX)
    if is_closed and not message.HasField("lastEntryId"):
        raise _Malformed("closed, but without a last entry")
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=message.ensembleSize,
        write_quorum=message.quorumSize,
        ack_quorum=message.ackQuorumSize
        if message.HasField("ackQuorumSize")
        else message.quorumSize,
        state=state,
        fragments=tuple(
            Fragment(segment.firstEntryId, tuple(map(_text, segment.ensembleMember)))
            for segment in message.segment
        ),
        digest_type=digest_type,
        password=b"" if is_derived else message.password,
        # Without meaning before the ledger is closed, whatever a writer stored.
        last_entry_id=message.lastEntryId if is_closed else -1,
        length=message.length if is_closed else 0,
        created_ms=message.ctime if message.HasField("ctime") else node_created_ms,
        stores_created_ms=message.HasField("ctime"),
        custom=custom,
        c_token=message.cToken,
        unknown_fields=_without_known_fields(message) if unknown else b"",
        format_version=version,
    )


def _without_known_fields(message: LedgerMetadataFormat) -> bytes:
    rest = LedgerMetadataFormat()
    rest.CopyFrom(message)
    for known in message.DESCRIPTOR.fields_by_name:
        rest.ClearField(known)  # type: ignore[arg-type]
    encoded: bytes = rest.SerializePartialToString()
    return encoded


def _text(value: object) -> str:
    if not isinstance(value, str):  # the parser returns bytes for a string that is not UTF-8
        raise _Malformed(f"{value!r:.60} is not UTF-8")
    return value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _delimited(data: bytes) -> bytes:
    """Returns the message after its varint length, which must be all of the rest."""
    length = 0
    for place, byte in enumerate(data[:_VARINT_BYTES_MAX]):
        length |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            message = data[place + 1 :]
            if len(message) != length:
                raise _Malformed(f"{length} bytes announced, {len(message)} follow")
            return message
    raise _Malformed("length of the message is missing or too long")


# ---- version 1: text lines


def _encode_lines(metadata: LedgerMetadata) -> str:
    lines = [str(metadata.write_quorum), str(metadata.ensemble_size), str(metadata.length)]
    lines += [
        "\t".join((str(fragment.first_entry_id), *fragment.bookies))
        for fragment in metadata.fragments
    ]
    if metadata.state is LedgerState.OPEN:
        lines.append("")
    elif metadata.state is LedgerState.IN_RECOVERY:
        lines.append(f"{_IN_RECOVERY_ENTRY_ID}\t{_CLOSED}")
    else:
        lines.append(f"{metadata.last_entry_id}\t{_CLOSED}")
    return "\n".join(lines)


def _decode_lines(ledger_id: int, body: bytes, node_created_ms: int) -> LedgerMetadata:
    try:
        lines = body.decode("ascii").split("\n")
    except UnicodeDecodeError as error:
        raise _Malformed(f"version 1 body is not plain text: {error}") from error
    if len(lines) < 5:
        # 3 numbers, a fragment, and the text after its line feed: empty if open
        raise _Malformed(f"version 1 has at least 4 whole lines, here are {len(lines) - 1}")
    write_quorum, ensemble_size, length = (_integer(line) for line in lines[:3])
    state, last_entry_id = LedgerState.OPEN, -1
    end = lines.pop()
    if not end and lines[-1].endswith(f"\t{_CLOSED}"):
        end = lines.pop()  # no client writes this line feed, but all of them accept it
    if end:
        number, tab, word = end.partition("\t")
        if not tab or word != _CLOSED:
            raise _Malformed(f"last line {end[:60]!r} is cut off or not <entry> {_CLOSED}")
        if _integer(number) == _IN_RECOVERY_ENTRY_ID:
            state = LedgerState.IN_RECOVERY
        else:
            state, last_entry_id = LedgerState.CLOSED, _integer(number)
    fragments = []
    for line in lines[3:]:
        first_entry_id, *bookies = line.split("\t")
        fragments.append(Fragment(_integer(first_entry_id), tuple(bookies)))
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=write_quorum,
        state=state,
        fragments=tuple(fragments),
        digest_type=None,
        last_entry_id=last_entry_id,
        length=length if state is LedgerState.CLOSED else 0,
        created_ms=node_created_ms,
        stores_created_ms=False,
        format_version=1,
    )


def _integer(text: str) -> int:
    if _INTEGER.fullmatch(text) is None or not -(2**63) <= int(text) < 2**63:
        raise _Malformed(f"{text[:60]!r} is not a number of 64 bits")
    return int(text)
