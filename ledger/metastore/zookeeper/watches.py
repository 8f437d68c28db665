"""Watches that outlive connections and sessions, built on ZooKeeper's, which fire once.

Each value is read with the watch set, so no later change is missed. kazoo fires all watches when a
connection breaks; then everything is read again. There is one callback per path for any number of
iterators; the last one that ends removes the watch from the server.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import trio
from kazoo.client import KazooClient
from kazoo.protocol.serialization import int_struct, write_string

from ledger.metastore.zookeeper.session import ZooKeeperSession
from ledger.metastore.zookeeper.threads import CompletionQueue

T = TypeVar("T")

_ANY_KIND = 3


class _Spot:
    """A watched path: its number of readers, and how often its watch fired."""

    __slots__ = ("event", "fired", "readers")

    def __init__(self) -> None:
        self.readers = 0
        self.fired = 0
        self.event = trio.Event()

    def fire(self) -> None:
        self.fired += 1
        event, self.event = self.event, trio.Event()
        event.set()


@dataclass(frozen=True, slots=True)
class Watcher:
    """The callback of a watch, called in kazoo's thread. Equal for equal paths: kazoo keeps one."""

    path: str
    watches: Watches

    def __call__(self, _event: object) -> None:
        self.watches.completions.put(self._fire)

    def _fire(self) -> None:
        self.watches.fire(self.path)


class Watches:
    """All watches of one session; paths are whole ones, from ZooKeeper's root."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self.completions: CompletionQueue = session.completions
        self._session = session
        self._spots: dict[str, _Spot] = {}
        session.on_closed = self._fire_all

    async def follow(
        self, path: str, read: Callable[[Watcher, bool], Awaitable[tuple[object, T]]]
    ) -> AsyncGenerator[T, None]:
        """Yields the value that `read` returns, at once and whenever its stamp has changed.

        `read` is given the watcher to set, and whether to wait for a lost connection forever; it
        returns a stamp that differs after every change, and the value.
        """
        spot = self._spots.setdefault(path, _Spot())
        spot.readers += 1
        try:
            known: object = None
            is_first = True
            while True:
                seen = spot.fired
                stamp, value = await read(Watcher(path, self), not is_first)
                if is_first or stamp != known:
                    known, is_first = stamp, False
                    yield value
                if spot.fired == seen:
                    await spot.event.wait()
        finally:
            spot.readers -= 1
            if not spot.readers:
                del self._spots[path]
                self._session.post(
                    lambda client: client._call(
                        _RemoveWatches(client, path), client.handler.async_result()
                    )
                )

    def fire(self, path: str) -> None:
        spot = self._spots.get(path)
        if spot is not None:
            spot.fire()

    def _fire_all(self) -> None:
        for spot in self._spots.values():
            spot.fire()


class _RemoveWatches:
    """Removes all our watches from a path: a request of ZooKeeper 3.5 that kazoo does not have.

    An older server refuses it, which has no consequence: the watch stays until it fires.
    """

    type = 18

    def __init__(self, client: KazooClient, path: str) -> None:
        self._client = client
        self._path = path

    def serialize(self) -> bytes:
        return bytes(write_string(self._path)) + bytes(int_struct.pack(_ANY_KIND))

    def deserialize(self, _answer: bytes, _offset: int) -> bool:
        """Called in kazoo's thread, the only one that may change its callbacks."""
        self._client._data_watchers.pop(self._path, None)
        self._client._child_watchers.pop(self._path, None)
        return True
