"""The number of hops that callers make to the trio thread: counted, rather than timed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bookie.testing.in_process import InProcessCluster
from ledger.runtime.bridge import BackgroundLoop
from stream import aio, blocking


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    directory: Path = tmp_path_factory.mktemp("hops")
    with InProcessCluster(directory) as running:
        yield running


@pytest.fixture
def hops(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list whose only element counts the hops."""
    count = [0]
    post = BackgroundLoop.post

    def counted(loop: BackgroundLoop, job: Callable[[], object]) -> None:
        count[0] += 1
        post(loop, job)

    monkeypatch.setattr(BackgroundLoop, "post", counted)
    return count


def test_hops_of_asyncio(cluster: InProcessCluster, hops: list[int]) -> None:
    async def main() -> None:
        async with (
            aio.Namespace.connect(cluster.uri, "hops-aio", create=True) as namespace,
            namespace.writer("s", create=True) as writer,
        ):
            hops[0] = 0
            await asyncio.gather(*(writer.append(b"%d" % number) for number in range(500)))
            assert hops[0] == 1
            await writer.append_many([b"x"] * 5000)
            assert hops[0] == 2
            tickets = [writer.append_nowait(b"x") for _ in range(500)]
            await asyncio.gather(*(ticket.wait() for ticket in tickets))
            assert hops[0] == 3
            async with namespace.reader("s") as reader:
                hops[0] = 0
                for _ in range(6000):
                    await anext(reader)
                assert hops[0] == 1
                async for _ in reader.read_to_end():
                    raise AssertionError("every record was read before")
                assert hops[0] <= 3

    asyncio.run(main())


def test_hops_of_threads(cluster: InProcessCluster, hops: list[int]) -> None:
    with (
        blocking.Namespace.connect(cluster.uri, "hops", create=True) as namespace,
        namespace.writer("s", create=True) as writer,
    ):
        hops[0] = 0
        writer.append_many([b"x"] * 5000)
        assert hops[0] == 1
        for _ in range(5000):
            writer.append_nowait(b"x")
        writer.flush()
        assert hops[0] < 1000
        with namespace.reader("s") as reader:
            hops[0] = 0
            for _ in range(10_000):
                next(reader)
            assert hops[0] == 1
