"""Candidates: where the bookies that accept entries are, and what it costs to know."""

from __future__ import annotations

from dataclasses import replace

import trio
import trio.testing

from ledger.core.placement.topology import Location, Place
from ledger.metastore.bookies import BookieInfo, BookieRegistry, decode_info, encode_info
from ledger.metastore.memory import MemoryStore, MemoryTree
from tests.ledger.metastore.counting_store import CountingStore

INFO = BookieInfo("10.0.0.1", 3181, {"rack": "r1"})


def now_ms() -> int:
    return 1_700_000_000_000


def test_a_location_is_a_property_of_the_registration() -> None:
    endpoint = b"\x0a\x06bookie" + b"\x10\xed\x18" + b"\x1a\x0810.0.0.1" + b"\x22\x0abookie-rpc"
    location = b"\x0a\x08location" + b"\x12\x0c/eu-1/rack-7"
    software = b"\x0a\x08software" + b"\x12\x0cledgerstream"
    entries = b"".join(b"\x3a%c" % len(one) + one for one in (location, software))
    properties = {"software": "ledgerstream", "location": "/eu-1/rack-7"}
    info = BookieInfo("10.0.0.1", 3181, properties)
    expected = b"\x32%c" % len(endpoint) + endpoint + entries
    assert encode_info(info) == expected
    assert decode_info("b1", expected) == info


async def test_candidates_are_where_the_table_or_the_registration_says() -> None:
    async with MemoryStore(MemoryTree(), now_ms) as store:
        registry = BookieRegistry(store)
        infos = {
            "apache:3181": b"",  # an old bookie publishes nothing
            "b1": encode_info(replace(INFO, properties={"location": "/eu-1/rack-7"})),
            "b2": encode_info(replace(INFO, properties={"location": "/eu-1/rack-7"})),
            "b3": encode_info(replace(INFO, properties={"location": "no slash"})),
        }
        for name, data in infos.items():
            await store.create(f"/ledgers/available/{name}", data, is_ephemeral=True)
        await registry.locations.place("b2", Location.parse("/eu-2/rack-1"))
        await registry.locations.place("gone:1", Location.parse("/eu-3/rack-1"))
        candidates = await registry.candidates()
        assert candidates.places == {
            "apache:3181": Place("apache"),
            "b1": Place("10.0.0.1", Location("eu-1", "rack-7")),
            "b2": Place("10.0.0.1", Location("eu-2", "rack-1")),
            "b3": Place("10.0.0.1"),
        }
        assert candidates.place("gone:1") == Place("gone", Location("eu-3", "rack-1"))
        assert await registry.candidates() is candidates is registry.known_topology
        await store.delete("/ledgers/available/b1")
        changed = await registry.candidates()
        assert sorted(changed.places) == ["apache:3181", "b2", "b3"]
        assert changed.place("b1").location.path == "/eu-1/rack-7", "it is remembered"
        registry.free_bytes = {"b2": 100, "b3": 10}
        assert (await registry.candidates()).all.weight == 100 + 10 + 55


async def test_places_of_read_only_bookies_are_known() -> None:
    async with MemoryStore(MemoryTree(), now_ms) as store:
        registry = BookieRegistry(store)
        data = encode_info(replace(INFO, properties={"location": "/r1"}))
        await store.create("/ledgers/available/readonly/b1", data, is_ephemeral=True)
        assert (await registry.candidates()).place("b1") == Place("b1")
        assert (await registry.topology()).place("b1") == Place("10.0.0.1", Location.parse("/r1"))
        assert not registry.known_topology.places


async def test_a_choice_costs_one_request_and_the_table_one_a_minute(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = CountingStore(now_ms)
    async with store:
        registry = BookieRegistry(store)
        for number in range(20):
            await store.create(f"/ledgers/available/b{number}", encode_info(INFO))
        first = await registry.candidates()
        store.gets = store.lists = 0
        for _ in range(100):
            assert await registry.candidates() is first
        assert store.reads == 100
        await registry.locations.place("b7", Location.parse("/r7"))
        store.gets = store.lists = 0
        assert (await registry.candidates()).place("b7").location.path == "/r7"
        assert store.reads == 2
        await BookieRegistry(store).locations.remove("b7")
        assert (await registry.candidates()).place("b7").location.path == "/r7"
        await trio.sleep(60)
        assert not (await registry.candidates()).place("b7").location.is_known
