"""Sets TCP_QUICKACK on Spark's socket to a task; without it every task starts 40 ms late.

The JVM sends a task and its input in two small writes, to a socket on which Nagle's algorithm is
active: the second write waits until the first is acknowledged. Linux delays that acknowledgement
for up to 40 ms, to send it together with a reply. The objects of a task are unpickled between the
two writes. Must never do harm: where it cannot help it does nothing.
"""

from __future__ import annotations

import os
import socket
import stat
import sys

_SOCKETS_MAX = 16
"""Spark's socket is older than those of ledgerstream, so that its number is among the lowest."""


def set_quickack() -> None:
    """Makes the TCP sockets of this process acknowledge what they receive without delay.

    The setting lasts for a short time. To be called at the start of a task; takes about ten
    microseconds per socket.
    """
    # With a default timeout, opening a copy of a socket would change whether the original blocks.
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
            continue  # the socket or its connection was closed in the meantime
        found += 1
        if found == _SOCKETS_MAX:
            return


def _is_tcp(shared: socket.socket) -> bool:
    is_stream = shared.type == socket.SOCK_STREAM
    return is_stream and shared.family in (socket.AF_INET, socket.AF_INET6)
