"""What the simulated disk keeps and loses in a crash."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from bookie.testing.disk import CrashKind, DiskOptions, SimDisk
from bookie.testing.inode import SECTOR_BYTES
from bookie.testing.scheduler import Simulation, run_simulated
from tests.effort import scaled

POWER_LOSSES = (CrashKind.POWER_LOST_ALL, CrashKind.POWER_LOST_TORN)


def _on_disk(body: Callable[[SimDisk], Awaitable[None]], seed: int = 0) -> None:
    async def main(simulation: Simulation) -> None:
        await body(SimDisk(simulation, "d"))

    run_simulated(main, seed)


async def _durable_file(disk: SimDisk, path: str, data: bytes) -> None:
    mounted = disk.mount()
    file = await mounted.open(path, is_new=True)
    await file.write_at_synced(0, [data])
    await mounted.sync_directory("")


@pytest.mark.parametrize("kind", list(CrashKind))
def test_synced_bytes_under_a_synced_name_survive_every_crash(kind: CrashKind) -> None:
    async def body(disk: SimDisk) -> None:
        await _durable_file(disk, "f", b"kept" * 1000)
        disk.crash(kind)
        assert await disk.mount().read_file("f") == b"kept" * 1000

    _on_disk(body)


def test_a_killed_process_keeps_what_it_wrote_but_a_lost_machine_does_not() -> None:
    async def body(disk: SimDisk) -> None:
        await _durable_file(disk, "f", b"old")
        file = await disk.mount().open("f")
        await file.write_at(0, [b"n", b"ew"])
        disk.crash(CrashKind.PROCESS_KILLED)
        assert await disk.mount().read_file("f") == b"new"
        disk.crash(CrashKind.POWER_LOST_ALL)
        assert await disk.mount().read_file("f") == b"old"

    _on_disk(body)


def test_torn_writes_mix_old_and_new_sectors_and_never_bytes() -> None:
    sectors = 64
    seen: set[bytes] = set()

    async def body(disk: SimDisk) -> None:
        await _durable_file(disk, "f", b"o" * SECTOR_BYTES * sectors)
        file = await disk.mount().open("f")
        await file.write_at(0, [b"n" * SECTOR_BYTES * sectors])
        disk.crash(CrashKind.POWER_LOST_TORN)
        data = await disk.mount().read_file("f")
        for number in range(sectors):
            sector = data[number * SECTOR_BYTES : (number + 1) * SECTOR_BYTES]
            assert sector in (b"o" * SECTOR_BYTES, b"n" * SECTOR_BYTES)
            seen.add(sector[:1])

    _on_disk(body)
    assert seen == {b"o", b"n"}


@pytest.mark.parametrize("kind", POWER_LOSSES)
def test_names_are_as_durable_as_their_directory(kind: CrashKind) -> None:
    outcomes: list[list[str]] = []

    async def body(disk: SimDisk) -> None:
        await _durable_file(disk, "a", b"1")
        mounted = disk.mount()
        await (await mounted.open("b", is_new=True)).write_at_synced(0, [b"2"])
        await mounted.rename("a", "c")
        await mounted.remove("b")
        assert await mounted.list_directory("") == ["c"]
        disk.crash(kind)
        outcomes.append(await disk.mount().list_directory(""))

    for seed in range(30):
        _on_disk(body, seed)
    legal = [["a"], ["a", "b"], ["b", "c"], ["c"]]
    assert all(outcome in legal for outcome in outcomes)
    if kind is CrashKind.POWER_LOST_ALL:
        assert outcomes == [["a"]] * 30
    else:
        assert all(outcome in outcomes for outcome in legal)


def test_replacing_a_file_leaves_the_old_or_the_new_one_at_every_crash() -> None:
    seen: set[bytes] = set()

    async def body(disk: SimDisk) -> None:
        await _durable_file(disk, "f", b"old")
        mounted = disk.mount()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def replace() -> None:
                    with suppress(OSError):  # dead in the middle of it
                        await mounted.replace_file("f", b"new" * 999)

                nursery.start_soon(replace)
                await trio.sleep(disk.chance.uniform(0, 0.012))
                disk.crash(CrashKind.POWER_LOST_TORN)
                scope.cancel()
        seen.add(await disk.mount().read_file("f"))

    for seed in range(40):
        _on_disk(body, seed)
    assert seen == {b"old", b"new" * 999}


def test_dying_code_cannot_touch_the_disk() -> None:
    async def body(disk: SimDisk) -> None:
        await _durable_file(disk, "f", b"before")
        mounted = disk.mount()
        file = await mounted.open("f")
        store = mounted.open_key_value("kv")
        disk.freeze()
        for attempt in (
            file.write_at(0, [b"after!"]),
            file.sync(),
            mounted.remove("f"),
            mounted.replace_file("f", b""),
            store.flush(),
        ):
            with pytest.raises(OSError, match="dead"):
                await attempt
        with pytest.raises(OSError, match="dead"):
            store.write([(b"k", b"v")])
        assert await disk.mount().read_file("f") == b"before"

    _on_disk(body)


def test_a_write_under_way_at_death_never_lands_later() -> None:
    async def body(disk: SimDisk) -> None:
        await _durable_file(disk, "f", b"before")
        disk.options.write_max_s = 100
        file = await disk.mount().open("f")
        async with trio.open_nursery() as nursery:

            async def write() -> None:
                with pytest.raises(OSError, match="dead"):
                    await file.write_at_synced(0, [b"after!"])

            nursery.start_soon(write)
            await trio.sleep(0.001)
            disk.crash(CrashKind.POWER_LOST_ALL)
        assert await disk.mount().read_file("f") == b"before"

    _on_disk(body, 1)


def test_a_failed_sync_is_not_made_good_by_the_next_one() -> None:
    async def body(disk: SimDisk) -> None:
        await _durable_file(disk, "f", b"old")
        file = await disk.mount().open("f")
        await file.write_at(0, [b"new"])
        disk.options.sync_error_probability = 1.0
        with pytest.raises(OSError, match="simulated sync error") as caught:
            await file.sync()
        assert caught.value.errno == errno.EIO
        disk.options.sync_error_probability = 0.0
        await file.sync()
        assert file.read_nowait(0, 3) in (b"new", None)
        disk.crash(CrashKind.POWER_LOST_ALL)
        assert await disk.mount().read_file("f") == b"old"

    _on_disk(body)


def test_a_full_disk_refuses_growth_and_a_slow_one_takes_its_time() -> None:
    async def body(disk: SimDisk) -> None:
        disk.options = DiskOptions(capacity_bytes=1000, write_max_s=1.0)
        file = await disk.mount().open("f", is_new=True)
        await file.write_at(0, [bytes(1000)])
        with pytest.raises(OSError, match="full") as caught:
            await file.write_at(1000, [b"x"])
        assert caught.value.errno == errno.ENOSPC
        assert await disk.mount().space("") == (1000, 0)
        disk.options.slow_factor = 1000
        file = await disk.mount().open("f")
        begun_s = trio.current_time()
        await file.write_at(0, [b"slow"])
        assert trio.current_time() - begun_s > 5
        assert file.write_synced_now(0, [b"slow"]) > 5

    _on_disk(body)


def test_rot_is_seen_by_readers() -> None:
    async def body(disk: SimDisk) -> None:
        await _durable_file(disk, "f", b"\x00\x00")
        disk.flip_bit("f", 1, 3)
        assert await disk.mount().read_file("f") == b"\x00\x08"

    _on_disk(body)


Writes = st.lists(st.tuples(st.integers(0, 3000), st.binary(min_size=1, max_size=1200)), max_size=6)


@given(Writes, Writes, st.integers(0, 1000), st.sampled_from(POWER_LOSSES))
@settings(max_examples=scaled(ci=24, night=600), deadline=None)
def test_after_a_power_loss_each_sector_is_a_state_since_the_last_sync(
    synced: list[tuple[int, bytes]],
    unsynced: list[tuple[int, bytes]],
    seed: int,
    kind: CrashKind,
) -> None:
    async def body(disk: SimDisk) -> None:
        await _durable_file(disk, "f", b"")
        file = await disk.mount().open("f")
        for offset, data in synced:
            await file.write_at(offset, [data])
        await file.sync()
        states = [file._inode.read(0, 10_000)]
        for offset, data in unsynced:
            await file.write_at(offset, [data])
            states.append(file._inode.read(0, 10_000))
        disk.crash(kind)
        after = await disk.mount().read_file("f")
        assert len(states[0]) <= len(after) <= len(states[-1])
        for begin in range(0, len(after), SECTOR_BYTES):
            end = min(begin + SECTOR_BYTES, len(after))
            legal = [state[begin:end].ljust(end - begin, b"\0") for state in states]
            cut = [state[begin : len(states[0])].ljust(end - begin, b"\0") for state in states]
            assert after[begin:end] in legal + [part[: end - begin] for part in cut]

    _on_disk(body, seed)


@given(
    st.lists(st.lists(st.tuples(st.binary(max_size=2), st.none() | st.binary(max_size=2)))),
    st.integers(0, 1000),
    st.integers(0, 10),
)
@settings(max_examples=scaled(ci=24, night=600), deadline=None)
def test_a_key_value_store_comes_back_at_a_border_of_batches_not_before_the_flush(
    batches: list[list[tuple[bytes, bytes | None]]], seed: int, flushed: int
) -> None:
    async def body(disk: SimDisk) -> None:
        store = disk.mount().open_key_value("kv")
        twin: dict[bytes, bytes] = {}
        states = [dict(twin)]
        for number, batch in enumerate(batches):
            if number == flushed:
                await store.flush()
                states = [dict(twin)]
            changed = dict(batch)  # no key of a batch is in it twice
            puts = [(key, value) for key, value in changed.items() if value is not None]
            deletes = [key for key, value in changed.items() if value is None]
            store.write(puts, deletes)
            for key in deletes:
                twin.pop(key, None)
            twin.update(puts)
            states.append(dict(twin))
            assert list(store.items(b"", b"\xff" * 3)) == sorted(twin.items())
            for probe in (b"", b"\x10", b"a", b"\xff\xff"):
                below = [key for key in sorted(twin) if b"\x01" <= key <= probe]
                expected = (below[-1], twin[below[-1]]) if below else None
                assert store.floor(probe, b"\x01") == expected
                assert store.get(probe) == twin.get(probe)
        disk.crash(CrashKind.POWER_LOST_TORN)
        after = dict(disk.mount().open_key_value("kv").items(b"", b"\xff" * 3))
        assert after in states

    _on_disk(body, seed)


def test_the_same_seed_tears_the_same_way() -> None:
    async def main(simulation: Simulation) -> tuple[bytes, str]:
        disk = SimDisk(simulation, "d")
        await _durable_file(disk, "f", bytes(50_000))
        file = await disk.mount().open("f")
        await file.write_at(0, [b"n" * 50_000])
        disk.crash(CrashKind.POWER_LOST_TORN)
        return await disk.mount().read_file("f"), simulation.trace_hash()

    first = run_simulated(main, 5)
    assert run_simulated(main, 5) == first
    assert run_simulated(main, 6) != first


def test_disks_apart_are_full_slow_and_failing_each_by_itself() -> None:
    async def body(disk: SimDisk) -> None:
        disk.separate(("/a", "/b"))
        assert disk.volumes.with_files == ["/a", "/b"]
        mounted = disk.mount()
        for directory in ("/a", "/b", "/bb"):
            await mounted.make_directory(directory)
        a, b, beside = [await mounted.open(f"{at}/f", is_new=True) for at in ("/a", "/b", "/bb")]
        assert [await mounted.device(path) for path in ("/a", "/b/f", "/bb/f")] == [2, 3, 1]
        disk.volumes.options["/b"].capacity_bytes = 100
        await b.write_at(0, [bytes(60)])
        await a.write_at(0, [bytes(600)])
        assert await mounted.space("/b") == (100, 40)
        with pytest.raises(OSError, match="/b is full"):
            await b.write_at(60, [bytes(41)])
        disk.volumes.options["/b"].capacity_bytes = 1000
        disk.volumes.options["/b"].sync_error_probability = 1.0
        disk.volumes.options["/a"].slow_factor = 1e4
        with pytest.raises(OSError, match="sync error"):
            await b.sync()
        started_s = trio.current_time()
        await beside.sync()
        assert trio.current_time() - started_s < 1
        await a.sync()
        assert trio.current_time() - started_s > 1

    _on_disk(body)
