"""Missing streams are reported before any task starts, with similar names."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from connectors.spark.client.client_cache import cached_cluster
from connectors.spark.existence import check_exist
from connectors.spark.options.options import Selection
from ledger.client import LedgerClient
from ledger.errors import InvalidArgument, MetadataUnavailable, NoSuchCluster
from stream.errors import NoSuchNamespace, NoSuchStream
from stream.namespace import Namespace
from stream.retention.policies import create_namespace
from tests.clusters import make_cluster

STREAMS = ("clicks", "clocks", "views", "orders-2025", "orders-2026")


async def _make(client: LedgerClient) -> None:
    for name in ("demo", "empty"):
        await create_namespace(client, name)
    namespace = Namespace(client, "demo")
    for stream in STREAMS:
        await namespace.create_stream(stream)
    await namespace.create_stream("wide", partitions=4)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster with metadata only: no bookie is needed to check existence."""
    path = tmp_path_factory.mktemp("existence") / "cluster.db"
    uri = f"sqlite://{path}"
    trio.run(make_cluster, uri)
    cached_cluster(uri).run(_make)
    yield uri
    cached_cluster(uri).disconnect()


def named(*streams: str) -> Selection:
    return Selection(streams=streams)


def test_existing_streams_are_accepted(cluster: str) -> None:
    check_exist(cluster, named("demo/clicks", "demo/wide", "demo/wide#3"))
    check_exist(cluster, Selection(patterns=("demo/orders-*", "empty/*")))
    check_exist(cluster, Selection(patterns=("demo/orders-*",)), may_be_none=False)


def test_a_stream_may_be_missing_but_not_its_namespace(cluster: str) -> None:
    check_exist(cluster, named("demo/clicks", "demo/gone"), may_be_gone=True)
    with pytest.raises(NoSuchNamespace):
        check_exist(cluster, named("dmo/clicks"), may_be_gone=True)


@pytest.mark.parametrize(
    ("selection", "error", "words"),
    [
        (
            named("demo/click"),
            NoSuchStream,
            ["'demo/click'", "similar names: clicks", "stream create"],
        ),
        (named("demo/Clicks"), NoSuchStream, ["'demo/Clicks'", "similar names: clicks"]),
        (named("demo/zzz"), NoSuchStream, ["streams of demo: clicks, clocks", "and 1 more"]),
        (named("empty/x"), NoSuchStream, ["there are no streams of empty"]),
        (
            named("dmo/clicks"),
            NoSuchNamespace,
            ["'dmo'", "similar names: demo", "namespace create"],
        ),
        (named("demo/wide#4"), NoSuchStream, ["partitions 0 to 3", "no partition 4"]),
        (named("demo/clicks#0"), NoSuchStream, ["'demo/clicks' is not partitioned"]),
        (named("demo/clicks", "demo/veiws"), NoSuchStream, ["similar names: views"]),
        (Selection(patterns=("nope/*",)), NoSuchNamespace, ["existing namespaces: demo"]),
    ],
)
def test_a_missing_name_is_reported_with_existing_ones(
    cluster: str, selection: Selection, error: type[Exception], words: list[str]
) -> None:
    with pytest.raises(error) as caught:
        check_exist(cluster, selection)
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_batch_of_no_stream_is_an_error(cluster: str) -> None:
    with pytest.raises(NoSuchStream, match=r"no stream matches demo/x-\*; .*clicks"):
        check_exist(cluster, Selection(patterns=("demo/x-*",)), may_be_none=False)


def test_a_wrong_path_creates_no_cluster(tmp_path: Path) -> None:
    with pytest.raises(NoSuchCluster, match=r"nowhere\.db does not exist\..*Executors on other"):
        check_exist(f"sqlite://{tmp_path}/nowhere.db", named("demo/clicks"))
    assert not list(tmp_path.iterdir())


def test_a_wrong_address_is_explained() -> None:
    with pytest.raises(InvalidArgument, match=r"unknown scheme 'http'.*zk://host:2181/ledgers"):
        check_exist("http://x", named("demo/clicks"))
    with pytest.raises(InvalidArgument, match="in memory cannot be shared"):
        check_exist("memory:", named("demo/clicks"))


@pytest.mark.system
def test_an_unreachable_cluster_is_reported_with_its_address() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"zk://127.0.0.1:{closed.getsockname()[1]}/ledgers"
        begun_s = time.monotonic()
        with pytest.raises(MetadataUnavailable) as caught:
            check_exist(address, named("demo/clicks"))
    assert time.monotonic() - begun_s < 60
    words = [address, "cannot be reached from the driver", "tried for", "refused", "Cure"]
    assert [word for word in words if word not in str(caught.value)] == []
