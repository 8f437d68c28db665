"""Keeps one bookie registered: creates its ephemeral node, and creates it again when it is lost.

Watching the node itself covers every way to lose it: an expired session, an operator, a restore.
There are two paths, writable and read-only; a switch creates the new node first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import aclosing

import trio

from ledger.errors import (
    LedgerError,
    MetadataConflict,
    MetadataUnavailable,
    NodeExists,
    NoSuchNode,
    RetryableError,
)
from ledger.metastore.base import Create, Delete, MetadataStore

log = logging.getLogger(__name__)

TAKEOVER_TIMEOUT_S = 10.0
"""How long to wait for a registration of another process under this id to end (Apache's
zkTimeout)."""

RETRY_INTERVAL_S = 0.5
LEAVE_TIMEOUT_S = 2.0


class Registration:
    """One bookie's registration; made by `BookieRegistry.register`."""

    def __init__(
        self,
        store: MetadataStore,
        nursery: trio.Nursery,
        *,
        writable_path: str,
        read_only_path: str,
        data: bytes,
        is_same_bookie: Callable[[bytes], bool],
        takeover_timeout_s: float,
    ) -> None:
        self._store = store
        self._nursery = nursery
        self._paths = {False: writable_path, True: read_only_path}
        self._data = data
        self._is_same_bookie = is_same_bookie
        self._takeover_timeout_s = takeover_timeout_s
        self._switch = trio.Lock()
        self._keeping: trio.CancelScope | None = None
        self.is_read_only = False
        self._has_left = True
        """Whether the node of the other state is gone, if this process made it."""

    async def begin(self, is_read_only: bool) -> None:
        """Returns when registered. Raises MetadataConflict, MetadataUnavailable."""
        self.is_read_only = is_read_only
        # A predecessor that died in the other state would show the bookie twice.
        await self._forget(self._paths[not is_read_only])
        await self._enter(self._paths[is_read_only])

    async def set_read_only(self, is_read_only: bool) -> None:
        """Returns when clients see the new state and no other; at once if it is not new.

        Raises MetadataUnavailable; then clients may see either state or both: call it again.
        """
        async with self._switch:
            if is_read_only != self.is_read_only:
                leaving = self._keeping
                self._has_left = False
                await self._enter(self._paths[is_read_only])
                self.is_read_only = is_read_only
                if leaving is not None:
                    leaving.cancel()
            if not self._has_left:
                await self._forget(self._paths[not self.is_read_only])
                self._has_left = True

    async def end(self) -> None:
        """Ends the registration, without waiting for a store that does not answer."""
        if self._keeping is not None:
            self._keeping.cancel()
        with trio.move_on_after(LEAVE_TIMEOUT_S) as scope:
            scope.shield = True
            try:
                await self._forget(self._paths[self.is_read_only])
            except LedgerError as error:
                log.info("bookie left without its metadata store cause=%s", error)

    async def _enter(self, path: str) -> None:
        await self._claim(path)
        scope = trio.CancelScope()
        self._keeping = scope
        self._nursery.start_soon(self._keep, path, scope)

    async def _keep(self, path: str, scope: trio.CancelScope) -> None:
        with scope:
            while True:
                try:
                    await self._wait_gone(path, self._is_same_bookie)
                    log.warning("bookie_registration_lost path=%s", path)
                    await self._claim(path)
                    log.info("bookie_registered_again path=%s", path)
                except MetadataConflict:
                    raise  # another bookie has the id now: two of them must not serve it
                except RetryableError:
                    await trio.sleep(RETRY_INTERVAL_S)

    async def _claim(self, path: str) -> None:
        is_of_another = False
        with trio.move_on_after(self._takeover_timeout_s):
            while True:
                is_of_another = False
                try:
                    await self._store.create(path, self._data, is_ephemeral=True)
                except NodeExists:
                    is_ours = await self._take_over(path)
                    if is_ours:
                        return
                    if is_ours is False:
                        is_of_another = True
                        await self._wait_gone(path)
                else:
                    return
        if not is_of_another:
            # A store that hangs does not show who has the id: no process must end for it.
            raise MetadataUnavailable(
                f"{path}: no answer of the metadata store in {self._takeover_timeout_s} s"
            )
        raise MetadataConflict(
            f"{path} is registered by another process, still so after"
            f" {self._takeover_timeout_s} s: are two bookies configured with one id?"
        )

    async def _take_over(self, path: str) -> bool | None:
        """Replaces a node of our own address: ours after a lost response, or our predecessor's.

        Returns False if it is another bookie's, None if it changed meanwhile, which does not show
        whose it is now: a session of ours may have expired, or a change of ours come late.
        """
        try:
            node = await self._store.get(path)
            if not self._is_same_bookie(node.data):
                return False
            claim = Create(path, self._data, is_ephemeral=True)
            await self._store.transaction([Delete(path, node.version), claim])
        except (NoSuchNode, NodeExists, MetadataConflict):
            return None
        return True

    async def _forget(self, path: str) -> None:
        """Removes a node of our own address; that of another bookie stays."""
        try:
            node = await self._store.get(path)
            if self._is_same_bookie(node.data):
                await self._store.delete(path, node.version)
        except (NoSuchNode, MetadataConflict):
            pass

    async def _wait_gone(
        self, path: str, is_there: Callable[[bytes], bool] = lambda _data: True
    ) -> None:
        """Returns when the node is gone, or has data for which `is_there` is False."""
        async with aclosing(self._store.watch(path)) as nodes:
            async for node in nodes:
                if node is None or not is_there(node.data):
                    return
