"""Auto-recovery that is disturbed in its work: nothing is forgotten, and nobody alive is fenced."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio

from bookie.testing import SimCluster, simulate
from ledger.autorecovery.options import AutoRecoveryOptions
from ledger.autorecovery.published import AuditReport, publish_audit, read_audit
from ledger.autorecovery.service import AutoRecovery
from ledger.client import LedgerClient
from ledger.core.autorecovery.bookies import BookieState
from ledger.core.metadata import LedgerMetadata
from ledger.metastore.decommissions import Decommission, Decommissions
from ledger.metastore.ledgers import LedgerStore
from ledger.verify import verify_ledger
from tests.ledger.autorecovery.test_healing import (
    ENTRIES,
    healing,
    id_of,
    is_whole,
    until,
    until_emptied,
    until_found,
    until_no_marks,
    written,
)


def before_first_copy(service: AutoRecovery, act: Callable[[], Any]) -> None:
    """Has `act` awaited when the first copy begins."""
    copier, copy, acted = service.worker._copier, service.worker._copier.copy, False

    async def acting(*args: Any, **settings: Any) -> Any:
        nonlocal acted
        if not acted:
            acted = True
            await act()
        return await copy(*args, **settings)

    copier.copy = acting  # type: ignore[method-assign]


async def until_state(service: AutoRecovery, bookie: str, state: BookieState) -> None:
    """Returns when the service has seen that the bookie is in this state."""
    while service.view.bookies.state_of(bookie) is not state:  # noqa: ASYNC110
        await trio.sleep(0.1)


async def is_all_whole(client: LedgerClient, ids: list[int]) -> bool:
    return all([is_whole(await verify_ledger(client, one)) for one in ids])


def test_an_outage_of_the_metadata_store_ends_nothing() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client, healing(cluster):
            ids = [await written(client) for _ in range(5)]
            cluster.metadata.cut_off("healer")
            await cluster.kill_bookie(cluster.bookies[0])
            await client.underreplication.mark(ids[0], [id_of(cluster.bookies[1])])
            await trio.sleep(30)
            cluster.metadata.heal()

            async def is_healed() -> bool:
                return await is_all_whole(client, ids)

            await until(is_healed)
            await until_no_marks(client)

    simulate(scenario, 1, bookies=5)


def test_a_loss_is_not_forgotten_when_the_audit_meets_an_outage() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client, healing(cluster) as service:
            ids = [await written(client) for _ in range(5)]
            begin, outages = service.auditor._begin, 0

            async def begun(*args: Any, **settings: Any) -> Any:
                nonlocal outages
                found = await begin(*args, **settings)
                if not outages:
                    outages += 1
                    cluster.metadata.cut_off("healer")
                    cluster.simulation.call_later(5, cluster.metadata.heal)
                return found

            service.auditor._begin = begun  # type: ignore[method-assign]
            await cluster.kill_bookie(cluster.bookies[0])
            await until_found(service)
            await until_no_marks(client)
            assert outages == 1
            assert await is_all_whole(client, ids)

    simulate(scenario, 2, bookies=5)


def test_a_mark_stays_when_auto_recovery_is_disabled_during_the_copying() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client, healing(cluster, is_naive=True) as service:

            async def disable() -> None:
                await client.underreplication.set_enabled(enabled=False)
                while service.view.is_enabled:  # noqa: ASYNC110
                    await trio.sleep(0.1)

            before_first_copy(service, disable)
            ledger_id = await written(client)
            lost = (await client.ledger_metadata(ledger_id)).fragments[0].bookies[0]
            await cluster.kill_bookie(lost.partition(":")[0])
            await trio.sleep(100)
            assert not service.view.is_enabled
            assert await client.underreplication.list() == [ledger_id]
            assert lost in (await client.ledger_metadata(ledger_id)).fragments[0].bookies
            await client.underreplication.set_enabled(enabled=True)
            await until_no_marks(client)
            assert await is_all_whole(client, [ledger_id])

    simulate(scenario, 3, bookies=4)


def test_a_bookie_that_returns_during_the_copying_gets_what_it_lacks() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client, healing(cluster, is_naive=True) as service:
            async with cluster.client() as leaving:  # it does not live to say what is missing
                writer = await leaving.create_ledger()
                lost = writer.metadata.fragments[0].bookies[1]
                name = lost.partition(":")[0]
                await writer.append_many([b"%d" % n for n in range(ENTRIES)])
                await cluster.kill_bookie(name)
                await writer.append_many([b"%d" % n for n in range(ENTRIES)])
                await writer.close()

            async def bring_back() -> None:
                await cluster.start_bookie(name)
                await until_state(service, lost, BookieState.WRITABLE)

            before_first_copy(service, bring_back)
            await until_state(service, lost, BookieState.LOST)
            await trio.sleep(5)  # the audit is over, which marks the ledger again
            await cluster.start_bookie(cluster.add_bookie())
            await until_found(service)
            await until_no_marks(client)
            assert service.worker.statistics.copies_stopped == 1
            metadata = await client.ledger_metadata(writer.ledger_id)
            assert metadata.fragments == writer.metadata.fragments
            assert await is_all_whole(client, [writer.ledger_id])

    simulate(scenario, 4, bookies=3)


def test_a_bookie_that_returns_while_another_one_is_asked_is_asked_too() -> None:
    """It was down when its turn came, and is up when the plan is made."""

    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client, healing(cluster) as service:
            writer = await client.create_ledger()
            away, other, _ = writer.metadata.fragments[0].bookies
            name, has_returned = away.partition(":")[0], False
            pool = service.worker._client.pool
            list_entries = pool.list_entries

            async def listing(bookie: str, *args: Any, **settings: Any) -> Any:
                nonlocal has_returned
                if bookie == other and not has_returned:
                    has_returned = True
                    await cluster.start_bookie(name)
                    await until_state(service, away, BookieState.WRITABLE)
                return await list_entries(bookie, *args, **settings)

            pool.list_entries = listing  # type: ignore[method-assign]
            await cluster.kill_bookie(name)
            await until_state(service, away, BookieState.AWAITED)
            await writer.append_many([b"%d" % n for n in range(ENTRIES)])
            await writer.close()
            await client.underreplication.mark(writer.ledger_id, [away, other])
            await until_no_marks(client)
            assert has_returned
            assert await is_all_whole(client, [writer.ledger_id])

    simulate(scenario, 5, bookies=3)


def test_a_mark_stays_when_its_ledger_is_closed_before_it_is_deleted() -> None:
    """The writer does not live to say that a bookie lacks the last entry."""

    async def scenario(cluster: SimCluster) -> None:
        async with (
            cluster.client() as client,
            cluster.client("writer") as writing,
            healing(cluster) as service,
        ):
            writer = await writing.create_ledger()
            lacking = writer.metadata.fragments[0].bookies[2]
            await writer.append_many([b"%d" % n for n in range(ENTRIES)])
            unmark, is_closed = service.worker._marks.unmark, False

            async def closed_first(*args: Any, **settings: Any) -> bool:
                nonlocal is_closed
                if not is_closed:
                    is_closed = True
                    cluster.network.block("writer", lacking.partition(":")[0])
                    last = await writer.append(b"last")
                    end = partial(LedgerMetadata.closed, last_entry_id=last, length=writer.length)
                    await client.ledgers.update(writer.ledger_id, end)
                    writer.abandon()
                return await unmark(*args, **settings)

            service.worker._marks.unmark = closed_first  # type: ignore[method-assign]
            await client.underreplication.mark(writer.ledger_id, [lacking])
            await until_found(service)
            await until_no_marks(client)
            assert is_closed
            assert await is_all_whole(client, [writer.ledger_id])

    simulate(scenario, 8, bookies=3)


def test_a_check_of_entries_that_another_auditor_began_still_sees_every_ledger() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            ids = [await written(client) for _ in range(6)]
            await publish_audit(
                client.store,
                AuditReport(
                    auditor="before", begun_ms=1, after_ledger=ids[-1], checks_entries=True
                ),
            )
            await cluster.kill_bookie(cluster.bookies[0])
            await trio.sleep(5)
            options = AutoRecoveryOptions(lost_bookie_recovery_delay_s=0)
            async with healing(cluster, options=options) as service:
                await until_found(service)
                await until_no_marks(client)
                assert await is_all_whole(client, ids)

                async def is_ended() -> bool:
                    report = await read_audit(client.store)
                    return report is not None and report.ended_ms > 0

                await until(is_ended)
                report = await read_audit(client.store)
                assert report is not None
                assert report.ledgers == len(ids)

    simulate(scenario, 5, bookies=5)


def test_a_clock_that_is_set_back_puts_no_check_off_for_long() -> None:
    async def scenario(cluster: SimCluster) -> None:
        options = AutoRecoveryOptions(entry_check_interval_s=10)
        async with cluster.client(), healing(cluster, options=options) as service:
            await trio.sleep(30)
            cluster.jump_clock("healer", -7_200_000)
            audits = service.auditor.audits
            await trio.sleep(100)
            assert service.auditor.audits >= audits + 5

    simulate(scenario, 6)


def test_a_writer_that_begins_a_reserved_ledger_meanwhile_is_not_fenced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_alive = LedgerStore.is_writer_alive

    async def scenario(cluster: SimCluster) -> None:
        options = AutoRecoveryOptions(lost_bookie_recovery_delay_s=20, open_ledger_grace_s=0)
        async with cluster.client() as client, healing(cluster, options=options) as service:
            async with cluster.client("reserver") as reserver:
                ledger_id = await reserver.reserve_ledger()
            cluster.metadata.expire("reserver")
            lost = (await client.ledger_metadata(ledger_id)).fragments[0].bookies[0]

            async def claimed(self: LedgerStore, metadata: LedgerMetadata) -> bool:
                found = await is_alive(self, metadata)
                if self is service.worker._client.ledgers and not writers:
                    writers.append(await client.write_reserved(ledger_id))
                return found

            writers: list[Any] = []
            monkeypatch.setattr(LedgerStore, "is_writer_alive", claimed)
            await cluster.kill_bookie(lost.partition(":")[0])
            await until_found(service)
            await trio.sleep(200)
            [writer] = writers
            await writer.append(b"x")
            await writer.close()
            await until_no_marks(client)
            assert await is_all_whole(client, [ledger_id])

    simulate(scenario, 7, bookies=5)


async def begin_to_empty(client: LedgerClient, bookie: str, begun_ms: int) -> Decommissions:
    decommissions = Decommissions(client.store)
    await decommissions.begin(Decommission(bookie=bookie, begun_ms=begun_ms))
    return decommissions


def test_writers_have_time_to_notice_whatever_the_clocks_say() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client, healing(cluster):
            bookie = id_of(cluster.bookies[0])
            await trio.sleep(20)
            decommissions = await begin_to_empty(client, bookie, client.now_ms() - 3_600_000)
            await trio.sleep(9)
            found = await decommissions.read(bookie)
            assert found is not None
            assert found.state == "draining"
            await trio.sleep(30)
            found = await decommissions.read(bookie)
            assert found is not None
            assert found.state == "emptied"

    simulate(scenario, 8, bookies=4)


def test_a_bookie_stays_while_metadata_that_may_name_it_cannot_be_read() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client, healing(cluster):
            ledger_id = await written(client)
            path = await client.ledgers.path(ledger_id)
            good = (await client.store.get(path)).data
            await client.store.put(path, b"damaged")
            bookie = id_of(cluster.bookies[0])
            decommissions = await begin_to_empty(client, bookie, client.now_ms())
            await trio.sleep(60)
            found = await decommissions.read(bookie)
            assert found is not None
            assert found.state == "draining"
            assert await client.bookies.read_cookie(bookie) is not None
            await client.store.put(path, good)
            await until_emptied(client, bookie)
            assert await is_all_whole(client, [ledger_id])

    simulate(scenario, 9, bookies=5)


def test_a_decommission_that_is_cancelled_at_the_last_moment_leaves_the_cookie() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client, healing(cluster) as service:
            bookie = id_of(cluster.bookies[0])
            decommissions = await begin_to_empty(client, bookie, client.now_ms())
            leave, left = service.auditor._leave, 0

            async def late(emptied: Decommission) -> None:
                nonlocal left
                left += 1
                await decommissions.cancel(bookie)
                await leave(emptied)

            service.auditor._leave = late  # type: ignore[method-assign]
            await trio.sleep(60)
            assert left == 1
            assert await client.bookies.read_cookie(bookie) is not None

    simulate(scenario, 10, bookies=4)


def test_a_ledger_of_a_bookie_to_be_emptied_is_marked_until_it_names_it_no_more() -> None:
    """A worker that has not yet seen that the bookie is to be emptied takes the ledger for whole,
    and deletes its mark."""

    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client, healing(cluster) as service:
            ledger_id = await written(client)
            leaving = (await client.ledger_metadata(ledger_id)).fragments[0].bookies[0]
            heal, is_seen = service.worker._heal_some, False

            async def heal_some(*args: Any) -> int | None:
                nonlocal is_seen
                was_seen, is_seen = is_seen, True
                return await heal(*args) if was_seen else 0

            service.worker._heal_some = heal_some  # type: ignore[method-assign, assignment]
            await begin_to_empty(client, leaving, client.now_ms())
            await until_emptied(client, leaving)
            assert await is_all_whole(client, [ledger_id])

    simulate(scenario, 12, bookies=4)


def test_a_mark_whose_deletion_got_no_answer_is_not_found_for_ever() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            ledger_id = await written(client)
            await client.underreplication.mark(ledger_id, [])
            path = f"/ledgers/underreplication/ledgers/0000/0000/0000/{ledger_id:04x}"
            await client.store.delete(f"{path}/urL{ledger_id:010d}")
            assert await client.underreplication.list() == [ledger_id]
            async with healing(cluster):
                await until_no_marks(client)

    simulate(scenario, 11)
