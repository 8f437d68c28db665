"""The statistics of requests and back-pressure: each number appears under its name."""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import trio
from prometheus_client import CollectorRegistry

from bookie.core.metrics import SECONDS, Distribution, Histogram
from bookie.monitoring.prometheus import BookieMetrics
from bookie.monitoring.snapshot import Snapshot
from bookie.server.request_metrics import OPERATIONS, RequestCounts, Wait, operation_of
from ledger.wire.messages import (
    AddResponse,
    AuthRequest,
    AuthResponse,
    BatchReadRequest,
    BatchReadResponse,
    ForceLedgerRequest,
    ForceLedgerResponse,
    GetBookieInfoRequest,
    GetBookieInfoResponse,
    ListEntriesRequest,
    ListEntriesResponse,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    RequestBody,
    ResponseBody,
    StartTlsRequest,
    WriteLacRequest,
    WriteLacResponse,
)
from tests.bookie.monitoring.test_metrics import Samples, measured, observer_of, scraped
from tests.bookie.server.test_operations import poll_after
from tests.bookie.server.test_server import DIGEST, KEY, add, peer_of
from tests.real_cluster import real_cluster

LEDGER, NOBODYS = 7, 99
_WRONG = bytes(20)
_LAC = DIGEST.encode_lac(LEDGER, 1)

# Each operation once with success and once refused, where it can be refused.
EXCHANGES: list[tuple[RequestBody, type[ResponseBody], int, tuple[str, str | None]]] = [
    (add(LEDGER, 0), AddResponse, 2, ("add", None)),
    (add(LEDGER, 1), AddResponse, 3, ("add", None)),
    (
        dataclasses.replace(add(LEDGER, 2), master_key=_WRONG),
        AddResponse,
        2,
        ("add", "unauthorized"),
    ),
    (ReadRequest(LEDGER, 0), ReadResponse, 2, ("read", None)),
    (ReadRequest(NOBODYS, 0), ReadResponse, 3, ("read", "no_such_ledger")),
    (BatchReadRequest(LEDGER, 0, 2, 0), BatchReadResponse, 2, ("batch_read", None)),
    (BatchReadRequest(NOBODYS, 0, 2, 0), BatchReadResponse, 2, ("batch_read", "no_such_ledger")),
    (WriteLacRequest(LEDGER, 1, KEY, _LAC), WriteLacResponse, 3, ("write_lac", None)),
    (WriteLacRequest(LEDGER, 5, KEY, _LAC), WriteLacResponse, 3, ("write_lac", "bad_request")),
    (ReadLacRequest(LEDGER), ReadLacResponse, 3, ("read_lac", None)),
    (ReadLacRequest(NOBODYS), ReadLacResponse, 3, ("read_lac", "no_such_entry")),
    (ForceLedgerRequest(LEDGER), ForceLedgerResponse, 3, ("force_ledger", None)),
    (GetBookieInfoRequest(3), GetBookieInfoResponse, 3, ("bookie_info", None)),
    (ListEntriesRequest(LEDGER), ListEntriesResponse, 3, ("list_entries", None)),
    (ListEntriesRequest(NOBODYS), ListEntriesResponse, 3, ("list_entries", "no_such_ledger")),
    (AuthRequest("some", b""), AuthResponse, 3, ("auth", None)),
    (poll_after(0), ReadResponse, 3, ("long_poll", None)),
    (poll_after(0), ReadResponse, 3, ("long_poll", None)),
    (ReadRequest(LEDGER, 0, KEY, is_fencing=True), ReadResponse, 2, ("fence", None)),
    (ReadRequest(LEDGER, 0, _WRONG, is_fencing=True), ReadResponse, 2, ("fence", "unauthorized")),
    (add(LEDGER, 2), AddResponse, 2, ("add", "fenced")),
    (add(LEDGER, 2), AddResponse, 3, ("add", "fenced")),
]


async def test_each_operation_and_each_refusal_is_counted(tmp_path: Path) -> None:
    requests: dict[str, int] = {}
    refused: dict[tuple[str, str], int] = {}
    async with measured(tmp_path) as (cluster, _, metrics), peer_of(cluster) as peer:
        for body, kind, version, (operation, status) in EXCHANGES:
            answer: Any = await peer.ask(kind, body, version)
            assert answer.status.name.lower() == (status or "ok"), (body, answer)
            requests[operation] = requests.get(operation, 0) + 1
            if status is not None:
                refused[operation, status] = refused.get((operation, status), 0) + 1
        found = await scraped(metrics)
    assert _of(found, "requests_total") == {
        (operation,): requests.get(operation, 0) for operation in OPERATIONS
    }
    assert _of(found, "refused_total") == refused
    assert found["adds_total",] == 2


def _of(found: Samples, name: str) -> dict[tuple[str, ...], float]:
    return {
        labels: value
        for (one, *rest), value in found.items()
        if one == name
        for labels in [tuple(rest)]
    }


@pytest.mark.parametrize("kind", typing.get_args(RequestBody))
def test_every_request_is_an_operation(kind: type[RequestBody]) -> None:
    values = {one.name: None for one in dataclasses.fields(kind)}
    body = kind(**values)  # type: ignore[arg-type]
    assert operation_of(body) in OPERATIONS
    if kind is not StartTlsRequest:
        assert operation_of(body) != operation_of(StartTlsRequest())


def test_a_fencing_batch_is_a_fence() -> None:
    assert operation_of(BatchReadRequest(7, 0, 1, 1, KEY, is_fencing=True)) == "fence"


async def test_polls_that_wait_are_counted_until_they_are_answered(tmp_path: Path) -> None:
    async with measured(tmp_path) as (cluster, _, metrics), peer_of(cluster) as peer:
        await peer.ask(AddResponse, add(LEDGER, 0), 2)
        assert (await scraped(metrics))["long_polls",] == 0
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(peer.ask, ReadResponse, poll_after(0), 3, 60)
            with trio.fail_after(20):
                while (await scraped(metrics))["long_polls",] < 3:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            await peer.ask(AddResponse, add(LEDGER, 1), 2)
            await peer.ask(AddResponse, add(LEDGER, 2), 2)
        found = await scraped(metrics)
    assert found["long_polls",] == 0
    assert found["requests_total", "long_poll"] == 3


# ---- names of numbers that are hard to produce all at once


def _times(count: int) -> Distribution:
    """Makes this many observations of one second each."""
    histogram = Histogram(SECONDS)
    for _ in range(count):
        histogram.observe(1.0)
    return histogram.distribution()


def _reported(snapshot: Snapshot) -> Snapshot:
    requests = dataclasses.replace(
        snapshot.server.requests,
        adds=11,
        add_bytes=12,
        reads=13,
        read_bytes=14,
        read_batches=15,
        answered={"read": 16, "fence": 17},
        refused={("read", "io_error"): 18},
        waits={wait: 20 + number for number, wait in enumerate(Wait)},
    )
    server = dataclasses.replace(
        snapshot.server,
        connections=31,
        connections_accepted=32,
        connections_refused=33,
        chunks=34,
        protocol_errors=35,
        authentications=71,
        authentications_failed=72,
        authentications_unseen=73,
        sessions_ended=74,
        held_add_bytes=36,
        reply_bytes=37,
        peers_dropped=38,
        reads_waiting=39,
        reads_waiting_by_directory=(40, 41),
        reads_waited_seconds=_times(42),
        reads_worked_seconds=_times(43),
        long_polls=44,
        requests=requests,
    )
    directory = snapshot.directories[0]
    flushes = dataclasses.replace(
        directory.statistics.flushes, throttled_now=51, throttled_seconds=_times(52)
    )
    statistics = dataclasses.replace(directory.statistics, flushes=flushes)
    return dataclasses.replace(
        snapshot,
        collections_put_off=61,
        server=server,
        directories=(dataclasses.replace(directory, statistics=statistics),),
    )


REPORTED: dict[tuple[str, ...], float] = {
    ("adds_total",): 11,
    ("add_bytes_total",): 12,
    ("reads_total",): 13,
    ("read_bytes_total",): 14,
    ("read_batches_total",): 15,
    ("requests_total", "read"): 16,
    ("requests_total", "fence"): 17,
    ("refused_total", "read", "io_error"): 18,
    ("waits_total", "write_cache"): 20,
    ("waits_total", "journal"): 21,
    ("waits_total", "replies"): 22,
    ("waits_total", "reads"): 23,
    ("connections",): 31,
    ("connections_accepted_total",): 32,
    ("connections_refused_total",): 33,
    ("chunks_total",): 34,
    ("protocol_errors_total",): 35,
    ("authentications_total",): 71,
    ("authentications_failed_total",): 72,
    ("authentications_unseen_total",): 73,
    ("sessions_ended_total",): 74,
    ("held_add_bytes",): 36,
    ("reply_bytes",): 37,
    ("peers_dropped_total",): 38,
    ("reads_waiting",): 39,
    ("reads_queued", "0"): 40,
    ("reads_queued", "1"): 41,
    ("read_wait_seconds_count",): 42,
    ("read_work_seconds_count",): 43,
    ("long_polls",): 44,
    ("throttled", "0"): 51,
    ("throttled_seconds_count", "0"): 52,
    ("garbage_rounds_put_off_total",): 61,
}


async def test_each_number_has_its_own_name(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 1) as cluster:
        observer = observer_of(cluster, 0)
        reported = _reported(await observer.snapshot())
        with mock.patch.object(observer, "snapshot", mock.AsyncMock(return_value=reported)):
            found = await scraped(BookieMetrics(observer, CollectorRegistry()))
    assert {name: found.get(name) for name in REPORTED} == REPORTED


async def test_each_number_of_the_server_comes_from_its_own_counter(tmp_path: Path) -> None:
    """`Server.statistics` takes each number from its source."""
    async with real_cluster(tmp_path, 1) as cluster:
        server = cluster.bookies[0].server
        assert server is not None
        pressure, counts = server._pressure, server._counts
        assert isinstance(counts, RequestCounts)
        pressure.connections, server._accepted, server._refused = 31, 32, 33
        counts.chunks, counts.protocol_errors = 34, 35
        pressure.held_bytes, pressure.replies_bytes, pressure.peers_dropped = 36, 37, 38
        for number, wait in enumerate(Wait):
            counts.waits[wait] = 20 + number
        reads = server._requests.read_scheduler
        reads.in_flight = 39
        for histogram, count in ((reads.waited, 42), (reads.worked, 43)):
            for _ in range(count):
                histogram.observe(1.0)
        found = await scraped(BookieMetrics(observer_of(cluster, 0), CollectorRegistry()))
    counted = [
        name
        for name, value in REPORTED.items()
        if 31 <= value <= 39 or value in (42, 43) or name[0] == "waits_total"
    ]
    assert len(counted) == 15
    assert {name: found[name] for name in counted} == {name: REPORTED[name] for name in counted}
