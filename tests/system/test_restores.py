"""Metadata and disks of real processes, put back to moments of their own.

The same promises as in tests/sim/restores, on SQLite, RocksDB and files: no record of one stream in
another, none twice, and what was acknowledged is read unless its loss is named.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
import trio

from ledger.client import LedgerClient
from ledger.errors import LedgerError
from ledger.metastore import open_store
from ledger.metastore.backup import decode_backup, export_lines, import_backup
from ledger.metastore.restores import RestoreLog
from stream.namespace import Namespace
from tests.effort import seeds
from tests.system.cluster import StandaloneCluster
from tests.system.conftest import StartCluster

pytestmark = [pytest.mark.system]

PATIENCE_S = 60.0
STREAMS = ("a", "b", "c")


class _Died(Exception):
    """A writer ends without closing its segment."""


def parts(cluster: StandaloneCluster) -> list[str]:
    """Returns what can be put back apart: the metadata, and each bookie's directory."""
    return ["cluster.db", *sorted(p.name for p in cluster.directory.glob("bookie-?"))]


def copy(cluster: StandaloneCluster, moment: Path) -> None:
    shutil.copytree(cluster.directory, moment)


def put_back(cluster: StandaloneCluster, moment: Path, names: Iterable[str]) -> None:
    for name in names:
        for path in cluster.directory.glob(f"{name}*"):  # the database has files beside it
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in moment.glob(f"{name}*"):
            target = cluster.directory / path.name
            shutil.copytree(path, target) if path.is_dir() else shutil.copy2(path, target)


async def append(uri: str, chance: random.Random, numbers: Iterable[int]) -> dict[str, list[bytes]]:
    """Appends to one stream, perhaps as a writer that dies; returns what was acknowledged."""
    acknowledged: dict[str, list[bytes]] = {}
    stream = chance.choice(STREAMS)
    async with LedgerClient.connect(uri) as client:
        namespace = Namespace(client, "ns")
        await namespace.ensure()
        try:
            with trio.fail_after(PATIENCE_S):
                async with namespace.writer(stream, create=True) as writer:
                    for number in numbers:
                        value = b"%s %d" % (stream.encode(), number)
                        await writer.append(value)
                        acknowledged.setdefault(stream, []).append(value)
                    if chance.random() < 0.5:
                        raise _Died
        except (_Died, LedgerError):
            pass
    return acknowledged


async def read(uri: str, stream: str) -> list[bytes] | None:
    """Returns all records; None if the stream refuses to be read as a whole."""
    async with LedgerClient.connect(uri) as client:
        namespace = Namespace(client, "ns")
        try:
            with trio.fail_after(PATIENCE_S):
                await namespace.seal_stream(stream)
                async with namespace.reader(stream) as reader:
                    return [
                        record.value
                        async for batch in reader.read_to_end()
                        for record in batch.records()
                    ]
        except LedgerError:
            return None


@pytest.mark.parametrize("seed", seeds(ci=2, night=20))
def test_no_stream_has_records_of_another_whatever_is_put_back(
    seed: int, start_cluster: StartCluster, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    cluster = start_cluster("--janitor-interval-s", "0")
    acknowledged: dict[str, list[bytes]] = {}
    appended = 0

    def write(times: int) -> None:
        nonlocal appended
        for _ in range(times):
            numbers = range(appended, appended + chance.randint(1, 30))
            appended = numbers.stop
            for stream, values in trio.run(append, cluster.uri, chance, numbers).items():
                acknowledged.setdefault(stream, []).extend(values)

    def stop() -> None:
        cluster.end() if chance.random() < 0.5 else cluster.kill_all()

    write(1)
    stop()
    copy(cluster, tmp_path / "moment")
    cluster.start()
    write(2)
    stop()
    names = parts(cluster)
    chosen = (
        ["cluster.db"] if seed == 0 else chance.sample(names, chance.randint(1, len(names) - 1))
    )
    put_back(cluster, tmp_path / "moment", chosen)
    cluster.start()
    write(2)
    assert trio.run(_check, cluster.uri, acknowledged, "cluster.db" in chosen)


async def _check(uri: str, acknowledged: dict[str, list[bytes]], is_metadata_older: bool) -> bool:
    async with open_store(uri) as store:
        restores = await RestoreLog(store).read()
    for stream, values in acknowledged.items():
        found = await read(uri, stream)
        if found is None:
            continue  # an error has named the loss
        assert all(value.split()[0] == stream.encode() for value in found), found
        numbers = [int(value.split()[1]) for value in found]
        assert numbers == sorted(set(numbers)), numbers
        if set(values) - set(found):
            assert restores, f"{stream}: records are missing, and nothing names it"
    assert not (is_metadata_older and not restores), "nobody noticed the older metadata"
    return True


def test_a_backup_is_exported_imported_and_noticed(
    start_cluster: StartCluster, tmp_path: Path
) -> None:
    cluster = start_cluster()
    cluster.run("namespace", "create", "ns")
    cluster.run("append", "ns/a", stdin=b"one\n")
    backup = tmp_path / "backup.jsonl"
    cluster.run("metadata", "export", str(backup))
    cluster.run("append", "ns/b", stdin=b"lost\n" * 5)
    assert cluster.run("metadata", "restores", "--json").split() in ([], [b"[]"])
    cluster.kill_all()
    for path in cluster.directory.glob("cluster.db*"):
        path.unlink()

    async def restore() -> None:
        async with open_store(cluster.uri, may_create=True) as store:
            await import_backup(store, "/ledgers", decode_backup(backup.read_text().splitlines()))

    trio.run(restore)
    cluster.start()
    assert cluster.run("append", "ns/c", stdin=b"new\n" * 3) is not None
    cluster.run("append", "ns/c", stdin=b"new\n")
    assert cluster.run("read", "ns/c") == b"new\n" * 4
    assert cluster.run("read", "ns/a") == b"one\n"
    assert b"bookie" in cluster.run("metadata", "restores", "--json")
    refused = cluster.try_run("metadata", "release", "1")
    assert refused.returncode == 1
    assert b"continue with --yes" in refused.stderr
    cluster.run("metadata", "release", "1", "--yes")
    assert b'"released": true' in cluster.run("metadata", "restores", "--json")
    assert cluster.try_run("metadata", "import", str(backup)).returncode == 1
    assert trio.run(_exported, cluster.uri) > 3


async def _exported(uri: str) -> int:
    async with open_store(uri) as store:
        return len([line async for line in export_lines(store, "/ledgers")])


def test_records_that_a_restore_lost_come_back(start_cluster: StartCluster, tmp_path: Path) -> None:
    cluster = start_cluster("--janitor-interval-s", "0")
    cluster.run("append", "ns/known", stdin=b"known\n")
    cluster.end()
    copy(cluster, tmp_path / "moment")
    cluster.start()
    lines = b"".join(b"k%d:%d\n" % (n % 3, n) for n in range(50))
    key = ("--key-separator", ":", "--header", "source=web", "--event-time", "2026-01-02T03:04:05Z")
    cluster.run("append", "ns/forgotten", *key, stdin=lines)
    cluster.end()
    put_back(cluster, tmp_path / "moment", ["cluster.db"])
    cluster.start()
    assert cluster.run("read", "ns/known") == b"known\n"
    (lost,) = json.loads(cluster.run("stream", "lost-ledgers", "--json"))
    assert (lost["records"], lost["first_sequence"], lost["first_value"]) == (50, 0, "0")
    assert (lost["bookies"], lost["behind_gap"]) == (3, 0)
    for _ in range(2):  # again appends nothing more
        cluster.run("stream", "adopt", "ns/found", str(lost["ledger"]))
    records = [json.loads(line) for line in cluster.run("read", "ns/found", "--json").splitlines()]
    assert [(r["key"], r["value"]) for r in records] == [(f"k{n % 3}", f"{n}") for n in range(50)]
    assert {r["event_time"] for r in records} == {"2026-01-02T03:04:05.000Z"}
    assert {json.dumps(r["headers"]) for r in records} == {json.dumps([["source", "web"]])}
    # Bookies that started at the same time may have recorded ranges that overlap.
    noticed = json.loads(cluster.run("metadata", "restores", "--json"))
    cluster.run("metadata", "release", str(len(noticed)), "--yes")
    assert json.loads(cluster.run("stream", "lost-ledgers", "--json")) == []
