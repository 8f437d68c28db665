"""Auto-recovery that is disabled for a maintenance, and processes of it that are killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from ledger.autorecovery.published import read_workers
from ledger.client import LedgerClient
from tests.system.cluster import StandaloneCluster, wait_gone
from tests.system.healing.clusters import bookie_of, copies_lacking, new_cluster, status_of, until

pytestmark = pytest.mark.system

_LEDGERS = 100
_ENTRY = b"e" * 1000
_BYTES_PER_S = 100_000
"""So slow that a process can be killed in the middle."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandaloneCluster]:
    """Five bookies without auto-recovery of their own."""
    cluster = new_cluster(tmp_path / "cluster", 5, "--no-restart", autorecovery=False)
    cluster.start()
    yield cluster
    cluster.stop()


async def _write(client: LedgerClient) -> None:
    for _ in range(_LEDGERS):
        async with client.create_ledger() as writer:
            await writer.append_many([_ENTRY] * 10)


def _lose(cluster: StandaloneCluster, number: int) -> str:
    pid = cluster.pid_of(number)
    os.kill(pid, signal.SIGKILL)
    wait_gone([pid])
    for name in ("journal", "ledgers"):
        shutil.rmtree(cluster.directory / f"bookie-{number}" / name)
    return bookie_of(cluster, number)


def _start_healer(
    cluster: StandaloneCluster, name: str, stack: ExitStack
) -> subprocess.Popen[bytes]:
    options = ("--lost-bookie-recovery-delay-s", "0", "--copy-bytes-per-s", str(_BYTES_PER_S))
    healer = stack.enter_context(cluster.begin("autorecovery", "run", "--name", name, *options))
    assert healer.stdout is not None
    assert b"ready" in healer.stdout.readline()
    return healer


async def _named(client: LedgerClient, bookie: str) -> int:
    found = [await client.ledger_metadata(one) for one in await client.list_ledgers()]
    return sum(bookie in metadata.fragments[0].bookies for metadata in found)


async def _heal(cluster: StandaloneCluster, stack: ExitStack) -> None:
    async with LedgerClient.connect(cluster.uri) as client:
        await _write(client)
        marks = client.underreplication

        async def copied() -> dict[str, int]:
            workers = await read_workers(client.store)
            return {one.worker.rpartition("-")[0]: one.ledgers_healed for one in workers}

        first = _start_healer(cluster, "first", stack)
        cluster.run("autorecovery", "disable")
        lost = _lose(cluster, 2)
        before = await _named(client, lost)
        assert before > _LEDGERS / 3

        async def is_lost() -> bool:
            return bool(status_of(cluster)["exit_code"] != 0)

        await until(is_lost)
        assert await marks.list() == []
        assert (await _named(client, lost), await copied()) == (before, {})

        cluster.run("autorecovery", "enable")

        async def is_under_way() -> bool:
            return sum((await copied()).values()) > 0

        await until(is_under_way)
        first.kill()
        first.wait()
        left = await _named(client, lost)
        assert 0 < left < before
        _start_healer(cluster, "second", stack)

        async def is_healed() -> bool:
            return await _named(client, lost) == 0 and not await marks.list()

        await until(is_healed)

        async def has_second_copied_the_rest() -> bool:
            return (await copied())["second"] >= left  # it reports once per second

        await until(has_second_copied_the_rest)
        assert await copies_lacking(client) == []


def test_nothing_is_copied_while_disabled_and_another_process_ends_what_a_killed_one_began(
    cluster: StandaloneCluster,
) -> None:
    with ExitStack() as stack:
        trio.run(_heal, cluster, stack)
    assert status_of(cluster)["ledgers_below_write_quorum"] == 0
