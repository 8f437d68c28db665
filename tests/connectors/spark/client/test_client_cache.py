"""The cached client: shared by threads, new after a fork, lazy, bounded."""

from __future__ import annotations

import os
import pickle
import threading
import traceback
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio

from connectors.spark.client import client_cache
from connectors.spark.client.client_cache import ClusterClient, cached_cluster
from connectors.spark.client.lazy_store import LazyStore
from ledger.client import LedgerClient
from ledger.errors import InvalidArgument, LedgerClosed, NoSuchCluster, NoSuchLedger
from ledger.metastore.base import MetadataStore
from ledger.runtime.shared_loop import acquire_loop, release_loop
from stream.blocking.bridge import fail_after
from tests.clusters import make_cluster


async def _store_of(client: LedgerClient) -> MetadataStore:
    return client.store


async def _sum(client: LedgerClient, *numbers: int) -> int:
    return sum(numbers)


async def _thread(client: LedgerClient) -> int:
    return threading.get_ident()


async def _for_ever(client: LedgerClient) -> None:
    await trio.sleep_forever()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterClient]:
    cluster = cached_cluster(f"sqlite://{tmp_path}/cluster.db")
    trio.run(make_cluster, cluster.cluster)
    yield cluster
    cluster.disconnect()


def test_all_threads_and_tasks_share_one_client(cluster: ClusterClient) -> None:
    loops: list[int] = []

    def task() -> None:
        loops.append(cluster.run(_thread))

    threads = [threading.Thread(target=task) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(loops)) == 1
    assert loops[0] != threading.get_ident()
    assert cached_cluster(cluster.cluster) is cluster
    assert cluster.run(_sum, 1, 2, 3) == 6


def test_an_exception_is_the_one_that_was_raised(cluster: ClusterClient) -> None:
    with pytest.raises(NoSuchLedger, match="ledger 77"):
        cluster.run(LedgerClient.ledger_metadata, 77)

    async def stop(client: LedgerClient) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        cluster.run(stop)


def test_pickled_it_is_an_address(cluster: ClusterClient) -> None:
    cluster.run(_sum)
    assert pickle.loads(pickle.dumps(cluster)) is cluster


def test_the_store_is_opened_by_the_first_request(cluster: ClusterClient) -> None:
    store = cluster.run(_store_of)
    assert isinstance(store, LazyStore)
    assert not store.is_opened
    with pytest.raises(NoSuchLedger):
        cluster.run(LedgerClient.ledger_metadata, 1)
    assert store.is_opened


def test_a_store_that_cannot_be_opened_is_tried_again(tmp_path: Path) -> None:
    cluster = cached_cluster(f"sqlite://{tmp_path}/later/cluster.db")
    with pytest.raises(NoSuchCluster, match=r"later does not exist"):
        cluster.run(LedgerClient.ledger_metadata, 1)
    (tmp_path / "later").mkdir()
    with pytest.raises(NoSuchCluster, match=r"later/cluster\.db does not exist"):
        cluster.run(LedgerClient.ledger_metadata, 1)
    assert list((tmp_path / "later").iterdir()) == []
    trio.run(make_cluster, cluster.cluster)
    with pytest.raises(NoSuchLedger):
        cluster.run(LedgerClient.ledger_metadata, 1)
    cluster.disconnect()


def test_it_connects_again(cluster: ClusterClient) -> None:
    store = cluster.run(_store_of)
    cluster.disconnect()
    assert not cluster.is_connected
    assert cluster.run(_store_of) is not store
    assert cluster.is_connected


@pytest.fixture(params=["the only one on the loop", "one of several"])
def neighbours(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests with and without another user of the loop."""
    if request.param == "one of several":
        loop = acquire_loop()
        yield
        release_loop(loop)
    else:
        yield


async def _ticks(_client: LedgerClient) -> AsyncIterator[int]:
    yield 1
    await trio.sleep_forever()


@pytest.mark.usefixtures("neighbours")
def test_an_iteration_fails_when_the_client_disconnects(cluster: ClusterClient) -> None:
    ticks = cluster.iterate(_ticks, lambda _: 1, 100)
    assert next(ticks) == 1
    cluster.disconnect()
    with fail_after(10), pytest.raises(LedgerClosed):
        next(ticks)


@pytest.mark.usefixtures("neighbours")
def test_a_call_fails_when_the_client_disconnects(cluster: ClusterClient) -> None:
    running = cluster.start(_for_ever)
    other = cluster.start(_for_ever)
    other.cancel()
    with pytest.raises(LedgerClosed, match="cancelled"):
        other.result()
    assert not running.has_ended
    cluster.disconnect()
    with fail_after(10), pytest.raises(LedgerClosed):
        running.result()


def test_a_wait_is_bounded_by_fail_after(cluster: ClusterClient) -> None:
    with pytest.raises(TimeoutError), fail_after(0.05):
        cluster.run(_for_ever)
    assert cluster.run(_sum, 4) == 4


def test_a_forked_process_has_a_connection_of_its_own(cluster: ClusterClient) -> None:
    parents = cluster.run(_store_of)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            again = cluster.run(_store_of)
            is_good = again is not parents and cached_cluster(cluster.cluster) is cluster
            with pytest.raises(NoSuchLedger):
                cluster.run(LedgerClient.ledger_metadata, 1)
            status = 0 if is_good and cluster.run(_sum, 1, 1) == 2 else 2
        except BaseException:  # noqa: BLE001 (a child of pytest must not run its tests)
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cluster.run(_store_of) is parents


def test_connected_clusters_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_cache, "CONNECTED_MAX", 2)
    clusters = [cached_cluster(f"sqlite://{tmp_path}/{number}.db") for number in range(3)]
    for each in clusters:
        assert each.run(_sum, 1) == 1
    assert [each.is_connected for each in clusters] == [False, True, True]
    assert clusters[0].run(_sum, 2) == 2
    assert [each.is_connected for each in clusters] == [True, False, True]
    for each in clusters:
        each.disconnect()


@pytest.mark.parametrize("address", ["memory:", "nowhere", "zk+flat//x", "zk+odd://h:2181/l"])
def test_an_unknown_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidArgument):
        cached_cluster(address).run(LedgerClient.list_ledgers)
