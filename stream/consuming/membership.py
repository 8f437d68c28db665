"""Keeps one member of a consumer group visible, with an ephemeral node that is created again.

A watch of the node covers every way to lose it. Must never take another living process for itself:
the data of the node is a token that no other member has.
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
from ledger.metastore.base import MetadataStore
from stream.errors import MemberExists

_log = logging.getLogger(__name__)

PREDECESSOR_TIMEOUT_S = 30.0
"""How long to wait until the node of a dead predecessor disappears with its session."""
LATE_S = 600.0
"""How long a node whose creation has an unknown outcome is waited for, to be removed."""
_RETRY_S = 0.5


class Membership:
    """The membership of one consumer.

    Args:
        path: of the node.
        on_lost: called at once when the others may take what this member holds.
        on_rejoined: called when the member is visible again.
    """

    def __init__(
        self,
        store: MetadataStore,
        path: str,
        token: str,
        *,
        on_lost: Callable[[], None],
        on_rejoined: Callable[[], None],
    ) -> None:
        self._store = store
        self._path = path
        self._token = token.encode()
        self._on_lost = on_lost
        self._on_rejoined = on_rejoined
        self._may_appear_late = False
        """The answer to an attempt to create the node was lost: it may appear long after."""

    async def begin(self) -> None:
        """Joins the group; returns when visible. Raises MemberExists, MetadataUnavailable."""
        is_taken = False
        with trio.move_on_after(PREDECESSOR_TIMEOUT_S):
            while True:
                is_taken = False
                try:
                    await self._store.create(self._path, self._token, is_ephemeral=True)
                except NodeExists:
                    if await self._is_ours():
                        return
                    is_taken = True
                    await self._wait_gone(is_any=True)
                except BaseException:
                    self._may_appear_late = True
                    raise
                else:
                    return
        if not is_taken:
            # A store that does not answer says nothing about the owner of the name.
            raise MetadataUnavailable(
                f"{self._path}: no answer from the metadata store in {PREDECESSOR_TIMEOUT_S:g} s"
            )
        raise MemberExists(
            f"{self._path}: another process is this member of the group, and still is after "
            f"{PREDECESSOR_TIMEOUT_S:g} s; give each process a member name of its own, or none"
        )

    async def keep(self) -> None:
        """Creates the node again whenever it is lost. Raises MemberExists."""
        is_lost = False
        while True:
            try:
                if not is_lost:
                    await self._wait_gone()
                    is_lost = True
                    _log.warning("member=%s: lost, others may take over", self._path)
                    self._on_lost()
                await self.begin()
            except RetryableError as error:
                _log.info("member=%s: %s", self._path, error)
                await trio.sleep(_RETRY_S)
                continue
            is_lost = False
            self._on_rejoined()

    async def end(self) -> bool:
        """Leaves the group; the node of another process stays. Returns False if `remove_eventually`
        must complete it."""
        try:
            await self._remove()
        except LedgerError as error:
            _log.info("member=%s: not left yet: %s", self._path, error)
            return False
        return not self._may_appear_late

    async def remove_eventually(self) -> None:
        """Completes what `end` could not do, once the store can be reached.

        The session may live on for days, and others would wait for a member that does not exist.
        """
        while True:
            try:
                await self._remove()
                if not self._may_appear_late or not await self._appeared_late():
                    return
            except RetryableError:
                await trio.sleep(_RETRY_S)
            except LedgerError as error:
                _log.warning("member=%s: not left: %s", self._path, error)
                return

    async def _remove(self) -> None:
        try:
            node = await self._store.get(self._path)
            if node.data == self._token:
                await self._store.delete(self._path, node.version)
        except (NoSuchNode, MetadataConflict):
            pass

    async def _appeared_late(self) -> bool:
        with trio.move_on_after(LATE_S):
            async with aclosing(self._store.watch(self._path)) as nodes:
                async for node in nodes:
                    if node is not None and node.data == self._token:
                        return True
        return False

    async def _is_ours(self) -> bool:
        try:
            return (await self._store.get(self._path)).data == self._token
        except NoSuchNode:
            return False

    async def _wait_gone(self, *, is_any: bool = False) -> None:
        """Waits until our node is removed or replaced; with `is_any`, until there is no node."""
        async with aclosing(self._store.watch(self._path)) as nodes:
            async for node in nodes:
                if node is None or (not is_any and node.data != self._token):
                    return
