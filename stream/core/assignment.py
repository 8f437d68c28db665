"""Which member of a consumer group handles which partition.

Pure and the same for everyone: whoever computes it from the same facts gets the same answer.
Balanced within one partition, and of all balanced assignments one that moves the fewest
partitions from what was before. Shell: ../group_coordinator.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def assign(
    partitions: Sequence[str], members: Sequence[str], previous: Mapping[str, str]
) -> dict[str, str]:
    """Partition -> member, for all partitions; empty if there are no members.

    `previous` is what was assigned before; partitions or members in it that are gone are
    ignored. No member gets two partitions more than another.
    """
    if not members:
        return {}
    kept: dict[str, list[str]] = {member: [] for member in sorted(members)}
    free: list[str] = []
    for partition in partitions:
        kept.get(previous.get(partition, ""), free).append(partition)
    quotas = _quotas(kept, len(partitions))
    for member, held in kept.items():
        # The last ones go: the first partitions of a stream have lasted, and stay longest.
        free += held[quotas[member] :]
        del held[quotas[member] :]
    place = {partition: index for index, partition in enumerate(partitions)}
    free.sort(key=place.__getitem__, reverse=True)
    # One each in turn, so that neighbours (of like age and load) are spread.
    while free:
        for member in sorted(kept, key=lambda name: (len(kept[name]), name)):
            if free and len(kept[member]) < quotas[member]:
                kept[member].append(free.pop())
    owner = {partition: member for member, held in kept.items() for partition in held}
    return {partition: owner[partition] for partition in partitions}


def _quotas(kept: Mapping[str, Sequence[str]], total: int) -> dict[str, int]:
    """How many each member gets: those who have the most keep the one that is left over."""
    share, extra = divmod(total, len(kept))
    fullest = sorted(kept, key=lambda member: (-len(kept[member]), member))
    return {member: share + (rank < extra) for rank, member in enumerate(fullest)}


def moves(previous: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """Partitions that leave a member for another."""
    return [
        partition
        for partition, member in wanted.items()
        if previous.get(partition, member) != member
    ]
