"""Selects streams by names and patterns. Pure: it needs no store.

A partitioned stream stands for its partitions. Text that is not a pattern is a name, and is checked
as one; patterns know `*`, `?` and `[...]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import translate

from ledger.errors import InvalidArgument
from stream.core.names import NAME_LENGTH_MAX, check_name, parse_partition

PATTERNS_MAX = 100
_PATTERN = re.compile(r"[A-Za-z0-9._#*?\[\]!-]+", re.ASCII)


def is_pattern(text: str) -> bool:
    return any(mark in text for mark in "*?[")


class StreamPatterns:
    """Names and patterns of streams.

    Raises InvalidArgument for none, too many, or one that can match nothing.
    """

    def __init__(self, wanted: str | Sequence[str]) -> None:
        words = [wanted] if isinstance(wanted, str) else list(wanted)
        if not 1 <= len(words) <= PATTERNS_MAX:
            raise InvalidArgument(
                f"{len(words)} names and patterns of streams; give 1 to {PATTERNS_MAX}"
            )
        self.names = tuple(check_name(word) for word in words if not is_pattern(word))
        """The literal names: a stream that does not exist is an error."""
        self.patterns = tuple(word for word in words if is_pattern(word))
        for pattern in self.patterns:
            if len(pattern) > NAME_LENGTH_MAX or not _PATTERN.fullmatch(pattern):
                raise InvalidArgument(
                    f"pattern {pattern[:80]!r}: use the characters of names, and '*', '?', "
                    f"'[...]'; at most {NAME_LENGTH_MAX} characters"
                )
        self._matches = [re.compile(translate(pattern)).match for pattern in self.patterns]

    def is_named(self, stream: str) -> bool:
        """Whether the stream, or the stream that it is a partition of, is named literally."""
        return stream in self.names or _base(stream) in self.names

    def select(self, listed: Iterable[str]) -> list[str]:
        """Returns, of all existing nodes, the selected streams that hold records: partitions rather
        than the stream they belong to. They are in order; partitions by number."""
        names = list(listed)
        partitioned = {_base(name) for name in names if parse_partition(name) is not None}
        found = {name for name in names if name not in partitioned and self._is_selected(name)}
        return sorted(found, key=_order)

    def ambiguous(self, listed: Iterable[str]) -> list[str]:
        """Returns, of all existing nodes, those that are selected and look partitioned, in order.

        Deleted partitions are listed for a while: the node may be another, plain stream by now.
        """
        names = set(listed)
        partitioned = {_base(name) for name in names if parse_partition(name) is not None}
        return sorted(name for name in partitioned & names if self._is_selected(name))

    def _is_selected(self, stream: str) -> bool:
        if self.is_named(stream):
            return True
        base = _base(stream)
        return any(matches(stream) or matches(base) for matches in self._matches)


def _base(stream: str) -> str:
    partition = parse_partition(stream)
    return stream if partition is None else partition.stream


def _order(stream: str) -> tuple[str, int]:
    partition = parse_partition(stream)
    return (stream, -1) if partition is None else (partition.stream, partition.partition)
