"""Throttle: holds a writer to its quota of bytes per second. Shell of `core.token_bucket`.

Must cost a writer without a quota nothing; a task runs only while the quota is used up.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from stream.core.token_bucket import TokenBucket


class Throttle:
    """The quota of one writer.

    Args:
        on_end: called when throttling ends: the quota has tokens again.
    """

    __slots__ = ("_bucket", "_on_end", "_scope", "has_quota")

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self.has_quota = False
        self._bucket: TokenBucket | None = None
        self._scope: trio.CancelScope | None = None
        """Around the wait for tokens, while there are none."""

    @property
    def is_active(self) -> bool:
        """Whether the quota is used up, so that the writer has to wait."""
        return self._scope is not None

    def use_quota(self, bytes_per_s_max: int | None) -> None:
        """Follows this quota from now on; None: there is none."""
        bucket, now = self._bucket, trio.current_time()
        if bytes_per_s_max is None:
            self._bucket = None
        elif bucket is None:
            self._bucket = TokenBucket(bytes_per_s_max, now)
        elif bucket.rate_per_s != bytes_per_s_max:
            self._bucket = bucket.at_rate(bytes_per_s_max, now)
        self.has_quota = self._bucket is not None
        if self._scope is not None and self._bucket is not bucket:
            self._scope.cancel()  # the time to wait has changed

    def take(self, nbytes: int, nursery: trio.Nursery) -> bool:
        """Takes `nbytes` from the quota; returns whether the writer has to wait now."""
        bucket = self._bucket
        assert bucket is not None, "no quota"
        now = trio.current_time()
        bucket.take(nbytes, now)
        if self._scope is None and bucket.wait_s(now) > 0:
            self._scope = trio.CancelScope()
            nursery.start_soon(self._wait)
        return self._scope is not None

    async def _wait(self) -> None:
        while self._bucket is not None:
            wait_s = self._bucket.wait_s(trio.current_time())
            if wait_s <= 0:
                break
            with trio.CancelScope() as self._scope:
                await trio.sleep(wait_s)
        self._scope = None
        self._on_end()
