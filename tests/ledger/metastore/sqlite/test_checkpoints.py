"""A metadata file may be opened while another process moves its write-ahead log into it."""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ledger.errors import MetadataCorrupt
from ledger.metastore.sqlite.liveness import identity_of
from ledger.metastore.sqlite.tree import SqliteTree


def opened(path: Path, *, may_create: bool = False) -> SqliteTree:
    return SqliteTree(
        str(path),
        session_timeout_ms=5000,
        now_ms=lambda: 0,
        shared_clock_ms=lambda: 0,
        identity=identity_of(os.getpid()),
        may_create=may_create,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    opened(tmp_path / "cluster.db", may_create=True).close()
    return tmp_path / "cluster.db"


def frames_of(log: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields number and bytes of each page in a log (https://sqlite.org/fileformat2.html, 4.1)."""
    (page_bytes,) = struct.unpack_from(">I", log, 8)
    for begin in range(32, len(log), 24 + page_bytes):
        yield int.from_bytes(log[begin : begin + 4]), log[begin + 24 : begin + 24 + page_bytes]


def test_a_file_whose_first_page_is_newer_than_the_rest_is_opened(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("PRAGMA wal_autocheckpoint = 0")
        writer.execute("INSERT INTO nodes VALUES('/a', '/', zeroblob(500000), 0, 0, NULL, 1)")
        pages = dict(frames_of(path.with_name("cluster.db-wal").read_bytes()))
        # Closing a descriptor would end the locks of this process: this one stays open.
        file = os.open(path, os.O_RDWR)
        os.pwrite(file, pages[1], 0)  # what a checkpoint does first
        with (
            closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as torn,
            pytest.raises(sqlite3.DatabaseError, match="malformed"),
        ):
            torn.execute("PRAGMA application_id")
        with closing(opened(path)) as tree:
            assert len(tree.get("/a").data) == 500_000
    os.close(file)


def test_a_file_without_its_end_is_damaged(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 // 4096 * 4096)
    with pytest.raises(MetadataCorrupt, match="is damaged"):
        opened(path)
