"""A new ledger that a janitor deletes before it is a segment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ledger.errors import MetadataConflict
from ledger.metastore.ledgers import LedgerStore
from stream import Namespace, StreamMetadata, create_namespace
from stream.store.streams import StreamStore
from tests.real_cluster import real_cluster


async def test_a_writer_whose_new_ledger_was_deleted_may_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, deleted = StreamStore.put_stream, list[int]()
    async with real_cluster(tmp_path) as cluster, cluster.client() as client:
        ledgers = LedgerStore(client.store)

        async def put_late(
            self: StreamStore, *given: Any, **more: Any
        ) -> tuple[StreamMetadata, int]:
            if more.get("ledger_path") is not None and not deleted:
                deleted.append(max(await ledgers.list()))
                await ledgers.delete(deleted[0])
            return await put(self, *given, **more)

        await create_namespace(client, "demo")
        namespace = Namespace(client, "demo")
        await namespace.create_stream("s")
        monkeypatch.setattr(StreamStore, "put_stream", put_late)
        with pytest.raises(MetadataConflict, match="took it for an orphan"):
            async with namespace.writer("s") as writer:
                await writer.append(b"lost")
        assert deleted
        async with namespace.writer("s") as writer:
            await writer.append(b"again")
        assert [one.value for one in await namespace.read_last("s", 10)] == [b"again"]
