"""Cookies: a foreign or emptied disk is refused; an empty start may have lost entries."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

import bookie.data_integrity
from bookie.bookie import Bookie
from bookie.config import BookieConfig
from bookie.startup.cookies import (
    COOKIE_FILE,
    EMPTIED,
    START_COUNT_FILE,
    UNSYNCED_FILE,
    CookieMismatch,
    check_cookie,
)
from bookie.storage.disk.real_disk import RealDisk
from ledger.errors import UnknownLedgerState
from ledger.metastore.base import MetadataStore
from ledger.metastore.bookies import BookieRegistry
from ledger.metastore.ledgers import LedgerStore
from ledger.metastore.memory import MemoryStore, MemoryTree
from tests.bookie.test_data_integrity import read_if_there, repair_round, storage_of
from tests.real_cluster import SMALL, RealCluster, bookie_of, now_ms, real_cluster


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bookie.data_integrity, "REPAIR_INTERVAL_S", 0.05)


def _write(path: str, data: bytes) -> None:
    Path(path).write_bytes(data)


async def _check(
    found: Bookie,
    store: MetadataStore,
    config: BookieConfig | None = None,
    *,
    bookie_id: str | None = None,
    instance_id: str | None = None,
) -> None:
    """Does what a start of the bookie `found` does first, or of one that differs as given."""
    await check_cookie(
        config or found.config,
        RealDisk(),
        BookieRegistry(store),
        LedgerStore(store),
        bookie_id or found.bookie_id,
        instance_id or found.instance_id,
    )


async def test_a_bookie_allowed_to_start_with_empty_disks_denies_no_entry(tmp_path: Path) -> None:
    settings = {**SMALL, "allow_empty_disk": True}
    async with real_cluster(tmp_path, **settings) as cluster, cluster.client() as client:
        async with client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2) as writer:
            for i in range(20):
                await writer.append(b"%d" % i)
        await cluster.stop(0)
        for kind in ("journal", "ledgers"):
            os.rename(f"{tmp_path}/0/{kind}", f"{tmp_path}/lost-{kind}")
        await cluster.start(0)
        storage = storage_of(cluster)
        while storage.directories[0].integrity.state is not None:
            await repair_round(cluster, 0)
        for i in range(20):
            assert bytes(await storage.read(writer.ledger_id, i)).endswith(b"%d" % i)


async def _empty(cluster: RealCluster, number: int) -> None:
    await cluster.stop(number)
    for kind in ("journal", "ledgers"):
        os.rename(f"{cluster.directory}/{number}/{kind}", f"{cluster.directory}/lost-{kind}")


async def test_a_bookie_whose_cookie_was_deleted_denies_no_entry(tmp_path: Path) -> None:
    """To the cluster it is new, but the metadata of ledgers refers to it."""
    async with real_cluster(tmp_path, **SMALL) as cluster, cluster.client() as client:
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3)
        await writer.append(b"zero")
        name = cluster.bookies[0].bookie_id
        await _empty(cluster, 0)
        async with MemoryStore(cluster.tree, now_ms) as store:
            await BookieRegistry(store).delete_cookie(name)
        await cluster.start(0)
        for entry in (0, 1):
            with pytest.raises(UnknownLedgerState):
                await storage_of(cluster).read(writer.ledger_id, entry)
        [directory] = storage_of(cluster).directories
        assert directory.details().limbo.ledgers == 1
        writer.abandon()


async def test_a_bookie_that_is_really_new_has_no_unverified_directory(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, bookies=1, **SMALL) as cluster, cluster.client() as client:
        async with client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as writer:
            await writer.append(b"zero")
        await cluster.start(1)
        [directory] = storage_of(cluster, 1).directories
        assert directory.integrity.state is None
        assert directory.details().limbo.ledgers == 0
        assert read_if_there(f"{tmp_path}/1/journal/{UNSYNCED_FILE}") is None


async def test_a_new_bookie_that_died_before_it_served_fences_no_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its cookie and is known: a ledger may name it, which it must not take for one of which
    it has forgotten entries."""
    async with real_cluster(tmp_path, bookies=1, **SMALL) as cluster, cluster.client() as client:
        with monkeypatch.context() as patch:
            patch.setattr(Bookie, "_open_storage", AsyncMock(side_effect=OSError("no disk")))
            with pytest.raises(OSError, match="no disk"):
                await cluster.start(1)
        async with client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=1) as writer:
            await writer.append(b"zero")
            metadata = await client.ledger_metadata(writer.ledger_id)
            assert cluster.bookies[1].bookie_id in metadata.fragments[0].bookies
            await cluster.start(1)
            [directory] = storage_of(cluster, 1).directories
            assert directory.integrity.state is None
            await writer.append(b"one")


async def test_allow_empty_disk_accepts_no_directory_with_data(tmp_path: Path) -> None:
    """Its cookies are missing, but the data may be another bookie's."""
    settings = {**SMALL, "allow_empty_disk": True}
    async with real_cluster(tmp_path, bookies=1, **settings) as cluster:
        await cluster.stop(0)
        found = cluster.bookies[0]
        for kind in ("journal", "ledgers"):
            os.remove(f"{tmp_path}/0/{kind}/{COOKIE_FILE}")
        async with MemoryStore(cluster.tree, now_ms) as store:
            with pytest.raises(
                CookieMismatch, match=r"holds (END|index), but no cookie"
            ) as reported:
                await _check(found, store)
        assert "Cure: " in str(reported.value)


async def test_the_cookie_of_another_cluster_is_refused(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, bookies=1, **SMALL) as cluster:
        await cluster.stop(0)
        found = cluster.bookies[0]
        async with MemoryStore(cluster.tree, now_ms) as store:
            with pytest.raises(CookieMismatch, match="of cluster") as reported:
                await _check(found, store, instance_id="another-one")
        said = str(reported.value)
        assert f"is of cluster {found.instance_id}, and at memory: there is cluster another" in said
        assert "Cure: point metadata_uri at the cluster the disks belong to" in said
        assert "same order" not in said  # the cookies are right as they are


async def test_disks_of_a_cluster_create_no_other_cluster(tmp_path: Path) -> None:
    """A mistyped address must not create a new, empty cluster."""
    async with real_cluster(tmp_path, bookies=1, **SMALL) as cluster:
        await cluster.stop(0)
        found = cluster.bookies[0]
        elsewhere, disk = MemoryTree(), RealDisk()
        async with MemoryStore(elsewhere, now_ms) as store:
            with pytest.raises(
                CookieMismatch, match=r"there is no cluster. Cure: point"
            ) as reported:
                await bookie_of(found.config, disk, store).run()
            assert found.instance_id in str(reported.value)
            assert await store.children("/") == []
        disk.close()


async def test_another_id_in_the_right_cluster_is_reported_as_before(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, bookies=1, **SMALL) as cluster:
        await cluster.stop(0)
        found = cluster.bookies[0]
        async with MemoryStore(cluster.tree, now_ms) as store:
            with pytest.raises(
                CookieMismatch, match=r"foreign disk.*Cure: give it the directories"
            ):
                await _check(found, store, bookie_id="another")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # protobuf warns of unknown escapes
@pytest.mark.parametrize("proves_itself", [False, True])
async def test_every_flipped_bit_of_a_cookie_is_refused_or_mended_or_means_the_same(
    tmp_path: Path, proves_itself: bool
) -> None:
    """Refused with a cure. It is written again only if it cannot be read, and the directory has
    this bookie's number of starts."""
    refused: list[str] = []
    mended = 0
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(real_cluster(tmp_path, bookies=1))
        await cluster.stop(0)
        path = f"{tmp_path}/0/ledgers/{COOKIE_FILE}"
        whole = read_if_there(path)
        assert whole is not None
        checker = cluster.bookies[0]
        store = await stack.enter_async_context(MemoryStore(cluster.tree, now_ms))
        if not proves_itself:
            os.remove(f"{tmp_path}/0/ledgers/{START_COUNT_FILE}")
        for at in range(len(whole)):
            for bit in range(8):
                damaged = bytearray(whole)
                damaged[at] ^= 1 << bit
                _write(path, bytes(damaged))
                try:
                    await _check(checker, store)
                except CookieMismatch as error:
                    refused.append(str(error))
                else:
                    mended += read_if_there(path) == whole
        _write(path, whole)
        await cluster.start(0)
    assert len(refused) + mended > 7 * len(whole)
    assert len(refused) > 4 * len(whole), "most of them might be another bookie's"
    assert mended > len(whole) if proves_itself else not mended
    assert all("Cure: " in error for error in refused)


async def _lose_disks(cluster: RealCluster, name: str) -> None:
    await cluster.stop(0)
    for kind in ("journal", "ledgers"):
        os.rename(f"{cluster.directory}/0/{kind}", f"{cluster.directory}/{name}-{kind}")


async def test_allow_empty_disk_permits_one_empty_start(tmp_path: Path) -> None:
    settings = {**SMALL, "allow_empty_disk": True}
    async with real_cluster(tmp_path, **settings) as cluster:
        await _lose_disks(cluster, "first")
        await cluster.start(0)
        await cluster.stop(0)
        await cluster.start(0)  # the setting may stay
        await _lose_disks(cluster, "second")
        found = cluster.bookies[0]
        async with MemoryStore(cluster.tree, now_ms) as store:
            without = replace(found.config, allow_empty_disk=False)
            for directory in (*without.journal_directories, *without.ledger_directories):
                os.makedirs(directory)

            async def check(config: BookieConfig) -> None:
                await _check(found, store, config)

            with pytest.raises(CookieMismatch, match="was used up when it started") as reported:
                await check(found.config)
            assert "allow_empty_disk = false" in str(reported.value)
            with pytest.raises(CookieMismatch, match="copies the missing entries from the other"):
                await check(without)
            await check(found.config)  # it was permitted once more
            await check(found.config)


async def test_an_empty_start_that_was_killed_may_be_repeated(tmp_path: Path) -> None:
    settings = {**SMALL, "allow_empty_disk": True}
    async with real_cluster(tmp_path, **settings) as cluster:
        await _lose_disks(cluster, "lost")
        found = cluster.bookies[0]
        async with MemoryStore(cluster.tree, now_ms) as store:
            registry = BookieRegistry(store)
            for directory in (*found.config.journal_directories, *found.config.ledger_directories):
                os.makedirs(directory)
            for directory in found.config.journal_directories:
                _write(f"{directory}/{UNSYNCED_FILE}", EMPTIED)
            await registry.record_empty_start(found.bookie_id, found.instance_id)
            await _check(found, store)


async def test_cookies_that_differ_are_reported_by_their_fields(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, bookies=1, **SMALL) as cluster:
        await cluster.stop(0)
        found = cluster.bookies[0]
        moved = replace(found.config, ledger_directories=(f"{tmp_path}/elsewhere",))
        os.makedirs(f"{tmp_path}/elsewhere")
        async with MemoryStore(cluster.tree, now_ms) as store:
            with pytest.raises(CookieMismatch) as reported:
                await _check(found, store, moved)
        said = str(reported.value)
        assert "Cookie(" not in said
        assert (
            f"its ledger_directories is {tmp_path}/0/ledgers, expected is {tmp_path}/elsewhere"
            in said
        )
        assert "bookie_id is" not in said  # the same
