"""What attackers sent, and what became of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any


class Tally:
    """Counts, which are lines of JSON between processes."""

    def __init__(self) -> None:
        self.looked_at: Counter[str] = Counter()
        """Requests by kind that the bookie has looked at: it answered each, or ended its
        connection."""
        self.connections: Counter[str] = Counter()
        """By attack."""
        self.answers: Counter[str] = Counter()
        """By kind and status."""
        self.stuck: Counter[str] = Counter()
        """Connections, by attack, over which an answer was missing for a minute."""

    def document(self) -> dict[str, dict[str, int]]:
        return {name: dict(counts) for name, counts in vars(self).items()}

    def replace(self, document: Mapping[str, Any]) -> None:
        for name, counts in document.items():
            setattr(self, name, Counter(counts))

    def add(self, other: Tally) -> None:
        for name, counts in vars(other).items():
            getattr(self, name).update(counts)
