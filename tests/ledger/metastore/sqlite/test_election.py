"""The election of the auditor among processes that share one SQLite file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from ledger.metastore import open_store
from ledger.metastore.election import AuditorElection
from tests.clusters import make_cluster
from tests.ledger.metastore import candidate
from tests.ledger.metastore.test_election import wait_votes
from tests.tidy.checkout import ROOT

PATIENCE_S = 60
TIMEOUT_MS = 1000


class Candidate:
    """A process; `heard` waits for a line of it."""

    def __init__(self, uri: str, bookie_id: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", candidate.__name__, uri, bookie_id, str(TIMEOUT_MS)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    async def heard(self, line: str) -> None:
        output = self._process.stdout
        assert output is not None
        with trio.fail_after(PATIENCE_S):
            read = await trio.to_thread.run_sync(output.readline, abandon_on_cancel=True)
        assert read.decode().strip() == line

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kills the process with -9."""
        self._process.kill()
        with self._process:
            pass


@pytest.fixture
def made() -> Iterator[list[Candidate]]:
    """The processes of the test, which are killed at its end."""
    candidates: list[Candidate] = []
    yield candidates
    for one in candidates:
        one.kill()


@pytest.fixture
async def uri(tmp_path: Path) -> str:
    address = f"sqlite://{tmp_path}/cluster.db"
    await make_cluster(address)
    return address


async def test_an_auditor_that_is_killed_or_paused_hands_over(
    uri: str, made: list[Candidate]
) -> None:
    async with open_store(uri) as store:
        election = AuditorElection(store, "/ledgers")
        made.append(Candidate(uri, "b1"))
        await made[0].heard("elected")
        made.append(Candidate(uri, "b2"))
        await wait_votes(store, 2)
        made[0].kill()
        await made[1].heard("elected")
        assert await election.auditor() == "b2"
        made.append(Candidate(uri, "b3"))
        await wait_votes(store, 2)
        made[1].signal(signal.SIGSTOP)  # its session ends, and it does not know
        await made[2].heard("elected")
        assert await election.auditor() == "b3"
        made[1].signal(signal.SIGCONT)
        await made[1].heard("over")
        await wait_votes(store, 2)
        made[2].kill()
        await made[1].heard("elected")
        assert await election.auditor() == "b2"
