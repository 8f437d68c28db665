"""Bookies of both kinds in one cluster, as processes that may be killed at any time.

A bookie keeps its name, id and data when it is started again. It starts in the background; a test
that needs it waits until it serves.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Protocol

import trio

from tests.interop.apache_bookie import ApacheBookie
from tests.interop.our_bookies import OurBookies
from tests.interop.versions import VERSIONS


class BookieProcess(Protocol):
    """One bookie, of either kind, on its own directory and port."""

    @property
    def bookie_id(self) -> str: ...

    @property
    def is_running(self) -> bool: ...

    def begin(self) -> None:
        """Starts the process."""
        ...

    def wait_ready(self) -> None:
        """Waits until the bookie serves."""
        ...

    def kill(self) -> None:
        """Kills the process with -9; returns when it has ended."""
        ...

    def pause(self) -> None:
        """Stops the process; its sockets stay open."""
        ...

    def resume(self) -> None: ...


class OurProcess:
    """One of `OurBookies`."""

    def __init__(self, bookies: OurBookies, number: int) -> None:
        self._bookies = bookies
        self._number = number

    @property
    def bookie_id(self) -> str:
        return self._bookies.bookie_id(self._number)

    @property
    def is_running(self) -> bool:
        return self._number in self._bookies.running

    def begin(self) -> None:
        self._bookies.begin(self._number)

    def wait_ready(self) -> None:
        self._bookies.wait_ready(self._number)

    def kill(self) -> None:
        self._bookies.kill(self._number)

    def pause(self) -> None:
        self._bookies.pause(self._number)

    def resume(self) -> None:
        self._bookies.resume(self._number)


def name_of_ours(number: int) -> str:
    return f"ours-{number}"


def name_of_apache(number: int) -> str:
    return f"apache-{number}"


@contextmanager
def running_bookies(
    directory: Path, uri: str, *, ours: int, apaches: int
) -> Iterator[dict[str, BookieProcess]]:
    """Runs bookies of each kind, by name; Apache's versions alternate."""
    our = OurBookies(directory, uri)
    bookies: dict[str, BookieProcess] = {
        name_of_ours(number): OurProcess(our, number) for number in range(ours)
    }
    for number in range(apaches):
        name = name_of_apache(number)
        version = VERSIONS[number % len(VERSIONS)]
        bookies[name] = ApacheBookie(version, directory / name, uri, gcWaitTime=1000)
    try:
        for bookie in bookies.values():
            bookie.begin()
        for bookie in bookies.values():
            bookie.wait_ready()
        yield bookies
    finally:
        for bookie in bookies.values():
            if bookie.is_running:
                bookie.kill()


class MixedBookies:
    """Bookies by name, e.g. "ours-0" and "apache-1". Made by `open_mixed_bookies`."""

    def __init__(self, bookies: Mapping[str, BookieProcess], nursery: trio.Nursery) -> None:
        self._bookies = bookies
        self._nursery = nursery
        self._serving = {name: trio.Event() for name in bookies}
        for name, bookie in bookies.items():
            if bookie.is_running:
                self._serving[name].set()
            else:
                self.begin_start(name)

    def ids(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(self._bookies[name].bookie_id for name in names)

    def apaches_of(self, names: Iterable[str]) -> tuple[str, ...]:
        """Returns the ids of the Apache bookies among them."""
        return tuple(
            self._bookies[name].bookie_id
            for name in names
            if isinstance(self._bookies[name], ApacheBookie)
        )

    def name_of(self, bookie_id: str) -> str:
        return next(n for n, b in self._bookies.items() if b.bookie_id == bookie_id)

    def is_serving(self, name: str) -> bool:
        return self._serving[name].is_set()

    async def kill(self, name: str) -> None:
        """Kills a bookie that serves with -9."""
        assert self.is_serving(name), f"{name} is down already"
        self._serving[name] = trio.Event()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._bookies[name].kill)

    @contextmanager
    def paused(self, name: str) -> Iterator[None]:
        """Stops a bookie that serves during the block.

        The block must be shorter than its session if it is to stay registered.
        """
        assert self.is_serving(name), f"{name} is down"
        self._bookies[name].pause()
        try:
            yield
        finally:
            self._bookies[name].resume()

    def begin_start(self, name: str) -> None:
        """Starts a killed bookie again, with its data and port, in the background."""
        assert not self.is_serving(name), f"{name} is up already"
        self._nursery.start_soon(self._start, name)

    async def _start(self, name: str) -> None:
        bookie = self._bookies[name]
        with trio.CancelScope(shield=True):  # a start must not be interrupted
            await trio.to_thread.run_sync(bookie.begin)
            await trio.to_thread.run_sync(bookie.wait_ready)
        self._serving[name].set()

    async def wait_serving(self, names: Iterable[str]) -> None:
        for name in names:
            await self._serving[name].wait()


@asynccontextmanager
async def open_mixed_bookies(bookies: Mapping[str, BookieProcess]) -> AsyncIterator[MixedBookies]:
    """Starts the bookies that do not run; waits at the end for those that are starting."""
    async with trio.open_nursery() as nursery:
        yield MixedBookies(bookies, nursery)
