"""For processes that must not outlive the one that started them.

That process holds the other end of the pipe on our stdin and never writes to it: when the pipe
ends, it has ended, in whatever way.
"""

from __future__ import annotations

import os
import sys

import trio


async def wait_starter_gone() -> None:
    """Returns when the process that started this one has ended."""
    pipe = sys.stdin.fileno()
    while True:
        await trio.lowlevel.wait_readable(pipe)
        if not os.read(pipe, 4096):
            return
