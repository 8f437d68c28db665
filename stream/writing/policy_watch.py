"""PolicyWatch: one watch of the metadata store for all writers of a namespace in this process.

However many writers there are, the policy is watched once, and so are the requests to hand over
(handover.py). The watches are tasks of the client, so the end of one writer, however slow, never
ends them for the others. An unreachable store, or a policy that cannot be read, stops no writer.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Protocol

import trio

from ledger.client import LedgerClient
from ledger.errors import LedgerError
from stream.core.metadata.format import decode_namespace
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.store.streams import namespace_path
from stream.writing.handover import parse_request, requests_path

_log = logging.getLogger(__name__)

_RETRY_S = 1.0


class Follower(Protocol):
    """A writer, as the watch sees it. Both methods return at once and never raise."""

    @property
    def stream(self) -> str: ...

    def policy_changed(self, policy: NamespaceMetadata, version: int) -> None: ...

    def handover_requested(self, epoch: int) -> None: ...


class PolicyWatch:
    """Begins when the first writer joins, and ends when the last one leaves."""

    def __init__(self, client: LedgerClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._followers: dict[Follower, None] = {}
        self._scope: trio.CancelScope | None = None

    def join(self, follower: Follower) -> None:
        """Notifies `follower` from now on. Raises LedgerClosed if the client is not open."""
        if self._scope is None:
            scope = trio.CancelScope()
            self._client.start_background(self._run, scope)
            self._scope = scope
        self._followers[follower] = None

    def leave(self, follower: Follower) -> None:
        """Stops notifying `follower`."""
        del self._followers[follower]
        if not self._followers and self._scope is not None:
            self._scope.cancel()
            self._scope = None

    async def _run(self, scope: trio.CancelScope) -> None:
        with scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_following, self._follow_policy)
                nursery.start_soon(self._keep_following, self._follow_requests)

    async def _keep_following(self, follow: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await follow()
            except LedgerError as error:
                _log.info("namespace=%s: the watch begins again: %s", self._namespace, error)
            await trio.sleep(_RETRY_S)

    async def _follow_policy(self) -> None:
        async with aclosing(self._client.store.watch(namespace_path(self._namespace))) as nodes:
            async for node in nodes:
                if node is None:
                    continue  # the namespace was deleted, and its streams with it
                policy = decode_namespace(self._namespace, node.data)
                for follower in list(self._followers):
                    follower.policy_changed(policy, node.version)

    async def _follow_requests(self) -> None:
        path = requests_path(self._namespace)
        async with aclosing(self._client.store.watch_children(path)) as folders:
            async for names in folders:
                # An old request may exist beside a new one: the highest epoch counts.
                asked = dict(sorted(request for name in names if (request := parse_request(name))))
                for follower in list(self._followers):
                    if follower.stream in asked:
                        follower.handover_requested(asked[follower.stream])
