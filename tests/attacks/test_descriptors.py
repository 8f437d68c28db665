"""More connections than a bookie has descriptors, while it makes files: it continues."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.attacks.attackers import Attacker
from tests.attacks.clusters import AttackedCluster, append
from tests.stream.whole_streams import read_values
from tests.system.cluster import COMMAND, environment, limited_files

pytestmark = pytest.mark.system

MIB = 1 << 20
SOFT, HARD = 200, 256


@pytest.fixture(scope="module", params=["open", "secured"])
def cramped(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AttackedCluster]:
    """A cluster of one bookie with few descriptors."""
    cluster = AttackedCluster(
        tmp_path_factory.mktemp("cramped") / "c",
        is_secured=request.param == "secured",
        bookies=1,
        files_max=(SOFT, HARD),
    )
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.processes.stop()


async def test_descriptors_are_left_for_files(cramped: AttackedCluster) -> None:
    pid = cramped.processes.pid_of(1)
    assert resource.prlimit(pid, resource.RLIMIT_NOFILE)[0] == HARD
    assert "connections_max is 2000, but the process may open" in cramped.processes.logs()
    kinds = ["in clear", "anonymous", "tenant"] if cramped.is_secured else ["open"]
    async with cramped.namespace() as namespace:
        for number, kind in enumerate(kinds, 1):
            await append(namespace, "files", [b"connects"])
            count = 300 if kind in ("open", "in clear") else 80
            async with Attacker(cramped, kind).flood(1, count):
                with trio.fail_after(60):
                    # More than a journal file, and checkpoints of them.
                    await append(namespace, "files", [os.urandom(MIB) for _ in range(18)])
            assert len(await read_values(namespace, "files")) == 19 * number
    assert cramped.processes.pid_of(1) == pid, "the bookie died, and was started again"


def test_too_few_descriptors_end_the_start_with_the_number_needed(tmp_path: Path) -> None:
    settings = tmp_path / "bookie.toml"
    settings.write_text(
        f'metadata_uri = "sqlite://{tmp_path}/cluster.db"\n'
        f'journal_directories = ["{tmp_path}/journal"]\n'
        f'ledger_directories = ["{tmp_path}/ledgers"]\n'
    )
    command = [*COMMAND, "bookie", "run", "--config", str(settings)]
    ended = subprocess.run(
        [*limited_files(100, 100), *command], env=environment(), capture_output=True, check=False
    )
    assert ended.returncode == 1
    assert b"the process may open 100 files" in ended.stderr
    assert not (tmp_path / "journal").exists()
