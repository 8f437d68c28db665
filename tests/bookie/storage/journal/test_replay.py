"""Replay takes frames in stretches; it must end as if it had taken them one by one."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from bookie.core.caches import WriteCache
from bookie.core.journal import BEGINNING
from bookie.core.journal_frames import FrameCorrupt, encode_explicit_lac, encode_fence
from bookie.core.marks import DirectoryMap
from bookie.storage.index.index import Index
from bookie.storage.journal.journal import Journal
from bookie.storage.journal.replay import ReplayTarget, replay_journal
from bookie.storage.ledger_states import LedgerStates
from bookie.testing.memory_key_value import MemoryKeyValue
from ledger.errors import BookieIoError
from tests.bookie.core.test_caches import KEY, make_entry, make_frame
from tests.bookie.storage.journal.test_journal import commit, running
from tests.bookie.storage.memory_disk import MemoryDisk
from tests.effort import scaled

DELETED = 5
Step = tuple[str, int, int, int]  # what, ledger, number, payload bytes
steps = st.lists(
    st.tuples(
        st.sampled_from(["add"] * 12 + ["flagged", "fence", "lac"]),
        st.integers(0, 5),
        st.integers(0, 40),
        st.sampled_from([0, 0, 7, 300, 2000]),
    ),
    max_size=60,
)


@dataclass
class Twin:
    """What is known after frames were looked at one after the other."""

    entries: dict[tuple[int, int], bytes] = field(default_factory=dict)
    lacs: dict[int, list[int]] = field(default_factory=dict)
    fenced: dict[int, None] = field(default_factory=dict)

    def frame_of(self, step: Step) -> bytes:
        """The step's frame; what it means is noted."""
        kind, ledger, number, size = step
        is_live = ledger != DELETED
        if kind == "fence":
            if is_live:
                self.fenced[ledger] = None
            return encode_fence(ledger, KEY)
        lac = number - 1
        if is_live:
            self.lacs.setdefault(ledger, [-1]).append(lac)
        if kind == "lac":
            packet = struct.pack(">qq", ledger, lac) + b"crc!"
            return encode_explicit_lac(ledger, KEY, lac, packet)
        payload = bytes([number]) * size
        if is_live:
            # Only earlier releases wrote an entry twice: the first one counts.
            self.entries.setdefault((ledger, number), make_entry(ledger, number, payload, lac))
        frame = make_frame(ledger, number, payload, lac)
        return frame[:7] + b"\x02" + frame[8:] if kind == "flagged" else frame


async def journal_with(groups: list[bytes]) -> Journal:
    """A journal to be replayed that holds these groups."""
    disk = MemoryDisk()
    journal = Journal(disk, "journal", rng=random.Random(1), file_bytes_max=1 << 16)
    reader = journal.reader(BEGINNING)
    async for _ in reader.payloads():
        raise AssertionError("not empty")
    await journal.begin(reader)
    async with running(journal):
        for data in groups:
            await commit(journal, data)
    return Journal(disk, "journal", rng=random.Random(2), file_bytes_max=1 << 16)


def taker_of(directory: int, directories: int) -> ReplayTarget:
    cache = WriteCache(bytes_max=1000)  # so large are its own segments, too
    states = LedgerStates(Index(MemoryKeyValue()), cache, 100)
    if DELETED % directories == directory:
        states.deleted(states.create(DELETED, KEY))
    return ReplayTarget(cache, states)


async def replayed(groups: list[bytes], directories: int) -> tuple[list[ReplayTarget], list[int]]:
    """Returns the targets of all directories, and those that `on_progress` named."""
    journal = await journal_with(groups)
    targets = [taker_of(number, directories) for number in range(directories)]
    marks = dict.fromkeys(range(directories), BEGINNING)
    layout = DirectoryMap(journals=1, directories=directories)
    reported: list[int] = []
    await replay_journal(journal, 0, layout, marks, targets, reported.append)
    return targets, reported


@given(groups=st.lists(steps, max_size=4), directories=st.sampled_from([1, 2, 3]))
@settings(max_examples=scaled(ci=60, night=1500), deadline=None)
def test_stretches_leave_what_frames_one_by_one_leave(
    groups: list[list[Step]], directories: int
) -> None:
    twin = Twin()
    payloads = [b"".join(map(twin.frame_of, group)) for group in groups if group]
    targets, reported = trio.run(replayed, payloads, directories)
    assert sum(target.frames for target in targets) == sum(map(len, groups))
    found: dict[tuple[int, int], bytes] = {}
    for number, target in enumerate(targets):
        held = 0
        for ledger, entries in target.cache.active.items():
            assert ledger % directories == number
            for entry_id in entries:
                entry = target.cache.get(ledger, entry_id)
                assert entry is not None
                found[ledger, entry_id] = bytes(entry)
                held += 28 + len(entry)
        assert target.cache.nbytes >= held  # entries that came twice count twice
        assert bool(target.frames) == (number in reported)
    assert found == twin.entries
    for ledger in range(DELETED):
        state = targets[ledger % directories].states.get(ledger)
        assert (state is not None and state.is_fenced) == (ledger in twin.fenced)
        # As on the add path, the last frame of a stretch counts: writers' LACs do not go back.
        lacs = twin.lacs.get(ledger, [-1])
        assert lacs[-1] <= (-1 if state is None else state.lac) <= max(lacs)


async def test_a_long_group_is_taken_in_stretches_that_leave_room_for_checkpoints() -> None:
    """The cache is asked after each segment, not after a group of sixty."""
    data = b"".join(make_frame(1, n, b"x" * 300) for n in range(180))
    _, reported = await replayed([data], 1)
    assert len(reported) >= 60


@pytest.mark.parametrize("cut", [1, 40, 200])
async def test_a_frame_that_is_cut_short_is_refused(cut: int) -> None:
    data = b"".join(make_frame(1, n, b"x" * 300) for n in range(5))
    with pytest.raises(FrameCorrupt):
        await replayed([data[:-cut]], 1)


async def test_frames_of_another_journal_are_refused_in_the_middle_of_a_stretch() -> None:
    journal = await journal_with([b"".join(make_frame(ledger, 0) for ledger in (2, 4, 2, 3, 4))])
    layout = DirectoryMap(journals=2, directories=1)
    with pytest.raises(BookieIoError, match=r"ledger 3, which belongs to journal 1"):
        await replay_journal(
            journal, 0, layout, {0: BEGINNING}, [taker_of(0, 1)], lambda directory: None
        )
