"""The entries that were sent to the target of a copy and are not yet acknowledged.

Kept as runs: acks name runs as well, and mostly cover the oldest. An entry counts as copied only
when an ack names it, and only once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


class _Run(NamedTuple):
    first: int
    last: int
    sizes: Sequence[int]
    sent_s: float


class Acked(NamedTuple):
    """What an ack newly covers; `sent_s` is when the newest of it was sent."""

    entries: int
    nbytes: int
    sent_s: float


class AddsInFlight:
    """Entries in flight. An entry must not be added while it is in flight."""

    def __init__(self) -> None:
        self.nbytes = 0
        self.entries = 0
        self._runs: deque[_Run] = deque()

    @property
    def oldest_s(self) -> float:
        """When the oldest run was sent. There must be one."""
        return self._runs[0].sent_s

    def add(self, first: int, sizes: Sequence[int], now_s: float) -> None:
        """Consecutive entries with bodies of these sizes were sent."""
        self._runs.append(_Run(first, first + len(sizes) - 1, sizes, now_s))
        self.nbytes += sum(sizes)
        self.entries += len(sizes)

    def acked(self, first: int, last: int) -> Acked:
        """Removes those of first..last that are in flight."""
        runs, at = self._runs, 0
        entries = nbytes = 0
        sent_s = 0.0
        wanted = last - first + 1
        while at < len(runs) and entries < wanted:
            run = runs[at]
            begin, end = max(first, run.first), min(last, run.last)
            if begin > end:
                at += 1
                continue
            entries += end - begin + 1
            nbytes += sum(run.sizes[begin - run.first : end - run.first + 1])
            sent_s = max(sent_s, run.sent_s)
            del runs[at]
            if end < run.last:
                rest = run.sizes[end + 1 - run.first :]
                runs.insert(at, run._replace(first=end + 1, sizes=rest))
            if run.first < begin:
                rest = run.sizes[: begin - run.first]
                runs.insert(at, run._replace(last=begin - 1, sizes=rest))
                at += 1
        self.nbytes -= nbytes
        self.entries -= entries
        return Acked(entries, nbytes, sent_s)

    def drain(self) -> list[tuple[int, int]]:
        """Removes all; returns their ranges: whether they were stored is unknown."""
        found = [(run.first, run.last) for run in self._runs]
        self._runs.clear()
        self.nbytes = self.entries = 0
        return found
