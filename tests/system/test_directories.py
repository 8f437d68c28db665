"""A bookie process with several journals and ledger directories is killed and restarted."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from ledger.client import LedgerClient
from ledger.errors import Status
from ledger.wire.messages import ReadRequest
from tests.interop.our_bookies import OurBookies
from tests.interop.timeouts import PATIENCE_S

pytestmark = pytest.mark.system

LEDGERS = 7
ENTRIES = 150


@pytest.fixture
def bookies(tmp_path: Path) -> Iterator[OurBookies]:
    (tmp_path / "metadata").mkdir()
    bookies = OurBookies(
        tmp_path,
        f"sqlite://{tmp_path / 'metadata' / 'cluster.db'}",
        journal_directories=[f"{tmp_path}/fast/{n}" for n in range(2)],
        ledger_directories=[f"{tmp_path}/large/{n}" for n in range(3)],
        checkpoint_interval_ms=100,
    )
    bookies.start(0)
    yield bookies
    bookies.kill_all()


def payload(ledger: int, entry: int) -> bytes:
    return b"%d of %d " % (entry, ledger) * (1 + (ledger * entry) % 50)


def files(directory: Path, pattern: str) -> list[Path]:
    return list(directory.glob(pattern))


async def test_acknowledged_entries_survive_kill_9(bookies: OurBookies, tmp_path: Path) -> None:
    confirmed: dict[int, int] = {}
    """Number of confirmed entries of each ledger, which are the first ones."""
    is_enough = trio.Event()

    async def write(client: LedgerClient, goal: int) -> None:
        writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        confirmed[writer.ledger_id] = 0
        while True:
            entry = await writer.append(payload(writer.ledger_id, confirmed[writer.ledger_id]))
            confirmed[writer.ledger_id] = entry + 1
            if sum(confirmed.values()) >= goal:
                is_enough.set()

    for round_no in (1, 2):
        is_enough = trio.Event()
        async with LedgerClient.connect(bookies.uri) as client, trio.open_nursery() as nursery:
            for _ in range(LEDGERS):
                nursery.start_soon(write, client, round_no * LEDGERS * ENTRIES)
            await is_enough.wait()
            bookies.kill(0)  # while all of them write
            nursery.cancel_scope.cancel()
        bookies.start(0)
        async with LedgerClient.connect(bookies.uri) as client:
            for ledger_id, count in confirmed.items():
                reader = await client.open_ledger(ledger_id)
                assert reader.last_add_confirmed >= count - 1
                found = [bytes(e.payload) for e in await reader.read(0, count - 1)] if count else []
                assert found == [payload(ledger_id, entry) for entry in range(count)]
    assert len(confirmed) == 2 * LEDGERS
    assert sum(confirmed.values()) >= 2 * LEDGERS * ENTRIES
    for place, count in {
        "fast/0/*.journal": 1,
        "fast/1/*.journal": 1,
        "large/*/lastmark": 3,
        "large/*/index/*.sst": 3,
        "*/*/VERSION": 5,
        "*/*/LOCK": 5,
    }.items():
        assert len(files(tmp_path, place)) >= count, place


async def _written(bookies: OurBookies) -> dict[int, list[bytes]]:
    """Closed ledgers in every directory, most of them in entry logs."""
    written: dict[int, list[bytes]] = {}
    async with LedgerClient.connect(bookies.uri) as client:
        for _ in range(LEDGERS):
            async with client.create_ledger(
                ensemble_size=1, write_quorum=1, ack_quorum=1
            ) as writer:
                payloads = [payload(writer.ledger_id, entry) for entry in range(ENTRIES)]
                await writer.append_many(payloads)
            written[writer.ledger_id] = payloads
    return written


async def _read(bookies: OurBookies, ledger_id: int) -> list[bytes]:
    async with LedgerClient.connect(bookies.uri) as client:
        reader = await client.open_ledger(ledger_id)
        return [bytes(entry.payload) for entry in await reader.read(0, ENTRIES - 1)]


def _flip_all(paths: list[Path]) -> None:
    assert paths
    for path in paths:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0x10
        path.write_bytes(data)


def _log(tmp_path: Path) -> str:
    return (tmp_path / "ours-0" / "bookie.log").read_text()


@pytest.mark.parametrize("pattern", ["index/*.sst", "lastmark"])
async def test_a_damaged_directory_is_repaired_and_the_others_are_served(
    bookies: OurBookies, tmp_path: Path, pattern: str
) -> None:
    written = await _written(bookies)
    bookies.kill(0)
    bookies.start(0)  # a start ends with a checkpoint
    bookies.kill(0)
    _flip_all(files(tmp_path / "large" / "1", pattern))
    bookies.start(0)
    for ledger_id, payloads in written.items():
        assert await _read(bookies, ledger_id) == payloads
    lines = [line for line in _log(tmp_path).splitlines() if "ledger directory" in line]
    [found, mended] = [line for line in lines if "ledgers in limbo" not in line][:2]
    assert "damaged" in found
    assert f"directory={tmp_path}/large/1 " in found
    assert "Cure: " in mended
    # It was repaired once.
    bookies.kill(0)
    bookies.start(0)
    assert _log(tmp_path).count("ledger directory damaged") == 1


async def test_a_damaged_journal_stops_the_bookie_and_names_the_cure(
    bookies: OurBookies, tmp_path: Path
) -> None:
    await _written(bookies)
    bookies.kill(0)
    [first, *_] = sorted(files(tmp_path / "fast" / "1", "*.journal"))
    data = bytearray(first.read_bytes())
    used = len(bytes(data).rstrip(b"\0"))
    for mark in files(tmp_path, "large/*/lastmark"):
        mark.unlink()  # so that all of the journal is needed
    data[used // 2 : used // 2 + 4096] = bytes(4096)
    first.write_bytes(data)
    bookies.begin(0)
    assert bookies.wait_end(0) == 1
    assert str(first) in _log(tmp_path)
    assert "Cure: " in _log(tmp_path)


def _run(bookies: OurBookies, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command on bookie 0, which is stopped."""
    return subprocess.run(_command(bookies, *command), capture_output=True, text=True, check=False)


def _command(bookies: OurBookies, name: str, *more: str) -> list[str]:
    config = bookies.directory / "ours-0" / "bookie.toml"
    return [sys.executable, "-m", "stream.cli", "bookie", name, str(config), *more]


def _killed_when(bookies: OurBookies, file: Path, *command: str) -> None:
    """Runs a command on bookie 0 and kills it with -9 as soon as it has written a file."""
    process = subprocess.Popen(_command(bookies, *command), stderr=subprocess.DEVNULL)
    while process.poll() is None and not file.exists():
        pass
    process.kill()
    process.wait()
    assert file.exists()


def _set_directories(bookies: OurBookies, tmp_path: Path, *numbers: int) -> None:
    """Writes the settings of bookie 0 with these ledger directories."""
    bookies.change(ledger_directories=[f"{tmp_path}/large/{n}" for n in numbers])
    bookies.configure(0)


async def test_a_bookie_gains_a_directory_and_a_kill_in_between_changes_nothing(
    bookies: OurBookies, tmp_path: Path
) -> None:
    written = await _written(bookies)
    done = _run(bookies, "expand-storage")
    assert (done.returncode, "Cure: stop the bookie first" in done.stderr) == (1, True)
    bookies.kill(0)
    _set_directories(bookies, tmp_path, 0, 1, 2, 3)
    bookies.begin(0)
    assert bookies.wait_end(0) == 1
    assert "expand-storage CONFIG` with the bookie stopped" in _log(tmp_path)
    _killed_when(bookies, tmp_path / "fast" / "0" / "DIRECTORIES", "expand-storage")
    done = _run(bookies, "expand-storage")
    assert done.returncode == 0, done.stderr
    bookies.start(0)
    written |= await _written(bookies)
    bookies.kill(0)
    bookies.start(0)
    for ledger_id, payloads in written.items():
        assert await _read(bookies, ledger_id) == payloads
    assert files(tmp_path, "large/3/*.log")
    bookies.kill(0)
    # A repair knows where the directory begins in the journals, too.
    _flip_all(files(tmp_path, "large/3/lastmark"))
    (tmp_path / "large" / "0" / "DIRECTORIES").unlink()
    bookies.start(0)
    for ledger_id, payloads in written.items():
        assert await _read(bookies, ledger_id) == payloads
    bookies.kill(0)
    done = _run(bookies, "check")
    assert done.returncode == 0, done.stdout
    # The journals are as many as before.
    config = tmp_path / "ours-0" / "bookie.toml"
    config.write_text(config.read_text().replace("/fast/1", "/fast/2"))
    done = _run(bookies, "expand-storage")
    assert done.returncode == 1
    assert f"has {tmp_path}/fast/0, {tmp_path}/fast/1, and that list cannot change" in done.stderr
    bookies.start(0)


async def test_a_bookie_loses_a_directory_and_copies_it_back_from_others(
    bookies: OurBookies, tmp_path: Path
) -> None:
    others = OurBookies(tmp_path, bookies.uri)
    others.start(1, 2)
    try:
        written: list[int] = []
        async with LedgerClient.connect(bookies.uri) as client:
            for _ in range(LEDGERS):
                async with client.create_ledger(
                    ensemble_size=3, write_quorum=3, ack_quorum=3
                ) as writer:
                    await writer.append_many([payload(writer.ledger_id, e) for e in range(ENTRIES)])
                written.append(writer.ledger_id)
        bookies.kill(0)
        lost = tmp_path / "large" / "1"
        lost.rename(tmp_path / "unmounted")
        lost.mkdir()
        bookies.begin(0)
        assert bookies.wait_end(0) == 1
        log = _log(tmp_path)
        assert f"drop-directory CONFIG {lost}`" in log
        assert "mount the right disks" in log
        done = _run(bookies, "drop-directory", str(lost))
        assert (done.returncode, "--yes" in done.stderr) == (1, True)
        _killed_when(
            bookies, tmp_path / "fast" / "0" / "DIRECTORIES", "drop-directory", str(lost), "--yes"
        )
        done = _run(bookies, "drop-directory", str(lost), "--yes")
        assert done.returncode == 0, done.stderr
        _set_directories(bookies, tmp_path, 0, 2)
        bookies.begin(0)
        bookies.kill(0)  # while it starts
        bookies.start(0)
        await _wait_whole(bookies, written)
        # What was lost returns: it is of no use, and says so.
        shutil.rmtree(lost)
        (tmp_path / "unmounted").rename(lost)
        bookies.kill(0)
        _set_directories(bookies, tmp_path, 0, 2, 1)
        done = _run(bookies, "expand-storage")
        assert done.returncode == 1
        assert f"{lost} is new to bookie" in done.stderr
        assert "Cure: empty it" in done.stderr
        shutil.rmtree(lost)
        assert _run(bookies, "expand-storage").returncode == 0
        bookies.start(0)
        await _wait_whole(bookies, written)
    finally:
        others.kill_all()


async def _wait_whole(bookies: OurBookies, ledger_ids: list[int]) -> None:
    """Waits until bookie 0 itself has every entry; meanwhile it may deny none."""
    async with LedgerClient.connect(bookies.uri) as client:
        with trio.fail_after(PATIENCE_S):
            while True:
                statuses = [
                    (await client.pool.call(bookies.bookie_id(0), read, timeout_s=10)).status
                    for ledger_id in ledger_ids
                    for read in (ReadRequest(ledger_id, 0), ReadRequest(ledger_id, ENTRIES - 1))
                ]
                assert {*statuses} <= {Status.OK, Status.IO_ERROR}
                if {*statuses} == {Status.OK}:
                    return
                await trio.sleep(0.1)
