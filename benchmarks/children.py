"""Child processes of a benchmark, such as readers and a probe of the disk.

They import this checkout, whatever the working directory of the benchmark is. A child that ends
early must end the benchmark, which would otherwise wait for it forever.
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
    """A child process of the benchmark has ended early."""

    def __init__(self, module: str, exit_code: int | None) -> None:
        super().__init__(
            f"benchmarks.{module} ended early with exit code {exit_code}; its message is above"
        )


def environment() -> dict[str, str]:
    """Returns the environment of children, in which they import this checkout."""
    earlier = os.environ.get("PYTHONPATH")
    path = f"{ROOT}{os.pathsep}{earlier}" if earlier else str(ROOT)
    return {**os.environ, "PYTHONPATH": path}


def command(module: str, *arguments: object) -> list[str]:
    """Starts a module of this package in a process."""
    return [sys.executable, "-P", "-m", f"benchmarks.{module}", *map(str, arguments)]


class Child:
    """A child process that reports what it has read."""

    def __init__(self, module: str, process: trio.Process) -> None:
        assert process.stdout is not None
        self.pid = process.pid
        self._module = module
        self._process = process
        self._said = process.stdout

    async def receive(self) -> bytes:
        """Returns the next output of the child. Raises ChildEnded."""
        data = await self._said.receive_some(_CHUNK_BYTES)
        if not data:
            raise ChildEnded(self._module, await self._process.wait())
        return bytes(data)

    async def line(self) -> bytes:
        """Returns the output up to the end of a line, which must be the last. Raises ChildEnded."""
        said = b""
        while not said.endswith(b"\n"):
            said += await self.receive()
        return said


@asynccontextmanager
async def child(module: str, *arguments: object) -> AsyncIterator[Child]:
    """Runs a module of this package in a process of its own, which is killed with the block."""
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
    """Returns the ChildEnded in an exception or a group, or None."""
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(early_end, error.exceptions)), None)
    return error if isinstance(error, ChildEnded) else None
