"""Settings of a ledger client: how long it waits, how much it holds. Each has its reason."""

from __future__ import annotations

from dataclasses import dataclass

from ledger.errors import InvalidArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Frozen; pass another one to `LedgerClient` to change it. InvalidArgument for a value that
    can never work."""

    wire_version: int = 2
    """2: adds and reads in the cheap binary protocol, the rest in v3, over two connections to
    each bookie. 3: everything in v3, over one; batch reads become single reads."""

    window_entries: int = 10_000
    """Entries one writer may have sent and not yet confirmed; then `append` waits."""

    window_bytes: int = 32 * 1024 * 1024
    """Bytes one writer may hold unconfirmed, to resend them after a bookie failed."""

    outbox_bytes_max: int = 64 * 1024 * 1024
    """Bytes waiting for one bookie; a bookie further behind is given up as too slow."""

    add_timeout_s: float = 5.0
    """A bookie that acknowledges nothing for so long, with adds outstanding, is replaced."""

    read_timeout_s: float = 5.0
    """How long one read request may take before the next replica is asked."""

    speculative_read_s: float = 0.5
    """After so long without an answer the next replica is asked as well (hedged read)."""

    connect_timeout_s: float = 3.0
    """How long to wait for a connection to a bookie."""

    reconnect_wait_s: float = 0.05
    """First pause before a bookie that failed is tried again; doubles up to the maximum."""

    reconnect_wait_max_s: float = 1.0

    ensemble_change_timeout_s: float = 15.0
    """How long a writer without an ack quorum looks for bookies before it fails."""

    lac_linger_ms: float = 0.0
    """An idle writer tells the bookies its last add confirmed after so long, so that tails
    see the last entry without waiting for the next one. 0: at once, unless who was waiting for
    that entry appends another one right away. Costs a small request to each bookie per entry that
    no other follows; longer saves some of them where entries follow closely."""

    read_ahead_bytes: int = 8 * 1024 * 1024
    """Bytes a range read may hold ahead of its consumer."""

    batch_read_bytes: int = 1024 * 1024
    """Size asked for in one batch read."""

    long_poll_s: float = 5.0
    """How long a bookie may hold a tailing read open. After each that brought nothing the
    reader looks whether the writer is gone."""

    def __post_init__(self) -> None:
        if self.wire_version not in (2, 3):
            raise InvalidArgument(f"wire_version is 2 or 3, not {self.wire_version}")
