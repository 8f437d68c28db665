"""Another user of the machine can read nothing that a cluster writes, whatever the umask was."""

from __future__ import annotations

import pytest

from tests.attacks.clusters import AttackedCluster

pytestmark = pytest.mark.system


def test_the_files_of_a_cluster_are_its_owners_alone(target: AttackedCluster) -> None:
    """The clusters of these tests are started with the umask 0."""
    top = target.processes.directory
    names = {"cluster.db", "standalone.toml", "bookie.toml", "bookie.log", "journal", "index"}
    # What RocksDB makes itself is within a closed directory.
    closed = [top, *(path for path in top.rglob("*") if "index" not in path.parts[:-1])]
    assert names <= {path.name for path in closed}
    assert [str(path) for path in closed if path.stat().st_mode & 0o077] == []
    assert "every user of this machine" not in target.processes.logs()
