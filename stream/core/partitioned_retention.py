"""What `retention_bytes` drops of a partitioned stream: it counts all partitions as one.

The sealed segments of all partitions are put in one order, by the time of their newest record;
then the rule is that of a plain stream. What is not known here counts nothing, and so keeps more.
Sums over metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stream.core.metadata.streams import Segment, StreamMetadata
from stream.core.position import Position
from stream.core.retention import newest_ms


@dataclass(frozen=True, slots=True)
class SizeShare:
    """What the size of the whole says of one partition.

    `bytes_behind`: by the number of a sealed segment, what is sealed behind it in all
    `partitions`. `drop_through`: the last one behind which there is enough; 0 for none.
    """

    partitions: int
    bytes_behind: Mapping[int, int]
    drop_through: int


def size_shares(partitions: Iterable[StreamMetadata], retention_bytes: int) -> dict[str, SizeShare]:
    """The share of each of these partitions, by name.

    Segments go oldest first, whatever their partition, while those behind hold at least
    `retention_bytes`; within a partition in their order. Of a segment that is cut by a truncation
    it is not known how many bytes are left: it counts nothing.
    """
    behind: dict[str, dict[int, int]] = {}
    through: dict[str, int] = {}
    line: list[tuple[int, int, str, int, int]] = []
    for stream in partitions:
        behind[stream.name], through[stream.name] = {}, 0
        latest_ms = -1
        for segment in stream.live():
            if segment.is_open:
                continue
            latest_ms = max(latest_ms, newest_ms(segment))
            size = _whole_bytes(stream, segment)
            # The length first: `clicks#2` is before `clicks#10`.
            line.append((latest_ms, len(stream.name), stream.name, segment.number, size))
    left = sum(size for *_, size in line)
    for _, _, name, number, size in sorted(line):
        left -= size
        behind[name][number] = left
        if left >= retention_bytes:
            through[name] = number
    return {name: SizeShare(len(behind), behind[name], through[name]) for name in behind}


def _whole_bytes(stream: StreamMetadata, segment: Segment) -> int:
    is_cut = stream.truncated_to > Position(segment.number, 0, 0)
    return 0 if is_cut else segment.nbytes
