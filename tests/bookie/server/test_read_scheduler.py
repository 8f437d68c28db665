"""Limits of concurrent reads of a disk, and of the bytes that each connection receives at once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio
import trio.testing

from bookie.server.read_scheduler import (
    OWN_WAITING_MIN,
    PRIORITY_SLOTS,
    SLOTS,
    ReadLimits,
    ReadScheduler,
)
from bookie.server.requests import Requests
from bookie.storage.disk import real_disk
from bookie.storage.disk.reads import read_through_cache
from bookie.storage.disk.real_disk import RealDisk
from bookie.storage.disk.threads import READ_THREADS_MAX
from ledger.wire import v2
from ledger.wire.messages import ReadRequest, Request
from tests.bookie.server.simulated_server import KIB, SimulatedServer, call, run_server
from tests.bookie.server.test_deferred_replies import connect
from tests.bookie.server.test_server import add


class Owner:
    takes_replies = True

    def takes_beside(self, _: int) -> bool:
        return self.takes_replies


async def test_a_peer_that_takes_replies_again_uses_all_slots() -> None:
    """Every task ended when its requests were set aside: a single new task would be slow."""
    reads, owner = ReadScheduler(1, ReadLimits()), Owner()
    at_once = 0

    async def job() -> None:
        nonlocal at_once
        at_once += 1
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reads.run)
        await trio.testing.wait_all_tasks_blocked()
        owner.takes_replies = False
        for _ in range(100):
            reads.submit(0, owner, job)
        await trio.testing.wait_all_tasks_blocked()
        assert at_once == 0
        owner.takes_replies = True
        reads.resume(owner)
        await trio.testing.wait_all_tasks_blocked()
        assert at_once == SLOTS
        nursery.cancel_scope.cancel()


async def test_a_peer_with_many_requests_has_those_of_no_other_refused() -> None:
    reads, greedy = ReadScheduler(1, ReadLimits(directory_waiting_max=100)), Owner()

    async def job() -> None:
        raise AssertionError("nothing runs")

    assert [reads.submit(0, greedy, job) for _ in range(200)] == [True] * 100 + [False] * 100
    for other in (Owner(), Owner()):
        taken = [reads.submit(0, other, job) for _ in range(2 * OWN_WAITING_MIN)]
        assert taken == [True] * OWN_WAITING_MIN + [False] * OWN_WAITING_MIN


async def test_reads_that_hang_in_one_directory_use_no_slots_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All slots of one directory hang, and many more requests wait; those with priority are served,
    and so are those of the other directory."""
    unblocked, read_all = threading.Event(), read_through_cache

    def hanging(fd: int, offset: int, size: int) -> bytes:
        if offset == 0:
            unblocked.wait(60)
        return read_all(fd, offset, size)

    monkeypatch.setattr(real_disk, "read_through_cache", hanging)
    disk = RealDisk()
    files = []
    for name in ("slow", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "log").write_bytes(bytes(100))
        files.append(await disk.open(str(tmp_path / name / "log")))
    slow, other = files
    try:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for _ in range(READ_THREADS_MAX - PRIORITY_SLOTS):
                    nursery.start_soon(slow.read, 0, 10)
                await trio.testing.wait_all_tasks_blocked()
                assert await slow.read(10, 10) == bytes(10), "a priority slot was used"
                for _ in range(PRIORITY_SLOTS):
                    nursery.start_soon(slow.read, 0, 10)
                await trio.testing.wait_all_tasks_blocked()
                assert await other.read(10, 10) == bytes(10)
                unblocked.set()
    finally:
        unblocked.set()
        for file in files:
            file.close()
        disk.close()
    assert READ_THREADS_MAX > SLOTS + PRIORITY_SLOTS


def test_a_chunk_of_many_small_requests_yields_to_other_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    longest = running = 0
    answer = Requests.answer_nowait

    def counted(self: Requests, *arguments: object) -> bool:
        nonlocal longest, running
        running += 1
        longest = max(longest, running)
        return answer(self, *arguments)  # type: ignore[arg-type]

    class Steps(trio.abc.Instrument):
        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            nonlocal running
            running = 0

    monkeypatch.setattr(Requests, "answer_nowait", counted)

    async def scenario(bookie: SimulatedServer) -> None:
        async with bookie.peer("seeder") as peer:
            await call(peer, add(7, 0))
            await call(peer, add(7, 1))
        read = v2.encode_request(Request(2, 0, ReadRequest(7, 0)))
        trio.lowlevel.add_instrument(Steps())
        greedy = await connect(bookie, "greedy", read * 4000)
        await trio.sleep(1)
        greedy.close()

    run_server(scenario, replies_bytes_max=64 << 20)
    assert 100 < longest <= 500


def test_many_connections_share_the_limit_of_receive_buffers() -> None:
    """A buffer that a busy peer has filled once stays large as long as its connection."""

    async def scenario(bookie: SimulatedServer) -> None:
        cache = bookie.simulated.storage.directories[0].cache
        peers = []
        for number in range(40):
            peers.append(await connect(bookie, f"peer-{number}", b""))
        await trio.sleep(1)
        for number in range(40):
            adds = (add(number, n) for n in range(10_000))  # all new: repeated ones are slow
            frames = b"".join(v2.encode_request(Request(2, 0, one)) for one in adds)
            peers[number].close()
            peers[number] = await connect(bookie, f"peer-{number}", frames)
            await bookie.flush()
        await trio.sleep(1)
        await bookie.flush()
        await bookie.flush()
        held = sum(segment.nbytes for segment in cache.segments.values())
        assert held < 2 * 8192 * KIB, f"{held} bytes in {len(cache.segments)} buffers"
        for peer in peers:
            peer.close()

    run_server(scenario, queued_bytes_max=64 << 20)
