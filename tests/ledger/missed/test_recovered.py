"""After a recovery the bookies are asked which entries they hold, in the background."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
import trio.testing

from ledger.client import LedgerClient
from ledger.errors import Status
from ledger.missed.recovered import LEDGERS_AT_ONCE, RecoveredLedgers
from ledger.wire.messages import (
    ErrorResponse,
    ListEntriesRequest,
    ListEntriesResponse,
    Request,
    ResponseBody,
)
from tests.ledger.scripted_bookie import ScriptedCluster, answers_no_lists, scripted_cluster
from tests.ledger.writing.test_trailing_acks import marks_of, no_doubts

COUNT = 30
_GET_LIST_OF_ENTRIES = 11


def answers(status: Status) -> Callable[[Request], ResponseBody | None]:
    def script(request: Request) -> ResponseBody | None:
        if isinstance(request.body, ListEntriesRequest):
            return ListEntriesResponse(status, request.body.ledger_id)
        return None

    return script


async def abandoned(client: LedgerClient, ledgers: int = 1, **settings: object) -> list[int]:
    """Writes ledgers that every bookie has, and leaves them open."""
    made = []
    for _ in range(ledgers):
        writer = await client.create_ledger(ack_quorum=3, **settings)  # type: ignore[arg-type]
        await writer.append_many([b"x"] * (COUNT - 1))
        await writer.append(b"x")  # it carries the LAC: recovery reads nothing before it
        writer.abandon()
        made.append(writer.ledger_id)
    return made


async def recover(client: LedgerClient, ledger_id: int) -> None:
    async with client.open_ledger(ledger_id) as reader:
        assert reader.last_add_confirmed == COUNT - 1


def questions(cluster: ScriptedCluster) -> int:
    return sum(
        isinstance(request.body, ListEntriesRequest)
        for bookie in cluster.bookies.values()
        for request in bookie.requests
    )


async def test_a_bookie_that_has_everything_is_asked_once() -> None:
    async with scripted_cluster(4) as cluster, cluster.client() as client:
        [ledger_id] = await abandoned(client, ensemble_size=4, write_quorum=3)
        await recover(client, ledger_id)
        await no_doubts(client)
        assert questions(cluster) == 4
        assert await marks_of(client) == {}
        await recover(client, ledger_id)  # it is closed already
        assert (client.missed.doubts, questions(cluster)) == (0, 4)


# Without the last entry, by which a recovery begins, a bookie may get all entries again.
@pytest.mark.parametrize("lost", [{7}, set(range(COUNT - 1)), {0}, {COUNT - 1}])
async def test_a_bookie_that_lacks_entries_is_marked(lost: set[int]) -> None:
    async with scripted_cluster(3) as cluster, cluster.client() as client:
        [ledger_id] = await abandoned(client)
        for entry_id in lost:
            del cluster.bookie("b1").entries[ledger_id, entry_id]
        await recover(client, ledger_id)
        await no_doubts(client)
        is_added_again = lost <= {COUNT - 1}  # by the recovery
        assert await marks_of(client) == ({} if is_added_again else {ledger_id: ("b1",)})


async def test_a_bookie_that_does_not_know_the_ledger_is_marked() -> None:
    async with scripted_cluster(3) as cluster, cluster.client() as client:
        [ledger_id] = await abandoned(client)
        cluster.bookie("b1").script = answers(Status.NO_SUCH_LEDGER)
        await recover(client, ledger_id)
        await no_doubts(client)
        assert await marks_of(client) == {ledger_id: ("b1",)}


async def test_entries_that_arrive_a_little_later_are_not_missing() -> None:
    async with scripted_cluster(3) as cluster, cluster.client() as client:
        [ledger_id] = await abandoned(client)
        late = cluster.bookie("b1").entries.pop((ledger_id, 3))
        await recover(client, ledger_id)
        with trio.fail_after(5):
            while questions(cluster) < 3:  # noqa: ASYNC110
                await trio.sleep(0.01)
        cluster.bookie("b1").entries[ledger_id, 3] = late
        await no_doubts(client)
        assert questions(cluster) == 4  # only that bookie is asked again
        assert await marks_of(client) == {}


async def test_a_bookie_that_cannot_list_its_entries_is_left_to_the_checks() -> None:
    async with scripted_cluster(3) as cluster, cluster.client() as client:
        [ledger_id] = await abandoned(client)
        cluster.bookie("b1").script = lambda request: (
            ErrorResponse(Status.BAD_REQUEST, _GET_LIST_OF_ENTRIES)
            if isinstance(request.body, ListEntriesRequest)
            else None
        )
        await recover(client, ledger_id)
        await no_doubts(client)
        assert questions(cluster) == 3
        assert await marks_of(client) == {}


async def test_a_bookie_that_answers_no_lists_is_left_to_the_checks() -> None:
    async with scripted_cluster(3) as cluster, cluster.client(read_timeout_s=0.5) as client:
        for bookie in cluster.bookies.values():
            bookie.script = answers_no_lists
        for ledger_id in await abandoned(client, ledgers=2):
            await recover(client, ledger_id)
            await no_doubts(client)
            assert questions(cluster) == 3  # the second ledger asks nothing
        assert await marks_of(client) == {}


@pytest.mark.parametrize("status", [Status.UNKNOWN_LEDGER_STATE, Status.TOO_MANY_REQUESTS])
async def test_a_bookie_that_does_not_say_it_in_time_is_marked(status: Status) -> None:
    async with (
        scripted_cluster(3) as cluster,
        cluster.client(idle_replacement_delay_s=1.5) as client,
    ):
        [ledger_id] = await abandoned(client)
        cluster.bookie("b1").script = answers(status)
        begun_s = trio.current_time()
        await recover(client, ledger_id)
        assert trio.current_time() - begun_s < 1, "the recovery waited for it"
        await no_doubts(client)
        assert 1.5 <= trio.current_time() - begun_s < 5
        assert await marks_of(client) == {ledger_id: ("b1",)}


async def test_many_ledgers_are_asked_for_a_bounded_number_at_a_time() -> None:
    async with scripted_cluster(3) as cluster, cluster.client() as client:
        made = []
        for _ in range(LEDGERS_AT_ONCE + 20):
            async with client.create_ledger(ack_quorum=3) as writer:
                await writer.append(b"x")
            made.append(writer.metadata)
        released = trio.Event()
        for bookie in cluster.bookies.values():
            bookie.hold = lambda request: (
                released if isinstance(request.body, ListEntriesRequest) else None
            )
        recovered = RecoveredLedgers(client.pool, client.missed, client.options, client.rng)
        for metadata in made:
            recovered.check(metadata)
        assert client.missed.doubts == len(made)
        with trio.fail_after(5):
            while waiting(client) < 3 * LEDGERS_AT_ONCE:  # noqa: ASYNC110
                await trio.sleep(0.01)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert waiting(client) == 3 * LEDGERS_AT_ONCE
        before = trio.lowlevel.current_statistics().tasks_living
        released.set()
        await no_doubts(client)
        assert await marks_of(client) == {}
        assert trio.lowlevel.current_statistics().tasks_living < before


def waiting(client: LedgerClient) -> int:
    return sum(one.calls_waiting for one in client.pool.statistics().values())


async def test_an_empty_ledger_asks_nothing() -> None:
    async with scripted_cluster(3) as cluster, cluster.client() as client:
        writer = await client.create_ledger()
        writer.abandon()
        async with client.open_ledger(writer.ledger_id) as reader:
            assert reader.last_add_confirmed == -1
        assert (client.missed.doubts, questions(cluster)) == (0, 0)
