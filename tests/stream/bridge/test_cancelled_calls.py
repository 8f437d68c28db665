"""Callers that time out repeatedly, at any moment: no record is lost or returned twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie.testing.in_process import InProcessCluster
from stream import aio, blocking

RECORDS = 400


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    directory: Path = tmp_path_factory.mktemp("impatience")
    with InProcessCluster(directory) as running:
        yield running


def test_an_asyncio_program_with_short_timeouts_loses_and_repeats_nothing(
    cluster: InProcessCluster,
) -> None:
    rng = random.Random(7)
    confirmed: list[bytes] = []
    seen: list[bytes] = []

    async def write(namespace: aio.Namespace) -> None:
        async with namespace.writer("s", create=True) as writer:
            for number in range(RECORDS):
                value = b"%d" % number
                try:
                    async with asyncio.timeout(rng.choice((0.0005, 0.002, 1.0))):
                        await writer.append(value)
                        confirmed.append(value)
                except TimeoutError:
                    continue
            await writer.append(b"last")

    async def read(namespace: aio.Namespace) -> None:
        async with namespace.reader("s") as reader:
            while b"last" not in seen[-1:]:
                try:
                    async with asyncio.timeout(rng.choice((0.0005, 0.002, 0.02))):
                        if rng.random() < 0.5:
                            seen.append((await anext(reader)).value)
                        else:
                            seen.extend((await reader.next_batch()).values())
                except TimeoutError:
                    continue

    async def main() -> None:
        async with (
            asyncio.timeout(60),
            aio.Namespace.connect(cluster.uri, "impatient-aio", create=True) as namespace,
        ):
            await namespace.create_stream("s")
            async with asyncio.TaskGroup() as group:
                group.create_task(write(namespace))
                group.create_task(read(namespace))

    asyncio.run(main())
    check(seen, confirmed)


def test_a_blocking_program_with_short_timeouts_loses_and_repeats_nothing(
    cluster: InProcessCluster,
) -> None:
    rng = random.Random(7)
    confirmed: list[bytes] = []
    seen: list[bytes] = []
    with (
        blocking.fail_after(60),
        blocking.Namespace.connect(cluster.uri, "impatient", create=True) as namespace,
        namespace.writer("s", create=True) as writer,
        namespace.reader("s") as reader,
    ):
        for number in range(RECORDS):
            value = b"%d" % number
            try:
                with blocking.fail_after(rng.choice((0.0005, 0.002, 1.0))):
                    writer.append(value)
                    confirmed.append(value)
                with blocking.fail_after(rng.choice((0.0005, 0.002))):
                    seen.append(next(reader).value)
            except TimeoutError:
                continue
        writer.append(b"last")
        while b"last" not in seen[-1:]:
            seen.extend(reader.next_batch().values())
    check(seen, confirmed)


def check(seen: list[bytes], confirmed: list[bytes]) -> None:
    numbers = [int(value) for value in seen[:-1]]
    assert numbers == sorted(set(numbers))
    assert {int(value) for value in confirmed} <= set(numbers)
    assert seen[-1] == b"last"
