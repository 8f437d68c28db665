"""The bookies of a play, both kinds in one cluster, as processes that may be killed at any time.

A bookie keeps its name, port and data when it is started again. Starting goes on in the
background; whoever needs a bookie waits until it serves.
"""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import trio

from tests.interop.apache_bookie import ApacheBookie
from tests.system.cluster import environment

HOST = "127.0.0.1"
SESSION_TIMEOUT_MS = 4000
_START_TIMEOUT_S = 90.0


class BookieProcess(Protocol):
    """One bookie, of either kind."""

    bookie_id: str

    async def start(self) -> None:
        """Returns when it is registered."""
        ...

    async def kill(self) -> None:
        """kill -9; returns when the process is gone."""
        ...


class OurBookie:
    """Our bookie in a process of its own, on one directory and port for its whole life."""

    def __init__(self, directory: Path, metadata_uri: str, **settings: object) -> None:
        port = free_port()
        self.bookie_id = f"{HOST}:{port}"
        self._directory = directory
        self._process: trio.Process | None = None
        directory.mkdir(parents=True)
        self._config = directory / "bookie.toml"
        lines = {
            "metadata_uri": metadata_uri,
            "host": HOST,
            "port": port,
            "journal_directories": [f"{directory}/journal"],
            "ledger_directories": [f"{directory}/ledgers"],
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            **settings,
        }
        self._config.write_text("".join(f"{k} = {_toml(v)}\n" for k, v in lines.items()))

    async def start(self) -> None:
        log = self._directory / "bookie.log"
        with log.open("ab") as errors:
            self._process = await trio.lowlevel.open_process(
                [sys.executable, "-m", "bookie.process", str(self._config)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment(),
            )
        assert self._process.stdout is not None
        said = b""
        with trio.move_on_after(_START_TIMEOUT_S):
            while b"\n" not in said and (more := await self._process.stdout.receive_some()):
                said += more
        if not said.startswith(b"ready "):
            await self.kill()
            raise AssertionError(f"{self.bookie_id} did not start:\n{log.read_text()[-4000:]}")

    async def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with trio.CancelScope(shield=True):
                if process.returncode is None:
                    process.send_signal(signal.SIGKILL)
                await process.wait()
                for pipe in (process.stdin, process.stdout):
                    if pipe is not None:
                        await pipe.aclose()


class ApacheProcess:
    """Apache's bookie behind the same door as ours."""

    def __init__(self, bookie: ApacheBookie) -> None:
        self._bookie = bookie
        self.bookie_id = bookie.bookie_id

    async def start(self) -> None:
        await trio.to_thread.run_sync(self._bookie.start)

    async def kill(self) -> None:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._bookie.kill)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value) if isinstance(value, int | float) else f'"{value}"'


def free_port() -> int:
    """Below the range of outgoing connections: a client that tries a dead bookie's port must
    not be given that port as its own, and so connect to itself."""
    rng = random.SystemRandom()
    for _ in range(1000):
        port = rng.randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port between 20000 and 32000")


class Stage:
    """Bookies by name, e.g. "ours-0" and "apache-1". Made by `open_stage`."""

    def __init__(self, bookies: dict[str, BookieProcess], nursery: trio.Nursery) -> None:
        self._bookies = bookies
        self._nursery = nursery
        self._serving = {name: trio.Event() for name in bookies}

    def ids(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(self._bookies[name].bookie_id for name in names)

    def name_of(self, bookie_id: str) -> str:
        return next(n for n, b in self._bookies.items() if b.bookie_id == bookie_id)

    def is_serving(self, name: str) -> bool:
        return self._serving[name].is_set()

    async def kill(self, name: str) -> None:
        """kill -9 of a bookie that serves."""
        assert self.is_serving(name), f"{name} is down already"
        self._serving[name] = trio.Event()
        await self._bookies[name].kill()

    def begin_start(self, name: str) -> None:
        """Starts a killed bookie again, with its data and port, in the background."""
        assert not self.is_serving(name), f"{name} is up already"
        self._nursery.start_soon(self._start, name)

    async def _start(self, name: str) -> None:
        await self._bookies[name].start()
        self._serving[name].set()

    async def wait_serving(self, names: Iterable[str]) -> None:
        for name in names:
            await self._serving[name].wait()


@asynccontextmanager
async def open_stage(bookies: dict[str, BookieProcess]) -> AsyncIterator[Stage]:
    """Starts all; kills all at the end."""
    try:
        async with trio.open_nursery() as nursery:
            stage = Stage(bookies, nursery)
            for name in bookies:
                stage.begin_start(name)
            await stage.wait_serving(bookies)
            yield stage
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            for bookie in bookies.values():
                await bookie.kill()
