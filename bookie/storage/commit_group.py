"""What gathers for one write of the journal; made and taken by `storage/journal.py`."""

from __future__ import annotations

from collections.abc import Callable

from bookie.core.journal import Buffer


class CommitGroup:
    """Frames gathered for one write and one sync.

    The hot path appends to `views` received bytes (whole frames, unchanged until durable)
    and counts them in `nbytes` and `entries`; `on_durable` runs in order after the sync. So does
    `on_accepted`, but after the write if the journal syncs later: for acknowledgements of adds.
    A group that was not kicked waits for one that is: what nobody waits for costs no sync.
    """

    __slots__ = (
        "entries",
        "is_kicked",
        "nbytes",
        "on_accepted",
        "on_durable",
        "overhead_bytes",
        "queued_at",
        "views",
    )

    def __init__(self) -> None:
        self.views: list[Buffer] = []
        self.nbytes = 0
        self.overhead_bytes = 0
        """What waits with the frames takes so much more memory."""
        self.entries = 0
        self.on_accepted: list[Callable[[], None]] = []
        self.on_durable: list[Callable[[], None]] = []
        self.queued_at: float | None = None
        self.is_kicked = False

    @property
    def queued_bytes(self) -> int:
        """What all of it takes in memory."""
        return self.nbytes + self.overhead_bytes

    def add(self, frame: Buffer, on_durable: Callable[[], None] | None = None) -> None:
        """One frame, for whoever is not in a hurry."""
        self.views.append(frame)
        self.nbytes += len(frame)
        self.entries += 1
        if on_durable is not None:
            self.on_durable.append(on_durable)
