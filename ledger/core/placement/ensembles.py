"""Chooses the bookies of an ensemble: on different hosts, as far as there are enough.

Pure. A host is a failure domain: the copies of one entry are stored on a write quorum of adjacent
bookies (modulo the ensemble size), so hosts are spread over those first, then over the whole
ensemble. Candidates are visited in sorted order; the only randomness is `rng`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Protocol

from ledger.core.quorum import check_sizes
from ledger.errors import InvalidArgument, NotEnoughBookies


class RandomChoice(Protocol):
    """A source of random choices, such as `random.Random`."""

    def choice(self, seq: Sequence[str], /) -> str: ...


def host_of(bookie_id: str) -> str:
    """Returns the host in an id of the form "host:port", otherwise the id itself."""
    return bookie_id.rpartition(":")[0] or bookie_id


def choose(
    ensemble_size: int,
    write_quorum: int,
    ack_quorum: int,
    candidates: Mapping[str, str],
    excluded: Collection[str],
    rng: RandomChoice,
    *,
    prefer: Collection[str] = (),
) -> tuple[str, ...]:
    """Returns an ensemble of `candidates` (id -> host) without `excluded`.

    Bookies whose id matches a pattern of `prefer` ("rack1-*") are chosen before all others, which
    fill the remaining places. Raises NotEnoughBookies, InvalidArgument (quorums).
    """
    check_sizes(ensemble_size, write_quorum, ack_quorum)
    usable = _usable(candidates, excluded)
    if len(usable) < ensemble_size:
        raise _not_enough(ensemble_size, usable, candidates, excluded)
    return _filled([None] * ensemble_size, usable, {}, write_quorum, rng, prefer)


def replace(
    ensemble: Sequence[str],
    indices: Collection[int],
    candidates: Mapping[str, str],
    excluded: Collection[str],
    rng: RandomChoice,
    *,
    write_quorum: int | None = None,
) -> tuple[str, ...]:
    """Returns `ensemble` with other bookies at `indices`; the replaced ones are not chosen again.

    The host of a kept bookie that is no candidate is taken from its id. Raises NotEnoughBookies
    if not all of them can be replaced, InvalidArgument for an index out of range.
    """
    for index in indices:
        if not 0 <= index < len(ensemble):
            raise InvalidArgument(f"index {index} is not in an ensemble of {len(ensemble)}")
    wanted = len(dict.fromkeys(indices))
    usable = _usable(candidates, (*excluded, *ensemble))
    if len(usable) < wanted:
        raise _not_enough(wanted, usable, candidates, (*excluded, *ensemble))
    kept = [None if index in indices else bookie for index, bookie in enumerate(ensemble)]
    hosts = {bookie: candidates.get(bookie, host_of(bookie)) for bookie in ensemble}
    return _filled(kept, usable, hosts, write_quorum or len(ensemble), rng)


def choose_degraded(
    ensemble_size: int,
    write_quorum: int,
    ack_quorum: int,
    candidates: Mapping[str, str],
    known: Mapping[str, str],
    excluded: Collection[str],
    rng: RandomChoice,
    *,
    prefer: Collection[str] = (),
) -> tuple[str, ...]:
    """Like `choose`, but fills the remaining places with bookies of `known` (id -> host) that are
    down.

    A cluster of three thus continues to create ledgers while one is down. It is checked that every
    write set has an ack quorum of usable bookies. Excluded bookies are used last. Raises
    NotEnoughBookies, InvalidArgument (quorums).
    """
    check_sizes(ensemble_size, write_quorum, ack_quorum)
    usable = _usable(candidates, excluded)
    missing = ensemble_size - len(usable)
    if missing <= 0:
        return choose(
            ensemble_size, write_quorum, ack_quorum, candidates, excluded, rng, prefer=prefer
        )
    everyone = {**known, **candidates}
    idle = [bookie for bookie in sorted(everyone) if bookie not in usable]
    idle.sort(key=lambda bookie: bookie in excluded)  # stable: down before excluded
    # Evenly spaced, so that no write set gets more of them than necessary.
    gaps = [number * ensemble_size // missing for number in range(missing)] if missing else []
    most = max(
        sum((start + step) % ensemble_size in gaps for step in range(write_quorum))
        for start in range(ensemble_size)
    )
    if len(usable) < ack_quorum or len(idle) < missing or write_quorum - most < ack_quorum:
        raise NotEnoughBookies(
            f"not enough bookies: ensemble_size is {ensemble_size}, write_quorum {write_quorum},"
            f" ack_quorum {ack_quorum}, and {len(usable)} are up (known {len(everyone)}, excluded"
            f" {_listed(excluded)}). Cure: start bookies, or use a smaller ensemble (for streams:"
            " `ledgerstream namespace set`)"
        )
    fillers = iter(idle)
    places = [next(fillers) if index in gaps else None for index in range(ensemble_size)]
    hosts = {bookie: everyone[bookie] for bookie in idle}
    return _filled(places, usable, hosts, write_quorum, rng)


def _filled(
    places: Sequence[str | None],
    usable: Mapping[str, str],
    hosts_kept: Mapping[str, str],
    write_quorum: int,
    rng: RandomChoice,
    prefer: Collection[str] = (),
) -> tuple[str, ...]:
    """Fills the empty places one by one with the bookie whose host is used least in its
    neighbourhood, from the preferred bookies as long as there are any."""
    size = len(places)
    filled = list(places)
    hosts: list[str | None] = [hosts_kept[one] if one is not None else None for one in filled]
    left = dict(usable)
    preferred = [bookie for bookie in left if any(fnmatchcase(bookie, one) for one in prefer)]
    reach = min(write_quorum, size) - 1
    for index in range(size):
        if filled[index] is not None:
            continue
        steps = [step for step in range(-reach, reach + 1) if step]
        around = [hosts[place] for place in dict.fromkeys((index + step) % size for step in steps)]

        def cost(bookie: str, around: Sequence[str | None] = around) -> tuple[bool, int, int]:
            host = left[bookie]
            return bookie not in preferred, around.count(host), hosts.count(host)

        least = min(cost(bookie) for bookie in left)
        chosen = rng.choice([bookie for bookie in left if cost(bookie) == least])
        filled[index] = chosen
        hosts[index] = left.pop(chosen)
    return tuple(bookie for bookie in filled if bookie is not None)


def _usable(candidates: Mapping[str, str], excluded: Collection[str]) -> dict[str, str]:
    return {one: candidates[one] for one in sorted(candidates) if one not in excluded}


def _not_enough(
    needed: int,
    usable: Mapping[str, str],
    candidates: Mapping[str, str],
    excluded: Collection[str],
) -> NotEnoughBookies:
    return NotEnoughBookies(
        f"not enough bookies: {needed} are needed, and {len(usable)} are up (registered"
        f" {len(candidates)}, excluded {_listed(excluded)}). Cure: start bookies"
    )


def _listed(excluded: Collection[str]) -> str:
    return ", ".join(sorted(dict.fromkeys(excluded))) or "none"
