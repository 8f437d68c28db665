"""Decides whether a new ledger's id is free at its bookies, and which id is tried instead.

Ledger ids are counted, so any client that reaches a bookie can use one before its ledger is
created: an add or a fence with any key makes that the key of the id, and the bookie refuses the
writer's. So the creator of a ledger claims the id with its own key before it gives the ledger to a
writer, and jumps ahead of ids that are taken, twice as far each time. Shell:
`ledger.writing.creator`.
"""

from __future__ import annotations

from typing import Final

from ledger.errors import Status

CLAIM_TRIES_MAX: Final = 40
JUMP_IDS_MAX: Final = 1 << 20
"""Counted ids are a resource too: the short layouts have 2^31. All tries together skip less than
3 * 10^7."""


class LedgerClaim:
    """The answers of an ensemble to the claim of one ledger id.

    Args:
        ensemble_size, write_quorum, ack_quorum: of the ledger.
    """

    def __init__(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        self._left = ensemble_size
        # With these, an ack quorum of any write quorum has the key.
        self._needed = ensemble_size - (write_quorum - ack_quorum)
        self._may_be_missing = ensemble_size - self._needed
        self.is_taken = False
        """A bookie has the id under another key."""

    def answered(self, status: Status | None) -> None:
        """Notes the status that a bookie answered; None: it did not answer."""
        self._left -= 1
        if status is Status.UNAUTHORIZED:
            self.is_taken = True
        elif status is not None:
            self._needed -= 1

    def is_refused(self, refusing: int) -> bool:
        """Returns whether no ledger can be made here by a client that this many bookies of the
        ensemble do not admit: the others are too few for a writer."""
        return refusing > self._may_be_missing

    @property
    def is_decided(self) -> bool:
        """Whether no further answer can matter."""
        return self.is_taken or self._left == 0

    @property
    def is_enough(self) -> bool:
        """Whether a writer could work with the bookies that have answered. One that is down must
        not hold up a ledger; the writer replaces it if it has the id under another key."""
        return self._needed <= 0


def next_beyond(ledger_id: int, tries: int) -> int:
    """Returns the id beyond which the next one is counted, after `tries` ids in a row, the last of
    which is `ledger_id`, were taken."""
    return ledger_id + min((1 << (tries - 1)) - 1, JUMP_IDS_MAX)
