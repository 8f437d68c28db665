"""Copies to bookies that refuse, break off or are silent, and copies that are ended early."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import trio
import trio.testing

from ledger.autorecovery.copier import Copier, CopierOptions, CopyReport
from ledger.core.metadata import LedgerMetadata
from ledger.errors import InvalidArgument, Status
from ledger.wire.messages import (
    AddRequest,
    AddResponse,
    BatchReadRequest,
    BatchReadResponse,
    ReadRequest,
    ReadResponse,
    Request,
    ResponseBody,
)
from tests.ledger.autorecovery.copies import lacking, other_bookie, written
from tests.ledger.scripted_bookie import Hangup, ScriptedCluster, scripted_cluster

COUNT = 400
PAYLOADS = [b"%d" % n * (n % 40) for n in range(COUNT)]


def check_stored(
    cluster: ScriptedCluster, metadata: LedgerMetadata, target: str, entries: int
) -> None:
    """Checks that at least `entries` are stored at the target, equal to those of a source."""
    stored = cluster.bookie(target).entries
    assert len(stored) >= entries
    source = cluster.bookie(metadata.fragments[0].bookies[0]).entries
    assert stored.items() <= source.items()


def check_idle(copier: Copier) -> None:
    """Checks that nothing of a copy that ended is left."""
    windows = [one.window for one in copier._sources.values()] + [*copier._targets.values()]
    assert [one.in_flight for one in windows] == [0] * len(windows)
    assert copier._active == {}
    assert copier.held_bytes == 0
    sinks = [connection.sinks for connection in copier.pool._connections.values()]
    assert not any(sinks)


def breaking(at: set[int]) -> Callable[[Request], ResponseBody | None]:
    """Returns a script that closes the connection at these adds, by their number."""
    adds = 0

    def script(request: Request) -> ResponseBody | None:
        nonlocal adds
        if isinstance(request.body, AddRequest):
            adds += 1
            if adds in at:
                raise Hangup
        return None

    return script


@pytest.mark.parametrize("wire_version", [2, 3])
async def test_a_broken_connection_to_the_target_is_made_again(wire_version: int) -> None:
    async with (
        scripted_cluster() as cluster,
        cluster.client(wire_version=wire_version) as client,
    ):
        metadata = await written(client, PAYLOADS)
        target = await other_bookie(client, metadata)
        cluster.bookie(target).script = breaking({1, 50, 300})
        async with Copier(client) as copier:
            report = await copier.copy(metadata, target, lacking(metadata))
            check_idle(copier)
        assert report.is_complete
        assert report.entries == COUNT
        assert report.payload_bytes == sum(map(len, PAYLOADS))
        check_stored(cluster, metadata, target, COUNT)


async def test_a_target_that_always_breaks_off_is_given_up_with_its_reason() -> None:
    async with scripted_cluster() as cluster, cluster.client() as client:
        metadata = await written(client, PAYLOADS)
        target = await other_bookie(client, metadata)

        def script(request: Request) -> ResponseBody | None:
            if isinstance(request.body, AddRequest) and request.body.entry_id >= 150:
                raise Hangup
            return None

        cluster.bookie(target).script = script
        with trio.fail_after(20):
            async with Copier(client) as copier:
                report = await copier.copy(metadata, target, lacking(metadata))
                check_idle(copier)
        assert not report.is_complete
        assert "closed the connection" in report.target_error
        assert report.failures == ()
        assert report.entries <= 150
        check_stored(cluster, metadata, target, report.entries)


async def test_a_silent_target_is_given_up_in_bounded_time() -> None:
    async with scripted_cluster() as cluster, cluster.client(add_timeout_s=0.1) as client:
        metadata = await written(client, PAYLOADS)
        target = await other_bookie(client, metadata)
        never = trio.Event()
        cluster.bookie(target).hold = lambda request: never
        with trio.fail_after(20):
            async with Copier(client) as copier:
                report = await copier.copy(metadata, target, lacking(metadata))
                check_idle(copier)
        assert "acknowledged nothing for" in report.target_error
        assert report.entries == 0


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (Status.NO_SUCH_LEDGER, "NoSuchLedger"),
        (Status.READ_ONLY, "read only"),
        (Status.UNAUTHORIZED, "Unauthorized"),
        (Status.IO_ERROR, "io error"),
    ],
)
async def test_a_target_that_refuses_is_not_asked_again(status: Status, words: str) -> None:
    async with scripted_cluster() as cluster, cluster.client() as client:
        metadata = await written(client, PAYLOADS)
        target = await other_bookie(client, metadata)

        def script(request: Request) -> ResponseBody | None:
            body = request.body
            if isinstance(body, AddRequest) and body.entry_id == 200:
                return AddResponse(status, body.ledger_id, body.entry_id, body.entry_id)
            return None

        cluster.bookie(target).script = script
        async with Copier(client) as copier:
            report = await copier.copy(metadata, target, lacking(metadata))
            check_idle(copier)
        assert "entry 200" in report.target_error
        assert target in report.target_error
        assert words.lower() in report.target_error.lower()
        assert not report.is_complete


@pytest.mark.parametrize("wire_version", [2, 3])
async def test_overloaded_bookies_are_asked_again(wire_version: int) -> None:
    """The target and the sources refuse every request at first, and some later."""
    rng = random.Random(5)
    async with (
        scripted_cluster() as cluster,
        cluster.client(wire_version=wire_version) as client,
    ):
        metadata = await written(client, PAYLOADS)
        target = await other_bookie(client, metadata)
        seen = dict.fromkeys(cluster.bookies, 0)

        def overloaded(name: str) -> Callable[[Request], ResponseBody | None]:
            def script(request: Request) -> ResponseBody | None:
                body, status = request.body, Status.TOO_MANY_REQUESTS
                seen[name] += 1
                if seen[name] > 3 and rng.random() < 0.97:
                    return None
                if isinstance(body, AddRequest):
                    return AddResponse(status, body.ledger_id, body.entry_id, body.entry_id)
                if isinstance(body, ReadRequest):
                    return ReadResponse(status, body.ledger_id, body.entry_id)
                if isinstance(body, BatchReadRequest):
                    return BatchReadResponse(status, body.ledger_id, body.entry_id)
                return None

            return script

        for name, bookie in cluster.bookies.items():
            bookie.script = overloaded(name)
        async with Copier(client) as copier:
            report = await copier.copy(metadata, target, lacking(metadata))
            check_idle(copier)
        assert report.is_complete
        assert report.entries == COUNT
        check_stored(cluster, metadata, target, COUNT)


@pytest.mark.parametrize("after", [0, 1, 2, 5])
async def test_a_copy_that_is_not_wanted_any_more_stops_at_the_next_batch(after: int) -> None:
    async with scripted_cluster() as cluster, cluster.client() as client:
        metadata = await written(client, [b"x" * 1000] * 3000)
        target = await other_bookie(client, metadata)
        asked = 0

        def is_wanted() -> bool:
            nonlocal asked
            asked += 1
            return asked <= after

        limits = CopierOptions(source_bytes_max=65536, target_bytes_max=65536)
        async with Copier(client, limits) as copier:
            report = await copier.copy(metadata, target, lacking(metadata), is_wanted=is_wanted)
            check_idle(copier)
        assert report.is_stopped
        assert not report.is_complete
        assert asked == after + 1
        assert report.entries < 3000
        check_stored(cluster, metadata, target, report.entries)


@pytest.mark.parametrize("seed", range(12))
async def test_a_copy_may_be_cancelled_anywhere_and_made_again(seed: int) -> None:
    rng = random.Random(seed)
    async with (
        scripted_cluster() as cluster,
        cluster.client(wire_version=rng.choice([2, 3])) as client,
    ):
        metadata = await written(client, PAYLOADS)
        target = await other_bookie(client, metadata)
        async with Copier(client, CopierOptions(source_bytes_max=10_000)) as copier:
            for _ in range(3):
                with trio.move_on_after(rng.random() * 0.03):
                    await copier.copy(metadata, target, lacking(metadata))
                check_idle(copier)
            report = await copier.copy(metadata, target, lacking(metadata))
            check_idle(copier)
        assert report.is_complete
        assert report.entries == COUNT
        check_stored(cluster, metadata, target, COUNT)


async def test_one_ledger_is_copied_to_a_target_once_at_a_time() -> None:
    async with scripted_cluster() as cluster, cluster.client() as client:
        metadata = await written(client, PAYLOADS)
        target = await other_bookie(client, metadata)
        never = trio.Event()
        cluster.bookie(target).hold = lambda request: never
        async with Copier(client) as copier, trio.open_nursery() as nursery:
            nursery.start_soon(copier.copy, metadata, target, lacking(metadata))
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(InvalidArgument, match="is being copied"):
                await copier.copy(metadata, target, lacking(metadata))
            nursery.cancel_scope.cancel()


async def test_ledgers_beyond_the_limit_wait_and_all_are_copied() -> None:
    async with scripted_cluster() as cluster, cluster.client() as client:
        ledgers = [await written(client, PAYLOADS) for _ in range(6)]
        active_max = 0
        async with (
            Copier(client, CopierOptions(ledgers_at_once=2)) as copier,
            trio.open_nursery() as nursery,
        ):

            def is_wanted() -> bool:
                nonlocal active_max
                active_max = max(active_max, len(copier._active))
                return True

            async def copy(metadata: LedgerMetadata) -> None:
                target = await other_bookie(client, metadata)
                report = await copier.copy(metadata, target, lacking(metadata), is_wanted=is_wanted)
                assert report.is_complete

            for metadata in ledgers:
                nursery.start_soon(copy, metadata)
        assert active_max == 2
        check_idle(copier)


async def test_many_copies_hold_little_more_than_the_limit_of_all_and_none_starves() -> None:
    held_max, batch = 200_000, 65536
    async with (
        scripted_cluster(3) as cluster,
        cluster.client(batch_read_bytes=batch) as client,
    ):
        ledgers = [await written(client, [b"x" * 1000] * 400) for _ in range(10)]
        targets = [await other_bookie(client, one) for one in ledgers]
        gate, adds = trio.Event(), 0

        def hold(request: Request) -> trio.Event | None:
            nonlocal adds
            adds += isinstance(request.body, AddRequest)
            return gate if adds > 100 else None

        for bookie in cluster.bookies.values():
            bookie.hold = hold
        limits = CopierOptions(bytes_per_s=0, held_bytes_max=held_max, ledgers_at_once=10)
        reports: list[CopyReport] = []
        async with Copier(client, limits) as copier, trio.open_nursery() as nursery:

            async def copy(metadata: LedgerMetadata, target: str) -> None:
                reports.append(await copier.copy(metadata, target, lacking(metadata)))

            for metadata, target in zip(ledgers, targets, strict=True):
                nursery.start_soon(copy, metadata, target)
            for _ in range(20):
                await trio.sleep(0.02)
                assert copier.held_bytes <= held_max + 11 * batch
            gate.set()
        assert all(one.is_complete for one in reports)
        assert sum(one.entries for one in reports) == 4000
        check_idle(copier)


@pytest.mark.parametrize("wire_version", [2, 3])
async def test_the_bytes_in_memory_are_bounded_while_the_target_takes_nothing(
    wire_version: int,
) -> None:
    """Bounded are what is read ahead and what is in flight to the target; and it is one task."""
    read_ahead, batch, in_flight = 200_000, 65536, 150_000
    async with (
        scripted_cluster() as cluster,
        cluster.client(
            wire_version=wire_version,
            read_ahead_bytes=read_ahead,
            batch_read_bytes=batch,
        ) as client,
    ):
        metadata = await written(client, [b"x" * 1000] * 3000)
        target = await other_bookie(client, metadata)
        never = trio.Event()
        cluster.bookie(target).hold = lambda request: never
        limits = CopierOptions(bytes_per_s=0, target_bytes_max=in_flight)
        async with Copier(client, limits) as copier, trio.open_nursery() as nursery:
            nursery.start_soon(copier.copy, metadata, target, lacking(metadata))
            await trio.sleep(1)
            (copying,) = copier._active.values()
            held = sum(len(body) for read in copying.reads.ready for body in read.bodies)
            assert held > read_ahead / 2, "it reads ahead"
            assert copying.reads.held_bytes <= read_ahead + 2 * batch
            assert held <= read_ahead + 2 * batch
            assert copier.target(target).in_flight <= in_flight + 2 * batch
            assert len(nursery.child_tasks) == 1
            nursery.cancel_scope.cancel()
        check_idle(copier)
