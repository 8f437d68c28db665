"""Helpers that read a whole stream."""

from __future__ import annotations

from contextlib import aclosing

from stream import EARLIEST, Namespace, Record, Start, StreamReader


async def read_all(namespace: Namespace, stream: str, start: Start = EARLIEST) -> list[Record]:
    async with namespace.reader(stream, start=start) as reader:
        return [record async for batch in reader.read_to_end() for record in batch.records()]


async def read_values(namespace: Namespace, stream: str = "s") -> list[bytes]:
    return values(await read_all(namespace, stream))


async def drain(reader: StreamReader) -> None:
    async with aclosing(reader.read_to_end()) as batches:
        async for _ in batches:
            pass


def values(records: list[Record]) -> list[bytes]:
    return [record.value for record in records]
