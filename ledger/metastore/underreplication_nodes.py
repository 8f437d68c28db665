"""The bytes of the nodes below `underreplication`: protobuf as text, as Apache writes them."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from ledger.errors import MetadataCorrupt
from ledger.proto.data_formats_pb2 import (
    CheckAllLedgersFormat,
    LedgerRereplicationLayoutFormat,
    LockDataFormat,
    PlacementPolicyCheckFormat,
    ReplicasCheckFormat,
    UnderreplicatedLedgerFormat,
)

if TYPE_CHECKING:
    from google.protobuf.message import Message

_DELAY = re.compile(rb"[0-9]{1,9}\Z")
LAYOUT_TYPE, LAYOUT_VERSION = "BASIC", 1

MessageT = TypeVar("MessageT", bound="Message")


class PeriodicCheck(enum.Enum):
    """A check of all ledgers; the value is the name of the node with the time of the last one."""

    ALL_LEDGERS = "checkallledgersctime"
    PLACEMENT = "placementpolicycheckctime"
    REPLICAS = "replicascheckctime"


CHECKS: dict[PeriodicCheck, tuple[Any, str]] = {
    PeriodicCheck.ALL_LEDGERS: (CheckAllLedgersFormat, "checkAllLedgersCTime"),
    PeriodicCheck.PLACEMENT: (PlacementPolicyCheckFormat, "placementPolicyCheckCTime"),
    PeriodicCheck.REPLICAS: (ReplicasCheckFormat, "replicasCheckCTime"),
}


def encode_mark(replicas: Sequence[str], created_ms: int) -> bytes:
    """Returns the data of a mark."""
    return _text(UnderreplicatedLedgerFormat(replica=replicas, ctime=created_ms))


@lru_cache(maxsize=16)
def encode_lock(owner: str) -> bytes:
    """Returns the data of a lock."""
    return _text(LockDataFormat(bookieId=owner))


def encode_layout() -> bytes:
    """Returns the data of the LAYOUT node."""
    return _text(LedgerRereplicationLayoutFormat(type=LAYOUT_TYPE, version=LAYOUT_VERSION))


def decode_delay_s(data: bytes, path: str) -> int:
    """Returns a delay in seconds. Raises MetadataCorrupt."""
    if _DELAY.match(data) is None:
        raise MetadataCorrupt(
            f"{path} holds {data[:40]!r}, which is no number of seconds. Cure: set it again"
        )
    return int(data)


def _text(message: Any) -> bytes:
    from google.protobuf import text_format  # slow to import, and seldom needed

    text: str = text_format.MessageToString(message, as_utf8=False)
    return text.encode()


def parsed(data: bytes, message: MessageT, path: str) -> MessageT:
    """Returns the message in the data of a node, parsed into `message`. Raises MetadataCorrupt."""
    from google.protobuf import text_format

    try:
        found: MessageT = text_format.Parse(data.decode(), message)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise MetadataCorrupt(
            f"{path} cannot be read: {error}. Cure: delete the node; if copies are missing, the "
            "next check marks the ledger again"
        ) from error
    return found
