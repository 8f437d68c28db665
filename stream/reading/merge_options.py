"""Options of a merged reader, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ledger.errors import InvalidArgument
from stream.core.names import parse_partition
from stream.core.position import EARLIEST, FromEventTime, FromTime, Start
from stream.reading.reader import OnTruncated

OrderBy = Literal["event_time", "append_time"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOptions:
    """How streams are merged; see `Namespace.merged_reader`."""

    start: Start | Mapping[str, Start] = EARLIEST
    order_by: OrderBy = "event_time"
    lateness_ms: int = 0
    idle_timeout_ms: int | None = 5000
    on_truncated: OnTruncated = "error"
    follow: bool = True
    buffer_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if self.order_by not in ("event_time", "append_time"):
            raise InvalidArgument(f"order_by is {self.order_by!r}; it is event_time or append_time")
        if self.idle_timeout_ms is not None and self.idle_timeout_ms < 0:
            raise InvalidArgument(
                f"idle_timeout_ms is {self.idle_timeout_ms}; it is 0 or more, or None for never"
            )

    def start_of(self, stream: str, *, is_new: bool = False) -> Start:
        """Returns where one of the streams begins. `is_new`: it joined an active reader."""
        if isinstance(self.start, Mapping):
            partition = parse_partition(stream)
            base = stream if partition is None else partition.stream
            return self.start.get(stream, self.start.get(base, EARLIEST))
        if is_new and not isinstance(self.start, FromTime | FromEventTime):
            return EARLIEST
        return self.start
