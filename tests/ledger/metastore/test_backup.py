"""Backups of the metadata, and imports into another store."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ledger.core.entry import DigestType
from ledger.core.metadata import Fragment, LedgerMetadata
from ledger.errors import InvalidArgument
from ledger.metastore import MetadataStore, open_store
from ledger.metastore.backup import decode_backup, export_lines, import_backup
from ledger.metastore.bookies import BookieInfo, BookieRegistry
from ledger.metastore.ledgers import LedgerStore
from tests.zookeeper import RunningZooKeeper


@asynccontextmanager
async def cluster_in(store: MetadataStore, root: str = "/ledgers") -> AsyncIterator[LedgerStore]:
    import random

    registry, ledgers = BookieRegistry(store, root), LedgerStore(store, root)
    await registry.init_cluster(random.Random(1))
    for _ in range(5):
        await ledgers.create(
            LedgerMetadata(
                ledger_id=await ledgers.next_ledger_id(), ensemble_size=1, write_quorum=1,
                ack_quorum=1, fragments=(Fragment(0, ("b:1",)),), digest_type=DigestType.CRC32C,
                password=b"\0\xff", custom={"x": b"\xfe"}, created_ms=7,
            )
        )  # fmt: skip
    await store.create("/ledgerstream/namespaces/n/streams/s", b"{}")
    async with registry.register("b:1", BookieInfo("b", 1)):
        yield ledgers


async def test_an_import_has_what_was_exported_without_registrations(tmp_path: Path) -> None:
    async with (
        open_store(f"sqlite://{tmp_path}/a.db", may_create=True) as one,
        cluster_in(one) as ledgers,
    ):
        lines = [line async for line in export_lines(one, "/ledgers")]
        before = [await ledgers.read(ledger_id) for ledger_id in await ledgers.list()]
    assert json.loads(lines[0]) == {
        "format": "ledgerstream-metadata", "version": 1, "root": "/ledgers",
    }  # fmt: skip
    async with open_store(f"sqlite://{tmp_path}/b.db", may_create=True) as two:
        await import_backup(two, "/ledgers", decode_backup(lines))
        ledgers = LedgerStore(two, "/ledgers")
        after = [await ledgers.read(ledger_id) for ledger_id in await ledgers.list()]
        assert [metadata for metadata, _ in after] == [metadata for metadata, _ in before]
        assert await BookieRegistry(two).available() == {}
        assert (await two.get("/ledgerstream/namespaces/n/streams/s")).data == b"{}"
        assert await ledgers.next_ledger_id() == 6  # the export took 5
        with pytest.raises(InvalidArgument, match="there is a cluster already"):
            await import_backup(two, "/ledgers", decode_backup(lines))


@pytest.mark.zookeeper
async def test_a_backup_moves_from_sqlite_to_zookeeper_and_another_root(
    tmp_path: Path, shared_zookeeper: RunningZooKeeper
) -> None:
    async with open_store(f"sqlite://{tmp_path}/a.db", may_create=True) as one, cluster_in(one):
        lines = [line async for line in export_lines(one, "/ledgers")]
    uri = f"zk://{shared_zookeeper.address}/imported-ledgers"
    async with open_store(uri, may_create=True) as two:
        await import_backup(two, "/imported-ledgers", decode_backup(lines))
        assert await LedgerStore(two, "/imported-ledgers").list() == [0, 1, 2, 3, 4]
        assert await LedgerStore(two, "/imported-ledgers").next_ledger_id() >= 6


async def test_no_cluster_is_exported_where_there_is_none(tmp_path: Path) -> None:
    async with open_store(f"sqlite://{tmp_path}/a.db", may_create=True) as store:
        with pytest.raises(InvalidArgument, match="there is no cluster"):
            [line async for line in export_lines(store, "/ledgers")]


HEADER = '{"format": "ledgerstream-metadata", "version": 1, "root": "/ledgers"}'
NODE = '{"path": "/a", "data": "eA=="}'
END = '{"nodes": 1, "next_ledger_id": 3}'


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "ends after 0 nodes; the file was cut short"),
        ([HEADER, NODE], "ends after 1 nodes; the file was cut short"),
        ([HEADER, END], "ends after 0 nodes, it must have 1"),
        ([NODE, END], "line 1 is not the header"),
        ([HEADER.replace("1", "2"), NODE, END], "line 1 is not the header"),
        ([HEADER, "{", END], "line 2 is not JSON"),
        ([HEADER, "[]", END], "line 2 is not a JSON object"),
        ([HEADER, '{"path": 1, "data": ""}', END], "line 2 has no path or no data"),
        ([HEADER, '{"path": "/a", "data": "%"}', END], "line 2: data is not base64"),
        ([HEADER, NODE, END, NODE], "line 4 follows the end"),
        ([HEADER, NODE, '{"nodes": 1, "next_ledger_id": -1}'], "no next ledger id"),
    ],
)
def test_a_damaged_backup_is_refused_by_its_line(lines: list[str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        decode_backup(lines)
