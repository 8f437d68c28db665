"""Apache's Java client on ledgerstream bookies: authentication, and Apache's benchmarks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import trio

from tests.interop.clients.java_ledgers import closed_ledger, created, opened, result, verify
from tests.interop.conftest import GetSharedJava
from tests.interop.java_client import Answer, JavaClient, JavaError
from tests.interop.java_main import run_java
from tests.interop.our_bookies import OurBookies
from tests.interop.timeouts import PATIENCE_S

pytestmark = pytest.mark.interop

BENCHMARK = "org.apache.bookkeeper.benchmark"


def with_handshake(
    get: GetSharedJava, version: str, uri: str, wire: str, behaviour: str, **settings: object
) -> JavaClient:
    return get(
        version,
        uri,
        v2=wire == "v2",
        clientAuthProviderFactoryClass="ledgerstream.interop.Handshake",
        handshake=behaviour,
        **settings,
    )


def more(before: Answer, after: Answer) -> Answer:
    return {name: after[name] - before[name] for name in before}


@result("auth handshake (no TLS): a client's plugin meets a bookie without one")
@pytest.mark.parametrize("behaviour", ["patient", "twice"])
async def test_a_client_that_authenticates_is_admitted(
    version: str, wire: str, behaviour: str, our_bookies: OurBookies, java_shared: GetSharedJava
) -> None:
    java = with_handshake(java_shared, version, our_bookies.uri, wire, behaviour)
    before = await java.call("handshakes")
    ledger = await closed_ledger(java, 200, 100)
    reader = await opened(java, ledger["ledger"])
    await verify(java, reader["handle"], 200, 100, seed=ledger["ledger"])
    seen = more(before, await java.call("handshakes"))
    assert seen["connections"] >= 3
    assert seen["sent"] == seen["connections"] * (2 if behaviour == "twice" else 1)
    # The bookie's plugin is "no authentication": the client's plugin is not called.
    assert seen["answered"] == 0


@result("auth handshake that the client itself breaks off is an error, not a hang")
async def test_a_handshake_that_fails_is_an_error(
    version: str, wire: str, our_bookies: OurBookies, java_shared: GetSharedJava
) -> None:
    java = with_handshake(
        java_shared, version, our_bookies.uri, wire, "refusing", addEntryTimeoutSec=2
    )
    ledger = await created(java)
    with (
        trio.fail_after(PATIENCE_S),
        pytest.raises(JavaError, match=r"NotEnoughBookies|Unauthorized"),
    ):
        await java.call("append", handle=ledger["handle"], data=b"x")
    await java.call("abandon", handle=ledger["handle"])


@pytest.fixture
def zookeeper_servers(our_bookies: OurBookies) -> str:
    """Returns "host:port/path", as the benchmarks expect it; they append "/ledgers"."""
    return our_bookies.uri.removeprefix("zk://").removesuffix("/ledgers")


@result("BenchThroughputLatency (of 4.17.3's benchmark)")
async def test_the_throughput_benchmark_runs(
    version: str, wire: str, zookeeper_servers: str, tmp_path: Path
) -> None:
    latencies = tmp_path / "latencies"
    ended = await run_java(
        version,
        f"{BENCHMARK}.BenchThroughputLatency",
        *("-zookeeper", zookeeper_servers, "-time", "2"),
        *("-ensemble", "3", "-quorum", "3", "-ackQuorum", "2", "-ledgers", "2"),
        *("-throttle", "500", "-sendlimit", "200000", "-latencyFile", str(latencies)),
        *(["-useV2", "-warmupMessages", "500"] if wire == "v2" else ["-skipwarmup"]),
    )
    assert ended.code == 0, ended.log
    found = re.search(r"(\d+) completions in (\d+) milliseconds: (\d+) ops/sec", ended.output)
    assert found, ended.output
    assert int(found[1]) > 0
    assert len(latencies.read_text().splitlines()) == int(found[1])


@result("BenchReadThroughputLatency (of 4.17.3's benchmark)")
async def test_the_read_benchmark_runs(
    client: JavaClient, version: str, wire: str, zookeeper_servers: str
) -> None:
    count = 3000
    ledger = await closed_ledger(client, count, 1024, digest="CRC32")
    with_batches = wire == "v2" and not version.startswith("4.16")
    ended = await run_java(
        version,
        f"{BENCHMARK}.BenchReadThroughputLatency",
        *("-zookeeper", zookeeper_servers, "-ledgerManagerType", "hierarchical"),
        *("-ledger", str(ledger["ledger"]), "-password", "open sesame"),
        *("-batchentries", str(2 * count) if with_batches else "0"),
        *(["-useV2"] if wire == "v2" else []),
    )
    assert ended.code == 0, ended.log
    found = re.search(r"Read (\d+) in (\d+)ms", ended.output)
    assert found, ended.output
    # Without batches it skips entry 0; with batches it ends only if one batch holds everything.
    assert int(found[1]) >= count - 1
