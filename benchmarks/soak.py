"""A soak: appends, tails, catch-up reads, deletes and compaction at once, on a real disk.

`python -m benchmarks.soak --minutes 20 --lines soak.jsonl --plot-to docs/soak.svg`. Three bookies
have small caches, journals and entry logs, so that minutes cover what otherwise takes days.
Short-lived and long-lived streams share the entry logs, so that only compaction reclaims space.
Samples are written to a file, one JSON object per line; the exit code is 1 if a verdict is bad.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from array import array
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

import trio
from cyclopts import App

from benchmarks.cluster import stop_all_when_terminated, temporary_directory
from benchmarks.report import machine, percentiles, versions
from benchmarks.single_bookie import (
    StartedBookie,
    bytes_below,
    bytes_of,
    free_port,
    memory_mib,
    start_bookie,
    write_config,
)
from benchmarks.soak_plot import plot
from benchmarks.soak_verdict import SPACE_MAX, Sample, judge
from ledger.client import LedgerClient
from ledger.errors import LedgerError, NoSuchLedger
from stream import EARLIEST, LATEST, Namespace, StreamWriter
from stream.retention.janitor import Janitor

MIB = 1 << 20
_BOOKIES = 3
SETTINGS: dict[str, float | bool] = {
    "write_cache_bytes": 16 * MIB,
    "read_cache_bytes": 8 * MIB,
    "index_cache_bytes": 4 * MIB,
    "journal_file_bytes_max": 16 * MIB,
    "journal_queue_bytes_max": 8 * MIB,
    "entry_log_bytes_max": 12 * MIB,
    "checkpoint_interval_ms": 2000,
    "garbage_interval_ms": 3000,
    "minor_compaction_interval_ms": 6000,
    "major_compaction_interval_ms": 12_000,
    "major_compaction_ratio_max": 0.9,
    "compaction_joins_small_logs": True,
}
SHORT, LONG = "short", "long"
# Ledgers last a few seconds, so that many are created and deleted.
POLICIES = {
    SHORT: {"roll_ms": 3000, "retention_ms": 10_000, "trash_ms": 0},
    LONG: {"roll_ms": 10_000, "retention_bytes": 64 * MIB, "trash_ms": 0},
}
STREAMS = {SHORT: 4, LONG: 3}
_STAMP = struct.Struct(">d")
_SWEEP_S, _PROBE_S, _LINGER_S = 2.0, 0.05, 0.01


@dataclass(slots=True)
class _Seen:
    """Counters since the last sample, and in total."""

    records: int = 0
    records_tailed: int = 0
    records_caught_up: int = 0
    appended_ms: array[float] = field(default_factory=lambda: array("d"))
    tailed_ms: array[float] = field(default_factory=lambda: array("d"))
    failures: list[str] = field(default_factory=list)

    def failed(self, what: str, error: BaseException) -> None:
        if len(self.failures) < 100:
            self.failures.append(f"{what}: {type(error).__name__}: {error}")


class Soak:
    """One run. `rate` is records per second of all streams together, `size` bytes each."""

    def __init__(self, directory: Path, lines: Path | None, *, rate: int, size: int) -> None:
        self.samples: list[Sample] = []
        self.seen = _Seen()
        self._directory = directory
        self._lines = lines
        self._rate, self._size = rate, size
        self._uri = f"sqlite://{directory / 'cluster.db'}"
        self._bookies: list[StartedBookie] = []
        self._started_s = 0.0

    def run(self, seconds: float, settle_s: float, sample_s: float) -> None:
        """Starts bookies, loads them for `seconds`, and then waits up to `settle_s` for them."""
        with ExitStack() as stack:
            for number in range(_BOOKIES):
                directory = self._directory / f"bookie-{number}"
                directory.mkdir()
                config = write_config(
                    directory, free_port(), SETTINGS, self._directory / "cluster.db"
                )
                bookie = start_bookie(config, directory / "bookie.log")
                stack.callback(bookie.kill)
                self._bookies.append(bookie)
            trio.run(self._run, seconds, settle_s, sample_s)
            for number, bookie in enumerate(self._bookies):
                if bookie.process.poll() is not None:
                    log = self._directory / f"bookie-{number}" / "bookie.log"
                    self.seen.failures.append(f"bookie {number} ended: {log.read_text()[-2000:]}")

    async def _run(self, seconds: float, settle_s: float, sample_s: float) -> None:
        self._started_s = trio.current_time()
        async with LedgerClient.connect(self._uri) as client:
            namespaces = {name: Namespace(client, name) for name in POLICIES}
            for name, namespace in namespaces.items():
                await namespace.ensure(**POLICIES[name])  # type: ignore[arg-type]
                for number in range(STREAMS[name]):
                    await namespace.create_stream(f"s{number}")
            async with trio.open_nursery() as nursery:
                for name in namespaces:
                    nursery.start_soon(self._clean, Janitor(client, name))
                await self._load(namespaces, client, seconds, sample_s)
                until_s = trio.current_time() + settle_s
                while trio.current_time() < until_s:
                    await trio.sleep(sample_s)
                    await self._sample(client, is_settling=True)
                    if self.samples[-1].space_ratio <= SPACE_MAX:
                        break
                nursery.cancel_scope.cancel()

    async def _load(
        self,
        namespaces: dict[str, Namespace],
        client: LedgerClient,
        seconds: float,
        sample_s: float,
    ) -> None:
        rate = self._rate / sum(STREAMS.values())
        async with trio.open_nursery() as nursery:
            for name, namespace in namespaces.items():
                for number in range(STREAMS[name]):
                    stream = f"s{number}"
                    for what in (self._tail, self._append):
                        nursery.start_soon(self._kept_up, what, namespace, stream, rate)
            for number in range(2):
                nursery.start_soon(
                    self._kept_up, self._catch_up, namespaces[LONG], f"s{number}", rate
                )
            with trio.move_on_after(seconds):
                while True:
                    await trio.sleep(sample_s)
                    await self._sample(client, is_settling=False)
            nursery.cancel_scope.cancel()

    async def _kept_up(
        self,
        what: Callable[[Namespace, str, float], Awaitable[None]],
        namespace: Namespace,
        stream: str,
        rate: float,
    ) -> None:
        """Restarts a task that failed; each failure makes the verdict bad."""
        while True:
            try:
                await what(namespace, stream, rate)
            except LedgerError as error:
                self.seen.failed(f"{what.__name__.strip('_')} {namespace.name}/{stream}", error)
                await trio.sleep(1)

    # Load on the streams

    async def _append(self, namespace: Namespace, stream: str, rate: float) -> None:
        padding = os.urandom(self._size - _STAMP.size)
        async with namespace.writer(stream) as writer, trio.open_nursery() as nursery:
            nursery.start_soon(self._probe, writer, padding)
            started_s, sent = trio.current_time(), 0
            while True:
                due = int((trio.current_time() - started_s) * rate)
                for _ in range(due - sent):
                    while not writer.has_room:
                        await writer.wait_room()
                    writer.append_nowait(_STAMP.pack(time.perf_counter()) + padding)
                self.seen.records += due - sent
                sent = due
                await trio.sleep(_LINGER_S)

    async def _probe(self, writer: StreamWriter, padding: bytes) -> None:
        """Appends records from one task, which waits for each."""
        while True:
            started_s = time.perf_counter()
            await writer.append(_STAMP.pack(started_s) + padding)
            self.seen.records += 1
            self.seen.appended_ms.append((time.perf_counter() - started_s) * 1e3)
            await trio.sleep(_PROBE_S)

    async def _tail(self, namespace: Namespace, stream: str, _rate: float) -> None:
        async with namespace.reader(stream, start=LATEST) as reader:
            async for batch in reader.batches():
                values = batch.values()
                now_s = time.perf_counter()
                self.seen.records_tailed += len(values)
                self.seen.tailed_ms.append((now_s - _STAMP.unpack_from(values[-1])[0]) * 1e3)

    async def _catch_up(self, namespace: Namespace, stream: str, _rate: float) -> None:
        """Reads from the beginning to the end, repeatedly; skips records that are truncated."""
        async with namespace.reader(stream, start=EARLIEST, on_truncated="earliest") as reader:
            async for batch in reader.read_to_end():
                self.seen.records_caught_up += len(batch.values())
        await trio.sleep(0.5)

    async def _clean(self, janitor: Janitor) -> None:
        while True:
            try:
                report = await janitor.sweep()
                if report.failures:
                    self.seen.failures.append(f"sweep: {report.failures} failures")
            except LedgerError as error:
                self.seen.failed("sweep", error)
            await trio.sleep(_SWEEP_S)

    # Samples

    async def _sample(self, client: LedgerClient, *, is_settling: bool) -> None:
        seen = self.seen
        appended_ms, seen.appended_ms = seen.appended_ms, array("d")
        tailed_ms, seen.tailed_ms = seen.tailed_ms, array("d")
        appended = percentiles(appended_ms) if appended_ms else {}
        tailed = percentiles(tailed_ms) if tailed_ms else {}
        directories = [self._directory / f"bookie-{number}" for number in range(_BOOKIES)]
        live = await self._live_bytes(client)
        sample = Sample(
            seconds=round(trio.current_time() - self._started_s, 1),
            is_settling=is_settling,
            rss_mib=[
                memory_mib(bookie.process.pid)[0] if bookie.process.poll() is None else 0.0
                for bookie in self._bookies
            ],
            log_bytes=[
                bytes_of((one / "ledgers").glob("*.log")) + bytes_below(one / "ledgers" / "index")
                for one in directories
            ],
            journal_bytes=[bytes_below(one / "journal") for one in directories],
            live_bytes=live,
            records=seen.records,
            records_tailed=seen.records_tailed,
            records_caught_up=seen.records_caught_up,
            append_p50_ms=appended.get("p50_ms"),
            append_p99_ms=appended.get("p99_ms"),
            tail_p50_ms=tailed.get("p50_ms"),
            tail_p99_ms=tailed.get("p99_ms"),
            errors=len(seen.failures),
        )
        self.samples.append(sample)
        if self._lines is not None:
            with self._lines.open("a") as file:
                file.write(json.dumps(asdict(sample) | {"space_ratio": sample.space_ratio}) + "\n")

    async def _live_bytes(self, client: LedgerClient) -> int:
        """Returns the payload bytes of all ledgers, which every bookie holds a copy of."""
        total = 0
        for ledger_id in await client.ledgers.list():
            try:
                metadata = await client.ledger_metadata(ledger_id)
                if metadata.is_closed:
                    total += metadata.length
                    continue
                reader = await client.open_ledger(
                    ledger_id, password=metadata.password, recover=False
                )
                async with reader:
                    total += reader.length
            except NoSuchLedger:
                continue  # deleted in the meantime
        return total


def soak(
    *,
    minutes: float = 20.0,
    rate: int = 2000,
    size: int = 1000,
    sample_s: float = 5.0,
    settle_s: float = 180.0,
    parent: Path | None = None,
    lines: Path | None = None,
    plot_to: Path | None = None,
) -> int:
    """Run appends, tails, catch-up reads, deletes and compaction at once, and judge the result.

    Parameters
    ----------
    minutes
        Duration of the load.
    rate
        Records per second over all streams.
    size
        Size of one record in bytes.
    sample_s
        Seconds from one sample to the next.
    settle_s
        How long reclaiming space may take after the last append.
    parent
        Parent of the bookies' temporary directories.
    lines
        File for the samples, one JSON object per line.
    plot_to
        File for the plot, as SVG.
    """
    with temporary_directory(parent) as directory:
        facts = {"machine": machine(directory), "versions": versions()}
        one = Soak(directory, lines, rate=rate, size=size)
        one.run(60 * minutes, settle_s, sample_s)
    verdict = judge(one.samples, one.seen.failures)
    if plot_to is not None:
        plot_to.write_text(plot(one.samples))
    result = {
        "benchmark": "soak",
        "minutes": minutes,
        "rate": rate,
        "size": size,
        "is_good": verdict.is_good,
        **asdict(verdict),
        "last": asdict(one.samples[-1]),
        **facts,
    }
    sys.stdout.write(json.dumps(result) + "\n")
    return 0 if verdict.is_good else 1


if __name__ == "__main__":
    stop_all_when_terminated()
    app = App(name="python -m benchmarks.soak", result_action="return_value", version_flags=[])
    app.default(soak)
    sys.exit(app(sys.argv[1:]))
