"""`many-ledgers`: one bookie with a million ledgers of one entry each, and one with a thousand.

Both get the same number of entries of the same size; only the number of ledgers differs. Requests
go directly to the bookie: this does not measure how the metadata store handles a million ledgers,
so garbage collection, which would query it, is disabled. Adds and reads alternate between the two
bookies, `_SLICE` at a time, so that other load on the machine affects both.

The comparisons:

- `add`: the first entry of a new ledger, against the next entry of an existing ledger.
- `read_disk`: random entries, none twice. The bookie has just been started, its files are not in
  the page cache, and read-ahead is off (`read_ahead_entries_max = 1`): otherwise a thousand reads
  of 256 KiB would fetch all entries of a thousand ledgers, and the rest of the sample would compare
  memory with the disk. The data around a small read is in the page cache afterwards
  (`bookie/storage/disk/reads.py`), on both sides.
- `read_memory`: the same entries again. All are in the read cache, on both sides.
- `read_ahead`: random entries with the default settings, while the earlier adds are written to
  entry logs. With a thousand ledgers most of these reads find entries that an earlier one fetched.
  With one entry per ledger the neighbours belong to other ledgers, so that only the page cache can
  help.

`..._disk_bytes` is the number of bytes that the bookie's process fetched from the disk per read, as
the kernel counts them: it shows which of these cases was really measured.
"""

from __future__ import annotations

import math
import os
import random
import time
from array import array
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import trio

from benchmarks.cluster import Phase, cpu_s, temporary_directory
from benchmarks.report import Measured, percentiles
from benchmarks.settings import Settings
from benchmarks.single_bookie import (
    StartedBookie,
    bytes_below,
    bytes_fetched,
    forget_pages,
    free_port,
    memory_mib,
    start_bookie,
    write_config,
)
from ledger.client import LedgerClient
from ledger.core.entry import Digest, DigestType, master_key
from ledger.errors import Status
from ledger.wire.messages import AddRequest, AddResponse, ReadRequest, ReadResponse

LEDGERS: Final = 1_000_000
FEW: Final = 1000
_PASSWORD: Final = b"many"
_FILLERS, _CALLERS, _SAMPLES, _SLICE = 64, 4, 20_000, 500
_PROBE_S: Final = 0.01
_TIMEOUT_S: Final = 60.0
_SETTINGS: Final = {"garbage_interval_ms": 7 * 24 * 3600 * 1000}
_NOTHING_AHEAD: Final = {"read_ahead_entries_max": 1}

Places = Sequence[tuple[int, int]]


class _World:
    """The entries of one bookie: number `n` belongs to ledger `n mod ledgers`."""

    def __init__(self, client: LedgerClient, bookie: str, ledgers: int, size: int) -> None:
        self._pool, self._bookie, self.ledgers = client.pool, bookie, ledgers
        self._payload = os.urandom(size)
        self._digest = Digest(DigestType.CRC32C, _PASSWORD)
        self._key = master_key(_PASSWORD)

    def place(self, number: int) -> tuple[int, int]:
        entry_id, ledger = divmod(number, self.ledgers)
        return ledger + 1, entry_id

    async def add(self, ledger_id: int, entry_id: int) -> None:
        head, payload = self._digest.encode_entry(
            ledger_id, entry_id, entry_id - 1, (entry_id + 1) * len(self._payload), self._payload
        )
        request = AddRequest(ledger_id, entry_id, self._key, b"".join((head, payload)))
        answer = await self._pool.call(self._bookie, request, timeout_s=_TIMEOUT_S)
        assert isinstance(answer, AddResponse)
        assert answer.status is Status.OK, answer

    async def read(self, ledger_id: int, entry_id: int) -> None:
        request = ReadRequest(ledger_id, entry_id)
        answer = await self._pool.call(self._bookie, request, timeout_s=_TIMEOUT_S)
        assert isinstance(answer, ReadResponse)
        assert answer.status is Status.OK, answer


async def _timed(
    call: Callable[[int, int], Awaitable[None]], places: Iterator[tuple[int, int]], callers: int
) -> array[float]:
    """Makes calls from `callers` tasks, each waiting for its own; measures each call."""
    latencies_ms = array("d")

    async def work() -> None:
        for place in places:
            started_s = time.perf_counter()
            await call(*place)
            latencies_ms.append((time.perf_counter() - started_s) * 1e3)

    async with trio.open_nursery() as nursery:
        for _ in range(callers):
            nursery.start_soon(work)
    return latencies_ms


async def _fill(world: _World, count: int) -> dict[str, Any]:
    """Adds `count` entries while an entry in memory is read a hundred times a second.

    The latency of these reads shows how long the bookie's loop is blocked.
    """
    await world.add(*world.place(0))
    probed_ms = array("d")

    async def probe() -> None:
        while True:
            started_s = time.perf_counter()
            await world.read(*world.place(0))
            probed_ms.append((time.perf_counter() - started_s) * 1e3)
            await trio.sleep(_PROBE_S)

    started_s = time.perf_counter()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(probe)
        await _timed(world.add, (world.place(n) for n in range(1, count)), _FILLERS)
        nursery.cancel_scope.cancel()
    return {
        "fill_entries_per_s": round(count / (time.perf_counter() - started_s)),
        **{f"fill_probe_{name}": value for name, value in percentiles(probed_ms).items()},
        "fill_probe_max_ms": round(max(probed_ms), 1),
    }


async def _idle(bookie: StartedBookie) -> None:
    """Waits until the bookie has finished pending work, such as a checkpoint."""
    for _ in range(120):
        before_s = cpu_s(bookie.process.pid)
        await trio.sleep(0.5)
        if cpu_s(bookie.process.pid) - before_s < 0.03:
            return


class _Side:
    """One of the two bookies, with its measurements."""

    def __init__(self, directory: Path, ledgers: int, count: int, size: int) -> None:
        directory.mkdir()
        self.result: dict[str, Any] = {}
        self.ledgers, self.count = ledgers, count
        self.rng = random.Random(ledgers)
        self.bookie: StartedBookie | None = None
        self._directory = directory
        self._size = size
        self._port = free_port()

    def start(self, changes: Mapping[str, float | bool]) -> StartedBookie:
        """Starts the bookie after dropping its files from the page cache."""
        forget_pages(self._directory)
        config = write_config(self._directory, self._port, {**_SETTINGS, **changes})
        self.bookie = start_bookie(config, self._directory / "bookie.log")
        return self.bookie

    def kill(self) -> None:
        if self.bookie is not None:
            self.bookie.kill()
            self.bookie = None

    async def connect(self, stack: AsyncExitStack) -> _World:
        assert self.bookie is not None
        client = LedgerClient.connect(f"sqlite://{self._directory}/cluster.db")
        pool = await stack.enter_async_context(client)
        return _World(pool, self.bookie.bookie_id, self.ledgers, self._size)

    def look_at_files(self) -> None:
        ledgers = self._directory / "ledgers"
        self.result["index_bytes"] = bytes_below(ledgers / "index")
        self.result["entry_logs"] = len(list(ledgers.glob("*.log")))

    @property
    def samples(self) -> int:
        return min(_SAMPLES, self.count)

    def new_places(self, world: _World) -> Places:
        """Returns calls that add new entries."""
        if self.ledgers == self.count:  # each add is the first word of a ledger
            return [(self.count + n + 1, 0) for n in range(self.samples)]
        return [world.place(self.count + n) for n in range(self.samples)]

    def places(self, world: _World) -> Places:
        """Returns calls that read random entries, none of them twice."""
        return [world.place(n) for n in self.rng.sample(range(self.count), self.samples)]


async def _in_turns(
    name: str,
    sides: Sequence[_Side],
    calls: Sequence[Callable[[int, int], Awaitable[None]]],
    places: Sequence[Places],
) -> None:
    """Runs the calls of both sides, alternating by slices; records their latencies."""
    taken_ms = [array("d") for _ in sides]
    fetched = [0 for _ in sides]
    for begin in range(0, max(map(len, places)), _SLICE):
        for i, side in enumerate(sides):
            assert side.bookie is not None
            pid = side.bookie.process.pid
            before = bytes_fetched(pid)
            part = iter(places[i][begin : begin + _SLICE])
            taken_ms[i] += await _timed(calls[i], part, _CALLERS)
            fetched[i] += bytes_fetched(pid) - before
    for i, side in enumerate(sides):
        side.result |= {f"{name}_{key}": value for key, value in percentiles(taken_ms[i]).items()}
        if name.startswith("read"):
            side.result[f"{name}_disk_bytes"] = round(fetched[i] / len(places[i]))


async def _write_and_read(sides: Sequence[_Side]) -> None:
    async with AsyncExitStack() as stack:
        worlds = [await side.connect(stack) for side in sides]
        for side, world in zip(sides, worlds, strict=True):
            side.result |= await _fill(world, side.count)
            assert side.bookie is not None
            await _idle(side.bookie)
            rss, rss_most = memory_mib(side.bookie.process.pid)
            side.result |= {"rss_mib": rss, "rss_most_mib": rss_most}
        both = list(zip(sides, worlds, strict=True))
        new_places = [side.new_places(world) for side, world in both]
        await _in_turns("add", sides, [world.add for world in worlds], new_places)
        places = [side.places(world) for side, world in both]
        await _in_turns("read_ahead", sides, [world.read for world in worlds], places)


async def _read_again(sides: Sequence[_Side]) -> None:
    async with AsyncExitStack() as stack:
        worlds = [await side.connect(stack) for side in sides]
        for side, world in zip(sides, worlds, strict=True):
            assert side.bookie is not None
            await world.read(*world.place(0))  # connects
            await _idle(side.bookie)
        places = [side.places(world) for side, world in zip(sides, worlds, strict=True)]
        reads = [world.read for world in worlds]
        await _in_turns("read_disk", sides, reads, places)
        await _in_turns("read_memory", sides, reads, places)


def _measure(sides: Sequence[_Side]) -> Phase:
    started_s = time.perf_counter()
    for side in sides:
        side.start({})
    trio.run(_write_and_read, sides)
    many = sides[-1].bookie
    assert many is not None
    phase = Phase(wall_s=time.perf_counter() - started_s, bookies_cpu_s=cpu_s(many.process.pid))
    for side in sides:
        side.kill()
        side.look_at_files()
        bookie = side.start(_NOTHING_AHEAD)
        side.result["restart_s"] = round(bookie.ready_s, 3)
        side.result["rss_after_restart_mib"] = memory_mib(bookie.process.pid)[0]
    trio.run(_read_again, sides)
    return phase


def many_ledgers(settings: Settings) -> Measured:
    """Adds `--ledgers` entries to the same number of ledgers, and to a thousand ledgers."""
    count = settings.ledgers
    with temporary_directory(settings.dir) as directory:
        few = _Side(directory / "few", min(FEW, count), count, settings.size)
        many = _Side(directory / "many", count, count, settings.size)
        try:
            phase = _measure([few, many])
        finally:
            few.kill()
            many.kill()
    ratios = {
        f"ratio_{name}": round(many.result[name] / few.result[name], 2)
        for name in many.result
        if name.endswith(("p50_ms", "p99_ms"))
        and few.result[name]
        and math.isfinite(few.result[name])
    }
    more = {"few": few.result, "many": many.result, **ratios}
    return Measured(count, count * settings.size, phase, None, more)
