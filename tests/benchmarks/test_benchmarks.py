"""Benchmarks beside what they measure: processes that take part, names, titles."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import typing
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

import benchmarks.__main__ as program
from benchmarks import children, document
from benchmarks.children import (
    Child,
    ChildEnded,
    child,
    command,
    early_end,
    environment,
    report_of,
    running,
)
from benchmarks.disk import fdatasync_beside
from benchmarks.questions import QUESTIONS, minutes
from stream.cli.bench import bench as bench_command

CHECKOUT = Path(__file__).resolve().parents[2]
NAMES = [name for name in typing.get_args(program.Name) if name != "all"]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As from an installed `ledgerstream`: nothing but what is installed would be found."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path


def test_children_find_the_checkout_from_anywhere(elsewhere: Path) -> None:
    code = "import benchmarks, stream; print(benchmarks.__file__, stream.__file__)"
    said = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=environment(),
        cwd=elsewhere,
        capture_output=True,
        text=True,
        check=True,
    )
    found = [Path(path).parents[1] for path in said.stdout.split()]
    assert found == [CHECKOUT, CHECKOUT]


def test_what_was_in_the_path_is_still_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/one:/two")
    assert environment()["PYTHONPATH"].split(":") == [str(CHECKOUT), "/one", "/two"]


@pytest.mark.parametrize(
    "path", sorted((CHECKOUT / "benchmarks").rglob("*.py")), ids=lambda p: p.stem
)
def test_whatever_is_started_has_that_environment(path: Path) -> None:
    """Without `environment` it would find benchmarks only from within the checkout."""
    text = path.read_text()
    starts = len(re.findall(r"\b(?:Popen|open_process|run_process)\(", text))
    assert len(re.findall(r"env=(?:\{\*\*)?environment\(\)", text)) == starts


def test_the_disk_is_probed_from_anywhere(elsewhere: Path) -> None:
    with fdatasync_beside(elsewhere) as found:
        time.sleep(0.2)
    assert set(found) == {
        "fdatasync_p50_ms", "fdatasync_p99_ms", "fdatasync_p999_ms", "fdatasync_count",
    }  # fmt: skip


def test_a_probe_that_cannot_begin_is_reported(elsewhere: Path) -> None:
    with (
        pytest.raises(ChildEnded, match=r"benchmarks\.disk ended early with exit code 1"),
        fdatasync_beside(elsewhere / "absent"),
    ):
        pytest.fail("it began")


@pytest.mark.parametrize(
    ("module", "wait"),
    [
        ("systems.ledgerstream", Child.receive),
        ("fanout", Child.line),
        ("mixed", Child.receive),
        ("mixed", Child.line),
    ],
)
async def test_one_that_ends_early_is_not_waited_for(
    elsewhere: Path, module: str, wait: Callable[[Child], typing.Awaitable[bytes]]
) -> None:
    arguments = [f"sqlite://{elsewhere}/absent.db", 1, 1, 1, "batches"]
    if module == "systems.ledgerstream":
        arguments.insert(0, "append")
    with trio.fail_after(60):
        with pytest.raises(ChildEnded, match=f"benchmarks.{module} ended early") as ended:
            async with child(module, *arguments) as started:
                await wait(started)
    assert early_end(BaseExceptionGroup("of a nursery", [OSError(), ended.value])) is ended.value
    assert early_end(BaseExceptionGroup("of a nursery", [OSError()])) is None


async def test_what_it_says_is_handed_on_to_the_end_of_the_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = "import sys, time; print(1, end='', flush=True); time.sleep(.2); print(2, flush=True)"
    monkeypatch.setattr(children, "command", lambda *_: [sys.executable, "-c", code])
    async with child("any") as started:
        assert await started.line() == b"12\n"


_CLIENT = """
from contextlib import asynccontextmanager
from benchmarks.systems import drivers

class Client:
    @asynccontextmanager
    async def writer(self, stream):
        async def append(value):
            assert len(value) == 100
        yield append

    async def follow(self, stream):
        while True:
            yield [bytes(100)] * 4

@asynccontextmanager
async def connect(address):
    yield Client()

drivers.main(connect)
"""


@pytest.mark.parametrize(("role", "prefix"), [("append", "s 1000000 "), ("follow", "")])
async def test_a_client_reports_only_when_it_is_asked(role: str, prefix: str) -> None:
    """One that blocked on a full pipe would not send what its peers wait for."""
    program = [sys.executable, "-c", _CLIENT, role, "address", "s"]
    async with running("the client", program, obeys=True) as client:
        assert await client.line() == b"ready\n"
        for count in (5, 3):
            await client.order(f"{prefix}{count}" + " 100" * (role == "append"))
            assert await client.line() == b"done %d\n" % count
        assert len(await report_of(client)) == 3


def test_modules_are_run_as_modules() -> None:
    assert command("disk", 7, "x")[1:] == ["-P", "-m", "benchmarks.disk", "7", "x"]


# ---- names


def test_help_describes_every_name() -> None:
    text = program.bench.__doc__ or ""
    assert [name for name in NAMES if f"{name}: " not in text] == []
    about = bench_command.__doc__ or ""
    assert [name for name in NAMES if not re.search(rf"\b{name}\b", about)] == []


def test_all_runs_every_name_and_help_says_how_long_it_takes() -> None:
    runs = [run for question in QUESTIONS for run in question.runs]
    assert {run.name for run in runs} == set(NAMES)
    for text in (program.bench.__doc__ or "", document.document.__doc__ or ""):
        said = sorted(
            int(found) for found in re.findall(r"\b(\d\d)\b(?=[ \n]+(?:minutes|with|of))", text)
        )
        least, most = minutes(runs, has_peers=False), minutes(runs, has_peers=True)
        assert said == [pytest.approx(least, abs=5), pytest.approx(most, abs=5)]
