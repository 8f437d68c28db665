"""The fixtures that our users get: a cluster in the process, and one in virtual time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trio

from bookie.testing import CrashKind, InProcessCluster, MakeSimulatedCluster, SimCluster
from ledger.errors import InvalidArgument, LedgerError
from stream import Namespace
from tests.effort import scaled

FAILING = """
from bookie.testing import MakeSimulatedCluster, SimCluster


async def story(cluster: SimCluster) -> None:
    assert cluster.simulation.seed % 5 != 3, "a bug of the third seed"


def test_story(simulated_cluster: MakeSimulatedCluster) -> None:
    simulated_cluster.run_seeds(range(10), story)
"""


async def test_appends_go_on_while_bookies_crash_and_return(
    ledgerstream_cluster: InProcessCluster,
) -> None:
    cluster = ledgerstream_cluster
    values = [b"%d" % number for number in range(5)]
    async with Namespace.connect(cluster.uri, "demo", create=True) as namespace:
        async with namespace.writer("clicks", create=True) as writer:
            await writer.append(values[0])
            cluster.crash(cluster.bookies[0])
            assert not cluster.is_up(cluster.bookies[0])
            await writer.append(values[1])
            cluster.restart(cluster.bookies[0])
            assert cluster.is_up(cluster.bookies[0])
            await writer.append(values[2])
            cluster.crash(cluster.bookies[1], CrashKind.POWER_LOST_ALL)
            await writer.append(values[3])
            cluster.restart(cluster.bookies[1])
            await writer.append(values[4])
        async with namespace.reader("clicks") as reader:
            read = [r.value async for batch in reader.read_to_end() for r in batch.records()]
    assert read == values


async def test_what_was_acknowledged_survives_the_loss_of_all_bookies(
    ledgerstream_cluster: InProcessCluster,
) -> None:
    cluster = ledgerstream_cluster
    async with Namespace.connect(cluster.uri, "demo", create=True) as namespace:
        async with namespace.writer("clicks", create=True) as writer:
            await writer.append_many([b"%d" % number for number in range(1000)])
        for bookie in cluster.bookies:
            cluster.crash(bookie, CrashKind.POWER_LOST_TORN)
        for bookie in cluster.bookies:
            cluster.restart(bookie)
        async with namespace.reader("clicks") as reader:
            read = [r.value async for batch in reader.read_to_end() for r in batch.records()]
    assert read == [b"%d" % number for number in range(1000)]


def test_another_process_uses_it_by_its_address(ledgerstream_cluster: InProcessCluster) -> None:
    program = f"""
import trio
from stream import Namespace

async def main() -> None:
    async with Namespace.connect({ledgerstream_cluster.uri!r}, "demo", create=True) as namespace:
        async with namespace.writer("clicks", create=True) as writer:
            print(await writer.append(b"from elsewhere"))

trio.run(main)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "1:0:0\n"


def test_what_cannot_be_is_refused(ledgerstream_cluster: InProcessCluster, tmp_path: Path) -> None:
    up = ledgerstream_cluster.bookies[0]
    with pytest.raises(InvalidArgument, match="is up; crash it first"):
        ledgerstream_cluster.restart(up)
    with pytest.raises(InvalidArgument, match="no bookie 'nobody:1'; there are"):
        ledgerstream_cluster.crash("nobody:1")
    ledgerstream_cluster.crash(up)
    ledgerstream_cluster.crash(up)
    with pytest.raises(InvalidArgument, match="must be 1 to 64"):
        InProcessCluster(tmp_path, bookies=0)
    with pytest.raises(InvalidArgument, match="no directory"):
        InProcessCluster(tmp_path / "nowhere")
    not_entered = InProcessCluster(tmp_path)
    assert InProcessCluster(str(tmp_path)).uri == not_entered.uri
    with pytest.raises(InvalidArgument, match="`with` block"):
        not_entered.crash(not_entered.bookies[0])


def test_the_same_seed_is_the_same_run(simulated_cluster: MakeSimulatedCluster) -> None:
    pause_s = scaled(ci=600, night=1800)

    async def scenario(cluster: SimCluster) -> tuple[float, str]:
        async with cluster.client() as client:
            namespace = Namespace(client, "demo")
            await namespace.ensure()
            async with namespace.writer("clicks", create=True) as writer:
                await cluster.kill_bookie("bookie-0", CrashKind.POWER_LOST_TORN)
                await writer.append(b"x")
                await cluster.start_bookie("bookie-0")
                await trio.sleep(pause_s)
                await writer.append(b"y")
        return trio.current_time(), cluster.simulation.trace_hash()

    runs = [simulated_cluster(seed).run(scenario) for seed in (7, 7, 8)]
    assert runs[0] == runs[1]
    assert runs[0][1] != runs[2][1]
    assert all(seconds > pause_s for seconds, _ in runs)


def test_a_failure_reports_its_seed_and_is_repeated_by_it(tmp_path: Path) -> None:
    (tmp_path / "test_story.py").write_text(FAILING)

    def run(*options: str) -> str:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
        done = subprocess.run(
            [*command, str(tmp_path)], capture_output=True, text=True, timeout=120, cwd=tmp_path
        )
        return done.stdout

    first = run()
    assert "a bug of the third seed" in first
    assert "repeat with: pytest --ledgerstream-seed=3" in first
    assert "1 failed" in run("--ledgerstream-seed=8")
    assert "1 passed" in run("--ledgerstream-seed=4")


def test_an_error_of_the_scenario_comes_out_as_it_is(
    simulated_cluster: MakeSimulatedCluster,
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        raise LedgerError("the program's own")

    with pytest.raises(LedgerError, match="the program's own") as raised:
        simulated_cluster(seed=11).run(scenario)
    assert any("seed 11" in note for note in raised.value.__notes__)


def test_the_plugin_costs_other_projects_nothing() -> None:
    program = (
        "import sys, bookie.testing.pytest_plugin\n"
        "print([name for name in ('trio', 'rocksdict', 'stream') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"
