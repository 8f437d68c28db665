"""Settings of what may wait in a bookie, which are fields of `BookieConfig`."""

from __future__ import annotations

from ledger.runtime.config import setting

WRITE_CACHE_WAIT_MS_MAX = setting(
    10_000,
    unit="ms",
    apache="dbStorage_maxThrottleTimeMs",
    reason="An add that finds write cache or journal full waits so long, then it is refused with"
    " 'too many requests': the bookie never takes it after that.",
)
READS_WAITING_MAX = setting(
    10_000,
    unit="requests",
    apache="maxReadsInProgressLimit",
    reason="With so many requests waiting for disks, a connection that has some is not read until"
    " they are answered.",
)
READS_WAITING_PER_DIRECTORY_MAX = setting(
    5_000,
    unit="requests",
    apache="maxPendingReadRequestsPerThread",
    reason="Further ones for the same ledger directory are refused with 'too many requests': the"
    " client asks another bookie. As many with priority may wait beside them.",
)
REPLIES_BYTES_MAX = setting(
    128 * 1024 * 1024,
    unit="bytes",
    apache="",
    reason="Replies that peers have not taken yet, of all connections: with more, only peers"
    " for whom none wait are answered.",
)
REPLY_WAIT_MS_MAX = setting(
    60_000,
    unit="ms",
    apache="waitTimeoutOnResponseBackpressureMs, closeChannelOnResponseTimeout",
    reason="A peer that takes none of the replies that wait for it is disconnected: it would keep"
    " the memory for ever.",
)
