"""Notices that another process has changed the metadata file, or has ended, without polling.

A process touches the file after each change that it commits, but not for a heartbeat; inotify
reports that. A descriptor of a process (pidfd) becomes readable when the process ends. Where the
system has neither, or has run out of them, `reports_changes` or `reports_ends` is False and the
caller polls. Must never be the only way to learn of anything: an older version of this program
touches nothing.
"""

from __future__ import annotations

import ctypes
import os
import select
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final

import trio

_IN_ATTRIB: Final = 0x4
_EVENT_BYTES: Final = 4096


def announce(path: str) -> None:
    """Wakes the processes that watch the file at `path`, by setting its times. Never raises: they
    find out later."""
    with suppress(OSError):
        os.utime(path)


class Notices:
    """Watches one file, and the processes that `watch_processes` names. Close it when done."""

    def __init__(self, path: str) -> None:
        self._epoll, self._file = _watching(path)
        self._processes: dict[int, int] = {}
        self._are_all_watched = False

    @property
    def reports_changes(self) -> bool:
        """Whether the file need not be polled."""
        return self._epoll is not None

    @property
    def reports_ends(self) -> bool:
        """Whether the processes that were named last need not be polled."""
        return self._are_all_watched

    def watch_processes(self, pids: Collection[int], is_gone: Callable[[int], bool]) -> bool:
        """Watches these processes from now on, and no others. Returns whether one has ended
        already, as `is_gone` reports: its number may be that of another process by now."""
        epoll = self._epoll
        if epoll is None or epoll.closed:
            return False
        for pid in [one for one in self._processes if one not in pids]:
            self._forget(pid)
        self._are_all_watched = True
        has_ended = False
        for pid in pids:
            if pid in self._processes:
                continue
            try:
                found = os.pidfd_open(pid)
            except ProcessLookupError:
                has_ended = True
                continue
            except (OSError, AttributeError):
                self._are_all_watched = False
                continue
            if is_gone(pid):
                os.close(found)
                has_ended = True
                continue
            try:
                epoll.register(found, select.EPOLLIN)
            except OSError:
                os.close(found)
                self._are_all_watched = False
            else:
                self._processes[pid] = found
        return has_ended

    async def wait(self) -> bool:
        """Returns when the file was touched or a process has ended, and whether it is the
        latter."""
        if self._epoll is None:
            await trio.sleep_forever()
        await trio.lowlevel.wait_readable(self._epoll.fileno())
        ready = {fd for fd, _ in self._epoll.poll(0)}
        if self._file in ready:
            with suppress(BlockingIOError):
                os.read(self._file, _EVENT_BYTES)
        ended = [pid for pid, fd in self._processes.items() if fd in ready]
        for pid in ended:
            self._forget(pid)
        return bool(ended)

    def _forget(self, pid: int) -> None:
        found = self._processes.pop(pid)
        assert self._epoll is not None, "no process is watched without it"
        self._epoll.unregister(found)  # a process that was forked may have it, so that it stays
        os.close(found)

    def close(self) -> None:
        """Ends all watches."""
        if self._epoll is None:
            return
        for pid in list(self._processes):
            self._forget(pid)
        trio.lowlevel.notify_closing(self._epoll.fileno())
        self._epoll.close()
        os.close(self._file)


def _watching(path: str) -> tuple[select.epoll | None, int]:
    """Returns an epoll with a descriptor that is readable when the attributes of a file change, and
    the descriptor; None and -1 if the system has none left."""
    file = _watched(path)
    if file < 0:
        return None, -1
    epoll: select.epoll | None = None
    try:
        epoll = select.epoll()
        epoll.register(file, select.EPOLLIN)
    except OSError:
        if epoll is not None:
            epoll.close()
        os.close(file)
        return None, -1
    return epoll, file


def _watched(path: str) -> int:
    """Returns a descriptor that is readable when the attributes of a file change, or -1."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        found: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, AttributeError):
        return -1
    if found >= 0 and libc.inotify_add_watch(found, os.fsencode(path), _IN_ATTRIB) < 0:
        os.close(found)
        return -1
    return found
