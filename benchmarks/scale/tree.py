"""Nodes, bytes and lists of the metadata store of a large cluster, encoded as the product does."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.scale.cluster import Cluster
from benchmarks.scale.healing import ledger_lists, list_bytes
from ledger.core.metadata_format import encode
from ledger.metastore.cookie import Cookie, encode_cookie
from ledger.metastore.underreplication_nodes import encode_lock, encode_mark
from stream.core.metadata.format import encode_stream
from stream.core.metadata.streams import Segment, SegmentState, StreamMetadata

LIST_BYTES_MAX = 0xFFFFF
"""The largest answer that ZooKeeper sends unless `jute.maxbuffer` is set."""
_SAMPLE = 1000
_LOCK_NAME = "urL0000012345"


@dataclass(frozen=True, slots=True)
class Kind:
    """Nodes of one kind: how many, and the bytes of their data and of the largest list of them."""

    name: str
    nodes: int
    data_bytes: int
    largest_list: int
    lists: int
    """Lists that show all of them."""

    @property
    def is_too_large(self) -> bool:
        return self.largest_list > LIST_BYTES_MAX


def streams_max() -> int:
    """Returns how many streams of such names one namespace may have."""
    return _fitting("stream-012345")


def locks_max() -> int:
    """Returns how many ledgers may be locked at once."""
    return _fitting(_LOCK_NAME)


def _fitting(name: str) -> int:
    none = list_bytes([])
    return (LIST_BYTES_MAX - none) // (list_bytes([name]) - none)


def kinds(cluster: Cluster, marks: Sequence[int], locks_most: int) -> list[Kind]:
    """Returns what the tree consists of.

    Args:
        marks: the ledgers that are marked at the worst moment.
        locks_most: how many are locked then.
    """
    settings, rng = cluster.settings, random.Random(f"{cluster.settings.seed} tree")
    sample = rng.sample(range(settings.ledgers), min(_SAMPLE, settings.ledgers))
    ledger_bytes = fmean(len(encode(cluster.whole_metadata(one))) for one in sample)
    lists = ledger_lists(settings.ledgers)
    stream = len(encode_stream(_stream(settings.ledgers // settings.streams)))
    streams = list_bytes([f"stream-{number:06d}" for number in range(settings.streams)])
    cookie = Cookie(
        bookie_id=cluster.names[0], journal_directories=("/data/journal",),
        ledger_directories=("/data/ledgers",), instance_id="01234567-89ab-cdef-0123-456789abcdef",
    )  # fmt: skip
    names = list_bytes(cluster.names)
    count = len(cluster.names)
    found = [
        Kind("ledgers", settings.ledgers, int(ledger_bytes * settings.ledgers),
             max(lists.values()), len(lists)),
        Kind("folders of ledgers", len(lists) - 1, 0, max(lists.values()), 0),
        Kind("streams, in one namespace", settings.streams, stream * settings.streams, streams, 1),
        Kind("bookies (cookies)", count, count * len(encode_cookie(cookie)), names, 1),
        Kind("bookies (registrations)", count, 0, names, 1),
    ]  # fmt: skip
    return [*found, _marks(cluster, marks), _locks(locks_most)]


def _stream(segments: int) -> StreamMetadata:
    """Returns a stream of some sealed segments and an open one."""
    begin_ms, hour_ms, records = 1_700_000_000_000, 3_600_000, 250_000
    sealed = [
        Segment(
            number, 900_000 + number, number * records, begin_ms + number * hour_ms,
            SegmentState.SEALED, 16_383, records, 1 << 28, begin_ms + number * hour_ms,
            begin_ms + (number + 1) * hour_ms, begin_ms + (number + 1) * hour_ms,
        )
        for number in range(1, segments)
    ]  # fmt: skip
    last = Segment(segments, 999_999, segments * records, begin_ms + segments * hour_ms)
    return StreamMetadata(
        name="stream-012345", created_ms=begin_ms, epoch=1, segments=(*sealed, last),
        next_segment=segments + 1, next_sequence=segments * records,
    )  # fmt: skip


def _marks(cluster: Cluster, marks: Sequence[int]) -> Kind:
    folders: dict[str, dict[str, None]] = {}
    for ledger_id in marks:
        digits = f"{ledger_id:016x}"
        parts = [digits[at : at + 4] for at in range(0, 16, 4)]
        for depth in range(4):
            folders.setdefault("/".join(parts[:depth]), {})[parts[depth]] = None
    lists = [list_bytes(names) for names in folders.values()]
    data = len(encode_mark(cluster.names[:1], 1_700_000_000_000))
    nodes = len(marks) * 2 + max(0, len(folders) - 1)
    return Kind(
        "marks and their folders", nodes, data * len(marks), max(lists, default=20),
        max(1, len(folders)),
    )  # fmt: skip


def _locks(locks_most: int) -> Kind:
    data = len(encode_lock("bookie-0000:3181-01234567"))
    return Kind(
        "locks of workers", locks_most, data * locks_most, list_bytes([_LOCK_NAME] * locks_most), 1
    )
