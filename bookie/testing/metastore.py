"""The simulated metadata store: delays, lost answers, lost sessions, unreachable for some nodes.

One tree in memory; each incarnation of a node has a session of its own. A change that raised
MetadataUnavailable has happened, has not, or will: chance decides, as with a real store.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

import trio

from bookie.testing.scheduler import Simulation
from ledger.errors import LedgerError, MetadataUnavailable
from ledger.metastore.base import ANY_VERSION, Change, Create, Delete, Node, Put
from ledger.metastore.memory import MemoryStore, MemoryTree

ResultT = TypeVar("ResultT")


@dataclass(slots=True)
class MetadataOptions:
    """How the store behaves; may be changed while it runs.

    Each call takes up to `delay_max_s` there and as long back. An error occurs, with the given
    probability, before or after the change took effect, after up to `timeout_s`; or the change
    takes effect up to `late_max_s` after the error: it waited in a buffer of a server that was
    suspended, while its client connected again.
    """

    delay_max_s: float = 0.005
    timeout_s: float = 2.0
    error_before_probability: float = 0.0
    error_after_probability: float = 0.0
    error_late_probability: float = 0.0
    late_max_s: float = 3.0


class SimMetadata:
    """The store that all nodes share. `connect(node)` gives a session to an incarnation."""

    def __init__(self, simulation: Simulation, options: MetadataOptions | None = None) -> None:
        self.simulation = simulation
        self.options = options or MetadataOptions()
        self.chance = simulation.chance("metadata")
        self.tree = MemoryTree()
        self.on_call: Callable[[str, str, str], None] | None = None
        """Is called before each call takes effect: with node, kind and path."""
        self._sessions: dict[str, SimMetadataStore] = {}
        self._unreachable: dict[str, bool] = {}

    def connect(self, node: str) -> SimMetadataStore:
        """Returns a new session for a new incarnation of `node`; the old one, if any, is frozen."""
        self.freeze(node)
        self._sessions[node] = SimMetadataStore(self, node)
        return self._sessions[node]

    def freeze(self, node: str, *, session_timeout_s: float = 2.0) -> None:
        """The death of `node`: its session can do nothing more, and ends some time later."""
        store = self._sessions.pop(node, None)
        if store is not None:
            store.is_frozen = True
            self.simulation.call_later(
                self.chance.uniform(0, session_timeout_s), store.inner.expire_session
            )

    def expire(self, node: str) -> None:
        """Ends the session of a living `node`: its ephemeral nodes vanish."""
        if node in self._sessions:
            self.simulation.trace("metadata expire", node)
            self._sessions[node].inner.expire_session()

    def node_of(self, session: object) -> str | None:
        """Returns the node whose session this is (`MemoryStore.session`); None if it has ended."""
        for node, store in self._sessions.items():
            if store.inner.session is session:
                return node
        return None

    def cut_off(self, node: str) -> None:
        """Calls of `node` no longer reach the store, until `heal`."""
        self._unreachable[node] = True
        self.simulation.trace("metadata cut off", node)

    def heal(self) -> None:
        self._unreachable.clear()

    def is_unreachable(self, node: str) -> bool:
        return node in self._unreachable


class SimMetadataStore:
    """One session on a `SimMetadata`; implements `MetadataStore`."""

    def __init__(self, metadata: SimMetadata, node: str) -> None:
        self.node = node
        self.is_frozen = False
        self.inner = MemoryStore(metadata.tree, metadata.simulation.now_ms)
        self._metadata = metadata

    def bind(self, path: str, data: bytes) -> None:
        self.inner.bind(path, data)

    def commit_number(self) -> int | None:
        is_out = self.is_frozen or self._metadata.is_unreachable(self.node)
        return None if is_out else self.inner.commit_number()

    async def get(self, path: str) -> Node:
        return await self._call("get", path, lambda: self.inner.get(path))

    async def children(self, path: str) -> list[str]:
        return await self._call("children", path, lambda: self.inner.children(path))

    async def create(self, path: str, data: bytes, *, is_ephemeral: bool = False) -> None:
        change = Create(path, data, is_ephemeral)
        await self._call(
            "create",
            path,
            lambda: self.inner.create(path, data, is_ephemeral=is_ephemeral),
            lambda: self.inner.apply([change]),
        )

    async def put(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        change = Put(path, data, version)
        return await self._call(
            "put",
            path,
            lambda: self.inner.put(path, data, version),
            lambda: self.inner.apply([change]),
        )

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        change = Delete(path, version)
        await self._call(
            "delete",
            path,
            lambda: self.inner.delete(path, version),
            lambda: self.inner.apply([change]),
        )

    async def transaction(self, changes: Sequence[Change]) -> None:
        paths = ",".join(change.path for change in changes)
        await self._call(
            "transaction",
            paths,
            lambda: self.inner.transaction(changes),
            (lambda: self.inner.apply(changes)) if changes else None,
        )

    async def next_id(self, path: str, *, beyond: int = -1) -> int:
        return await self._call("next id", path, lambda: self.inner.next_id(path, beyond=beyond))

    async def create_numbered(self, prefix: str, data: bytes) -> str:
        return await self._call(
            "create numbered",
            prefix,
            lambda: self.inner.create_numbered(prefix, data),
            lambda: self.inner.apply_numbered(prefix, data),
        )

    def watch(self, path: str) -> AsyncGenerator[Node | None, None]:
        return self._watch("watch", path, self.inner.watch(path))

    def watch_children(self, path: str) -> AsyncGenerator[list[str], None]:
        return self._watch("watch children", path, self.inner.watch_children(path))

    async def aclose(self) -> None:
        """Ends the session, unless its process is dead: then it times out."""
        if not self.is_frozen:
            await self.inner.aclose()

    async def _call(
        self,
        kind: str,
        path: str,
        call: Callable[[], Awaitable[ResultT]],
        change: Callable[[], object] | None = None,
    ) -> ResultT:
        """Makes one round trip. The change itself happens at one instant, or not at all; late it
        is made by `change`."""
        metadata = self._metadata
        options, chance = metadata.options, metadata.chance
        await metadata.simulation.sleep(chance.uniform(0, options.delay_max_s))
        if metadata.on_call is not None:
            metadata.on_call(self.node, kind, path)
        self._check_alive()
        is_cut_off = metadata.is_unreachable(self.node)
        if is_cut_off or chance.random() < options.error_before_probability:
            await self._fail(kind, path, "before")
        if change is not None and options.error_late_probability:  # none is drawn where it is off
            await self._maybe_late(kind, path, change)
        result = await self._instantly(call)
        metadata.simulation.trace("metadata", self.node, kind, path)
        await metadata.simulation.sleep(chance.uniform(0, options.delay_max_s))
        is_cut_off = metadata.is_unreachable(self.node)
        if is_cut_off or chance.random() < options.error_after_probability:
            await self._fail(kind, path, "after")
        return result

    async def _maybe_late(self, kind: str, path: str, change: Callable[[], object]) -> None:
        metadata = self._metadata
        options, chance = metadata.options, metadata.chance
        if chance.random() >= options.error_late_probability:
            return
        wait_s = options.timeout_s + chance.uniform(0, options.late_max_s)
        session = self.inner.session

        def happen() -> None:
            if self.is_frozen or self.inner.session is not session:
                return
            try:
                change()
            except LedgerError as error:
                metadata.simulation.trace(
                    "metadata late without success", self.node, kind, path, str(error)
                )
            else:
                metadata.simulation.trace("metadata late", self.node, kind, path)

        metadata.simulation.call_later(wait_s, happen)
        await self._fail(kind, path, "late")

    async def _instantly(self, call: Callable[[], Awaitable[ResultT]]) -> ResultT:
        # Shielded: whether the change happened must not depend on a cancellation in between.
        with trio.CancelScope(shield=True):
            return await call()
        raise AssertionError("a shielded scope does not end early")

    async def _fail(self, kind: str, path: str, when: str) -> None:
        metadata = self._metadata
        await metadata.simulation.sleep(metadata.chance.uniform(0, metadata.options.timeout_s))
        metadata.simulation.trace("metadata error", self.node, kind, path, when)
        raise MetadataUnavailable(f"{kind} {path}: the metadata store did not answer")

    async def _watch(
        self, kind: str, path: str, source: AsyncGenerator[ResultT, None]
    ) -> AsyncGenerator[ResultT, None]:
        """Delivers changes late; each one as it was when it was noticed. Fails if cut off."""
        metadata = self._metadata
        async with aclosing(source) as values:
            async for value in values:
                await metadata.simulation.sleep(
                    metadata.chance.uniform(0, metadata.options.delay_max_s)
                )
                self._check_alive()
                if metadata.is_unreachable(self.node):
                    await self._fail(kind, path, "before")
                yield value

    def _check_alive(self) -> None:
        if self.is_frozen:
            raise MetadataUnavailable(f"{self.node} is dead")
