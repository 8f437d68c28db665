"""Helpers of the behaviour suite for threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from stream.blocking import fail_after


def together(*acts: Callable[[], None]) -> None:
    """Runs all functions concurrently and returns when all have ended."""
    with ThreadPoolExecutor(len(acts)) as pool:
        futures = [pool.submit(act) for act in acts]
    for future in futures:
        future.result()


@contextmanager
def give_up_after(seconds: float) -> Iterator[None]:
    """Cancels the wait inside its block after this time, and ends the block without an error."""
    with suppress(TimeoutError), fail_after(seconds):
        yield


def pause(seconds: float) -> None:
    """Sleeps while other threads run."""
    time.sleep(seconds)
