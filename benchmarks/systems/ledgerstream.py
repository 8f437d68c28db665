"""ledgerstream: a standalone of three bookies, and a client of a stream."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version
from pathlib import Path

from benchmarks.append import NAMESPACE
from benchmarks.cluster import RunningCluster, descendants, start_cluster, stop_cluster
from benchmarks.fixed_rate import Append
from benchmarks.systems import drivers
from benchmarks.systems.system import Running
from stream import EARLIEST, Namespace

_JANITOR_S = 60.0
ABOUT = f"ledgerstream {version('ledgerstream')}: 3 copies, each synced, acknowledged by 2"


def missing() -> str:
    return ""


@contextmanager
def running(directory: Path) -> Iterator[Running]:
    cluster = start_cluster(directory, 3, has_janitor=True)  # as a user starts it
    try:
        client = drivers.module_client("ledgerstream", cluster.uri)
        yield Running(cluster.uri, client, _pids(cluster))
    finally:
        stop_cluster(cluster)


def _pids(cluster: RunningCluster) -> list[int]:
    """Returns the supervisor, the bookies and the janitor, once it runs: it begins later."""
    until_s = time.monotonic() + _JANITOR_S
    while time.monotonic() < until_s:
        if (cluster.directory / "janitor.pid").exists():
            return [cluster.process.pid, *descendants(cluster.process.pid)]
        time.sleep(0.1)
    raise SystemExit(f"the cluster in {cluster.directory} has no janitor after {_JANITOR_S} s")


class _Client:
    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    @asynccontextmanager
    async def writer(self, stream: str) -> AsyncIterator[Append]:
        await self._namespace.ensure(ensemble_size=3, write_quorum=3, ack_quorum=2)
        async with self._namespace.writer(stream, create=True) as writer:
            yield writer.append

    async def follow(self, stream: str) -> AsyncIterator[Sequence[bytes]]:
        async with self._namespace.reader(stream, start=EARLIEST) as reader:
            async for batch in reader.batches():
                yield batch.values()


@asynccontextmanager
async def connect(address: str) -> AsyncIterator[_Client]:
    async with Namespace.connect(address, NAMESPACE) as namespace:
        yield _Client(namespace)


if __name__ == "__main__":
    drivers.main(connect)
