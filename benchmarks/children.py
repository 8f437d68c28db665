"""Processes that a benchmark starts to take part in it: readers, a probe of the disk.

They find this checkout wherever the benchmark was started from, and one that ends before it was
done ends the benchmark, which would wait for it for ever.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio

ROOT: Final = Path(__file__).resolve().parents[1]
_CHUNK_BYTES: Final = 1 << 20


class ChildEnded(Exception):
    """A process that takes part in the benchmark ended before it was done."""

    def __init__(self, module: str, exit_code: int | None) -> None:
        super().__init__(
            f"benchmarks.{module} ended early with exit code {exit_code}; what it had to say is"
            " above"
        )


def environment() -> dict[str, str]:
    """Of children: what they import is this checkout, whatever the working directory is."""
    earlier = os.environ.get("PYTHONPATH")
    path = f"{ROOT}{os.pathsep}{earlier}" if earlier else str(ROOT)
    return {**os.environ, "PYTHONPATH": path}


def command(module: str, *arguments: object) -> list[str]:
    """Runs a module of this package."""
    return [sys.executable, "-P", "-m", f"benchmarks.{module}", *map(str, arguments)]


class Child:
    """One that writes what it has seen."""

    def __init__(self, module: str, process: trio.Process) -> None:
        assert process.stdout is not None
        self.pid = process.pid
        self._module = module
        self._process = process
        self._said = process.stdout

    async def receive(self) -> bytes:
        """What it says next. Raises ChildEnded."""
        data = await self._said.receive_some(_CHUNK_BYTES)
        if not data:
            raise ChildEnded(self._module, await self._process.wait())
        return bytes(data)

    async def line(self) -> bytes:
        """What it says up to the end of a line, which must be its last. Raises ChildEnded."""
        said = b""
        while not said.endswith(b"\n"):
            said += await self.receive()
        return said


@asynccontextmanager
async def child(module: str, *arguments: object) -> AsyncIterator[Child]:
    """A module of this package in a process of its own, which is killed at the end."""
    process = await trio.lowlevel.open_process(
        command(module, *arguments), stdout=subprocess.PIPE, env=environment()
    )
    started = Child(module, process)
    try:
        yield started
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()
            await started._said.aclose()


def early_end(error: BaseException) -> ChildEnded | None:
    """The one that is in what was raised."""
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(early_end, error.exceptions)), None)
    return error if isinstance(error, ChildEnded) else None
