"""Renames of bookies that are refused, and change nothing; and open ledgers.

That a rename which is interrupted loses nothing is in tests/sim/bookies/test_renaming.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from bookie.startup.rename import BookieRename, Renamed, path_of
from bookie.startup.rename_ledgers import RenameRefused
from bookie.testing import SimCluster, Simulation, run_simulated
from ledger.core.metadata import LedgerMetadata, LedgerState
from ledger.errors import LedgerFenced, MetadataCorrupt
from ledger.metastore.base import Delete
from ledger.metastore.bookies import BookieInfo, BookieRegistry
from ledger.metastore.decommissions import Decommission, Decommissions
from ledger.metastore.ledgers import CLIENT_TAG, LedgerStore
from ledger.metastore.underreplication import UnderreplicationStore
from tests.sim.bookies.test_changing_directories import two_directories
from tests.sim.bookies.test_renaming import (
    NAME,
    NEW,
    OLD,
    PORT,
    check_renamed,
    end_rename,
    named,
    prepare,
    write,
)

Body = Callable[[SimCluster], Awaitable[None]]


def simulate(body: Body) -> None:
    async def main(simulation: Simulation) -> None:
        async with SimCluster(simulation, bookies=3, config=two_directories) as cluster:
            await body(cluster)

    run_simulated(main, 0, time_limit_s=600)


async def attempt(
    cluster: SimCluster, old: str = OLD, new: str = NEW, *, is_dry: bool = False, **settings: Any
) -> Renamed:
    """Does what the command does, in a process of its own."""
    store = cluster.metadata.connect("operator")
    config = dataclasses.replace(cluster.config(NAME), **({"port": PORT} | settings))
    return await BookieRename(
        config,
        cluster.disk(NAME).mount(),
        store,
        LedgerStore(store),
        UnderreplicationStore(store, "/ledgers", lambda: 0),
    ).run(old, new, is_dry=is_dry)


async def check_unchanged(cluster: SimCluster) -> None:
    """Checks that the bookie starts with its old id, and that no rename was begun."""
    await cluster.start_bookie(NAME)
    async with cluster.client() as client:
        assert OLD in await client.bookies.available()
        assert NEW not in await client.bookies.all()
        assert await client.store.children(path_of(NEW).rpartition("/")[0]) == []
        for ledger_id in await client.list_ledgers():
            assert NEW not in named((await client.ledgers.read(ledger_id))[0])


@pytest.mark.parametrize(
    ("old", "new", "settings", "problem"),
    [
        (OLD, OLD, {"port": 3181}, r"is named twice\. Cure: "),
        (OLD, "elsewhere:3181", {}, rf"those of bookie {NEW}, not of elsewhere:3181\. Cure: "),
        ("unknown:3181", NEW, {}, r"does not know bookie unknown:3181\. Cure: "),
        (OLD, "bookie-2:3181", {"host": "bookie-2", "port": 3181}, r"bookie-2:3181 is registered"),
        ("bookie-2:3181", NEW, {}, r"bookie-2:3181 is registered"),
        (
            OLD,
            NEW,
            {"ledger_directories": ("/ledgers-1", "/ledgers")},
            r"other directories than bookie .* Cure: name them as before",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    old: str, new: str, settings: dict[str, Any], problem: str
) -> None:
    async def body(cluster: SimCluster) -> None:
        await prepare(cluster)
        with pytest.raises(RenameRefused, match=problem):
            await attempt(cluster, old, new, **settings)
        await check_unchanged(cluster)

    simulate(body)


def test_a_running_bookie_is_refused() -> None:
    async def body(cluster: SimCluster) -> None:
        with pytest.raises(RenameRefused, match=r"is registered: it is running.* Cure: stop it"):
            await attempt(cluster)

    simulate(body)


def test_the_disks_of_another_bookie_or_cluster_are_refused() -> None:
    async def body(cluster: SimCluster) -> None:
        await prepare(cluster)
        await cluster.stop_bookie("bookie-2")
        async with cluster.client() as client:
            while await client.bookies.info("bookie-2:3181") is not None:
                await cluster.simulation.sleep(0.5)
            with pytest.raises(RenameRefused, match=r"is not a directory of bookie bookie-2:3181"):
                await attempt(cluster, "bookie-2:3181")
            path, root = (
                client.bookies.instance_id_path,
                await client.store.get("/ledgers/INSTANCEID"),
            )
            await client.store.put(path, b"another")
            with pytest.raises(RenameRefused, match=r"and at memory: is cluster another\. Cure: "):
                await attempt(cluster)
            await client.store.put(path, root.data)
        await check_unchanged(cluster)

    simulate(body)


def test_a_new_id_that_is_known_anywhere_is_refused() -> None:
    async def body(cluster: SimCluster) -> None:
        written = await prepare(cluster)
        async with cluster.client() as client:
            cookie, _ = await client.bookies.read_cookie(OLD) or pytest.fail("no cookie")
            await client.bookies.write_cookie(NEW, cookie)
            with pytest.raises(RenameRefused, match=rf"knows a bookie {NEW} already\. Cure: "):
                await attempt(cluster)
            await client.bookies.delete_cookie(NEW)
            async with client.bookies.register(NEW, BookieInfo("h", 1)):
                with pytest.raises(RenameRefused, match=rf"bookie {NEW} is registered"):
                    await attempt(cluster)
            decommissions = Decommissions(client.store)
            await decommissions.begin(Decommission(bookie=NEW, begun_ms=1))
            with pytest.raises(RenameRefused, match=rf"decommission {NEW} --cancel"):
                await attempt(cluster)
            await decommissions.cancel(NEW)

            def naming_new(metadata: LedgerMetadata) -> LedgerMetadata:
                [fragment] = metadata.fragments
                bookies = tuple(NEW if b == "bookie-0:3181" else b for b in fragment.bookies)
                return dataclasses.replace(
                    metadata, fragments=(dataclasses.replace(fragment, bookies=bookies),)
                )

            before, _ = await client.ledgers.read(written[0])
            await client.ledgers.update(written[0], naming_new)
            with pytest.raises(RenameRefused, match=rf"ledger {written[0]}: it names {NEW}, so"):
                await attempt(cluster)
            await client.ledgers.update(written[0], lambda _: before)
        await check_unchanged(cluster)

    simulate(body)


def test_damaged_nodes_are_named_before_anything_is_changed() -> None:
    async def body(cluster: SimCluster) -> None:
        written = await prepare(cluster)
        async with cluster.client() as client:
            path = await client.ledgers.path(written[1])
            whole = (await client.store.get(path)).data
            await client.store.put(path, b"damaged")
            with pytest.raises(RenameRefused, match=rf"ledger {written[1]}: it may name the"):
                await attempt(cluster)
            await client.store.put(path, whole)
            await client.store.create(path_of(NEW), b"[]")
            with pytest.raises(MetadataCorrupt, match="no record of a rename"):
                await attempt(cluster)
            await client.store.put(path_of(NEW), b'{"version":1,"old":"other:1"}')
            with pytest.raises(RenameRefused, match=r"rename of bookie other:1 to .* was begun"):
                await attempt(cluster)
            await client.store.delete(path_of(NEW))
            await client.store.put("/ledgerstream/locations", b"[]")
            with pytest.raises(MetadataCorrupt, match="/ledgerstream/locations"):
                await attempt(cluster)
        await check_unchanged(cluster)

    simulate(body)


def test_a_dry_run_counts_the_ledgers_and_changes_nothing() -> None:
    async def body(cluster: SimCluster) -> None:
        written = await prepare(cluster)
        done = await attempt(cluster, is_dry=True)
        assert done == Renamed(old=OLD, new=NEW, ledgers=len(written))
        await check_unchanged(cluster)

    simulate(body)


def test_a_rename_may_be_repeated_and_moves_what_belongs_to_the_bookie() -> None:
    async def body(cluster: SimCluster) -> None:
        written = await prepare(cluster)
        async with cluster.client() as client:
            await Decommissions(client.store).begin(
                Decommission(bookie=OLD, begun_ms=1, replacement="bookie-2:3181")
            )
            await client.bookies.record_empty_start(OLD, "an instance")
        await end_rename(cluster)
        assert await attempt(cluster) == Renamed(old=OLD, new=NEW, was_renamed=True)
        async with cluster.client() as client:
            moved = await Decommissions(client.store).read(NEW)
            assert moved is not None
            assert moved.replacement == "bookie-2:3181"
            assert await client.bookies.is_empty_start_used(NEW, "an instance")
            assert not await client.bookies.is_empty_start_used(OLD, "an instance")
            await Decommissions(client.store).cancel(NEW)
        await check_renamed(cluster, written)

    simulate(body)


def test_a_decommission_that_finds_the_old_id_nowhere_does_not_end_the_rename() -> None:
    async def body(cluster: SimCluster) -> None:
        written = await prepare(cluster)
        async with cluster.client() as client:
            decommissions = Decommissions(client.store)
            await decommissions.begin(Decommission(bookie=OLD, begun_ms=1))
            found = await decommissions.read(OLD)
            assert found is not None
            leaving = [Delete(client.bookies.cookie_path(OLD))]
            store = cluster.metadata

            def look(node: str, kind: str, _path: str) -> None:
                if (node, kind) == (NAME, "transaction"):
                    store.on_call = None
                    cluster.kill_bookie_now(NAME)

            store.on_call = look
            assert not await cluster.rename_bookie(NAME, PORT)
            await decommissions.update(
                dataclasses.replace(found, state="emptied", ledgers_left=0), also=leaving
            )
            await end_rename(cluster)
            moved = await decommissions.read(NEW)
            assert moved is not None
            assert (moved.state, moved.ledgers_left) == ("draining", None)
            assert await decommissions.cancel(NEW)
        await check_renamed(cluster, written)

    simulate(body)


def test_the_ledger_of_a_living_writer_is_refused_by_name() -> None:
    async def body(cluster: SimCluster) -> None:
        written = await prepare(cluster)
        await cluster.start_bookie(NAME)
        async with cluster.client("alive") as client:
            writer = await write(client, closes=False)
            await cluster.stop_bookie(NAME)
            while await client.bookies.info(OLD) is not None:
                await cluster.simulation.sleep(0.5)
            why = rf"ledger {writer.ledger_id}: it is open, and its writer is alive\. Cure: close"
            with pytest.raises(RenameRefused, match=rf"nothing was changed: {why}"):
                await attempt(cluster)
        cluster.metadata.freeze("alive")
        await cluster.simulation.sleep(3)
        await end_rename(cluster)
        await check_renamed(cluster, [*written, writer.ledger_id])

    simulate(body)


def test_a_writer_that_lost_its_session_cannot_store_the_old_id_again() -> None:
    async def body(cluster: SimCluster) -> None:
        await prepare(cluster)
        await cluster.start_bookie(NAME)
        async with cluster.client("zombie") as client:
            writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
            last = await writer.append(b"acknowledged")
            await cluster.stop_bookie(NAME)
            cluster.metadata.expire("zombie")
            while await client.bookies.info(OLD) is not None:
                await cluster.simulation.sleep(0.5)
            await end_rename(cluster)
            stored, _ = await client.ledgers.read(writer.ledger_id)
            assert stored.state is LedgerState.IN_RECOVERY
            assert NEW in named(stored)
            with pytest.raises(LedgerFenced):
                await writer.close()
        await cluster.start_bookie(NAME)
        async with cluster.client() as client:
            reader = await client.open_ledger(writer.ledger_id)
            assert reader.last_add_confirmed == last
            assert [bytes(e.payload) for e in await reader.read(0, last)] == [b"acknowledged"]
            assert OLD not in named((await client.ledgers.read(writer.ledger_id))[0])

    simulate(body)


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_ledgers_of_unknown_writers_and_in_recovery_are_changed_on_request(
    state: LedgerState,
) -> None:
    async def body(cluster: SimCluster) -> None:
        written = await prepare(cluster)
        async with cluster.client() as client:

            def of_another_program(metadata: LedgerMetadata) -> LedgerMetadata:
                kept = {k: v for k, v in metadata.custom.items() if k != CLIENT_TAG}
                return dataclasses.replace(metadata, custom=kept, state=state)

            await client.ledgers.update(written[-1], of_another_program)
        with pytest.raises(RenameRefused, match=rf"ledger {written[-1]}: it is .*--include-open"):
            await attempt(cluster)
        assert await cluster.rename_bookie(NAME, PORT, includes_open=True)
        await check_renamed(cluster, written)

    simulate(body)


def test_a_ledger_that_is_being_recovered_is_waited_for() -> None:
    async def body(cluster: SimCluster) -> None:
        written = await prepare(cluster)
        async with cluster.client() as client:
            await client.ledgers.update(written[-1], lambda one: one.in_recovery())

            async def recover() -> None:
                await cluster.simulation.sleep(5)
                await client.ledgers.update(written[-1], lambda one: one.closed(2, 3000))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(recover)
                await end_rename(cluster)
        await check_renamed(cluster, written)
        registry = BookieRegistry(cluster.metadata.connect("operator"))
        assert await registry.read_cookie(OLD) is None

    simulate(body)
