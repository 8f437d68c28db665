"""What the behaviour suite needs beside streams, in threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from stream.blocking import fail_after


def together(*acts: Callable[[], None]) -> None:
    """Runs all at the same time; returns when all have ended."""
    with ThreadPoolExecutor(len(acts)) as pool:
        futures = [pool.submit(act) for act in acts]
    for future in futures:
        future.result()


@contextmanager
def give_up_after(seconds: float) -> Iterator[None]:
    """What is still waited for in the block then is cancelled, and the block ends."""
    with suppress(TimeoutError), fail_after(seconds):
        yield


def pause(seconds: float) -> None:
    """Lets others run."""
    time.sleep(seconds)
