"""Metadata of a consumer group: which member should handle which partition.

The assignment is a wish, not a right: a member may handle a partition once it holds the group's
cursor on it. It is pure and deterministic: every member computes the same assignment from the same
facts. It is balanced to within one partition, and of all balanced assignments it is one that moves
the fewest partitions. Store: store/groups.py; shell: consuming/coordinator.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from ledger.errors import MetadataCorrupt
from stream.core.metadata.documents import dump_document, load_document, text_value, whole_number


def assign(
    partitions: Sequence[str], members: Sequence[str], previous: Mapping[str, str]
) -> dict[str, str]:
    """Returns partition -> member, for all partitions; empty if there are no members.

    `previous` is the previous assignment; partitions or members in it that no longer exist are
    ignored. No member gets two partitions more than another.
    """
    if not members:
        return {}
    kept: dict[str, list[str]] = {member: [] for member in sorted(members)}
    free: list[str] = []
    for partition in partitions:
        kept.get(previous.get(partition, ""), free).append(partition)
    quotas = _quotas(kept, len(partitions))
    for member, names in kept.items():
        # The last partitions move: the first ones of a stream are the oldest, and stay longest.
        free += names[quotas[member] :]
        del names[quotas[member] :]
    place = {partition: index for index, partition in enumerate(partitions)}
    free.sort(key=place.__getitem__, reverse=True)
    # Each member takes one in turn, so that neighbours (of similar age and load) are spread.
    while free:
        for member in sorted(kept, key=lambda name: (len(kept[name]), name)):
            if free and len(kept[member]) < quotas[member]:
                kept[member].append(free.pop())
    owner = {partition: member for member, names in kept.items() for partition in names}
    return {partition: owner[partition] for partition in partitions}


def _quotas(kept: Mapping[str, Sequence[str]], total: int) -> dict[str, int]:
    """Returns how many partitions each member gets; the fullest members keep the remainder."""
    share, extra = divmod(total, len(kept))
    fullest = sorted(kept, key=lambda member: (-len(kept[member]), member))
    return {member: share + (rank < extra) for rank, member in enumerate(fullest)}


def moves(previous: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """Returns the partitions that move from one member to another."""
    return [
        partition
        for partition, member in wanted.items()
        if previous.get(partition, member) != member
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadata:
    """A consumer group. `assignment` is partition -> member and `generation` counts its changes.

    `stream_created_ms` distinguishes the stream from another one of the same name.
    `first_partitions` is how many there were when the group began: it reads those added later from
    their begin. `resets` counts cursors of the group that were set by hand: after a change the
    holders check theirs.
    """

    name: str
    stream: str
    stream_created_ms: int
    changed_ms: int
    generation: int = 0
    first_partitions: int = 0
    resets: int = 0
    assignment: Mapping[str, str] = field(default_factory=dict)

    def balanced(
        self, partitions: Sequence[str], members: Sequence[str], now_ms: int
    ) -> GroupMetadata:
        """Returns the group with these partitions spread over these members; the same object if
        they are.

        Partitions are only ever added: a caller that knows fewer has not learned of the others yet.
        """
        known = list(self.assignment)
        if len(known) > len(partitions):
            partitions = known
        wanted = assign(partitions, members, self.assignment)
        if wanted == self.assignment:
            return self
        return replace(
            self,
            assignment=wanted,
            generation=self.generation + 1,
            first_partitions=self.first_partitions or len(partitions),
            changed_ms=now_ms,
        )

    def with_reset(self, now_ms: int) -> GroupMetadata:
        return replace(self, resets=self.resets + 1, changed_ms=now_ms)

    def partitions_of(self, member: str) -> list[str]:
        return [partition for partition, name in self.assignment.items() if name == member]


_NAMES = tuple(field.name for field in fields(GroupMetadata))


def encode_group(group: GroupMetadata) -> bytes:
    """Returns the JSON of a group."""
    values: dict[str, object] = {name: getattr(group, name) for name in _NAMES}
    # Rows keep the order of the partitions, which a sorted object would not.
    values["assignment"] = [list(row) for row in group.assignment.items()]
    return dump_document("group", _what(group.name), values)


def decode_group(name: str, data: bytes) -> GroupMetadata:
    """Returns the group in these bytes. Raises MetadataCorrupt."""
    document = load_document("group", _what(name), _NAMES, data)
    try:
        if document["name"] != name:
            raise ValueError(f"it is group {document['name']!r}")
        rows = document["assignment"]
        if not isinstance(rows, list):
            raise ValueError("the assignment is not a list")  # noqa: TRY004 - as for numbers
        return GroupMetadata(
            name=name,
            stream=text_value(document["stream"]),
            stream_created_ms=whole_number(document["stream_created_ms"]),
            changed_ms=whole_number(document["changed_ms"]),
            generation=whole_number(document["generation"]),
            first_partitions=whole_number(document["first_partitions"]),
            resets=whole_number(document["resets"]),
            assignment={text_value(partition): text_value(member) for partition, member in rows},
        )
    except (ValueError, TypeError) as error:
        raise MetadataCorrupt(f"{_what(name)}: {error}") from None


def _what(name: str) -> str:
    return f"metadata of consumer group {name!r}"
