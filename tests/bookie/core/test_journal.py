"""Journal bytes: what a crash may leave is read to its end, what it cannot leave is refused."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookie.core.journal import (
    BLOCK_BYTES,
    COMMIT_NOW,
    GROUP_HEADER_BYTES,
    Buffer,
    CommitPolicy,
    FileHeader,
    GroupHeader,
    JournalCorrupt,
    decode_file_header,
    decode_group_header,
    encode_file_header,
    encode_group_header,
    file_id_of,
    file_name,
    group_bytes,
    group_views,
)
from bookie.core.journal_frames import (
    ExplicitLacFrame,
    FenceFrame,
    FrameCorrupt,
    decode_frame,
    encode_explicit_lac,
    encode_fence,
    iterate_frames,
)
from bookie.core.journal_scan import FileScanner, scan
from tests.effort import scaled

KEY = bytes(range(20))
SALT = 0x1122334455667788


def journal_file(
    payloads: list[bytes], *, file_id: int = 7, first_sequence: int = 1, salt: int = SALT
) -> bytes:
    header = FileHeader(file_id, salt, first_sequence)
    parts = [encode_file_header(header)]
    for sequence, payload in enumerate(payloads, first_sequence):
        parts += [bytes(view) for view in group_views(header, sequence, 1, [payload])]
    return b"".join(parts)


def payloads_of(data: bytes, *, file_id: int = 7, **kwargs: int | None) -> list[bytes]:
    return [bytes(g.payload) for g in scan(file_id, data, **kwargs)]  # type: ignore[arg-type]


def ends_of(payloads: list[bytes]) -> list[int]:
    ends = [BLOCK_BYTES]
    for payload in payloads:
        ends.append(ends[-1] + group_bytes(len(payload)))
    return ends


PAYLOADS = [b"a" * 10, b"b" * 4052, b"c" * 4053, b"d" * 9000, b"e"]


def test_golden_bytes_of_file_and_group_header() -> None:
    assert encode_file_header(FileHeader(1, 2, 3))[:48].hex() == (
        "4c5354524a524e4c"
        "00000001"
        "bc91b587"
        "0000000000000001"
        "0000000000000002"
        "0000000000000003"
        "0000000000000000"
    )
    assert encode_group_header(GroupHeader(5, 1, 2, 3, 4, 6, synced_sequence=2)).hex() == (
        "4c534752000000050000000000000001000000000000000200000000000000030000000400000006119cbda7"
    )


def test_golden_bytes_of_a_late_group_header() -> None:
    """One that was written when the group before it was not durable yet."""
    head = GroupHeader(5, 1, 2, 3, 4, 6, synced_sequence=1)
    packed = encode_group_header(head)
    assert packed.hex() == (
        "4c534755000000050000000000000001000000000000000200000000000000030000000400000006"
        "0000000000000001"
        "df638bcc"
    )
    assert len(packed) == head.header_bytes == 52
    assert decode_group_header(packed, 0) == head
    for bit in range(8 * len(packed)):
        assert decode_group_header(flipped(packed, bit), 0) is None


def test_group_fills_whole_blocks() -> None:
    assert GROUP_HEADER_BYTES == 44
    assert group_bytes(4052) == BLOCK_BYTES
    assert group_bytes(4053) == 2 * BLOCK_BYTES
    assert len(journal_file(PAYLOADS)) == ends_of(PAYLOADS)[-1]


def test_whole_file_gives_all_groups_in_order() -> None:
    groups = list(scan(7, journal_file(PAYLOADS, first_sequence=40) + bytes(3 * BLOCK_BYTES)))
    assert [bytes(g.payload) for g in groups] == PAYLOADS
    assert [g.sequence for g in groups] == [40, 41, 42, 43, 44]
    assert [g.offset for g in groups] == ends_of(PAYLOADS)[:-1]
    assert [g.end for g in groups] == ends_of(PAYLOADS)[1:]


def test_every_cut_point_gives_the_groups_before_it() -> None:
    data = journal_file(PAYLOADS)
    ends = ends_of(PAYLOADS)
    for cut in range(len(data) + 1):
        expected = PAYLOADS[: max(sum(end <= cut for end in ends) - 1, 0)]
        if cut % 64 == 0 or any(abs(cut - end) < 64 for end in ends):
            assert payloads_of(data[:cut]) == expected, cut
            assert payloads_of(data[:cut] + bytes(len(data) - cut)) in (
                expected,
                PAYLOADS[: len(expected) + 1],  # only zeros of the padding were cut off
            ), cut


@given(
    sizes=st.lists(st.integers(1, 20_000), max_size=8),
    cut=st.integers(0, 200_000),
    read_blocks=st.integers(1, 4),
)
@settings(max_examples=scaled(ci=24, night=600), deadline=None)
def test_any_prefix_of_the_bytes_is_a_prefix_of_the_groups(
    sizes: list[int], cut: int, read_blocks: int
) -> None:
    rng = random.Random(cut)
    payloads = [rng.randbytes(size) for size in sizes]
    data = journal_file(payloads)[:cut]
    found: list[bytes] = []
    scanner = FileScanner("j", 7, len(data), last_sequence=0, read_bytes=read_blocks * BLOCK_BYTES)
    while (wanted := scanner.wanted) is not None:
        offset, size = wanted
        assert size <= max(read_blocks * BLOCK_BYTES, 2 * BLOCK_BYTES, *map(group_bytes, sizes), 0)
        found += [bytes(g.payload) for g in scanner.feed(data[offset : offset + size])]
    count = sum(end <= cut for end in ends_of(payloads)) - 1
    assert found == payloads[: max(count, 0)]
    assert scanner.last_sequence == max(count, 0)


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << (bit % 8)
    return bytes(changed)


@given(st.data())
@settings(max_examples=scaled(ci=60, night=1500), deadline=None)
def test_a_flipped_bit_is_refused_in_earlier_groups_and_ends_the_scan_in_the_last(
    data: st.DataObject,
) -> None:
    whole = journal_file(PAYLOADS)
    ends = ends_of(PAYLOADS)
    which = data.draw(st.integers(0, len(PAYLOADS) - 1), label="group")
    nbytes = GROUP_HEADER_BYTES + len(PAYLOADS[which])  # not the padding
    bit = ends[which] * 8 + data.draw(st.integers(0, nbytes * 8 - 1), label="bit")
    damaged = flipped(whole, bit)
    if which == len(PAYLOADS) - 1:
        assert payloads_of(damaged) == PAYLOADS[:-1]
    else:
        with pytest.raises(JournalCorrupt) as caught:
            payloads_of(damaged)
        assert (caught.value.offset, caught.value.sequence) == (ends[which], which + 1)


def test_damaged_file_header_is_refused_if_a_group_follows() -> None:
    damaged = flipped(journal_file(PAYLOADS), 8 * 20)
    with pytest.raises(JournalCorrupt, match="header is damaged"):
        payloads_of(damaged)
    zeroed = bytes(BLOCK_BYTES) + journal_file(PAYLOADS)[BLOCK_BYTES:]
    with pytest.raises(JournalCorrupt, match="header is damaged"):
        payloads_of(zeroed)


def test_file_named_but_not_begun_is_empty() -> None:
    assert payloads_of(bytes(64 * BLOCK_BYTES)) == []
    assert payloads_of(journal_file(PAYLOADS, file_id=3)) == []  # recycled: still the old bytes
    assert payloads_of(b"") == []


def test_stale_groups_of_a_recycled_file_are_not_taken() -> None:
    stale = journal_file([b"old" * 2000] * 6, file_id=3, first_sequence=1)
    fresh = journal_file(PAYLOADS[:2], first_sequence=10)
    assert payloads_of(fresh + stale[len(fresh) :]) == PAYLOADS[:2]


def test_group_forged_in_an_entry_is_not_taken_without_the_salt() -> None:
    """A client can foresee file id, sequence and offset, and send what looks like a group."""
    forged = journal_file([b"evil"], first_sequence=3, salt=0)[BLOCK_BYTES:]
    fresh = journal_file(PAYLOADS[:2], first_sequence=1)
    assert payloads_of(fresh + forged) == PAYLOADS[:2]
    honest = journal_file([b"evil"], first_sequence=3)[BLOCK_BYTES:]
    assert payloads_of(fresh + honest) == [*PAYLOADS[:2], b"evil"]  # the test can fail


def test_groups_missing_between_two_files_are_refused() -> None:
    first = journal_file(PAYLOADS)
    second = journal_file([b"next"], file_id=8, first_sequence=6)
    assert payloads_of(first, last_sequence=0) == PAYLOADS
    assert payloads_of(second, file_id=8, last_sequence=5) == [b"next"]
    with pytest.raises(JournalCorrupt, match=r"begins with group 6, but .* end with group 4"):
        payloads_of(second, file_id=8, last_sequence=4)


def test_group_missing_within_a_file_is_refused() -> None:
    data = journal_file(PAYLOADS)
    ends = ends_of(PAYLOADS)
    with pytest.raises(JournalCorrupt, match="found group 3 in its place") as caught:
        payloads_of(data[: ends[1]] + data[ends[2] :])
    assert caught.value.sequence == 2


def late_journal(synced: list[int], file_id: int = 7) -> bytearray:
    """Groups 1, 2, ... of a block each; `synced[i]` was the last durable one when group i + 1
    was written."""
    header = FileHeader(file_id, SALT, 1)
    parts = [encode_file_header(header)]
    for sequence, synced_sequence in enumerate(synced, 1):
        payload: list[Buffer] = [b"%d" % sequence]
        views = group_views(header, sequence, 1, payload, synced_sequence)
        parts += [bytes(view) for view in views]
    return bytearray(b"".join(parts))


@pytest.mark.parametrize("kept", range(1 << 6))
@pytest.mark.parametrize("synced", [[0] * 6, [0, 1, 1, 1, 4, 4], [0, 1, 2, 3, 4, 5]])
def test_lost_groups_are_a_torn_tail_unless_one_that_is_kept_says_they_were_durable(
    synced: list[int], kept: int
) -> None:
    """All of what power loss, or damage, may leave of six groups."""
    data = late_journal(synced)
    for number in range(1, 7):
        if not kept >> (number - 1) & 1:
            data[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES] = bytes(BLOCK_BYTES)
    whole = next((n for n in range(6) if not kept >> n & 1), 6)
    durable = max((synced[n] for n in range(6) if kept >> n & 1), default=0)
    if durable > whole:
        with pytest.raises(JournalCorrupt, match="Cure"):
            payloads_of(bytes(data))
    else:
        assert payloads_of(bytes(data)) == [b"%d" % (n + 1) for n in range(whole)]


def test_scan_from_a_mark_skips_what_lies_before_it() -> None:
    data = journal_file(PAYLOADS)
    for place, end in enumerate(ends_of(PAYLOADS)):
        assert payloads_of(data, start=end) == PAYLOADS[place:]


def test_damage_before_the_mark_does_no_harm() -> None:
    ends = ends_of(PAYLOADS)
    damaged = flipped(journal_file(PAYLOADS), (ends[1] + 100) * 8)
    assert payloads_of(damaged, start=ends[2]) == PAYLOADS[2:]
    with pytest.raises(JournalCorrupt):
        payloads_of(damaged, start=ends[1])


@pytest.mark.parametrize("start", [BLOCK_BYTES + 1, 3 * BLOCK_BYTES, 100 * BLOCK_BYTES])
def test_mark_that_is_no_end_of_a_group_is_refused(start: int) -> None:
    payloads = [b"x", b"y" * 9000, b"z"]  # groups of 1, 3 and 1 blocks
    with pytest.raises(JournalCorrupt, match="mark"):
        payloads_of(journal_file(payloads), start=start)


def test_header_of_a_later_version_is_not_read_as_ours() -> None:
    assert decode_file_header(encode_file_header(FileHeader(1, 2, 3))) == FileHeader(1, 2, 3)
    later = bytearray(encode_file_header(FileHeader(1, 2, 3)))
    later[11] = 2
    assert decode_file_header(later) is None


def test_file_names() -> None:
    assert file_name(0x1F) == "000000000000001f.journal"
    assert file_id_of("000000000000001f.journal") == 0x1F
    for name in ("spare-1", "1f.journal", "000000000000001F.journal", "lastMark", ".journal"):
        assert file_id_of(name) is None


def test_frames_of_our_own_come_back() -> None:
    fence = encode_fence(2**62, KEY)
    lac = encode_explicit_lac(5, KEY, 99, b"packet")
    add = (52).to_bytes(4, "big") + (0x0201_0002).to_bytes(4, "big") + KEY + bytes(28)
    frames = list(iterate_frames(memoryview(fence + add + lac)))
    assert [decode_frame(frame) for frame in frames] == [
        FenceFrame(2**62, KEY),
        None,
        ExplicitLacFrame(5, KEY, 99, b"packet"),
    ]
    assert bytes(frames[1]) == add


@pytest.mark.parametrize(
    "bad",
    [
        b"\0\0",
        (3).to_bytes(4, "big") + bytes(3),
        (-1).to_bytes(4, "big", signed=True) + bytes(60),
        (100).to_bytes(4, "big") + bytes(60),
        (4).to_bytes(4, "big") + (0x7F09_0000).to_bytes(4, "big"),  # of a later version
        (4).to_bytes(4, "big") + (0x0202_0000).to_bytes(4, "big"),  # a v2 read
        (4).to_bytes(4, "big") + (0x0201_0000).to_bytes(4, "big"),  # an add without an entry
    ],
)
def test_bytes_that_are_no_frame_are_refused(bad: bytes) -> None:
    with pytest.raises(FrameCorrupt):
        list(map(decode_frame, iterate_frames(memoryview(bad))))


def test_commit_has_four_triggers() -> None:
    policy = CommitPolicy(
        group_wait_ms=2, group_bytes_max=1000, group_entries_max=10, flush_when_queue_empty=False
    )
    assert policy.decide(50.0, 50.0, 999, 9, False) == 50.002  # none: wait
    assert policy.decide(50.0, 50.0, 999, 9, True) == 50.002  # switched off
    assert policy.decide(50.002, 50.0, 1, 1, False) == COMMIT_NOW  # waited
    assert policy.decide(50.0, 50.0, 1000, 1, False) == COMMIT_NOW  # bytes
    assert policy.decide(50.0, 50.0, 1, 10, False) == COMMIT_NOW  # entries
    eager = CommitPolicy()
    assert eager.decide(50.0, 50.0, 1, 1, True) == COMMIT_NOW  # queue empty
    assert eager.decide(50.0, 50.0, 1, 10**6, False) > 50.0  # entries are off


@pytest.mark.parametrize(
    ("name", "value"), [("group_wait_ms", -1), ("group_bytes_max", 0), ("group_entries_max", -1)]
)
def test_policy_refuses_what_can_never_work(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=name):
        CommitPolicy(**{name: value})  # type: ignore[arg-type]
