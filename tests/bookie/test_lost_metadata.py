"""Metadata that is deleted or replaced under a running bookie: it keeps its entries and waits."""

from __future__ import annotations

import re
from contextlib import aclosing
from pathlib import Path

import pytest
import trio

from bookie.core.compaction import CompactionKind
from ledger.errors import MetadataUnavailable
from ledger.metastore.base import Delete
from ledger.metastore.memory import MemoryStore
from tests.real_cluster import SMALL, RealCluster, now_ms, real_cluster


async def _tree(store: MemoryStore, path: str = "/") -> dict[str, bytes]:
    """Returns all nodes below `path`, parents first."""
    found: dict[str, bytes] = {}
    for name in await store.children(path):
        child = f"{path.rstrip('/')}/{name}"
        found[child] = (await store.get(child)).data
        found |= await _tree(store, child)
    return found


async def _wait_kept(cluster: RealCluster, caplog: pytest.LogCaptureFixture) -> None:
    """Waits for rounds of collection that could not determine which ledgers exist."""
    caplog.clear()
    with trio.fail_after(20):
        while len(re.findall("ledgers kept, because|garbage collection put off", caplog.text)) < 3:
            cluster.bookies[0].force_collection(CompactionKind.NONE)
            await trio.sleep(0.02)


async def test_a_bookie_without_its_root_deletes_nothing_and_makes_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with real_cluster(tmp_path, bookies=1, **SMALL) as cluster, cluster.client() as client:
        async with client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as writer:
            for number in range(10):
                await writer.append(b"%d" % number)
        bookie = cluster.bookies[0]
        async with MemoryStore(cluster.tree, now_ms) as operator:
            nodes = await _tree(operator)
            await operator.transaction([Delete(path) for path in reversed(nodes)])
            await _wait_kept(cluster, caplog)
            assert await operator.children("/") == []  # no registration, no root
            assert bookie.storage is not None
            for number in range(10):
                found = await bookie.storage.read(writer.ledger_id, number)
                assert bytes(found).endswith(b"%d" % number)
            with pytest.raises(MetadataUnavailable, match=r"INSTANCEID .* is gone"):
                await bookie.ledgers.list()
            for path, data in nodes.items():
                if "/available/" not in path and "/clients/" not in path:
                    await operator.create(path, data)
            with trio.fail_after(20):
                async with aclosing(bookie.registry.watch_available()) as lists:
                    async for listed in lists:
                        if bookie.bookie_id in listed:
                            break
            assert await bookie.ledgers.list() == [writer.ledger_id]


async def test_a_bookie_in_the_metadata_of_another_cluster_deletes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with real_cluster(tmp_path, bookies=1, **SMALL) as cluster, cluster.client() as client:
        async with client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as writer:
            await writer.append(b"zero")
        bookie = cluster.bookies[0]
        async with MemoryStore(cluster.tree, now_ms) as operator:
            nodes = [path for path in await _tree(operator) if "/L" in path or "/idgen" in path]
            await operator.transaction(
                [Delete(path) for path in reversed(nodes) if "LAYOUT" not in path]
            )
            await operator.put("/ledgers/INSTANCEID", b"another")
        await _wait_kept(cluster, caplog)
        assert bookie.storage is not None
        assert bytes(await bookie.storage.read(writer.ledger_id, 0)).endswith(b"zero")
