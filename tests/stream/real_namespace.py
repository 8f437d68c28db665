"""A namespace on real bookies in the test's process, and short ways to read from it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from stream import EARLIEST, Namespace, Record, Start, StreamReader
from tests.real_cluster import SMALL, real_cluster


@asynccontextmanager
async def a_namespace(tmp_path: Path, **policy: Any) -> AsyncIterator[Namespace]:
    async with real_cluster(tmp_path, **SMALL) as cluster, cluster.client() as client:
        namespace = Namespace(client, "demo")
        await namespace.ensure(**policy)
        yield namespace


async def read_all(namespace: Namespace, stream: str, start: Start = EARLIEST) -> list[Record]:
    async with namespace.reader(stream, start=start) as reader:
        return [record async for batch in reader.read_to_end() for record in batch.records()]


async def drain(reader: StreamReader) -> None:
    async with aclosing(reader.read_to_end()) as batches:
        async for _ in batches:
            pass


def values(records: list[Record]) -> list[bytes]:
    return [record.value for record in records]
