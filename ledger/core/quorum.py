"""Which bookies of an ensemble get an entry, and how many answers are a proof.

Plain arithmetic on indices 0..E-1 of an ensemble. It must never interpret an answer: the caller
decides which answers count. The rules are those of Apache BookKeeper's round-robin distribution.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ledger.errors import InvalidArgument


def check_sizes(ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
    """Raises InvalidArgument unless ensemble >= write quorum >= ack quorum >= 1."""
    if not ensemble_size >= write_quorum >= ack_quorum >= 1:
        raise InvalidArgument(
            f"ensemble size {ensemble_size} >= write quorum {write_quorum} >= ack quorum "
            f"{ack_quorum} >= 1 must hold"
        )


def write_set(entry_id: int, ensemble_size: int, write_quorum: int) -> tuple[int, ...]:
    """Returns the indices of the bookies that hold `entry_id`, in the order to ask them."""
    return tuple([(entry_id + w) % ensemble_size for w in range(write_quorum)])


def holds(index: int, entry_id: int, ensemble_size: int, write_quorum: int) -> bool:
    """Whether the bookie at `index` is in the write set of `entry_id`."""
    return (index - entry_id) % ensemble_size < write_quorum


def stripe_step(ensemble_size: int, write_quorum: int) -> int:
    """Returns the distance of entry ids with equal write sets: 1 if all bookies get all entries."""
    return 1 if ensemble_size == write_quorum else ensemble_size


def entries_held(
    index: int, first_entry_id: int, last_entry_id: int, ensemble_size: int, write_quorum: int
) -> list[int]:
    """Returns the entries of first..last (both included) that the bookie at `index` holds."""
    return [
        entry_id
        for entry_id in range(first_entry_id, last_entry_id + 1)
        if (index - entry_id) % ensemble_size < write_quorum
    ]


def is_covered(
    ensemble_size: int,
    write_quorum: int,
    ack_quorum: int,
    answered: Collection[int] | Sequence[bool],
) -> bool:
    """Whether no entry can have reached its ack quorum among the bookies that did not answer.

    That is: in every write set fewer than `ack_quorum` bookies are silent. Then at least one bookie
    that answered knows each confirmed entry, and a fence affects every later add.

    Args:
        answered: either one bool per index, or the indices that answered.
    """
    if len(answered) == ensemble_size and all(isinstance(a, bool) for a in answered):
        silent = [not a for a in answered]
    else:
        silent = [index not in answered for index in range(ensemble_size)]
    return all(
        sum(silent[(start + w) % ensemble_size] for w in range(write_quorum)) < ack_quorum
        for start in range(ensemble_size)
    )


def negatives_needed(write_quorum: int, ack_quorum: int) -> int:
    """Returns how many of an entry's bookies must say that they do not have it to prove that it was
    never confirmed: the remaining ones are no ack quorum."""
    return write_quorum - ack_quorum + 1


def is_add_impossible(write_quorum: int, ack_quorum: int, failures: int) -> bool:
    """Whether an add can no longer reach its ack quorum after `failures` of its bookies."""
    return failures > write_quorum - ack_quorum
