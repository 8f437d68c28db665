"""A metadata store in memory that counts what it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ledger.metastore.base import Change, Create, Node, Put
from ledger.metastore.memory import MemoryStore, MemoryTree


class CountingStore(MemoryStore):
    """Each change goes through `transaction`."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        super().__init__(MemoryTree(), now_ms)
        self.gets = self.lists = self.transactions = 0
        self.bytes_read = self.bytes_written = 0

    @property
    def reads(self) -> int:
        """The number of reads, lists included."""
        return self.gets + self.lists

    async def get(self, path: str) -> Node:
        self.gets += 1
        node = await super().get(path)
        self.bytes_read += len(node.data)
        return node

    async def children(self, path: str) -> list[str]:
        self.lists += 1
        return await super().children(path)

    async def transaction(self, changes: Sequence[Change]) -> None:
        self.transactions += 1
        self.bytes_written += sum(
            len(change.data) for change in changes if isinstance(change, Create | Put)
        )
        await super().transaction(changes)
