"""The last acks of a ledger that is being closed: waited for without delaying the close."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from ledger.client import LedgerClient
from ledger.errors import BookieUnavailable, LedgerFenced, MetadataUnavailable, Status
from ledger.missed import copies
from ledger.missed.copies import MissedCopies
from ledger.wire.messages import (
    AddRequest,
    AddResponse,
    ForceLedgerRequest,
    ForceLedgerResponse,
    Request,
    ResponseBody,
)
from tests.ledger.scripted_bookie import ScriptedBookie, scripted_cluster

COUNT = 20


def holding(released: trio.Event) -> Callable[[Request], trio.Event | None]:
    """A bookie that reads no add, and nothing that follows one, before `released`."""

    def hold(request: Request) -> trio.Event | None:
        return released if isinstance(request.body, AddRequest) else None

    return hold


async def marks_of(client: LedgerClient) -> dict[int, tuple[str, ...]]:
    """Returns all marks, once those that wait are recorded."""
    with trio.fail_after(10):
        while client.missed.pending:  # noqa: ASYNC110
            await trio.sleep(0.01)
    found = {}
    for ledger_id in await client.underreplication.list():
        mark = await client.underreplication.read(ledger_id)
        assert mark is not None
        found[ledger_id] = mark.replicas
    return found


async def no_doubts(client: LedgerClient, within_s: float = 10) -> None:
    with trio.fail_after(within_s):
        while client.missed.doubts:  # noqa: ASYNC110
            await trio.sleep(0.01)


async def write_and_close(client: LedgerClient, **settings: object) -> tuple[int, tuple[str, ...]]:
    """Returns the ledger and its bookies."""
    with trio.fail_after(2):
        async with client.create_ledger(**settings) as writer:  # type: ignore[arg-type]
            await writer.append_many([b"x" * 100] * COUNT)
    return writer.ledger_id, writer.metadata.last_fragment.bookies


@pytest.mark.parametrize("wire_version", [2, 3])
@pytest.mark.parametrize("sizes", [(3, 3), (4, 3)])
async def test_a_bookie_that_acknowledges_late_has_everything(
    wire_version: int, sizes: tuple[int, int]
) -> None:
    async with scripted_cluster(4) as cluster, cluster.client(wire_version=wire_version) as client:
        released = trio.Event()
        slow = cluster.bookie(sorted(cluster.bookies)[0])
        slow.hold = holding(released)
        ledger_id, bookies = -1, tuple[str, ...]()
        while ledger_id < 0 or slow.name not in bookies:
            ledger_id, bookies = await write_and_close(
                client, ensemble_size=sizes[0], write_quorum=sizes[1]
            )
        assert client.missed.doubts == 1
        assert not slow.entries
        released.set()
        await no_doubts(client)
        assert await marks_of(client) == {}
        expected = COUNT * sizes[1] // sizes[0]
        assert len([e for i, e in slow.entries if i == ledger_id]) == expected


async def test_a_bookie_that_is_lost_before_its_ack_is_marked_after_the_close() -> None:
    async with scripted_cluster(3) as cluster, cluster.client() as client:
        slow = cluster.bookie(sorted(cluster.bookies)[0])
        slow.hold = holding(trio.Event())
        ledger_id, _ = await write_and_close(client)
        assert await marks_of(client) == {}
        client.pool.connection(slow.name, 2).close(BookieUnavailable("lost"))
        assert client.missed.doubts == 0
        assert await marks_of(client) == {ledger_id: (slow.name,)}


async def test_a_bookie_that_refuses_is_marked_and_others_are_waited_for() -> None:
    async with scripted_cluster(4) as cluster, cluster.client() as client:
        released = trio.Event()
        slow, refusing, *_ = (cluster.bookies[name] for name in sorted(cluster.bookies))
        slow.hold = refusing.hold = holding(released)

        def refuse(request: Request) -> ResponseBody | None:
            match request.body:
                case AddRequest(ledger_id, entry_id):
                    return AddResponse(Status.IO_ERROR, ledger_id, entry_id, entry_id)
            return None

        refusing.script = refuse
        ledger_id, _ = await write_and_close(client, ensemble_size=4, write_quorum=4)
        released.set()
        await no_doubts(client)
        assert await marks_of(client) == {ledger_id: (refusing.name,)}


async def test_a_bookie_that_says_nothing_is_marked_after_the_add_timeout() -> None:
    async with scripted_cluster(3) as cluster, cluster.client(add_timeout_s=0.4) as client:
        slow = cluster.bookie(sorted(cluster.bookies)[0])
        slow.hold = holding(trio.Event())
        connection = client.pool.connection(slow.name, 2)
        begun_s = trio.current_time()
        ledger_id, _ = await write_and_close(client)
        await no_doubts(client)
        assert 0.4 < trio.current_time() - begun_s < 2
        assert await marks_of(client) == {ledger_id: (slow.name,)}
        assert not connection.sinks


async def test_ledgers_shorter_than_the_add_timeout_leave_a_silent_connection() -> None:
    """No writer of them lives long enough to notice: each ledger would lack a copy permanently."""
    async with scripted_cluster(3) as cluster, cluster.client(add_timeout_s=1) as client:
        slow = cluster.bookie(sorted(cluster.bookies)[0])
        silent = client.pool.connection(slow.name, 2)
        slow.hold = holding(trio.Event())
        await write_and_close(client)
        slow.hold = lambda _: None  # of the next connection
        ledger_id = -1
        with trio.fail_after(10):
            while (ledger_id, COUNT - 1) not in slow.entries:
                ledger_id, _ = await write_and_close(client)
                await trio.sleep(0.02)
        assert silent.error is not None
        ledger_id, _ = await write_and_close(client)  # the one before began without the bookie
        await no_doubts(client)
        assert ledger_id not in await marks_of(client)


async def test_a_slow_connection_that_makes_progress_is_kept() -> None:
    async with scripted_cluster(3) as cluster, cluster.client(add_timeout_s=2) as client:
        slow = cluster.bookie(sorted(cluster.bookies)[0])
        released, never = trio.Event(), trio.Event()

        def hold(request: Request) -> trio.Event | None:
            match request.body:
                case AddRequest(_, entry_id):
                    return released if entry_id < COUNT // 2 else never
            return None

        slow.hold = hold
        connection = client.pool.connection(slow.name, 2)
        ledger_id, _ = await write_and_close(client)
        released.set()
        await no_doubts(client)
        assert len(slow.entries) == COUNT // 2
        assert await marks_of(client) == {ledger_id: (slow.name,)}
        assert connection.error is None


async def test_a_bookie_that_failed_before_the_close_is_marked_when_the_end_is_stored() -> None:
    async with scripted_cluster(3) as cluster, cluster.client() as client:
        slow = cluster.bookie(sorted(cluster.bookies)[0])
        slow.hold = holding(trio.Event())
        async with client.create_ledger() as writer:
            await writer.append_many([b"x"] * COUNT)
            await client.store.delete(f"/ledgers/available/{slow.name}")
            client.pool.connection(slow.name, 2).close(BookieUnavailable("lost"))
            assert await marks_of(client) == {}
        assert client.missed.doubts == 0
        assert await marks_of(client) == {writer.ledger_id: (slow.name,)}


async def test_a_bookie_that_failed_and_lacks_nothing_is_not_marked() -> None:
    async with scripted_cluster(3) as cluster, cluster.client() as client:
        async with client.create_ledger(ack_quorum=3) as writer:
            await writer.append_many([b"x"] * COUNT)
            lost = writer.metadata.last_fragment.bookies[0]
            client.pool.connection(lost, 2).close(BookieUnavailable("lost"))
        assert (client.missed.doubts, await marks_of(client)) == (0, {})


async def test_a_bookie_that_leaves_an_ensemble_is_marked_if_it_lacks_entries() -> None:
    async with scripted_cluster(4) as cluster, cluster.client() as client:
        writer = await client.create_ledger()
        first, second = writer.metadata.last_fragment.bookies[:2]
        await writer.append_many([b"x"] * COUNT)
        cluster.bookie(first).hold = holding(trio.Event())
        await writer.append(b"y")
        for bookie, changes in ((first, 1), (second, 2)):
            await no_missing_acks(writer.core.acked_up_to, writer.metadata, second)
            await client.store.delete(f"/ledgers/available/{bookie}")
            client.pool.connection(bookie, 2).close(BookieUnavailable("lost"))
            if changes == 2:
                break  # there is no bookie left to replace it
            with trio.fail_after(10):
                while writer.statistics().ensemble_changes < changes:
                    await writer.append(b"z")
        assert await marks_of(client) == {writer.ledger_id: (first,)}
        writer.abandon()


async def no_missing_acks(acked_up_to: Callable[[int], int], metadata: object, bookie: str) -> None:
    """Waits until a bookie has acknowledged everything that was sent."""
    bookies: tuple[str, ...] = metadata.last_fragment.bookies  # type: ignore[attr-defined]
    with trio.fail_after(10):
        while acked_up_to(bookies.index(bookie)) < COUNT:  # noqa: ASYNC110
            await trio.sleep(0.01)


async def test_bytes_that_wait_to_be_sent_go_out_after_the_close() -> None:
    async with scripted_cluster(3) as cluster, cluster.client() as client:
        slow = cluster.bookie(sorted(cluster.bookies)[0])
        released = trio.Event()
        slow.hold = holding(released)
        async with client.create_ledger() as writer:
            await writer.append_many([bytes(1_000_000)] * 10)
        assert client.pool.statistics()[slow.name, 2].outbox_bytes > 1_000_000
        released.set()
        await no_doubts(client)
        assert len(slow.entries) == 10
        assert await marks_of(client) == {}


async def test_a_client_that_closes_marks_what_trails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "FINISH_S", 0.4)
    async with scripted_cluster(3) as cluster:
        slow = cluster.bookie(sorted(cluster.bookies)[0])
        slow.hold = holding(trio.Event())
        async with cluster.client() as client:
            ledger_id, _ = await write_and_close(client)
            begun_s = trio.current_time()
        assert trio.current_time() - begun_s < 1
        async with cluster.client() as client:
            assert await marks_of(client) == {ledger_id: (slow.name,)}


async def test_a_client_that_closes_at_once_waits_for_a_bookie_that_is_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finish = MissedCopies.finish
    async with scripted_cluster(3) as cluster:
        released = trio.Event()
        slow = cluster.bookie(sorted(cluster.bookies)[0])
        slow.hold = holding(released)

        async def release_and_finish(missed: MissedCopies) -> None:
            released.set()
            await finish(missed)

        async with cluster.client() as client:
            await write_and_close(client)
            monkeypatch.setattr(MissedCopies, "finish", release_and_finish)
        assert len(slow.entries) == COUNT
        async with cluster.client() as client:
            assert await marks_of(client) == {}


async def test_a_ledger_that_another_client_recovers_is_left_to_it() -> None:
    async with scripted_cluster(3) as cluster, cluster.client() as client:
        slow = cluster.bookie(sorted(cluster.bookies)[0])
        slow.hold = holding(trio.Event())
        writer = await client.create_ledger()
        await writer.append_many([b"x"] * COUNT)
        await client.ledgers.update(writer.ledger_id, lambda stored: stored.in_recovery())
        with pytest.raises(LedgerFenced):
            await writer.close()
        assert (client.missed.doubts, await marks_of(client)) == (0, {})


async def test_an_unknown_outcome_of_a_close_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted_cluster(3) as cluster, cluster.client(add_timeout_s=0.3) as client:
        slow = cluster.bookie(sorted(cluster.bookies)[0])
        slow.hold = holding(trio.Event())
        writer = await client.create_ledger()
        await writer.append_many([b"x"] * COUNT)

        async def unavailable(*_arguments: object, **_named: object) -> None:
            raise MetadataUnavailable("the outcome is unknown")

        with monkeypatch.context() as outage:
            outage.setattr(client.ledgers, "update", unavailable)
            with pytest.raises(MetadataUnavailable):
                await writer.close()
        await no_doubts(client)
        assert await marks_of(client) == {writer.ledger_id: (slow.name,)}
        assert (await writer.close()).is_closed


@pytest.mark.parametrize("syncs", [True, False])
async def test_with_deferred_sync_a_bookie_that_trails_is_forced_by_itself(syncs: bool) -> None:
    async with scripted_cluster(3) as cluster, cluster.client(add_timeout_s=1) as client:
        released = trio.Event()
        slow = cluster.bookie(sorted(cluster.bookies)[0])
        slow.hold = holding(released)
        if not syncs:
            slow.script = refuses_to_sync
        writer = await client.create_ledger(deferred_sync=True)
        await writer.append_many([b"x"] * COUNT)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(release_when_forced, cluster.bookie("b2"), released)
            await writer.close()
        await no_doubts(client)
        assert await marks_of(client) == ({} if syncs else {writer.ledger_id: (slow.name,)})
        forced = [r for r in slow.requests if isinstance(r.body, ForceLedgerRequest)]
        assert len(forced) == 2  # by the close, before it had acknowledged, and after


async def release_when_forced(bookie: ScriptedBookie, released: trio.Event) -> None:
    with trio.fail_after(5):
        while not any(  # noqa: ASYNC110
            isinstance(request.body, ForceLedgerRequest) for request in bookie.requests
        ):
            await trio.sleep(0.001)
    released.set()


def refuses_to_sync(request: Request) -> ResponseBody | None:
    if isinstance(request.body, ForceLedgerRequest):
        return ForceLedgerResponse(Status.IO_ERROR, request.body.ledger_id)
    return None


async def test_a_healthy_cluster_gets_no_question_and_no_mark() -> None:
    """1,000 adds in 10 ledgers: each bookie is sent its adds and the LAC, and nothing else."""
    async with scripted_cluster(3) as cluster:
        async with cluster.client() as client:
            touched = count_paths(client)
            for _ in range(10):
                async with client.create_ledger() as writer:
                    await writer.append_many([b"x"] * 100)
            before = sum("/underreplication" in path for path in touched)
        for bookie in cluster.bookies.values():
            kinds = [type(request.body).__name__ for request in bookie.requests]
            assert kinds.count("AddRequest") == 1000
            assert set(kinds) <= {"AddRequest", "WriteLacRequest"}
        assert before == sum("/underreplication" in path for path in touched) == 0
        assert len(touched) > 20, "the metadata store was not counted"


def count_paths(client: LedgerClient) -> list[str]:
    """Returns a list to which the path of every write and read of metadata is added."""
    touched: list[str] = []
    for name in ("get", "create", "put", "delete", "children"):
        method = getattr(client.store, name)

        def counting(path: str, *arguments: object, _method: object = method, **named: object):  # type: ignore[no-untyped-def]
            touched.append(path)
            return _method(path, *arguments, **named)  # type: ignore[operator]

        setattr(client.store, name, counting)
    return touched
