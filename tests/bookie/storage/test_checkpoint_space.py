"""No checkpoint is begun without space for it, whatever requests it and whatever it must write."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import trio
import trio.testing

from bookie.core.integrity_state import IntegrityStage, IntegrityState
from bookie.data_integrity import LimboRepair
from bookie.server.requests import Requests
from bookie.storage.options import StorageFailed, StorageOptions
from ledger.client import LedgerClient
from ledger.core.entry import DigestType
from ledger.core.ledger_keys import LedgerKeys
from ledger.core.metadata import Fragment, LedgerMetadata, LedgerState
from tests.bookie.core.test_caches import KEY
from tests.bookie.storage.index.test_damage import StorageOnDisk
from tests.bookie.storage.simulated_storage import SimulatedStorage

ENTRIES = 10


class _Client:
    """All that repair asks when everything is here."""

    ledgers = SimpleNamespace(keys=LedgerKeys())

    async def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        return LedgerMetadata(
            ledger_id=ledger_id,
            ensemble_size=1,
            write_quorum=1,
            ack_quorum=1,
            state=LedgerState.CLOSED,
            fragments=(Fragment(0, ("here",)),),
            digest_type=DigestType.CRC32C,
            last_entry_id=ENTRIES - 1,
            length=ENTRIES,
        )


@asynccontextmanager
async def _open_client() -> AsyncIterator[_Client]:
    yield _Client()


def _repair(simulated: SimulatedStorage) -> LimboRepair:
    async def space() -> tuple[int, int]:
        return 0, 0

    requests = Requests(simulated.storage, long_polls_max=1, space=space)

    def open_client() -> LedgerClient:
        return cast("LedgerClient", _open_client())

    return LimboRepair(simulated.storage, requests, "here", open_client)


async def _in_doubt(simulated: SimulatedStorage) -> None:
    """Ledger 1 is in limbo, and all that is missing in the index is in memory."""
    directory = simulated.storage.directories[0]
    simulated.add(1, 0)
    await simulated.settle()
    state = directory.state(1)
    assert state is not None
    state.is_limbo = True
    directory.state_changed(state)
    await directory.checkpoint()
    await directory.integrity.set_state(IntegrityState(IntegrityStage.LEDGERS_IN_LIMBO, "for once"))
    for entry_id in range(1, ENTRIES):
        simulated.add(1, entry_id)
    await simulated.settle()


async def test_limbo_waits_for_room_and_then_ends(autojump_clock: trio.abc.Clock) -> None:
    simulated = SimulatedStorage()
    directory = simulated.storage.directories[0]
    is_full = False

    async def has_space(_: int) -> bool:
        await trio.lowlevel.checkpoint()
        return not is_full

    directory.task.has_space = has_space
    async with simulated.running():
        await _in_doubt(simulated)
        is_full = True
        simulated.disk.full_after["write_at"] = 0
        async with trio.open_nursery() as nursery:
            nursery.cancel_scope.deadline = trio.current_time() + 2000
            nursery.start_soon(_repair(simulated).run)
            await trio.sleep(1000)
            assert directory.task.is_waiting_for_disk
            assert simulated.storage.failure is None
            simulated.fence(7)
            await simulated.settle()
            await simulated.check()
            is_full = False
            del simulated.disk.full_after["write_at"]
            # The repair ends when there is no doubt.
        assert directory.integrity.state is None
        state = simulated.storage.state(1)
        assert state is not None
        assert not state.is_limbo
        await simulated.check()


async def test_who_waits_for_a_checkpoint_gets_one_begun_afterwards() -> None:
    simulated = SimulatedStorage()
    task = simulated.storage.directories[0].task
    async with simulated.running():
        simulated.disk.sync_gate = trio.Event()
        simulated.add(1, 0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(task.made)
            await trio.testing.wait_all_tasks_blocked()
            simulated.add(1, 1)  # after the current checkpoint
            nursery.start_soon(task.made)
            await trio.testing.wait_all_tasks_blocked()
            simulated.disk.sync_gate.set()
        assert simulated.storage.directories[0]._index.last_entry_id(1) == 1


async def test_who_waits_for_a_checkpoint_learns_of_its_failure() -> None:
    simulated = SimulatedStorage()
    await simulated.storage.start()
    simulated.add(1, 0)
    simulated.disk.errors["write_at"] = OSError(5, "Input/output error")
    reported: list[StorageFailed] = []

    async def wait() -> None:
        try:
            await simulated.storage.directories[0].task.made()
        except StorageFailed as error:
            reported.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        with pytest.raises(StorageFailed):
            await simulated.storage.run()
    assert reported


def _bytes_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


@pytest.mark.parametrize("kind", ["fences", "lacs", "single entries", "entries of few bytes"])
async def test_a_checkpoint_takes_no_more_than_was_asked_for(kind: str, tmp_path: Path) -> None:
    rng = random.Random(5)
    options = StorageOptions(write_cache_bytes=8 << 20, checkpoint_interval_s=1e9)
    simulated = StorageOnDisk(tmp_path, options)
    ledgers = 20_000
    async with simulated.running():
        storage = simulated.storage
        await storage.checkpoint()
        if kind == "entries of few bytes":
            for entry_id in range(ledgers):
                simulated.add(1, entry_id)
        else:
            for _ in range(ledgers):
                ledger_id = rng.getrandbits(62)
                state = storage.create(ledger_id, rng.randbytes(20))
                if kind == "fences":
                    storage.fence(state, lambda: None)
                elif kind == "lacs":
                    packet = ledger_id.to_bytes(8, "big") + bytes(8) + rng.randbytes(48)
                    storage.set_explicit_lac(state, 0, packet, None)
                else:
                    state.master_key = KEY
                    simulated.add(ledger_id, 0)
        await simulated.settle()
        before = _bytes_of(tmp_path / "ledgers")
        asked = storage.directories[0]._checkpointer.bytes_to_write
        await storage.checkpoint()
        written = _bytes_of(tmp_path / "ledgers") - before
    assert written <= asked
    assert asked <= 5 * written + (1 << 20), "room is asked for that nobody needs"


async def test_the_record_of_the_current_log_counts() -> None:
    simulated = SimulatedStorage(options=StorageOptions(checkpoint_interval_s=1e9))
    async with simulated.running():
        for ledger_id in range(2000):
            simulated.add(ledger_id, 0)
        await simulated.settle()
        await simulated.storage.checkpoint()
        checkpointer = simulated.storage.directories[0]._checkpointer
        assert checkpointer.bytes_to_write >= 2000 * 16 + 64 * 1024
