"""Acknowledging at once what Spark sends to a task: without it every task begins 40 ms late.

The JVM sends a task and its input in two small writes, to a socket on which it leaves Nagle's
algorithm on: the second waits until the first is acknowledged, which Linux puts off for 40 ms, in
the hope of an answer to send it with. Whatever is unpickled in a task comes between the two. Must
never do harm: where it cannot help it does nothing.
"""

from __future__ import annotations

import os
import socket
import stat
import sys

_SOCKETS_MAX = 16
"""Spark's is older than ours, and the lower numbers are given first."""


def set_quickack() -> None:
    """Sends acknowledgements that are due on the TCP sockets of this process, and the next ones
    without delay, for a while. Takes some ten microseconds a socket; for the start of a task."""
    # With a default timeout, looking at a socket would change whether it blocks, for its owner too.
    if sys.platform != "linux" or socket.getdefaulttimeout() is not None:
        return
    found = 0
    for number in sorted(map(int, os.listdir("/proc/self/fd"))):
        try:
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as shared:
                if not _is_tcp(shared):
                    continue
                shared.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        except OSError:
            continue  # it was closed meanwhile, or has another end no more
        found += 1
        if found == _SOCKETS_MAX:
            return


def _is_tcp(shared: socket.socket) -> bool:
    is_stream = shared.type == socket.SOCK_STREAM
    return is_stream and shared.family in (socket.AF_INET, socket.AF_INET6)
