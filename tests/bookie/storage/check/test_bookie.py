"""`bookie check` finds and names every damage a read would meet, and none where there is none."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from crc32c import crc32c

from bookie.core.compaction import CompactionKind
from bookie.core.integrity import CheckReport, Finding, Severity
from bookie.core.integrity_state import IntegrityStage, IntegrityState
from bookie.storage.check.bookie import check_bookie
from bookie.storage.index.index import Index
from bookie.storage.integrity_state import write_integrity_state
from bookie.storage.journal.end_marker import END_FILE
from bookie.testing.memory_key_value import MemoryKeyValue
from ledger.errors import BookieIoError
from tests.bookie.core.test_caches import make_entry
from tests.bookie.storage.garbage.test_compactor import OPTIONS, collect, fill, logs
from tests.bookie.storage.simulated_storage import SimulatedStorage, numbered
from tests.effort import seeds

PAIRS = "ledgers/index"


def payload_of(ledger_id: int, entry_id: int, size: int = 40, lac: int = -1) -> bytes:
    """With its CRC32C in front, as a ledger of that digest type stores it."""
    payload = bytes((entry_id + i) % 251 for i in range(size))
    header = make_entry(ledger_id, entry_id, bytes(size + 4), lac)[:32]
    return crc32c(payload, crc32c(header)).to_bytes(4, "big") + payload


async def filled(simulated: SimulatedStorage) -> None:
    """Ledgers in several logs, some in the journal alone, one compacted away in parts."""
    for i in range(20):
        for ledger in range(1, 6):
            simulated.add(ledger, i, payload_of(ledger, i))
        await simulated.settle()
        if i % 5 == 4:
            await simulated.storage.checkpoint()
    simulated.fence(4)
    simulated.add(7, 0, payload_of(7, 0))
    await simulated.settle()


async def checked(simulated: SimulatedStorage) -> CheckReport:
    """What a check of the stopped bookie says."""
    report = CheckReport()
    journals, directories = simulated.counts
    await check_bookie(
        simulated.disk,
        numbered("journal", journals),
        numbered("ledgers", directories),
        simulated.pairs.__getitem__,
        report,
    )
    return report


def bad(report: CheckReport) -> list[Finding]:
    return [finding for finding in report.findings if finding.severity is not Severity.NOTE]


@pytest.mark.parametrize(("journals", "directories"), [(1, 1), (2, 3)])
async def test_a_bookie_that_was_killed_is_whole(journals: int, directories: int) -> None:
    simulated = SimulatedStorage(options=OPTIONS, journals=journals, directories=directories)
    async with simulated.running():
        await filled(simulated)
    report = await checked(simulated)
    assert report.is_clean, bad(report)
    assert report.entries == 100
    assert report.digests_verified == 100
    assert report.ledgers == 5
    assert report.journal_frames == 2
    assert report.entry_logs == len(logs(simulated))


async def test_after_compaction_and_deletion_it_is_whole() -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        await filled(simulated)
        simulated.deleted[2] = None
        await collect(simulated, CompactionKind.MAJOR)
    report = await checked(simulated)
    assert report.is_clean, bad(report)
    assert report.tombstones == 1


async def test_never_started_directories_are_whole() -> None:
    assert (await checked(SimulatedStorage())).is_clean


def _flip(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _truncate(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def _zero(data: bytearray, rng: random.Random) -> None:
    begin = rng.randrange(len(data))
    end = min(begin + rng.choice([1, 16, 512]), len(data))
    data[begin:end] = bytes(end - begin)


def _swap(data: bytearray, rng: random.Random) -> None:
    blocks = len(data) // 512
    if blocks < 2:
        return
    a, b = (512 * at for at in rng.sample(range(blocks), 2))
    data[a : a + 512], data[b : b + 512] = data[b : b + 512], data[a : a + 512]


async def _bad_reads(simulated: SimulatedStorage) -> dict[tuple[int, int], str]:
    """What is not read as it was written, after a start; never an absence."""
    found = {}
    successor = simulated.reopened()
    async with successor.running():
        for (ledger_id, entry_id), entry in successor.acked.items():
            try:
                got = bytes(await successor.storage.read(ledger_id, entry_id))
            except BookieIoError as error:
                found[ledger_id, entry_id] = str(error)
            else:
                if got != entry:
                    found[ledger_id, entry_id] = "other bytes"
    return found


@pytest.mark.parametrize("damage", [_flip, _truncate, _zero, _swap])
@pytest.mark.parametrize("seed", seeds(ci=20, night=60))
async def test_what_a_read_would_meet_is_found_and_named(
    damage: Callable[[bytearray, random.Random], None], seed: int
) -> None:
    rng = random.Random(seed)
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        await filled(simulated)
    victim = rng.choice(list(logs(simulated)))
    data = simulated.disk.names[victim].data
    before = bytes(data)
    damage(data, rng)
    report = await checked(simulated)
    wrong = await _bad_reads(simulated)
    named = {
        (finding.ledger_id, entry_id)
        for finding in bad(report)
        if finding.ledger_id is not None
        and finding.first_entry is not None
        and finding.last_entry is not None
        for entry_id in range(finding.first_entry, finding.last_entry + 1)
    }
    assert wrong.keys() <= named, (wrong.keys() - named, report.findings)
    assert all(finding.path == victim for finding in bad(report))
    if before == bytes(data):
        assert report.is_clean


async def test_a_lost_log_is_named_with_all_its_entries() -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        await filled(simulated)
    victim = next(iter(logs(simulated)))
    del simulated.disk.names[victim]
    report = await checked(simulated)
    assert {finding.path for finding in bad(report)} == {victim}
    assert "entry log is gone" in bad(report)[0].what


@pytest.mark.parametrize("stage", IntegrityStage)
async def test_a_doubt_of_the_index_is_reported_with_its_reason(stage: IntegrityStage) -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        await filled(simulated)
        state = simulated.storage.state(4)
        assert state is not None
        state.is_limbo = True
        simulated.storage.state_changed(state)
        await simulated.storage.checkpoint()
    write_integrity_state(simulated.pairs[PAIRS], IntegrityState(stage, "the cat was on the disk"))
    report = await checked(simulated)
    assert not report.is_clean
    [finding] = bad(report)
    assert finding.severity is Severity.DOUBT
    assert finding.path == PAIRS
    assert finding.what.endswith(": the cat was on the disk")
    assert ("not known here" in finding.what) == (stage is IntegrityStage.LEDGERS_UNKNOWN)
    assert "Cure: start the bookie" in str(finding)
    [note] = [one for one in report.findings if one.severity is Severity.NOTE]
    assert note.what.startswith("1 ledgers are in limbo")


async def test_an_index_that_is_too_old_is_named() -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        await filled(simulated)
    simulated.pairs[PAIRS] = MemoryKeyValue()
    found = bad(await checked(simulated))
    assert "not the index that was used last" in found[0].what
    assert "rebuild-index" in found[0].cure


async def test_an_index_that_contradicts_itself_is_named() -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        await filled(simulated)
    pairs = simulated.pairs[PAIRS]
    run = next(Index(pairs).runs(1))
    key = b"E" + (1).to_bytes(8, "big")
    value = pairs.get(key + (0).to_bytes(8, "big"))
    assert value is not None
    # The same bytes once more, under the number of the entry after.
    pairs.write([(key + (1).to_bytes(8, "big"), value)])
    pairs.write([], [b"L" + (2).to_bytes(8, "big")])
    found = bad(await checked(simulated))
    assert any("overlap" in finding.what and finding.ledger_id == 1 for finding in found)
    assert any("not its state" in finding.what and finding.ledger_id == 2 for finding in found)
    assert run.first == 0


@pytest.mark.parametrize("seed", seeds(ci=20, night=40))
async def test_damage_in_the_journal_is_found(seed: int) -> None:
    rng = random.Random(seed)
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        for i in range(6):
            simulated.add(1, i, payload_of(1, i))
            await simulated.settle()
    [name] = [name for name in simulated.disk.names if name.endswith(".journal")]
    # Each group takes one block, and of it the header, the frame and no padding is looked at.
    used = 44 + 4 + 4 + 20 + 32 + 44
    group = rng.randrange(1, 7)
    simulated.disk.names[name].data[4096 * group + rng.randrange(used)] ^= 1 << rng.randrange(8)
    report = await checked(simulated)
    [finding] = bad(report)
    assert finding.path == name
    # Damage in the last group is found by the journal's own end marker.
    assert finding.offset == 4096 * (7 if group == 6 else group)
    assert ("acknowledged up to here" in finding.what) == (group == 6)


async def test_a_last_group_that_is_not_whole_is_noted() -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        for i in range(3):
            simulated.add(1, i, payload_of(1, i))
            await simulated.settle()
    [name] = [name for name in simulated.disk.names if name.endswith(".journal")]
    simulated.disk.names[name].data[3 * 4096 + 80] ^= 1
    del simulated.disk.names[f"journal/{END_FILE}"]  # it would show that the journal was complete
    report = await checked(simulated)
    assert report.is_clean
    [note] = report.findings
    assert "looks the same" in note.what
    assert note.offset == 3 * 4096


async def test_a_damaged_note_of_the_end_is_a_doubt() -> None:
    """Without it a journal that lost its last groups looks like one that never had them."""
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        simulated.add(1, 0, payload_of(1, 0))
        await simulated.settle()
    end = simulated.disk.names[f"journal/{END_FILE}"].data
    whole = bytes(end)
    for damaged in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:9], bytes(len(whole)), b""):
        end[:] = damaged
        report = await checked(simulated)
        assert not report.is_clean
        [doubt] = report.findings
        assert (doubt.severity, doubt.path) == (Severity.DOUBT, f"journal/{END_FILE}")
        assert "offset 8192 of 0000000000000001.journal" in doubt.what
        assert "stream verify" in doubt.cure
    end[:] = whole
    assert (await checked(simulated)).is_clean


async def test_no_note_of_the_end_of_a_journal_without_groups_is_no_doubt() -> None:
    """A process killed at its first start leaves this."""
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        simulated.add(1, 0, payload_of(1, 0))
        await simulated.settle()
    for name in [name for name in simulated.disk.names if name.endswith(".journal")]:
        del simulated.disk.names[name]
    simulated.disk.names[f"journal/{END_FILE}"].data[:] = b""
    assert (await checked(simulated)).is_clean


@pytest.mark.parametrize(
    ("own", "expected"),
    [("", "rebuild-index"), (". Cure: make it readable", "make it readable")],
)
async def test_what_is_wrong_with_an_index_is_reported_with_one_cure(
    own: str, expected: str
) -> None:
    simulated = SimulatedStorage(options=OPTIONS)

    def unreadable(path: str) -> MemoryKeyValue:
        raise BookieIoError(f"index {path} cannot be opened{own}")

    report = CheckReport()
    await check_bookie(simulated.disk, ["journal"], ["ledgers"], unreadable, report)
    [finding] = bad(report)
    assert finding.what == f"index {PAIRS} cannot be opened"
    assert expected in finding.cure
    assert str(finding).count("Cure: ") == 1


async def test_missing_journal_files_and_foreign_ones_are_named() -> None:
    simulated = SimulatedStorage(options=OPTIONS, journals=2)
    async with simulated.running():
        for ledger in range(4):
            simulated.add(ledger, 0, payload_of(ledger, 0))
        await simulated.settle()
    names = simulated.disk.names
    first, second = sorted(name for name in names if name.endswith(".journal"))
    names[first], names[second] = names[second], names[first]
    assert any("each other's place" in finding.cure for finding in bad(await checked(simulated)))
    names[first], names[second] = names[second], names[first]
    assert (await checked(simulated)).is_clean


async def test_a_missing_journal_file_is_named() -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        await filled(simulated)
    for name in [name for name in simulated.disk.names if name.endswith(".journal")]:
        del simulated.disk.names[name]
    assert any("missing" in finding.what for finding in bad(await checked(simulated)))


async def test_every_flipped_bit_of_a_mark_is_found() -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        await filled(simulated)
    data = simulated.disk.names["ledgers/lastmark"].data
    for at in range(len(data)):
        for bit in range(8):
            data[at] ^= 1 << bit
            report = await checked(simulated)
            assert [finding.path for finding in bad(report)] == ["ledgers/lastmark"]
            data[at] ^= 1 << bit
    assert (await checked(simulated)).is_clean


async def test_entries_without_a_digest_are_counted_and_no_damage() -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        await fill(simulated)
    report = await checked(simulated)
    assert report.is_clean
    assert report.digests_unknown == 100
