"""What a task of a sink hands to the driver in its commit message: ledgers, or a small result.

A small result has the encoded entries themselves. They are held back until they exceed the task's
bound, and sent to ledgers then. The driver checks what arrives (docs/adr/0046). Imports nothing
that connects to a cluster, because a task with a small result needs no connection. Must never
change an entry.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from connectors.spark.sink.routing import Target
from connectors.spark.sink.sink_batch import SinkBatch
from ledger.core.entry import FRAME_ROOM_BYTES
from ledger.errors import DigestMismatch, InvalidArgument
from stream.core.entry.format import HEADER_BYTES, read_header
from stream.errors import RecordFormatError

if TYPE_CHECKING:
    from connectors.spark.core.cluster_access import ClusterAccess
    from connectors.spark.sink.sort_order import Key
    from connectors.spark.sink.task_ledgers import TaskLedgers
    from stream.core.metadata.namespaces import NamespaceMetadata
    from stream.core.sinks import SinkLedger

DRIVER_BYTES: Final = 32 << 20
"""The share of the first task in what the driver holds. A task does not know how many others there
are: task number n has the share DRIVER_BYTES / (n + 1), so that N tasks have at most
DRIVER_BYTES * (1 + ln N) together; with the default limit of 1 MiB at most 90 MiB of 200 tasks, and
267 MiB of 50,000."""


@dataclass(frozen=True, slots=True)
class TaskLedger:
    """A closed ledger for the commit.

    `low` and `high` bound its sort keys, if rows are sorted. If it `is_new`, its stream did not
    exist and is created before the commit.
    """

    ledger: SinkLedger
    low: Key | None = None
    high: Key | None = None
    is_new: bool = False


def bytes_of_task(wanted: int, partition: int) -> int:
    """Returns how many bytes the task of a partition may return; `wanted` is the user's limit."""
    return min(wanted, DRIVER_BYTES // (partition + 1))


@dataclass(frozen=True, slots=True)
class SmallResult:
    """The entries of one task for one stream, in their order. Sizes count columns before their
    compression. If it `is_new`, the stream is created before the commit."""

    target: Target
    policy: NamespaceMetadata
    entries: tuple[bytes, ...]
    checksum: int
    partition: int = 0
    is_new: bool = False

    @property
    def records(self) -> int:
        return sum(read_header(entry).count for entry in self.entries)

    @property
    def nbytes(self) -> int:
        """Raises RecordFormatError."""
        return sum(_unpacked_bytes(entry) for entry in self.entries)


def _unpacked_bytes(payload: bytes | memoryview) -> int:
    return HEADER_BYTES + read_header(payload).body_bytes


def checksum_of(target: Target, partition: int, entries: Sequence[bytes]) -> int:
    found = zlib.crc32(f"{target} {partition} {len(entries)}".encode())
    for entry in entries:
        found = zlib.crc32(entry, found)
    return found


# In a task


@dataclass(frozen=True, slots=True)
class _Held:
    target: Target
    policy: NamespaceMetadata
    payload: bytes | bytearray
    records: int
    begins_ledger: bool

    @property
    def entry(self) -> bytes:
        is_frame = isinstance(self.payload, bytearray)
        return bytes(memoryview(self.payload)[FRAME_ROOM_BYTES if is_frame else 0 :])


class TaskOutput:
    """What one task has encoded: held while it is small, otherwise sent to its ledgers.

    A context manager: leaving the block without `close` abandons the ledgers, if there are any.

    Args:
        cluster: where the ledgers are written.
        batch: their tag.
        held_bytes_max: the size up to which entries are held.
        partition: the number of the task.
    """

    def __init__(
        self, cluster: ClusterAccess, batch: SinkBatch, held_bytes_max: int, partition: int = 0
    ) -> None:
        self._cluster = cluster
        self._batch = batch
        self._partition = partition
        self._ledgers: TaskLedgers | None = None
        self._bytes_left = held_bytes_max
        self._held: list[_Held] | None = [] if held_bytes_max else None

    def __enter__(self) -> TaskOutput:
        return self

    def __exit__(self, *error: object) -> None:
        if self._ledgers is not None:
            self._ledgers.__exit__(*error)

    def append(
        self,
        target: Target,
        policy: NamespaceMetadata,
        payload: bytes | bytearray,
        records: int,
        *,
        begins_ledger: bool = False,
    ) -> None:
        """Takes an entry; see `TaskLedgers.append`."""
        new = _Held(target, policy, payload, records, begins_ledger)
        if self._held is None:
            self._send(new)
            return
        room = FRAME_ROOM_BYTES if isinstance(payload, bytearray) else 0
        self._bytes_left -= _unpacked_bytes(memoryview(payload)[room:])
        self._held.append(new)
        if self._bytes_left < 0:
            held, self._held = self._held, None
            for each in held:
                self._send(each)

    def _send(self, each: _Held) -> None:
        if self._ledgers is None:
            from connectors.spark.client.client_cache import cached_cluster
            from connectors.spark.sink.task_ledgers import TaskLedgers

            self._ledgers = TaskLedgers(cached_cluster(self._cluster), self._batch).__enter__()
        self._ledgers.append(
            each.target, each.policy, each.payload, each.records, begins_ledger=each.begins_ledger
        )

    def close(self) -> list[SinkLedger]:
        """Waits until the ledgers are durable, and returns them; see `TaskLedgers.close`."""
        return [] if self._ledgers is None else self._ledgers.close()

    def small_results(self, is_new: Callable[[Target], bool]) -> list[SmallResult] | None:
        """Returns all entries, by stream, if they are small; None if they were sent to ledgers."""
        if self._held is None:
            return None
        targets: dict[Target, list[_Held]] = {}
        for each in self._held:
            targets.setdefault(each.target, []).append(each)
        found = []
        for target, held in targets.items():
            entries = tuple(each.entry for each in held)
            found.append(
                SmallResult(
                    target, held[0].policy, entries,
                    checksum_of(target, self._partition, entries), self._partition, is_new(target),
                )
            )  # fmt: skip
        return found


# On the driver


def check_results(results: Sequence[SmallResult], wanted: int) -> None:
    """Checks what tasks returned; `wanted` is the limit that the user gave.

    Raises DigestMismatch for entries that are not what a task encoded, InvalidArgument for more
    bytes than a task may return.
    """
    sizes: dict[int, int] = {}
    for each in results:
        found = checksum_of(each.target, each.partition, each.entries)
        try:
            if found != each.checksum:
                raise RecordFormatError(0, f"checksum {found:#x} instead of {each.checksum:#x}")
            nbytes = each.nbytes
        except RecordFormatError as error:
            raise DigestMismatch(
                f"the rows for {each.target} that the task of partition {each.partition} returned "
                f"to the driver arrived damaged ({len(each.entries)} entries, {error}); nothing "
                "of the batch is committed. Cure: run it again, and if that fails too, check the "
                "memory and the network of executors and driver; smallResultBytes=0 lets each "
                "task write ledgers of its own, which bookies check"
            ) from None
        sizes[each.partition] = sizes.get(each.partition, 0) + nbytes
    for partition, nbytes in sizes.items():
        limit = bytes_of_task(wanted, partition)
        if nbytes > limit:
            raise InvalidArgument(
                f"the task of partition {partition} returned {nbytes:,} bytes of rows to the "
                f"driver, and may return {limit:,} (smallResultBytes={wanted:,}): nothing of the "
                "batch is committed. Cure: run the same release of ledgerstream on executors and "
                "driver"
            )
