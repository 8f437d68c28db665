"""The simulated metadata store reports late, or leaves the outcome of a call unknown."""

from __future__ import annotations

from contextlib import aclosing

import pytest
import trio

from bookie.testing.metastore import MetadataOptions, SimMetadata
from bookie.testing.scheduler import Simulation, run_simulated
from ledger.errors import MetadataConflict, MetadataUnavailable, NoSuchNode


def test_calls_take_time_and_see_one_tree() -> None:
    async def main(simulation: Simulation) -> None:
        metadata = SimMetadata(simulation)
        one, other = metadata.connect("one"), metadata.connect("other")
        await one.create("/a", b"1")
        assert (await other.get("/a")).data == b"1"
        assert await other.put("/a", b"2", 0) == 1
        with pytest.raises(MetadataConflict):
            await one.put("/a", b"3", 0)
        assert trio.current_time() > 0

    run_simulated(main, 1)


def test_a_lost_answer_leaves_the_change_done_and_a_lost_request_undone() -> None:
    async def main(simulation: Simulation) -> None:
        metadata = SimMetadata(simulation, MetadataOptions(error_after_probability=1))
        store = metadata.connect("n")
        with pytest.raises(MetadataUnavailable):
            await store.create("/after", b"")
        metadata.options = MetadataOptions(error_before_probability=1)
        with pytest.raises(MetadataUnavailable):
            await store.create("/before", b"")
        metadata.options = MetadataOptions()
        assert await store.children("/") == ["after"]

    run_simulated(main, 1)


def test_a_node_cut_off_is_in_doubt_until_healed_while_others_work() -> None:
    async def main(simulation: Simulation) -> None:
        metadata = SimMetadata(simulation)
        one, other = metadata.connect("one"), metadata.connect("other")
        metadata.cut_off("one")
        with pytest.raises(MetadataUnavailable):
            await one.create("/a", b"")
        await other.create("/b", b"")
        metadata.heal()
        assert await one.children("/") == ["b"]

    run_simulated(main, 1)


def test_a_lost_session_takes_its_ephemeral_nodes_along() -> None:
    async def main(simulation: Simulation) -> None:
        metadata = SimMetadata(simulation)
        one, other = metadata.connect("one"), metadata.connect("other")
        await one.create("/a", b"", is_ephemeral=True)
        metadata.expire("one")
        with pytest.raises(NoSuchNode):
            await other.get("/a")

    run_simulated(main, 1)


def test_the_session_of_a_dead_process_lives_until_it_expires() -> None:
    async def main(simulation: Simulation) -> None:
        metadata = SimMetadata(simulation)
        one, other = metadata.connect("one"), metadata.connect("other")
        await one.create("/a", b"", is_ephemeral=True)
        metadata.freeze("one")
        await one.aclose()
        with pytest.raises(MetadataUnavailable, match="dead"):
            await one.get("/a")
        assert await other.children("/") == ["a"]
        await trio.sleep(2.1)
        assert await other.children("/") == []

    run_simulated(main, 1)


def test_a_watch_shows_the_last_state() -> None:
    async def main(simulation: Simulation) -> list[bytes]:
        metadata = SimMetadata(simulation)
        one, other = metadata.connect("one"), metadata.connect("other")
        await one.create("/a", b"0")
        seen: list[bytes] = []
        async with trio.open_nursery() as nursery:

            async def change() -> None:
                for number in range(1, 20):
                    await one.put("/a", b"%d" % number)

            nursery.start_soon(change)
            async with aclosing(other.watch("/a")) as nodes:
                async for node in nodes:
                    assert node is not None
                    seen.append(node.data)
                    if node.data == b"19":
                        return seen
        return seen

    seen = run_simulated(main, 1)
    assert seen == sorted(seen, key=int)
    assert seen[-1] == b"19"
