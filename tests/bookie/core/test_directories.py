"""A list of ledger directories that changes, against a twin that remembers each ledger's place."""

from __future__ import annotations

import json

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from bookie.core.directories import (
    RANGES_MAX,
    SLOTS_MAX,
    DirectoryLayout,
    LedgerRange,
    decode_layouts,
    encode_layouts,
)
from bookie.core.journal import BEGINNING, Mark
from bookie.core.marks import DirectoryMap, StoredMarks, decode_marks, encode_marks

LAST = 2**63 - 1
CHANGES = st.sampled_from(["add", "add", "add", "choose", "forget", "expand", "drop", "start"])


class Twin:
    """A bookie that searches nothing: it has a list of the place of each ledger."""

    def __init__(self, journals: int, directories: int) -> None:
        self.layout = DirectoryLayout.original(journals, [f"/{n}" for n in range(directories)])
        self.places: dict[int, int] = {}
        """The number of the directory in which a ledger, or its tombstone, is."""
        self.lost: dict[int, None] = {}
        """Ledgers of directories that were dropped, until the next start."""
        self.next_ledger = 0
        self.marks: list[dict[int, StoredMarks]] = []
        """Mark files that each directory may have: it may have stored none since."""
        self.names = directories

    @property
    def map(self) -> DirectoryMap:
        layout = self.layout
        changed = layout if layout.generation else None
        return DirectoryMap(layout.journals, len(layout.paths), changed)

    def add(self, ledger_id: int) -> None:
        if self.layout.unsettled:
            return  # a bookie that has not started takes nothing
        number = self.layout.number_of(ledger_id)
        assert self.places.setdefault(ledger_id, number) == number

    def expand(self, count: int) -> None:
        if self.layout.unsettled:
            return
        self.remember_marks()
        new = [f"/{self.names + n}" for n in range(count)]
        self.names += count
        ends = [Mark(2, 10 * journal) for journal in range(self.layout.journals)]
        self.layout = self.layout.expanded(new, list(self.places), self.next_ledger, ends)

    def drop(self, path: str) -> None:
        if len(self.layout.paths) == 1:
            return
        self.remember_marks()
        gone = self.layout.numbers[self.layout.paths.index(path)]
        begin = [Mark(1, 0)] * self.layout.journals
        self.layout = self.layout.dropped([path], begin)
        for ledger_id in [one for one, number in self.places.items() if number == gone]:
            del self.places[ledger_id]
            self.lost[ledger_id] = None

    def start(self) -> None:
        """Puts what was lost in limbo, in the directories that are left."""
        [self.layout] = (
            decode_layouts(encode_layouts([self.layout]))
            if (self.layout.generation)
            else [self.layout]
        )
        if self.layout.unsettled:
            self.layout = self.layout.settled()
        for ledger_id in self.lost:
            self.places[ledger_id] = self.layout.number_of(ledger_id)
        self.lost = {}

    def remember_marks(self) -> None:
        layout = self.map
        self.marks.append(
            {
                layout.number_of(at): layout.to_store(
                    at, 1, dict.fromkeys(layout.journals_of(at), Mark(2, 0))
                )
                for at in range(layout.directories)
            }
        )

    def check(self) -> None:
        layout = self.map
        positions = {number: at for at, number in enumerate(self.layout.numbers)}
        for ledger_id, number in self.places.items():
            assert self.layout.number_of(ledger_id) == number
            assert not layout.may_lack(ledger_id)
            journal, directory = layout.pairs[layout.shard_of(ledger_id)]
            assert (journal, directory) == (ledger_id % layout.journals, positions[number])
            assert layout.directory_of(ledger_id) == directory
        for ledger_id in self.lost:
            assert layout.may_lack(ledger_id)
            assert self.layout.number_of(ledger_id) in self.layout.numbers
        for before in self.marks:
            for number, file in before.items():
                if number in positions:
                    found = layout.check_marks(positions[number], file)
                    journals = layout.journals_of(positions[number])
                    assert tuple(sorted(found.marks)) == journals
                for other in positions:
                    if other != number:
                        with pytest.raises(ValueError, match="it is of ledger directory"):
                            layout.check_marks(positions[other], file)


@given(st.integers(1, 3), st.integers(1, 4), st.data())
def test_every_ledger_stays_where_it_is_over_all_changes(
    journals: int, directories: int, data: st.DataObject
) -> None:
    twin = Twin(journals, directories)
    for change in data.draw(st.lists(CHANGES, max_size=30)):
        if change == "add":
            twin.add(twin.next_ledger)
            twin.next_ledger += data.draw(st.integers(1, 3))
        elif change == "choose":
            twin.add(data.draw(st.one_of(st.integers(-5, 60), st.integers(LAST - 3, LAST))))
        elif change == "forget" and twin.places:
            del twin.places[data.draw(st.sampled_from(sorted(twin.places)))]
        elif change == "expand":
            twin.expand(data.draw(st.integers(1, 3)))
        elif change == "drop":
            twin.drop(data.draw(st.sampled_from(twin.layout.paths)))
        elif change == "start":
            twin.start()
        twin.check()


def test_new_ledgers_are_spread_over_all_directories() -> None:
    layout = DirectoryLayout.original(1, ["/a", "/b"]).expanded(["/c"], [3, 9], 10, [BEGINNING])
    assert [layout.number_of(one) for one in range(10)] == [one % 2 for one in range(10)]
    assert {layout.number_of(one) for one in range(10, 13)} == {0, 1, 2}
    assert layout.marks == {2: {0: BEGINNING}}
    left = layout.dropped(["/a"], [BEGINNING])
    assert left.numbers == (1, 2)
    counts = [sum(left.number_of(one) == n for one in range(10, 610)) for n in (1, 2)]
    assert counts == [300, 300]
    # The number of what was dropped is not used again.
    again = left.settled().expanded(["/a"], [], 700, [BEGINNING])
    assert (again.numbers, again.counts) == ((1, 2, 3), (2, 3, 4))


def test_ledgers_with_chosen_ids_stay_and_new_ones_around_them_are_spread() -> None:
    held = [5, 1000, 2000]
    layout = DirectoryLayout.original(1, ["/a", "/b"]).expanded(["/c"], held, 10, [BEGINNING])
    assert layout.ranges == (
        LedgerRange(0, (0, 1)),
        LedgerRange(10, (0, 1, 2)),
        LedgerRange(1000, (0, 1)),
        LedgerRange(2001, (0, 1, 2)),
    )


def test_a_table_and_a_list_of_ranges_have_a_limit() -> None:
    layout = DirectoryLayout.original(1, [f"/{n}" for n in range(64)])
    for n in range(63):
        layout = layout.dropped([f"/{n}"], [BEGINNING])
        assert all(len(one.slots) <= SLOTS_MAX for one in layout.ranges)
    with pytest.raises(ValueError, match="the last ledger directory cannot be dropped"):
        layout.dropped(["/63"], [BEGINNING])
    layout = DirectoryLayout.original(1, ["/a"])
    for n in range(1, RANGES_MAX):
        layout = layout.expanded([f"/{n}"], [], n, [BEGINNING])
        layout = layout.dropped([f"/{n}"], [BEGINNING]).settled()
    with pytest.raises(ValueError, match="changed too often"):
        layout.expanded(["/b"], [], RANGES_MAX, [BEGINNING])


OLD = DirectoryLayout(
    generation=2,
    journals=2,
    paths=("/a", "/c"),
    numbers=(0, 2),
    counts=(2, 3),
    ranges=(LedgerRange(0, (0, 0, 0, 2)), LedgerRange(17, (0, 0, 2, 0, 2, 2))),
    marks={0: {1: Mark(4, 0)}, 2: {0: Mark(3, 128), 1: Mark(4, 0)}},
    unsettled=(LedgerRange(0, (0, 1)), LedgerRange(17, (0, 1, 2))),
)
BODY = (
    b'[{"generation":2,"journals":2,"directories":[[0,"/a"],[2,"/c"]],"counts":[2,3],'
    b'"ranges":[[0,[0,0,0,2]],[17,[0,0,2,0,2,2]]],'
    b'"marks":[[0,1,4,0],[2,0,3,128],[2,1,4,0]],"unsettled":[[0,[0,1]],[17,[0,1,2]]]}]'
)


def test_the_file_has_these_bytes() -> None:
    assert encode_layouts([OLD]) == b"ledgerstream directories 1 2ace7b95\n" + BODY + b"\n"
    assert decode_layouts(encode_layouts([OLD, OLD.settled()])) == [OLD, OLD.settled()]


@given(st.binary(max_size=200))
def test_a_damaged_file_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_layouts(data)
    body = BODY[: len(data)] + data
    with pytest.raises(ValueError, match=r"."):
        decode_layouts(b"ledgerstream directories 1 %08x\n%s\n" % (crc32c(body), body))


@pytest.mark.parametrize(
    "change",
    [
        {"ranges": []},
        {"ranges": [[0, []]]},
        {"ranges": [[0, [1]]]},
        {"ranges": [[5, [0]], [5, [2]]]},
        {"ranges": [[5, [0]], [4, [2]]]},
        {"directories": []},
        {"directories": [[0, "/a"], [0, "/c"]]},
        {"directories": [[0, "/a"], [3, "/c"]]},
        {"counts": []},
        {"journals": 0},
        {"generation": -1},
        {"marks": [[0]]},
        {"unsettled": [[0, []]]},
    ],
)
def test_a_file_that_contradicts_itself_is_refused(change: dict[str, object]) -> None:
    [whole] = json.loads(BODY)
    body = json.dumps([whole | change]).encode()
    with pytest.raises(ValueError, match=r"list of directories|unpack"):
        decode_layouts(b"ledgerstream directories 1 %08x\n%s\n" % (crc32c(body), body))


def test_the_mark_file_of_a_changed_list_is_one_that_older_versions_refuse() -> None:
    layout = DirectoryMap(2, 2, OLD)
    stored = layout.to_store(1, 9, {0: Mark(5, 6), 1: Mark(7, 8)})
    data = encode_marks(stored)
    assert data[:8] == b"LSMARK\x00\x03"
    assert decode_marks(data) == stored == layout.check_marks(1, stored)
    assert (stored.directory, stored.directories) == (2, 3)
    with pytest.raises(ValueError, match="the file DIRECTORIES, which has the changes, is in none"):
        DirectoryMap(2, 3).check_marks(2, stored)
    # A directory that has none yet begins where it was added.
    assert layout.first_marks(1) == {0: Mark(3, 128), 1: Mark(4, 0)}
    assert layout.first_marks(0) == {0: BEGINNING, 1: Mark(4, 0)}
    # A file of before, without the journal that the directory did not depend on.
    file = DirectoryMap(2, 2).to_store(0, 3, {0: Mark(9, 9)})
    assert layout.check_marks(0, file).marks == {0: Mark(9, 9), 1: Mark(4, 0)}
