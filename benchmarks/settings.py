"""Options of all benchmarks. Each benchmark uses those that apply and reports all of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypedDict

from cyclopts import Parameter

_WARMUP_BYTES = 200_000_000


class Replication(TypedDict):
    """Arguments of `create_ledger` and of a namespace's policy."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    size: int = 100
    """Bytes of one entry's or record's value."""

    count: int | None = None
    """Number of entries or records in the measured phase; each benchmark has its own default."""

    warmup: float = 0.1
    """Size of the warm-up, as a fraction of the count. Unless it is 0, about 200 MB are appended
    before the warm-up, so that the journal files are recycled ones."""

    window: int = 2000
    """Maximum number of unconfirmed entries in flight."""

    bookies: int = 3
    ensemble: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2

    mode: Literal["many", "single", "callers"] = "many"
    """append: lists by append_many; single records without waiting for each; or --callers tasks,
    each waiting for its own record."""

    one_at_a_time: Annotated[bool, Parameter(negative="")] = False
    """append: the same as --mode single."""

    callers: int = 200
    """append --mode callers: number of tasks."""

    rate: int = 0
    """rate: records per second; 0: 10, 50, 500, 5,000 and 20,000, one after the other. fanout,
    mixed: records per second; 0: 20,000 and 1,000. copy: appends per second beside the copy; 0:
    none."""

    seconds: float | None = None
    """rate: of each phase of each rate, by default 10, and longer for fewer than 300 records. idle:
    by default 30."""

    peers: Annotated[bool, Parameter(negative="")] = False
    """rate, idle, all: run Redis, NATS, Kafka and Apache BookKeeper, too, then ours again. Those
    that are not here are reported as absent; `make peers` fetches them."""

    readers: int = 100
    """fanout: number of readers, in one process."""

    writers: int = 0
    """writers: number of streams, each with a writer; 0: 1, 10, 100 and 1,000, one after the
    other."""

    shape: Literal["batches", "records"] = "batches"
    """catchup, fanout: whether a reader gets columnar batches or record objects."""

    streams: int = 10_000
    """streams: number of streams."""

    ledgers: int = 1_000_000
    """many-ledgers: number of ledgers with one entry each."""

    written: int = 500
    """streams: number of streams that are written concurrently."""

    dir: Path | None = None
    """Parent of the cluster's temporary directory; default: the system's."""

    json: Annotated[bool, Parameter(negative="")] = False
    """Print JSON: one object on the last line."""

    def warmup_count(self, overhead_bytes: int = 0) -> int:
        """Returns the number of entries or records before the measured phase.

        Each has `overhead_bytes` of headers. Journal files that are written for the first time
        cost more than recycled ones.
        """
        if not self.warmup:
            return 1
        return max(1, _WARMUP_BYTES // (self.size + overhead_bytes))

    @property
    def replication(self) -> Replication:
        return {
            "ensemble_size": self.ensemble,
            "write_quorum": self.write_quorum,
            "ack_quorum": self.ack_quorum,
        }
