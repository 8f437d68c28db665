"""The table of locations: its bytes, changes by several operators at once, and damage."""

from __future__ import annotations

import logging

import pytest
import trio
import trio.testing

from ledger.core.placement.topology import Location
from ledger.errors import InvalidArgument, MetadataCorrupt
from ledger.metastore.locations import PATH, BookieLocations
from ledger.metastore.memory import MemoryStore, MemoryTree

GOLDEN = b'{"version":1,"locations":{"a:3181":"/rack-1","b:3181":"/eu-1/rack-7"}}'
TABLE = {"a:3181": Location("default-region", "rack-1"), "b:3181": Location("eu-1", "rack-7")}


def store() -> MemoryStore:
    return MemoryStore(MemoryTree(), lambda: 0)


async def test_bookies_are_placed_moved_and_removed() -> None:
    async with store() as metadata:
        locations = BookieLocations(metadata)
        assert await locations.read() == {}
        assert not await locations.remove("b:3181")
        await locations.place("b:3181", Location.parse("/eu-1/rack-9"))
        await locations.place("b:3181", Location.parse("/eu-1/rack-7"))
        await locations.place("a:3181", Location.parse("/default-region/rack-1"))
        assert await locations.read() == TABLE
        assert (await metadata.get(PATH)).data == GOLDEN
        version = (await metadata.get(PATH)).version
        await locations.place("a:3181", Location.parse("/rack-1"))
        assert (await metadata.get(PATH)).version == version, "nothing was to be changed"
        assert await locations.remove("a:3181")
        assert not await locations.remove("a:3181")
        assert list(await locations.read()) == ["b:3181"]


async def test_operators_do_not_overwrite_each_other() -> None:
    tree = MemoryTree()
    async with MemoryStore(tree, lambda: 0) as one, MemoryStore(tree, lambda: 0) as two:
        tables = BookieLocations(one), BookieLocations(two)
        async with trio.open_nursery() as nursery:
            for number in range(20):
                location = Location("eu", f"r{number}")
                nursery.start_soon(tables[number % 2].place, f"b{number}", location)
        assert {bookie: at.rack for bookie, at in (await tables[0].read()).items()} == {
            f"b{number}": f"r{number}" for number in range(20)
        }


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{", b'{"version":2,"locations":{}}', b'{"version":1}', b"[" * 100_000,
     b'{"version":1,"locations":[1]}', b'{"version":1,"locations":{"b":7}}',
     b'{"version":1,"locations":{"b":"rack-7"}}', b'{"version":1,"locations":{"a b":"/r"}}'],
)  # fmt: skip
async def test_a_damaged_table_is_an_error_and_stops_nobody(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with store() as metadata:
        await metadata.create(PATH, data)
        locations = BookieLocations(metadata)
        with pytest.raises(MetadataCorrupt, match="/ledgerstream/locations"):
            await locations.read()
        with pytest.raises(MetadataCorrupt):
            await locations.place("b", Location.parse("/r"))
        assert (await metadata.get(PATH)).data == data
        with caplog.at_level(logging.WARNING):
            assert await locations.known() == {}
        assert "locations_ignored" in caplog.text


async def test_the_last_table_is_kept_while_the_node_is_damaged(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with store() as metadata:
        await metadata.create(PATH, GOLDEN)
        locations = BookieLocations(metadata)
        assert await locations.known() == TABLE
        await metadata.put(PATH, b"damage")
        await trio.sleep(61)
        assert await locations.known() == TABLE


async def test_a_bookie_that_cannot_exist_is_refused() -> None:
    async with store() as metadata:
        with pytest.raises(InvalidArgument, match="bookie id"):
            await BookieLocations(metadata).place("a b", Location.parse("/r"))
        assert await metadata.children("/ledgerstream") == []


async def test_a_table_of_too_many_bookies_is_refused() -> None:
    async with store() as metadata:
        rows = ",".join(f'"{"b" * 88}{number}":"/r"' for number in range(9_995))
        await metadata.create(PATH, b'{"version":1,"locations":{%s}}' % rows.encode())
        with pytest.raises(InvalidArgument, match=r"would have 9996 locations in \d+ bytes"):
            await BookieLocations(metadata).place("c" * 2000, Location.parse("/r"))
