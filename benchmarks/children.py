"""Child processes of a benchmark, such as readers and a probe of the disk.

They import this checkout, whatever the working directory of the benchmark is. A child that ends
early must end the benchmark, which would otherwise wait for it forever.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio

ROOT: Final = Path(__file__).resolve().parents[1]
_CHUNK_BYTES: Final = 1 << 20


class ChildEnded(Exception):
    """A child process of the benchmark has ended early."""

    def __init__(self, name: str, exit_code: int | None) -> None:
        super().__init__(f"{name} ended early with exit code {exit_code}; its message is above")


def environment() -> dict[str, str]:
    """Returns the environment of children, in which they import this checkout."""
    earlier = os.environ.get("PYTHONPATH")
    path = f"{ROOT}{os.pathsep}{earlier}" if earlier else str(ROOT)
    return {**os.environ, "PYTHONPATH": path}


def command(module: str, *arguments: object) -> list[str]:
    """Starts a module of this package in a process."""
    return [sys.executable, "-P", "-m", f"benchmarks.{module}", *map(str, arguments)]


class Child:
    """A child process that obeys orders and reports what it has read."""

    def __init__(self, name: str, process: trio.Process) -> None:
        assert process.stdout is not None
        self.pid = process.pid
        self._name = name
        self._process = process
        self._said = process.stdout
        self._buffer = bytearray()

    async def receive(self) -> bytes:
        """Returns the next output of the child. Raises ChildEnded."""
        data = await self._said.receive_some(_CHUNK_BYTES)
        if not data:
            raise ChildEnded(self._name, await self._process.wait())
        return bytes(data)

    async def line(self) -> bytes:
        """Returns the next line; what follows it is kept for the next call. Raises ChildEnded."""
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            self._buffer += await self.receive()
        line = bytes(self._buffer[: end + 1])
        del self._buffer[: end + 1]
        return line

    async def order(self, *words: object) -> None:
        """Sends a line to a child that was started with `obeys`. Raises ChildEnded."""
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send_all(f"{' '.join(map(str, words))}\n".encode())
        except trio.BrokenResourceError:
            raise ChildEnded(self._name, await self._process.wait()) from None

    async def kill(self) -> None:
        self._process.kill()
        await self._process.wait()
        await self._said.aclose()


@asynccontextmanager
async def running(name: str, program: Sequence[str], *, obeys: bool) -> AsyncIterator[Child]:
    """Runs a program, which is killed with the block."""
    process = await trio.lowlevel.open_process(
        program,
        stdin=subprocess.PIPE if obeys else None,
        stdout=subprocess.PIPE,
        env=environment(),
    )
    started = Child(name, process)
    try:
        yield started
    finally:
        with trio.CancelScope(shield=True):
            await started.kill()


@asynccontextmanager
async def child(module: str, *arguments: object) -> AsyncIterator[Child]:
    """Runs a module of this package in a process of its own, which is killed with the block."""
    async with running(f"benchmarks.{module}", command(module, *arguments), obeys=False) as started:
        yield started


async def report_of(client: Child) -> array[float]:
    """Returns the latencies (ms) of what a client of systems/drivers.py did last."""
    await client.order("report")
    return array("d", json.loads(await client.line()))


def early_end(error: BaseException) -> ChildEnded | None:
    """Returns the ChildEnded in an exception or a group, or None."""
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(early_end, error.exceptions)), None)
    return error if isinstance(error, ChildEnded) else None
