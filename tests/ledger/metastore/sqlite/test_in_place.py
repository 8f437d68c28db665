"""A metadata file that is deleted, moved or replaced under a running process.

The process would continue in a file that no other process sees, and what it wrote would be lost.
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import pytest
import trio

from ledger.client import LedgerClient
from ledger.errors import MetadataUnavailable, NoSuchNode
from ledger.metastore.sqlite.store import open_sqlite
from tests.clusters import make_cluster

Fate = Callable[[Path], Callable[[], object] | None]
"""What happens to the file; returns what undoes it, if anything does."""


def deleted(file: Path) -> None:
    file.unlink()


def moved(file: Path) -> Callable[[], object]:
    file.rename(file.with_suffix(".moved"))
    return lambda: file.with_suffix(".moved").rename(file)


def replaced(file: Path) -> Callable[[], object]:
    shutil.copy(file, file.with_suffix(".copy"))
    file.rename(file.with_suffix(".moved"))
    file.with_suffix(".copy").rename(file)
    return lambda: file.with_suffix(".moved").replace(file)


def directory_moved(file: Path) -> Callable[[], object]:
    file.parent.rename(file.parent.with_suffix(".moved"))
    return lambda: file.parent.with_suffix(".moved").rename(file.parent)


FATES = [
    (deleted, "was deleted or moved"),
    (moved, "was deleted or moved"),
    (replaced, "was replaced by another file"),
    (directory_moved, "was deleted or moved"),
]


@pytest.mark.parametrize(("fate", "text"), FATES, ids=lambda value: getattr(value, "__name__", ""))
async def test_a_file_that_is_not_in_its_place_is_unavailable(
    tmp_path: Path, fate: Fate, text: str
) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    file = directory / "cluster.db"
    async with open_sqlite(str(file)) as store:
        await store.create("/a", b"x")
        async with aclosing(store.watch("/a")) as nodes:
            assert await anext(nodes)
            undo = fate(file)
            calls: list[Callable[[], Awaitable[object]]] = [
                lambda: store.get("/a"),
                lambda: store.get("/missing"),
                lambda: store.children("/"),
                lambda: store.put("/a", b"y"),
                lambda: store.create("/b", b""),
                lambda: store.create("/e", b"", is_ephemeral=True),
                lambda: store.delete("/a"),
                lambda: store.next_id("/i"),
            ]
            for call in calls:
                with pytest.raises(MetadataUnavailable, match=f"{file} {text} while this process"):
                    await call()
            if undo is not None:
                undo()
                assert (await store.get("/a")).data == b"x"
                await store.put("/a", b"y")
                with pytest.raises(NoSuchNode):
                    await store.get("/b")
                with trio.fail_after(5):
                    while True:
                        node = await anext(nodes)
                        if node is not None and node.data == b"y":
                            break


async def test_the_session_goes_on_when_the_file_is_back_and_the_log_named_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "cluster.db"
    async with open_sqlite(str(file), session_timeout_ms=400) as store:
        await store.create("/e", b"", is_ephemeral=True)
        back = moved(file)
        await trio.sleep(0.8)  # some heartbeats fail, and some looks for dead sessions
        back()
        assert (await store.get("/e")).data == b""
        assert caplog.text.count(f"metadata_unavailable cause={file} was deleted or moved") == 1


async def test_a_file_that_is_gone_does_not_disturb_the_end(tmp_path: Path) -> None:
    file = tmp_path / "cluster.db"
    with trio.fail_after(5):
        async with open_sqlite(str(file)) as store:
            await store.create("/e", b"", is_ephemeral=True)
            file.unlink()
    assert not file.exists()


async def test_a_client_reports_no_empty_cluster_when_its_file_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "cluster.db"
    await make_cluster(f"sqlite://{file}")
    async with LedgerClient.connect(f"sqlite://{file}") as client:
        assert await client.list_ledgers() == []
        file.unlink()
        for ask in (client.list_ledgers, client.bookies.available, client.bookies.all):
            with pytest.raises(MetadataUnavailable, match="deleted or moved"):
                await ask()
        with pytest.raises(MetadataUnavailable, match="deleted or moved"):
            await client.ledger_metadata(0)
    assert not file.exists()
