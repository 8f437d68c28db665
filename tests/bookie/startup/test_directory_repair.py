"""Damage of each kind in each kind of file of a bookie with several journals and directories.

One damaged ledger directory costs that directory: it is repaired from what is there, its ledgers
are unknown at worst, and those in the other directories are served as before. Only a journal that
is damaged where acknowledged records may be, and a disk that may be another bookie's, stop it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from pathlib import Path

import pytest
import trio

import bookie.data_integrity
from bookie.core.marks import decode_marks
from bookie.startup.cookies import COOKIE_FILE, START_COUNT_FILE
from ledger.client import LedgerClient
from ledger.errors import BookieIoError, LedgerError, UnknownLedgerState
from tests.bookie.test_data_integrity import repair_round, storage_of
from tests.real_cluster import SMALL, RealCluster, real_cluster

JOURNALS, DIRECTORIES, LEDGERS, ENTRIES = 2, 3, 6, 36
PAYLOAD_BYTES = 40_000
SETTINGS = {
    **SMALL,
    "counts": (JOURNALS, DIRECTORIES),
    "checkpoint_interval_ms": 600_000,
    "garbage_interval_ms": 600_000,
    "write_cache_bytes": 96 << 20,
    "read_cache_bytes": 4 << 20,
}
HURT = 1
"""The number of the directory in which something is damaged."""

Victims = Callable[[Path], list[Path]]
Entries = dict[tuple[int, int], bytes]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bookie.data_integrity, "REPAIR_INTERVAL_S", 0.05)


class Outcome(Enum):
    SERVES = "everything is served, as if nothing were damaged"
    LOSES = "entries in the damaged part are I/O errors here, and nothing else is"
    MENDS = "the directory is repaired; its ledgers are unknown until they were compared"
    STOPS = "the bookie does not start, and names file and cure"


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[len(data) // 2] ^= 0x80
    path.write_bytes(data)


def _zero(path: Path) -> None:
    data = bytearray(path.read_bytes())
    begin = max(0, len(data) // 2 // 4096 * 4096)
    data[begin : begin + 4096] = bytes(len(data[begin : begin + 4096]))
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES: dict[str, Callable[[Path], None]] = {
    "a flipped bit": _flip,
    "a zeroed block": _zero,
    "cut in half": _cut,
    "removed": Path.unlink,
}


def _in_directory(pattern: str) -> Victims:
    return lambda at: sorted((at / f"ledgers{HURT}").glob(pattern))


def _in_journal(pattern: str) -> Victims:
    return lambda at: sorted((at / "journal1").glob(pattern))


def _needed(at: Path) -> list[Path]:
    """The first journal file behind the mark, of which more than the end is needed."""
    marks = decode_marks((at / f"ledgers{HURT}/lastmark").read_bytes()).marks
    return [at / f"journal1/{marks[1].file_id + 1:016x}.journal"]


S, L, M, X = Outcome.SERVES, Outcome.LOSES, Outcome.MENDS, Outcome.STOPS
# In the order of DAMAGES.
TABLE: dict[str, tuple[Victims, tuple[Outcome, Outcome, Outcome, Outcome]]] = {
    "journal": (_needed, (X, X, X, X)),
    "end of the journal": (_in_journal("END"), (S, S, S, S)),
    "mark": (_in_directory("lastmark"), (M, M, M, M)),
    "entry log": (lambda at: _in_directory("*.log")(at)[:1], (L, L, L, L)),
    "index": (_in_directory("index/*.sst"), (M, M, M, M)),
    "index: CURRENT": (_in_directory("index/CURRENT"), (M, M, M, M)),
    "index: MANIFEST": (_in_directory("index/MANIFEST-*"), (M, M, M, M)),
    "index: OPTIONS": (_in_directory("index/OPTIONS-*"), (S, S, S, S)),
    "index: the whole store": (_in_directory("index/*"), (M, M, M, M)),
    "cookie": (_in_directory(COOKIE_FILE), (S, S, S, S)),
    "cookie of a journal": (_in_journal(COOKIE_FILE), (S, S, S, S)),
    # Its half is the same number.
    "number of starts": (_in_directory(START_COUNT_FILE), (M, M, S, M)),
    "lock": (_in_directory("LOCK"), (S, S, S, S)),
}
CASES = [
    pytest.param(victims, DAMAGES[damage], outcome, id=f"{file}, {damage}")
    for file, (victims, outcomes) in TABLE.items()
    for damage, outcome in zip(DAMAGES, outcomes, strict=True)
]


def _payload(ledger_id: int, entry_id: int) -> bytes:
    return b"%d of %d " % (entry_id, ledger_id) * (PAYLOAD_BYTES // 10)


async def _fill(cluster: RealCluster, client: LedgerClient) -> list[int]:
    """Writes ledgers, two for each directory; two thirds of each are in the journals only, of which
    the first files were trimmed."""
    writers = [
        await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
        for _ in range(LEDGERS)
    ]
    for entry_id in range(ENTRIES):
        for writer in writers:
            await writer.append(_payload(writer.ledger_id, entry_id))
        if entry_id == ENTRIES // 3:
            await storage_of(cluster).checkpoint()
    for writer in writers[::2]:
        await writer.close()
    assert {writer.ledger_id % DIRECTORIES for writer in writers} == {0, 1, 2}
    return [writer.ledger_id for writer in writers]


async def _read(cluster: RealCluster, ledger_ids: list[int]) -> dict[int, list[int]]:
    """Returns the entries that are not served, by ledger. None is denied, and none is wrong."""
    unserved: dict[int, list[int]] = {}
    for ledger_id in ledger_ids:
        for entry_id in range(ENTRIES):
            try:
                entry = await storage_of(cluster).read(ledger_id, entry_id)
            except (BookieIoError, UnknownLedgerState):
                unserved.setdefault(ledger_id, []).append(entry_id)
            else:
                assert bytes(entry).endswith(_payload(ledger_id, entry_id))
    return unserved


def _only_error(group: BaseException) -> LedgerError:
    while isinstance(group, BaseExceptionGroup):
        [group] = group.exceptions
    assert isinstance(group, LedgerError), group
    return group


@pytest.mark.parametrize(("victims", "damage", "outcome"), CASES)
async def test_what_damage_costs(
    victims: Victims,
    damage: Callable[[Path], None],
    outcome: Outcome,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    is_refused = False
    try:
        async with (
            real_cluster(tmp_path, 2, **SETTINGS) as cluster,
            cluster.client() as client,
        ):
            ledger_ids = await _fill(cluster, client)
            await cluster.stop(0)
            found = victims(tmp_path / "0")
            assert found
            for path in found:
                damage(path)
            caplog.clear()
            is_refused = True
            await cluster.start(0)
            is_refused = False
            await _check(cluster, client, ledger_ids, outcome, caplog)
    except BaseExceptionGroup as group:
        if not is_refused:
            raise
        message = str(_only_error(group))
        assert outcome is Outcome.STOPS, message
        assert "Cure: " in message
        assert any(path.name in message or str(path.parent) in message for path in found), message
    else:
        assert outcome is not Outcome.STOPS


async def _check(
    cluster: RealCluster,
    client: LedgerClient,
    ledger_ids: list[int],
    outcome: Outcome,
    caplog: pytest.LogCaptureFixture,
) -> None:
    directories = storage_of(cluster).directories
    in_doubt = [n for n, one in enumerate(directories) if one.integrity.state is not None]
    assert in_doubt == ([HURT] if outcome is Outcome.MENDS else [])
    unserved = await _read(cluster, ledger_ids)
    lines = [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]
    hurt = [one for one in ledger_ids if one % DIRECTORIES == HURT]
    if outcome is Outcome.SERVES:
        assert not unserved
    else:
        assert unserved.keys() <= dict.fromkeys(hurt).keys()
        assert any("Cure: " in line for line in lines) or "put back" in "".join(lines), lines
    # Every directory takes new entries, and of old ledgers those that are not in doubt.
    for _ in range(DIRECTORIES):
        async with client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2) as writer:
            await writer.append(b"new")
        assert await storage_of(cluster).read(writer.ledger_id, 0)
    if outcome is Outcome.MENDS:
        for ledger_id in ledger_ids:
            await client.open_ledger(ledger_id)  # closes it, if it is open
        while any(one.integrity.state is not None for one in directories):
            await repair_round(cluster, 0)
        assert not await _read(cluster, ledger_ids)
    with trio.fail_after(30):
        for ledger_id in ledger_ids:
            reader = await client.open_ledger(ledger_id)
            assert reader.last_add_confirmed == ENTRIES - 1
            entries = await reader.read(0, ENTRIES - 1)
            assert [bytes(one.payload) for one in entries] == [
                _payload(ledger_id, entry_id) for entry_id in range(ENTRIES)
            ]
