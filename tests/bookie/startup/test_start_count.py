"""A directory that is older than the metadata says is in doubt, and no other one is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from bookie.startup.cookies import START_COUNT_FILE
from tests.bookie.test_data_integrity import storage_of
from tests.real_cluster import SMALL, RealCluster, real_cluster

SETTINGS: dict[str, Any] = {**SMALL, "counts": (2, 2), "read_cache_bytes": 4 << 20}


def _in_doubt(cluster: RealCluster) -> list[int]:
    directories = storage_of(cluster).directories
    return [n for n, one in enumerate(directories) if one.integrity.state is not None]


async def _write_open_ledgers(cluster: RealCluster) -> None:
    async with cluster.client() as client:
        for _ in range(4):
            writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
            await writer.append(b"entry")


@pytest.mark.parametrize("syncs", [True, False])
async def test_directories_put_back_within_one_boot_are_in_doubt(
    tmp_path: Path, syncs: bool
) -> None:
    """Also where a journal that syncs late has noted the present boot id."""
    async with real_cluster(tmp_path, 1, **SETTINGS, journal_sync_data=syncs) as cluster:
        cluster.boot_id = "one"
        await cluster.stop(0)
        await cluster.start(0)
        await _write_open_ledgers(cluster)
        await cluster.stop(0)
        shutil.copytree(tmp_path / "0", tmp_path / "backup")
        await cluster.start(0)
        await cluster.stop(0)
        shutil.rmtree(tmp_path / "0")
        shutil.move(tmp_path / "backup", tmp_path / "0")
        await cluster.start(0)
        assert _in_doubt(cluster) == [0, 1]


@pytest.mark.parametrize(("victim", "expected"), [("ledgers1", [1]), ("journal1", [1])])
async def test_only_what_depends_on_the_directory_is_in_doubt(
    tmp_path: Path, victim: str, expected: list[int]
) -> None:
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster:
        await _write_open_ledgers(cluster)
        await cluster.stop(0)
        os.remove(tmp_path / "0" / victim / START_COUNT_FILE)
        await cluster.start(0)
        assert _in_doubt(cluster) == expected
        await cluster.stop(0)
        await cluster.start(0)
        assert _in_doubt(cluster) == expected
