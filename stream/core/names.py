"""The names that namespaces and streams may have.

This is an allow-list: a name is a part of a metadata path and is printed in many places. `clicks#2`
is partition 2 of the partitioned stream `clicks`: such a name can be used, but not chosen.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ledger.errors import InvalidArgument

NAME_LENGTH_MAX: Final = 200
PARTITIONS_MAX: Final = 500
"""Partitions of one stream: creating all of them is one change of the metadata."""

PARTITION_MARK: Final = "#"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*", re.ASCII)
_NUMBER = re.compile(r"0|[1-9][0-9]{0,3}", re.ASCII)


class PartitionName(NamedTuple):
    """`clicks#2`: the partitioned stream, and the number of one of its partitions."""

    stream: str
    partition: int

    def __str__(self) -> str:
        return f"{self.stream}{PARTITION_MARK}{self.partition}"


def partition_name(stream: str, partition: int) -> str:
    """ "clicks", 2 -> "clicks#2". Raises InvalidArgument for an impossible number."""
    if not 0 <= partition < PARTITIONS_MAX:
        raise InvalidArgument(
            f"stream {stream!r}: there is no partition {partition}, legal is 0 to "
            f"{PARTITIONS_MAX - 1}"
        )
    return f"{stream}{PARTITION_MARK}{partition}"


def parse_partition(name: str) -> PartitionName | None:
    """ "clicks#2" -> ("clicks", 2); None for a name that is not that of a partition."""
    stream, mark, number = name.partition(PARTITION_MARK)
    if not mark or not _NUMBER.fullmatch(number) or int(number) >= PARTITIONS_MAX:
        return None
    return PartitionName(stream, int(number))


def check_name(name: str, what: str = "stream") -> str:
    """Returns `name` if a `what` may have it. A stream may be a partition, `clicks#2`.

    Raises InvalidArgument, which says what is wrong.
    """
    if what == "stream" and (partition := parse_partition(name)) is not None:
        check_new_name(partition.stream)
        return name
    return check_new_name(name, what)


def check_new_name(name: str, what: str = "stream") -> str:
    """Returns `name` if a new `what` may have it: it must not be that of a partition.

    Raises InvalidArgument, which says what is wrong.
    """
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidArgument(
            f"the {what} name has {len(name)} characters, limit {NAME_LENGTH_MAX}"
        )
    if what == "stream" and (partition := parse_partition(name)) is not None:
        raise InvalidArgument(
            f"{what} name {name!r}: '#' is for partitions, which are made with their stream "
            f"(create {partition.stream} with partitions, or grow it)"
        )
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{what} name {name!r}: use letters, digits, '.', '_' and '-' (ASCII), "
            f"beginning with a letter, a digit or '_'"
        )
    return name
