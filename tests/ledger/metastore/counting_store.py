"""A metadata store in memory that counts what it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ledger.metastore.base import Change, Node
from ledger.metastore.memory import MemoryStore, MemoryTree


class CountingStore(MemoryStore):
    """Each change goes through `transaction`."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        super().__init__(MemoryTree(), now_ms)
        self.gets = self.lists = self.transactions = 0

    @property
    def reads(self) -> int:
        """The number of reads, lists included."""
        return self.gets + self.lists

    async def get(self, path: str) -> Node:
        self.gets += 1
        return await super().get(path)

    async def children(self, path: str) -> list[str]:
        self.lists += 1
        return await super().children(path)

    async def transaction(self, changes: Sequence[Change]) -> None:
        self.transactions += 1
        await super().transaction(changes)
