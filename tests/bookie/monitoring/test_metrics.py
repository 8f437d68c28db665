"""A bookie's metrics: correct numbers, in Prometheus's format, in a registry of their own."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import trio
import trio.testing
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from bookie.config import BookieConfig
from bookie.core.metrics import Kind
from bookie.monitoring.bookie_metrics import BOOKIE, JOURNAL, PREFIX
from bookie.monitoring.directory_metrics import DIRECTORY
from bookie.monitoring.healing_metrics import HEALING
from bookie.monitoring.prometheus import BookieMetrics
from bookie.monitoring.report import report
from bookie.monitoring.snapshot import LedgerCount, Observer, ServerStatus
from bookie.storage.disk.real_disk import RealDisk
from ledger.autorecovery.options import AutoRecoveryOptions
from ledger.autorecovery.service import AutoRecovery, heal_for_ever
from ledger.client import LedgerClient
from ledger.core.autorecovery.plan import Hold
from ledger.metastore.memory import MemoryStore, MemoryTree
from ledger.wire.messages import ReadRequest, ReadResponse
from tests.bookie.server.test_server import peer_of
from tests.bookie.storage.simulated_storage import SimulatedStorage
from tests.real_cluster import SMALL, RealCluster, bookie_of, now_ms, real_cluster

Samples = dict[tuple[str, ...], float]


def observer_of(cluster: RealCluster, number: int) -> Observer:
    return Observer(cluster.bookies[number], cluster.disks[number])


async def scraped(metrics: BookieMetrics) -> Samples:
    """Returns every sample by its name without the prefix and the values of its labels."""
    text, _ = await metrics.exposition("")
    return {
        (
            sample.name.removeprefix(PREFIX),
            *(value for _, value in sorted(sample.labels.items())),
        ): (sample.value)
        for family in parse(text.decode())
        for sample in family.samples
    }


@asynccontextmanager
async def measured(
    tmp_path: Path, **settings: Any
) -> AsyncIterator[tuple[RealCluster, LedgerClient, BookieMetrics]]:
    async with (
        real_cluster(tmp_path, 1, **settings) as cluster,
        cluster.client() as client,
    ):
        yield cluster, client, BookieMetrics(observer_of(cluster, 0), CollectorRegistry())


async def wait_announced(cluster: RealCluster, ledger_id: int, entry_id: int) -> None:
    """Returns when the bookie knows that this entry is confirmed: a reader that is opened then
    waits for nothing."""
    storage = cluster.bookies[0].storage
    assert storage is not None
    state = storage.state(ledger_id)
    assert state is not None
    with trio.fail_after(20):
        while state.explicit_lac_id < entry_id:  # noqa: ASYNC110
            await trio.sleep(0.01)


async def test_numbers_change_with_the_work_done(tmp_path: Path) -> None:
    async with measured(tmp_path) as (cluster, client, metrics):
        assert (await scraped(metrics))["adds_total",] == 0
        async with client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as writer:
            for _ in range(100):
                writer.append_nowait(bytes(1000))
            await writer.flush()
            await wait_announced(cluster, writer.ledger_id, 99)
            async with client.open_ledger(writer.ledger_id, recover=False) as reader:
                assert len(await reader.read(0, 98)) == 99
        found = await scraped(metrics)
    assert found["server_status",] == 1
    assert found["adds_total",] == 100
    assert found["add_bytes_total",] > 100_000
    assert found["reads_total",] == 100, "and the entry that was claimed to be confirmed"
    assert found["read_bytes_total",] > 99_000
    assert found["connections",] >= 1
    assert found["journal_entries_total", "0"] >= 100
    groups = found["journal_group_entries_count", "0"]
    assert 1 <= groups == found["journal_add_seconds_count", "0"]
    assert found["journal_flushes_total", "0", "queue_empty"] == groups
    assert found["journal_sync_seconds_bucket", "0", "+Inf"] == groups
    assert found["journal_written_bytes_total", "0"] > 100_000
    assert found["journal_queue_bytes", "0"] < 1000  # an explicit LAC waits for other frames
    assert found["write_cache_hits_total", "0"] >= found["reads_total",]
    assert found["write_cache_misses_total", "0"] == 0
    assert 0 < found["ledger_directory_free_bytes", "0"] < found["ledger_directory_bytes", "0"]
    assert found["process_resident_memory_bytes",] > 0


async def test_checkpoints_and_caches_are_measured(tmp_path: Path) -> None:
    async with measured(tmp_path, **SMALL | {"garbage_interval_ms": 3_600_000}) as (
        cluster,
        client,
        metrics,
    ):
        async with client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as writer:
            for _ in range(50):
                writer.append_nowait(bytes(1000))
            await writer.flush()
            storage = cluster.bookies[0].storage
            assert storage is not None
            await storage.checkpoint()
            await wait_announced(cluster, writer.ledger_id, 49)
            async with client.open_ledger(writer.ledger_id, recover=False) as reader:
                for _ in range(2):
                    assert len(await reader.read(0, 48)) == 49
        found = await scraped(metrics)
    assert found["write_cache_hits_total", "0"] == 0
    # A few more than were returned: a request for the LAC reads the last entry.
    misses = found["write_cache_misses_total", "0"]
    # One is the entry that was claimed to be confirmed.
    assert 99 == found["reads_total",] <= misses <= 101
    hits = found["read_cache_hits_total", "0"] + found["read_cache_misses_total", "0"]
    assert hits == misses
    assert found["read_cache_misses_total", "0"] < 10
    assert found["read_ahead_entries_total", "0"] > 40
    assert found["entry_log_read_bytes_total", "0"] > 50_000
    assert found["checkpoint_seconds_count", "0"] >= 1
    assert found["checkpoint_bytes_sum", "0"] > 50_000
    assert found["flushed_entries_total", "0"] == 50
    assert found["entry_logs", "0"] == 1
    assert found["ledgers", "0"] == 1


async def test_what_auto_recovery_does_is_read_from_the_service(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 2) as cluster, cluster.client() as client:
        observer = observer_of(cluster, 0)
        metrics = BookieMetrics(observer, CollectorRegistry())
        async with client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2) as writer:
            await writer.append(b"an entry")

        def named(found: Samples) -> Samples:
            names = {f"{one.name}" for one in HEALING}
            return {key: value for key, value in found.items() if key[0] in names}

        assert named(await scraped(metrics)) == {}
        services: list[AutoRecovery] = []

        def observe(service: AutoRecovery) -> None:
            services.append(service)
            observer.observe_healing(service)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                partial(
                    heal_for_ever,
                    client,
                    AutoRecoveryOptions(),
                    bookie_id="here",
                    rng=random.Random(1),
                    on_begin=observe,
                )
            )
            with trio.fail_after(30):
                while not services or not services[0].auditor.audits:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            found = named(await scraped(metrics))
            assert len(found) == len(HEALING)
            assert found["is_auditor",] == found["audits_total",] == found["audited_ledgers",] == 1
            assert found["audited_bytes",] == len(b"an entry")
            assert found["ledgers_healed_total",] == found["healing_held",] == 0
            # Its state is read on request, and so is what was counted for it.
            worker = services[0].worker
            worker.statistics.ledgers_healed = 3
            worker.statistics.bytes_copied = 4000
            holds = [Hold("entries 1 to 3: no copy is left", is_loss=True)]
            worker.backlog.hold(7, holds, trio.current_time())
            found = named(await scraped(metrics))
            assert (found["ledgers_healed_total",], found["healed_bytes_total",]) == (3, 4000)
            assert (found["healing_held",], found["healing_held_with_loss",]) == (1, 1)
            shown = report(await observer.snapshot(), cluster.bookies[0].config)
            assert shown["autorecovery"] == asdict(services[0].now())
            nursery.cancel_scope.cancel()


async def test_refusals_are_counted_by_status(tmp_path: Path) -> None:
    async with measured(tmp_path) as (cluster, _, metrics), peer_of(cluster) as peer:
        for _ in range(3):
            assert await peer.ask(ReadResponse, ReadRequest(7, 1), 2)
        found = await scraped(metrics)
    assert found["refused_total", "read", "no_such_ledger"] == 3


async def test_several_journals_and_directories_have_labels(tmp_path: Path) -> None:
    journals = tuple(f"{tmp_path}/0/journal-{number}" for number in range(2))
    directories = tuple(f"{tmp_path}/0/ledgers-{number}" for number in range(3))
    async with measured(tmp_path, journal_directories=journals, ledger_directories=directories) as (
        _,
        _,
        metrics,
    ):
        found = await scraped(metrics)
    assert [value for (name, *_), value in found.items() if name == "ledger_directories"] == [3]
    assert {labels[0] for name, *labels in found if name == "journal_queue_bytes"} == {"0", "1"}
    assert {labels[0] for name, *labels in found if name == "write_cache_bytes"} == {"0", "1", "2"}


async def test_before_the_bookie_serves_it_is_unregistered(tmp_path: Path) -> None:
    config = BookieConfig(
        metadata_uri="memory:",
        journal_directories=(f"{tmp_path}/journal",),
        ledger_directories=(f"{tmp_path}/ledgers",),
    )
    disk = RealDisk()
    async with MemoryStore(MemoryTree(), now_ms) as store:
        observer = Observer(bookie_of(config, disk, store), disk)
        assert observer.status is ServerStatus.UNREGISTERED
        found = await scraped(BookieMetrics(observer, CollectorRegistry()))
    disk.close()
    samples = {name: value for name, value in found.items() if not name[0].startswith("process_")}
    assert samples == {("server_status",): -1}


async def test_the_global_registry_stays_empty(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 2) as cluster:
        for number in range(2):
            metrics = BookieMetrics(observer_of(cluster, number), CollectorRegistry())
            assert (await scraped(metrics))[
                "about", cluster.bookies[number].bookie_id, "ledgerstream"
            ]
    assert not [family.name for family in REGISTRY.collect() if family.name.startswith(PREFIX)]


async def test_openmetrics_is_sent_on_request(tmp_path: Path) -> None:
    async with measured(tmp_path) as (_, _, metrics):
        text, content_type = await metrics.exposition("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    families = parse_openmetrics(text.decode())  # type: ignore[no-untyped-call]
    assert any(family.name == f"{PREFIX}adds" for family in families)


def test_names_follow_prometheus() -> None:
    described = [(one.name, one.kind, one.help, one.labels) for one in BOOKIE]
    described += [(one.name, one.kind, one.help, one.labels) for one in JOURNAL]
    described += [(one.name, one.kind, one.help, one.labels) for one in DIRECTORY]
    described += [(one.name, one.kind, one.help, one.labels) for one in HEALING]
    names = [name for name, *_ in described]
    assert len(set(names)) == len(names)
    for name, kind, text, _ in described:
        assert name == name.lower(), name
        assert name.endswith("_total") == (kind is Kind.COUNTER), name
        assert not name.endswith(("_ms", "_kb", "_count", "_sum", "_bucket")), name
        assert text.endswith("."), name


async def test_ledgers_are_counted_again_only_when_some_were_stored(
    autojump_clock: trio.testing.MockClock,
) -> None:
    simulated = SimulatedStorage()
    async with simulated.running():
        directory = simulated.storage.directories[0]
        asked: list[int] = []
        ask = directory.ledger_ids

        def noting(after: int, count_max: int) -> list[int]:
            asked.append(after)
            return ask(after, count_max)

        directory.ledger_ids = noting  # type: ignore[method-assign]
        count = LedgerCount(directory)
        assert [await count.get(), await count.get()] == [0, 0]
        assert asked == [-1]
        for ledger_id in range(450):
            simulated.add(ledger_id, 0)
            while simulated.storage.is_full:
                await simulated.storage.wait_capacity()
        await simulated.settle()
        await simulated.storage.checkpoint()
        await trio.sleep(1)
        assert [await count.get(), await count.get()] == [450, 450]
        assert asked == [-1, -1, 199, 399, 449]


async def test_the_state_of_each_directory_s_disk_is_reported(tmp_path: Path) -> None:
    free, full = (
        {"disk_usage_warn_threshold": used, "disk_usage_threshold": used} for used in (0.9999, 1e-6)
    )
    for settings, state in ((free, 0), (full, 2)):
        (tmp_path / str(state)).mkdir()
        async with measured(tmp_path / str(state), **settings) as (_, _, metrics):
            found = await scraped(metrics)
        assert found["journal_directory_state", "0"] == state
        assert found["ledger_directory_state", "0"] == state
        assert found["server_status",] == (0 if state else 1)
