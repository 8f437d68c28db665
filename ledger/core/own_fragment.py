"""What a writer may do to stored metadata that others have changed under it.

Others may move earlier fragments to other bookies while a ledger is open (Apache's
auto-recovery does), and any client may begin to recover it. Earlier fragments are taken as they
are stored; the last fragment is the writer's own, for its entries were acknowledged there. Who
has recovered or closed the ledger has the last word.
"""

from __future__ import annotations

from dataclasses import replace

from ledger.core.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.errors import LedgerFenced


def with_own_fragment(stored: LedgerMetadata, own: Fragment) -> LedgerMetadata:
    """`stored` with the writer's last fragment. Raises LedgerFenced unless that is only putting
    other bookies into it: a fragment less or more was another writer's."""
    last = stored.last_fragment
    if last == own:
        return stored
    if last.first_entry_id != own.first_entry_id:
        raise LedgerFenced(
            f"another client changed the ensemble of ledger {stored.ledger_id}: stored "
            f"{', '.join(last.bookies)} from entry {last.first_entry_id}, ours "
            f"{', '.join(own.bookies)} from entry {own.first_entry_id}"
        )
    return replace(stored, fragments=(*stored.fragments[:-1], own))


def with_next_ensemble(
    stored: LedgerMetadata, own: Fragment, first: int, ensemble: tuple[str, ...]
) -> LedgerMetadata | None:
    """The writer's `ensemble` from entry `first` on; None if it is stored already.

    Raises LedgerFenced if the ledger is not the writer's any more.
    """
    if stored.state is not LedgerState.OPEN:
        raise LedgerFenced(
            f"ledger {stored.ledger_id} is {stored.state.name.lower()}: another client took it over"
        )
    if stored.last_fragment == Fragment(first, ensemble):
        return None
    return with_own_fragment(stored, own).with_ensemble(first, ensemble)


def closed_by_writer(
    stored: LedgerMetadata, own: Fragment, last_entry_id: int, length: int
) -> LedgerMetadata | None:
    """Closed where the writer ended; None if it is so already.

    Raises LedgerFenced if another client closed it elsewhere, or is recovering it: where the
    ledger ends is theirs to find then. A fragment that begins where this writer ended may be its
    own, stored by an ensemble change that was still under way: it is empty, and stays.
    """
    if stored.is_closed:
        if (stored.last_entry_id, stored.length) == (last_entry_id, length):
            return None
        raise LedgerFenced(
            f"ledger {stored.ledger_id} was closed by another client at entry "
            f"{stored.last_entry_id}; this writer confirmed up to {last_entry_id}"
        )
    stored.require_open()
    ours, empty = stored, stored.fragments[-1:]
    if own.first_entry_id < empty[0].first_entry_id == last_entry_id + 1:
        ours = replace(stored, fragments=stored.fragments[:-1])
    else:
        empty = ()
    ours = with_own_fragment(ours, own)
    return replace(ours, fragments=ours.fragments + empty).closed(last_entry_id, length)
