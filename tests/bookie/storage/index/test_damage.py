"""Damage in RocksDB's own files: the bookie starts, or refuses with a cure; it denies nothing."""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from bookie.core.integrity import CheckReport
from bookie.storage.bookie_storage import BookieStorage
from bookie.storage.check.bookie import check_bookie
from bookie.storage.disk.real_disk import RealDisk
from bookie.storage.index.rocksdb import RocksKeyValue, RocksStores
from bookie.storage.journal.journal import Journal
from bookie.storage.options import StorageOptions
from ledger.errors import BookieIoError, LedgerError
from tests.bookie.storage.check.test_bookie import filled
from tests.bookie.storage.garbage.test_compactor import OPTIONS
from tests.bookie.storage.simulated_storage import SimulatedStorage
from tests.effort import scaled

TRIES = scaled(ci=20, night=600)


class StorageOnDisk(SimulatedStorage):
    """A storage on real files."""

    def __init__(self, directory: Path, options: StorageOptions) -> None:
        super().__init__(options=options)
        self.storage.close()
        self.real_disk = RealDisk()
        self.storage = BookieStorage(
            self.real_disk,
            [f"{directory}/ledgers"],
            RocksKeyValue,
            [
                Journal(
                    self.real_disk,
                    f"{directory}/journal",
                    rng=random.Random(5),
                    file_bytes_max=32 * 1024,
                    files_recycled=1,
                )
            ],
            now_ms=lambda: 1000,
            options=options,
        )


def _damage(directory: Path, rng: random.Random) -> str:
    """Of one file; its name."""
    files = sorted(
        path
        for path in directory.rglob("*")
        if path.is_file() and path.stat().st_size and path.name != "LOG"
    )
    victim = rng.choice([path for path in files if "index" in path.parts or rng.random() < 0.1])
    data = bytearray(victim.read_bytes())
    at = rng.randrange(len(data))
    kind = rng.randrange(4)
    if kind == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        data[at : at + 64] = bytes(len(data[at : at + 64]))
    else:
        blocks = [data[i : i + 512] for i in range(0, len(data), 512)]
        rng.shuffle(blocks)
        data = bytearray(b"".join(blocks))
    victim.write_bytes(data)
    return f"{victim.name} kind={kind} at={at} of {len(data)}"


def _restore(whole: Path, to: Path) -> None:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(whole, to)


async def _checked(directory: Path) -> CheckReport:
    disk, report = RealDisk(), CheckReport()
    await check_bookie(
        disk,
        [f"{directory}/journal"],
        [f"{directory}/ledgers"],
        RocksStores(disk).open_to_read,
        report,
    )
    disk.close()
    return report


def damage_oldest(directory: Path) -> None:
    oldest = min(directory.glob("*.sst"))
    data = bytearray(oldest.read_bytes())
    data[100] ^= 1
    oldest.write_bytes(data)


async def _write_until_it_fails(store: RocksKeyValue) -> None:
    """Each turn makes one more file, and with the fourth RocksDB merges them in the background."""
    for _ in range(1000):
        store.write([(b"Z", b"z")])
        await store.flush()


async def test_damage_met_in_the_background_stops_writes_but_not_the_closing(
    tmp_path: Path,
) -> None:
    """A start that was refused in order must not fail when it tidies up."""
    store = RocksKeyValue(str(tmp_path))
    for _ in range(3):
        store.write([(b"E%d" % i, b"x" * 200) for i in range(100)])
        await store.flush()
    store.close()
    damage_oldest(tmp_path)
    store = RocksKeyValue(str(tmp_path))
    with pytest.raises(BookieIoError, match="block checksum mismatch") as reported:
        await _write_until_it_fails(store)
    assert "rebuild-index" in str(reported.value)
    store.close()
    RocksKeyValue(str(tmp_path)).close()  # nothing was left open


def test_damage_is_not_taken_for_another_process(tmp_path: Path) -> None:
    """There is a "lock" in what RocksDB says of a damaged block."""
    RocksKeyValue(str(tmp_path)).close()
    (tmp_path / "CURRENT").write_text("block-and-lock\n")
    with pytest.raises(BookieIoError, match="cannot be opened") as reported:
        RocksKeyValue(str(tmp_path))
    assert "rebuild-index" in str(reported.value)


async def test_it_starts_or_refuses_and_denies_nothing(tmp_path: Path) -> None:
    whole, used = tmp_path / "whole", tmp_path / "used"
    simulated = StorageOnDisk(whole, OPTIONS)
    async with simulated.running():
        await filled(simulated)
    simulated.storage.close()
    assert (await _checked(whole)).is_clean
    refused: list[str] = []
    unseen: list[str] = []
    """Damage that hurts, but that the check did not see."""
    for seed in range(TRIES):
        _restore(whole, used)
        what = _damage(used, random.Random(seed))
        is_clean = (await _checked(used)).is_clean
        try:
            successor = StorageOnDisk(used, OPTIONS)
        except BookieIoError as error:
            refused.append(str(error))
            unseen += [what] * is_clean
            continue
        try:
            await successor.storage.start()
        except LedgerError as error:
            refused.append(str(error))
            unseen += [what] * is_clean
            successor.storage.close()
            continue
        for key, entry in simulated.acked.items():
            got = b""
            with suppress(BookieIoError):  # anything else would be a denial
                got = bytes(await successor.storage.read(*key))
            if got != entry and is_clean:
                unseen.append(f"{what}: {key}")
        successor.storage.close()
    assert unseen == []
    assert [error for error in refused if "Cure: " not in error] == []
    assert TRIES // 10 < len(refused) < TRIES
