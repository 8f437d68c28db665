"""What all writers of a namespace in this process want to know of the metadata store: one watch.

However many writers, the policy is watched once, and requests to hand over (handover.py) once. The
watches are tasks of the client: no writer that ends, however slowly, takes them from the others. A
store that is out of reach, or a policy that cannot be read, stops no writer.
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

_LOOK_AGAIN_S = 1.0


class Follower(Protocol):
    """A writer, as the watch sees it. Both calls return at once and raise nothing."""

    @property
    def stream(self) -> str: ...

    def policy_changed(self, policy: NamespaceMetadata, version: int) -> None: ...

    def hand_over_asked(self, epoch: int) -> None: ...


class PolicyWatch:
    """Begins with the first writer that joins, ends with the last that leaves."""

    def __init__(self, client: LedgerClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._followers: dict[Follower, None] = {}
        self._scope: trio.CancelScope | None = None

    def join(self, follower: Follower) -> None:
        """Tells `follower` from now on. Raises LedgerClosed if the client is not open."""
        if self._scope is None:
            scope = trio.CancelScope()
            self._client.start_background(self._run, scope)
            self._scope = scope
        self._followers[follower] = None

    def leave(self, follower: Follower) -> None:
        """Tells it nothing more."""
        del self._followers[follower]
        if not self._followers and self._scope is not None:
            self._scope.cancel()
            self._scope = None

    async def _run(self, scope: trio.CancelScope) -> None:
        with scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._carry_on, self._follow_policy)
                nursery.start_soon(self._carry_on, self._follow_requests)

    async def _carry_on(self, follow: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await follow()
            except LedgerError as error:
                _log.info("namespace=%s: watch goes on: %s", self._namespace, error)
            await trio.sleep(_LOOK_AGAIN_S)

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
                # An old request may lie beside a new one: the newest counts, in numbers.
                asked = dict(sorted(request for name in names if (request := parse_request(name))))
                for follower in list(self._followers):
                    if follower.stream in asked:
                        follower.hand_over_asked(asked[follower.stream])
