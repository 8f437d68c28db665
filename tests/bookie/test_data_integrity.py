"""Entries that a bookie may have lost are unknown until they are copied back; then limbo ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import bookie.data_integrity
from bookie.core.integrity_state import (
    IntegrityStage,
    IntegrityState,
    decode_integrity_state,
    encode_integrity_state,
)
from bookie.startup.cookies import UNSYNCED_FILE
from bookie.storage.bookie_storage import BookieStorage
from bookie.storage.check.index_rebuild import IndexRebuild
from bookie.storage.disk.real_disk import RealDisk
from bookie.storage.index.index import Index
from bookie.storage.index.rocksdb import RocksStores
from ledger.client import LedgerClient
from ledger.core.availability import expected_ranges, missing_ranges
from ledger.core.entry import DigestType
from ledger.core.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.core.quorum import entries_held
from ledger.errors import BookieUnavailable, LedgerFenced, NoSuchLedger, Status, UnknownLedgerState
from ledger.metastore.ledgers import LedgerStore
from ledger.wire.messages import ReadRequest
from tests.real_cluster import SMALL, RealCluster, real_cluster


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bookie.data_integrity, "REPAIR_INTERVAL_S", 0.05)


# --- pure


@st.composite
def closed_ledgers(draw: st.DrawFn) -> LedgerMetadata:
    size = draw(st.integers(1, 4))
    quorum = draw(st.integers(1, size))
    firsts = sorted(draw(st.sets(st.integers(1, 30), max_size=3)) | {0})
    names = [f"b{n}" for n in range(6)]
    fragments = [Fragment(at, tuple(draw(st.permutations(names))[:size])) for at in firsts]
    return LedgerMetadata(
        ledger_id=1,
        ensemble_size=size,
        write_quorum=quorum,
        ack_quorum=1,
        state=LedgerState.CLOSED,
        fragments=tuple(fragments),
        digest_type=DigestType.CRC32C,
        last_entry_id=draw(st.integers(-1, 40)),
    )


def _plainly(metadata: LedgerMetadata, name: str) -> Iterator[int]:
    for entry_id in range(metadata.last_entry_id + 1):
        bookies = metadata.fragment_of(entry_id).bookies
        if name in bookies:
            yield from entries_held(
                bookies.index(name),
                entry_id,
                entry_id,
                metadata.ensemble_size,
                metadata.write_quorum,
            )


@given(closed_ledgers())
def test_expected_entries_are_those_of_the_write_sets(metadata: LedgerMetadata) -> None:
    for name in ("b0", "b5"):
        ranges = list(expected_ranges(metadata, name))
        ids = [entry for first, last in ranges for entry in range(first, last + 1)]
        assert ids == list(_plainly(metadata, name))


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)))
def test_missing_entries_are_the_expected_ones_that_are_not_stored(
    expected: set[int], held: set[int]
) -> None:
    def ranges(ids: set[int]) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for at in sorted(ids):
            if found and found[-1][1] == at - 1:
                found[-1] = (found[-1][0], at)
            else:
                found.append((at, at))
        return found

    missing = list(missing_ranges(ranges(expected), ranges(held)))
    assert {e for first, last in missing for e in range(first, last + 1)} == expected - held


def test_an_unreadable_integrity_state_is_the_worst() -> None:
    doubt = IntegrityState(IntegrityStage.LEDGERS_IN_LIMBO, "why")
    assert decode_integrity_state(encode_integrity_state(doubt)) == doubt
    for first in range(256):
        stage = decode_integrity_state(bytes([first]) + b"why").stage
        assert (stage is IntegrityStage.LEDGERS_IN_LIMBO) == (first == 2)
    assert decode_integrity_state(b"").stage is IntegrityStage.LEDGERS_UNKNOWN


# --- with real files


async def repair_round(cluster: RealCluster, number: int) -> None:
    """Returns after a round of repairs."""
    repair = cluster.bookies[number].limbo_repair
    assert repair is not None
    with trio.fail_after(30):
        await repair.round_ended.wait()


def storage_of(cluster: RealCluster, number: int = 0) -> BookieStorage:
    storage = cluster.bookies[number].storage
    assert storage is not None
    return storage


def _lose_logs(directory: str) -> None:
    for log in Path(directory).glob("*.log"):
        log.unlink()
    Path(directory, "index", "CURRENT").unlink()


def read_if_there(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        return None


def _write(path: str, data: bytes) -> None:
    Path(path).write_bytes(data)


async def ask(client: LedgerClient, name: str, ledger_id: int, entry_id: int) -> Status:
    """Returns the reply to a request. Retries, since a bookie that was just restarted may not serve
    yet."""
    with trio.fail_after(60):
        while True:
            with suppress(BookieUnavailable):
                answer = await client.pool.call(
                    name, ReadRequest(ledger_id, entry_id), timeout_s=10
                )
                status: Status = answer.status
                return status
            await trio.sleep(0.01)


async def _in_limbo(cluster: RealCluster, number: int) -> int:
    [directory] = storage_of(cluster, number).directories
    return len(await directory.integrity.ledgers_in_limbo(-1, 100))


async def _rebuilt(cluster: RealCluster, number: int, *, loses_logs: bool) -> None:
    directory = f"{cluster.directory}/{number}/ledgers"
    if loses_logs:
        _lose_logs(directory)
    disk = RealDisk()
    await IndexRebuild(disk, directory, RocksStores(disk)).run()
    disk.close()


async def test_lost_entries_are_unknown_and_then_fetched_from_other_bookies(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, **SMALL) as cluster, cluster.client() as client:
        async with client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3) as open_one:
            await open_one.append(b"still open")
            async with client.create_ledger(
                ensemble_size=3, write_quorum=2, ack_quorum=2
            ) as closed:
                for i in range(200):
                    await closed.append(b"%d" % i * 50)
            name = cluster.bookies[0].bookie_id
            await storage_of(cluster).checkpoint()
            before = {e: await ask(client, name, closed.ledger_id, e) for e in range(200)}
            await cluster.stop(0)
            await _rebuilt(cluster, 0, loses_logs=True)
            await cluster.start(0)
            # The open ledger was never closed: it stays in limbo.
            storage = storage_of(cluster)
            with pytest.raises(UnknownLedgerState):
                await storage.read(open_one.ledger_id, 0)
            while closed.ledger_id in await storage.directories[0].integrity.ledgers_in_limbo(
                -1, 9
            ):
                await repair_round(cluster, 0)
                await storage.checkpoint()
            for entry, status in before.items():
                assert await ask(client, name, closed.ledger_id, entry) is status, entry
            state = storage.state(open_one.ledger_id)
            assert state is not None
            assert state.is_limbo
            assert state.is_fenced
            assert len(state.master_key) == 20
        while storage.directories[0].integrity.state is not None:
            await repair_round(cluster, 0)
        assert await _in_limbo(cluster, 0) == 0
        assert bytes(await storage.read(open_one.ledger_id, 0)).endswith(b"still open")


async def test_a_rebuilt_index_with_all_entries_leaves_nothing_in_limbo(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, bookies=1, **SMALL) as cluster, cluster.client() as client:
        async with client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as writer:
            for i in range(50):
                await writer.append(b"%d" % i)
        await storage_of(cluster).checkpoint()
        await cluster.stop(0)
        await _rebuilt(cluster, 0, loses_logs=False)
        await cluster.start(0)
        assert await _in_limbo(cluster, 0) == 0
        async with client.open_ledger(writer.ledger_id) as reader:
            assert [e.payload for e in await reader.read(0, 49)] == [b"%d" % i for i in range(50)]


@pytest.mark.parametrize("is_orderly", [False, True])
async def test_a_power_loss_while_acknowledging_before_syncing(
    tmp_path: Path, is_orderly: bool
) -> None:
    mark = f"{tmp_path}/0/journal/{UNSYNCED_FILE}"
    settings = {**SMALL, "journal_sync_data": False}
    async with real_cluster(tmp_path, bookies=1, **settings) as cluster:
        cluster.boot_id = "one"
        await cluster.stop(0)
        await cluster.start(0)
        assert read_if_there(mark) == b"one"
        async with cluster.client() as client:
            writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
            await writer.append(b"kept")
            await cluster.stop(0)
            assert read_if_there(mark) is None
            if not is_orderly:
                _write(mark, b"one")  # as if it had been killed
            cluster.boot_id = "two"
            await cluster.start(0)
            storage = storage_of(cluster)
            state = storage.state(writer.ledger_id)
            assert state is not None
            assert state.is_limbo == (not is_orderly)
            assert bytes(await storage.read(writer.ledger_id, 0)).endswith(b"kept")
            if is_orderly:
                await writer.close()
                return
            with pytest.raises(UnknownLedgerState):
                await storage.read(writer.ledger_id, 1)
            with pytest.raises(LedgerFenced):
                await writer.append(b"must not continue here")


async def test_a_restart_on_the_same_machine_loses_nothing(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, bookies=1, **SMALL, journal_sync_data=False) as cluster:
        cluster.boot_id = "one"
        await cluster.stop(0)
        _write(f"{tmp_path}/0/journal/{UNSYNCED_FILE}", b"one")
        await cluster.start(0)
        storage = storage_of(cluster)
        assert storage.directories[0].integrity.state is None
        with pytest.raises(NoSuchLedger):
            await storage.read(77, 0)


async def test_an_entry_on_no_bookie_prevents_no_other_copy(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, bookies=2, **SMALL) as cluster, cluster.client() as client:
        async with client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2) as writer:
            for i in range(200):
                await writer.append(b"%d" % i * 50)
        for number in (0, 1):
            await storage_of(cluster, number).checkpoint()
        await cluster.stop(0)
        await _rebuilt(cluster, 0, loses_logs=True)
        # The other bookie has all entries but one.
        await cluster.stop(1)
        _tear(f"{tmp_path}/1/ledgers", writer.ledger_id, 100)
        await cluster.start(1)
        await cluster.start(0)
        await repair_round(cluster, 0)
        await repair_round(cluster, 0)
        name = cluster.bookies[0].bookie_id
        statuses = [await ask(client, name, writer.ledger_id, entry) for entry in range(200)]
        assert statuses.pop(100) is Status.IO_ERROR  # which readers get as "unknown"
        assert statuses == [Status.OK] * 199
        [directory] = storage_of(cluster).directories
        limbo = directory.details().limbo
        assert (limbo.ledgers, limbo.ledgers_repaired, limbo.entries_copied) == (1, 0, 199)


def _tear(directory: str, ledger_id: int, entry_id: int) -> None:
    """Damages the entry's ids, so that no read accepts it."""
    with closing(RocksStores(RealDisk()).open_to_read(f"{directory}/index")) as pairs:
        run = Index(pairs).find(ledger_id, entry_id)
    assert run is not None
    with Path(f"{directory}/{run.log_id:016x}.log").open("r+b") as log:
        log.seek(run.offset + sum(run.lengths[: entry_id - run.first]))
        log.write(b"\xff" * 16)


async def test_the_fixed_entries_of_an_open_ledger_are_fetched(tmp_path: Path) -> None:
    """It stays in limbo, possibly for years, but there are as many copies as before."""
    async with real_cluster(tmp_path, bookies=4, **SMALL) as cluster, cluster.client() as client:
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        for i in range(20):
            await writer.append(b"%d" % i)
        first = writer.metadata.last_fragment.bookies
        [victim, changed] = [
            number for number, one in cluster.bookies.items() if one.bookie_id in first
        ][:2]
        await cluster.stop(changed)
        await writer.append(b"moves to another bookie")
        while len(writer.metadata.fragments) == 1:
            await writer.append(b"and on")
        fixed = writer.metadata.last_fragment.first_entry_id
        name = cluster.bookies[victim].bookie_id
        await cluster.stop(victim)
        await _rebuilt(cluster, victim, loses_logs=True)
        await cluster.start(victim)
        await repair_round(cluster, victim)
        await repair_round(cluster, victim)
        for entry in range(fixed):
            assert await ask(client, name, writer.ledger_id, entry) is Status.OK
        assert await _in_limbo(cluster, victim) == 1
        writer.abandon()


async def test_a_key_that_was_unreadable_at_the_start_is_set_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with real_cluster(tmp_path, **SMALL) as cluster, cluster.client() as client:
        async with client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3) as ledger:
            for i in range(20):
                await ledger.append(b"%d" % i)
        await storage_of(cluster).checkpoint()
        await cluster.stop(0)
        await _rebuilt(cluster, 0, loses_logs=True)

        async def undecodable(
            _: LedgerStore, ledger_ids: Sequence[int]
        ) -> dict[int, LedgerMetadata | None]:
            return dict.fromkeys(ledger_ids)

        with monkeypatch.context() as patched:
            patched.setattr("bookie.data_integrity.read_metadata", undecodable)
            await cluster.start(0)
        storage = storage_of(cluster)
        with trio.fail_after(20):
            while storage.directories[0].integrity.state is not None:
                await repair_round(cluster, 0)
        state = storage.state(ledger.ledger_id)
        assert state is not None
        assert state.is_key_known
        assert not state.is_limbo
        assert (await storage.read(ledger.ledger_id, 19))[-2:] == b"19"
