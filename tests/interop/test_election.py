"""Candidates of ours and Apache's auditors in one election: each that is killed hands over."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from tests.clusters import make_cluster
from tests.interop.apache_bookie import AutoRecovery, free_port
from tests.interop.conftest import GetVm
from tests.interop.our_bookies import wait_until_async
from tests.interop.shell import Shell
from tests.interop.timeouts import SESSION_TIMEOUT_MS
from tests.interop.znodes import ELECTION, forget_healer, root_of, znodes, zookeeper_client
from tests.tidy.checkout import ROOT

pytestmark = pytest.mark.interop

CANDIDATE = "tests.ledger.metastore.candidate"


class OurCandidate:
    def __init__(self, uri: str) -> None:
        self.bookie_id = f"127.0.0.1:{free_port()}"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", CANDIDATE, uri, self.bookie_id, str(SESSION_TIMEOUT_MS)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def kill(self) -> None:
        """Kills the process with -9; returns when it has ended."""
        self._process.kill()
        self._process.wait()


@pytest.fixture
def uri(new_root: Callable[[str], str]) -> str:
    return new_root("election")


@pytest.fixture
def apaches(version: str, uri: str, tmp_path: Path) -> Iterator[list[AutoRecovery]]:
    made = [AutoRecovery(version, tmp_path / name, uri) for name in ("first", "second")]
    yield made
    for one in made:
        one.kill()


@pytest.fixture
def ours() -> Iterator[list[OurCandidate]]:
    made: list[OurCandidate] = []
    yield made
    for one in made:
        one.kill()


async def wait_votes(uri: str, count: int) -> None:
    def has_votes() -> bool:
        return sum(name.startswith(f"{ELECTION}/V_") for name in znodes(uri)) == count

    await wait_until_async(has_votes, what=f"there are {count} votes")


@pytest.mark.interop_result(
    area="auto-recovery",
    feature="election with candidates of ours: each that is killed hands over, whoisauditor",
)
async def test_each_auditor_that_is_killed_hands_over_to_the_next_vote(
    version: str,
    uri: str,
    apaches: list[AutoRecovery],
    ours: list[OurCandidate],
    java_vm: GetVm,
    tmp_path: Path,
) -> None:
    await make_cluster(uri)
    with zookeeper_client(uri) as client:
        client.create(f"{root_of(uri)}/cookies")  # an auditor ends where there are none
    first, second = apaches
    shell = Shell(java_vm(version), uri, tmp_path / "shell")
    (tmp_path / "shell").mkdir()

    async def kill(candidate: AutoRecovery | OurCandidate, bookie_id: str) -> None:
        await trio.to_thread.run_sync(candidate.kill)
        await trio.to_thread.run_sync(forget_healer, uri, bookie_id)

    async def wait_auditor(bookie_id: str, votes: int) -> None:
        """Waits until it is named by the election's node and by Apache's shell."""
        await wait_votes(uri, votes)
        data = f'bookieId: "{bookie_id}"\n'.encode()
        await wait_until_async(
            lambda: znodes(uri)[ELECTION].data == data, what=f"{bookie_id} is the auditor"
        )
        assert bookie_id in await shell.run("whoisauditor")

    first.begin()
    await wait_votes(uri, 1)
    ours.append(OurCandidate(uri))
    await wait_votes(uri, 2)
    second.begin()
    await wait_votes(uri, 3)
    ours.append(OurCandidate(uri))
    await wait_auditor(first.bookie_id, 4)
    await kill(first, first.bookie_id)
    await wait_auditor(ours[0].bookie_id, 3)
    await kill(ours[0], ours[0].bookie_id)
    await wait_auditor(second.bookie_id, 2)
    await kill(second, second.bookie_id)
    await wait_auditor(ours[1].bookie_id, 1)
