"""Metadata of a partitioned stream: a node that counts its partitions.

The records are in the partitions, which are streams `<stream>#0`, `<stream>#1`, ... The node is
JSON of the kind "partitioned" and is stored where a plain stream's would be. The number of
partitions only grows.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from ledger.errors import InvalidArgument, LedgerError, MetadataConflict, MetadataCorrupt
from stream.core.metadata.documents import dump_document, read_document
from stream.core.names import PARTITIONS_MAX, check_new_name, partition_name

KIND = "partitioned"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionedStream:
    """A partitioned stream. `epoch` counts the changes of its partitions.

    A deleted one stays as a tombstone from `deleted_ms` until its partitions are purged.
    """

    name: str
    created_ms: int
    partitions: int
    epoch: int = 0
    is_deleted: bool = False
    deleted_ms: int = -1

    def __post_init__(self) -> None:
        check_new_name(self.name)
        if type(self.partitions) is not int or not 1 <= self.partitions <= PARTITIONS_MAX:
            raise InvalidArgument(
                f"stream {self.name!r}: {self.partitions!r} partitions, legal is 1 to "
                f"{PARTITIONS_MAX}"
            )

    @property
    def partition_names(self) -> list[str]:
        """The streams that hold its records, by number."""
        return [partition_name(self.name, number) for number in range(self.partitions)]

    def _check_alive(self) -> None:
        if self.is_deleted:
            raise MetadataConflict(f"stream {self.name!r} was deleted")

    def grown(self, partitions: int) -> PartitionedStream:
        """Returns the stream with this many partitions; the same object if it has them already.

        Raises InvalidArgument for fewer: records would be lost, and keys would move back.
        """
        self._check_alive()
        if partitions < self.partitions:
            raise InvalidArgument(
                f"stream {self.name!r} has {self.partitions} partitions and cannot shrink to "
                f"{partitions}: make another stream and copy the records"
            )
        if partitions == self.partitions:
            return self
        return replace(self, partitions=partitions, epoch=self.epoch + 1)

    def deleted(self, now_ms: int) -> PartitionedStream:
        """Returns the stream as deleted; its partitions are deleted afterwards."""
        self._check_alive()
        return replace(self, is_deleted=True, deleted_ms=now_ms, epoch=self.epoch + 1)

    def revived(self) -> PartitionedStream:
        """Returns the stream as restored, after its partitions are."""
        return replace(self, is_deleted=False, deleted_ms=-1, epoch=self.epoch + 1)


def encode_partitioned(stream: PartitionedStream) -> bytes:
    """Returns the JSON of a partitioned stream."""
    return dump_document(KIND, _what(stream.name), asdict(stream))


def decode_partitioned(name: str, data: bytes) -> PartitionedStream | None:
    """Returns the partitioned stream in these bytes, or None if they are of a plain one.

    Raises MetadataCorrupt.
    """
    kind, document = read_document(_what(name), data)
    if kind != KIND:
        return None
    try:
        if document["name"] != name:
            raise ValueError(f"it is the metadata of {document['name']!r}")
        for number in ("created_ms", "epoch", "deleted_ms"):
            if type(document[number]) is not int:
                raise ValueError(f"{number} is {document[number]!r}")
        if document["is_deleted"] not in (True, False):
            raise ValueError(f"is_deleted is {document['is_deleted']!r}")
        return PartitionedStream(**document)
    except (KeyError, TypeError, ValueError, LedgerError) as error:
        raise MetadataCorrupt(f"{_what(name)}: {type(error).__name__}: {error}") from None


def _what(name: str) -> str:
    return f"metadata of stream {name!r}"
