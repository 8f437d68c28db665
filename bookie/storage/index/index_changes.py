"""Changes of index and entry logs by anything but a checkpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from bookie.storage.index.key_value import IndexUnreadable
from bookie.storage.options import StorageFailed
from ledger.errors import BookieIoError, FinalError


class IndexChanges:
    """Keeps checkpoints out while something changes, and stops the process when a change failed,
    because what is on the disk is then unknown.

    Args:
        writing: holds the storage's write lock; raises its failure.
        poison: called with the first failure.
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
        """Holds the lock for one change. Not cancellable meanwhile: keep it short. Raises
        StorageFailed if the change failed. If the index could not be read, what was changed so far
        is whole, because changes are made in steps that can be interrupted: IndexUnreadable is
        raised as it is."""
        async with self._writing():
            try:
                with trio.CancelScope(shield=True):
                    yield
            except IndexUnreadable:
                raise
            except (OSError, BookieIoError) as error:
                raise self.failed(what, error) from error

    def failed(self, what: str, error: Exception) -> StorageFailed:
        """Poisons the storage, and returns the error to raise."""
        failure = StorageFailed(
            f"{what} failed: {error}. Nothing more is accepted. Cure: check the disk, then start "
            "again; the journal is replayed"
        )
        self._poison(failure)
        return failure
