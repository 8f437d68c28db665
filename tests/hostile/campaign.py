"""A campaign: attackers and neighbours at two bookies, samples of what they take, and a verdict.

The verdict must not depend on how fast the machine is: it is about counts, sizes and what is there
in the end.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

import trio

from ledger.runtime.logs import PEER_LINES_MAX, PEER_LINES_S
from tests.hostile.attacks import FRAMES, HTTP, KINDS, TLS, Target
from tests.hostile.bookies import (
    GROWTH_BYTES_MAX,
    MIB,
    OWN_LEDGERS,
    AttackedBookie,
    Usage,
    attackers_token,
    configured,
    create_users,
    running,
)
from tests.hostile.neighbour import Neighbour
from tests.hostile.tally import Tally
from tests.tidy.checkout import ROOT

SETTLE_S = 90.0
"""In this time everything of the attackers has to be gone: longer than the bookie lets wait a peer
that begins something and does not end it."""
_SAMPLE_S = 0.5
_USAGE_S = 5.0
_KINDS_OF_LINES = 20
"""Kinds of log lines that peers can cause."""
_OTHER_LINES_MAX = 200
_DESCRIPTORS_MORE_MAX = 16
"""Files that a bookie may have opened meanwhile: entry logs, journals, parts of the index."""
_TASKS_MORE_MAX = 2
_BAD_LINES = re.compile(
    r"Traceback|a bug of this bookie|http request failed|Warning:|CRITICAL|[Ee]xception in"
)

Progress = Callable[[str], None]


@dataclass(slots=True)
class Report:
    """What happened at one bookie."""

    name: str
    tally: Tally = field(default_factory=Tally)
    before: Usage | None = None
    after: Usage | None = None
    peak_bytes: int = 0
    appends: int = 0
    reads: int = 0
    clients: int = 0
    slowest_s: float = 0.0
    log_lines: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Returns it as text."""
        assert self.before is not None
        assert self.after is not None
        looked = ", ".join(f"{count:,} {kind}" for kind, count in self.tally.looked_at.items())
        return [
            f"{self.name}: {looked} in {self.seconds:.0f} s",
            *(f"  {name}: {count:,}" for name, count in sorted(self.tally.answers.items())),
            f"  connections: {dict(self.tally.connections)}",
            f"  memory: {self.before.memory_bytes / MIB:.0f} MiB before, "
            f"{self.peak_bytes / MIB:.0f} at most, {self.after.memory_bytes / MIB:.0f} after",
            f"  tasks: {self.before.tasks} before, {self.after.tasks} after; descriptors: "
            f"{self.before.descriptors}, {self.after.descriptors}; log lines: {self.log_lines}",
            f"  neighbour: {self.appends:,} appends and {self.reads:,} reads of which none failed, "
            f"the slowest pair {self.slowest_s:.2f} s; {self.clients} further clients",
            *(f"  FAILED: {failure}" for failure in self.failures),
        ]


def shares(
    requests: int, http: int | None = None, tls: int | None = None
) -> dict[str, dict[str, int]]:
    """Returns how many requests of each kind each bookie gets: a tenth of them is HTTP, and a tenth
    TLS records, unless these numbers say otherwise; the others are frames."""
    http = requests // 10 if http is None else http
    tls = requests // 10 if tls is None else tls
    frames = max(0, requests - tls - http)
    return {
        "open": {FRAMES: frames - frames // 2, HTTP: http - http // 4},
        "secured": {FRAMES: frames // 2, TLS: tls, HTTP: http // 4},
    }


async def run(
    directory: Path,
    wanted: dict[str, dict[str, int]],
    seed: int,
    progress: Progress = lambda _: None,
    *,
    is_checked: bool = False,
) -> list[Report]:
    """Attacks bookies at the same time; returns a report of each. `is_checked`: see `running`."""
    reports = [Report(name) for name in wanted]
    async with trio.open_nursery() as nursery:
        for number, report in enumerate(reports):
            bookie = configured(directory / report.name, secure=report.name == "secured")
            nursery.start_soon(
                _attack_one, bookie, wanted[report.name], seed * 10 + number, report, progress,
                is_checked,
            )  # fmt: skip
    return reports


async def _attack_one(
    bookie: AttackedBookie,
    wanted: dict[str, int],
    seed: int,
    report: Report,
    progress: Progress,
    is_checked: bool,
) -> None:
    neighbour = Neighbour(bookie, Random(seed))
    async with running(bookie, is_checked=is_checked):
        if bookie.is_secure:
            await create_users(bookie)
        async with trio.open_nursery() as nursery:
            await nursery.start(neighbour.run)
            report.before = await bookie.usage()
            report.peak_bytes = report.before.memory_bytes
            begun_at = time.monotonic()
            target = Target(
                name=bookie.name, port=bookie.port, http_port=bookie.http_port,
                tls_port=bookie.tls_port, token=attackers_token() if bookie.is_secure else "",
                ledgers=ledgers(bookie, neighbour.ledger_id),
            )  # fmt: skip
            async with trio.open_nursery() as sampling:
                sampling.start_soon(_sample, bookie, report)
                await _run_attacker(target, wanted, seed, report, progress)
                sampling.cancel_scope.cancel()
            report.seconds = time.monotonic() - begun_at
            report.after = await _settled(bookie, report.before)
            neighbour.stop()
        report.appends, report.reads = len(neighbour.entries), neighbour.reads
        report.clients, report.slowest_s = neighbour.clients, neighbour.slowest_s
    judge(report, bookie)


def ledgers(bookie: AttackedBookie, neighbours: int) -> tuple[int, ...]:
    """Returns the ledgers that attackers know: the neighbour's, their own, and some of nobody."""
    others = range(1 << 30, (1 << 30) + (5 if bookie.is_secure else 1000))
    own = tuple(OWN_LEDGERS) * 3 if bookie.is_secure else ()
    return (*own, *([neighbours] * 20), *others)


async def _run_attacker(
    target: Target, wanted: dict[str, int], seed: int, report: Report, progress: Progress
) -> None:
    command = [sys.executable, "-m", "tests.hostile.attacker"]
    given = json.dumps({"target": asdict(target), "wanted": wanted, "seed": seed}) + "\n"
    process = await trio.lowlevel.open_process(command, stdin=-1, stdout=-1, cwd=ROOT)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        await process.stdin.send_all(given.encode())
        pending = b""
        async for data in process.stdout:
            *lines, pending = (pending + data).split(b"\n")
            if lines:
                report.tally.replace(json.loads(lines[-1]))
                counts = ", ".join(
                    f"{report.tally.looked_at[kind]:,} of {count:,} {kind}"
                    for kind, count in wanted.items()
                )
                progress(f"{target.name}: {counts}; {report.peak_bytes / MIB:.0f} MiB")
        code = await process.wait()
        if code:
            report.failures.append(f"the attacker ended with exit code {code}")
    finally:
        process.kill()
        await process.wait()


async def _sample(bookie: AttackedBookie, report: Report) -> None:
    asked_at = float("-inf")
    while True:
        report.peak_bytes = max(report.peak_bytes, bookie.memory_bytes())
        if trio.current_time() - asked_at > _USAGE_S:
            asked_at = trio.current_time()
            await bookie.usage()  # an operator is a neighbour, too
        await trio.sleep(_SAMPLE_S)


async def _settled(bookie: AttackedBookie, before: Usage) -> Usage:
    """Returns what the bookie takes once everything of the attackers is gone, or too late."""
    deadline = trio.current_time() + SETTLE_S
    while True:
        after = await bookie.usage()
        if not leftovers(before, after) or trio.current_time() > deadline:
            return after
        await trio.sleep(_SAMPLE_S)


def leftovers(before: Usage, after: Usage) -> list[str]:
    """Returns what the attackers left behind."""
    found = []
    if after.tasks > before.tasks + _TASKS_MORE_MAX:
        found.append(f"{after.tasks - before.tasks} tasks are left")
    if after.connections > before.connections + _TASKS_MORE_MAX:
        found.append(f"{after.connections - before.connections} connections are left")
    if after.descriptors > before.descriptors + _DESCRIPTORS_MORE_MAX:
        found.append(f"{after.descriptors - before.descriptors} descriptors are left")
    return found


def judge(report: Report, bookie: AttackedBookie) -> None:
    """Adds to the report what must not be."""
    failures, before, after = report.failures, report.before, report.after
    assert before is not None
    assert after is not None
    failures += leftovers(before, after)
    grown = report.peak_bytes - before.memory_bytes
    if grown > GROWTH_BYTES_MAX:
        failures.append(f"the bookie grew by {grown / MIB:.0f} MiB")
    code = bookie.process.returncode if bookie.process is not None else None
    if code != 0:
        failures.append(f"the bookie ended with exit code {code}")
    lines = bookie.log.read_text(errors="replace").splitlines()
    report.log_lines = len(lines)
    failures += [f"in the log: {line}" for line in lines if _BAD_LINES.search(line)][:10]
    periods = report.seconds / PEER_LINES_S + 2
    bound = _OTHER_LINES_MAX + _KINDS_OF_LINES * PEER_LINES_MAX * periods
    if len(lines) > bound:
        failures.append(f"{len(lines)} lines in the log, where {bound:.0f} are allowed")
    for attack, count in report.tally.stuck.items():
        failures.append(f"{count} connections of {attack} had no answer for a minute")
    failures += [
        f"{count} answers {name!r}"
        for name, count in report.tally.answers.items()
        if re.search(r": (500|IO_ERROR)$", name)
    ]


def total(reports: Sequence[Report]) -> Counter[str]:
    """Returns how many requests of each kind were looked at."""
    found = Counter(dict.fromkeys(KINDS, 0))
    for report in reports:
        found.update(report.tally.looked_at)
    return found
