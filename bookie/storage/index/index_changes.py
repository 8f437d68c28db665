"""Changes of index and entry logs by anyone but a checkpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from bookie.storage.index.key_value import IndexUnreadable
from bookie.storage.options import StorageFailed
from ledger.errors import BookieIoError, FinalError


class IndexChanges:
    """Keeps checkpoints out while something changes, and the process from going on when a change
    failed: what is on the disk is then unknown.

    Args:
        writing: holds the storage's write lock; raises its failure.
        poison: is told the first failure.
    """

    def __init__(
        self,
        writing: Callable[[], AbstractAsyncContextManager[None]],
        poison: Callable[[FinalError], None],
    ) -> None:
        self._writing = writing
        self._poison = poison

    @asynccontextmanager
    async def making(self, what: str) -> AsyncIterator[None]:
        """Not cancellable once the lock is held: keep it short. Raises StorageFailed if a change
        failed. If the index could not be read, what was changed so far is whole, for whoever
        changes it does so in steps that can be stopped after: IndexUnreadable passes."""
        async with self._writing():
            try:
                with trio.CancelScope(shield=True):
                    yield
            except IndexUnreadable:
                raise
            except (OSError, BookieIoError) as error:
                raise self.failed(what, error) from error

    def failed(self, what: str, error: Exception) -> StorageFailed:
        """Poisons the storage; raise the answer."""
        failure = StorageFailed(
            f"{what} failed: {error}. Nothing more is taken. Cure: see to the disk, then start "
            "again; the journal is replayed"
        )
        self._poison(failure)
        return failure
