"""The nodes of bookies that are to be emptied."""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from ledger.errors import (
    InvalidArgument,
    MetadataConflict,
    MetadataCorrupt,
    NodeExists,
    NoSuchNode,
)
from ledger.metastore.decommissions import (
    REASON_CHARS_MAX,
    REASONS_MAX,
    Decommission,
    Decommissions,
    path_of,
)
from ledger.metastore.memory import MemoryStore, MemoryTree

GOLDEN = (
    b'{"version": 1, "bookie": "b:1", "begun_ms": 7, "replacement": null, "state": "draining", '
    b'"ledgers_total": null, "ledgers_left": null, "bytes_total": null, "bytes_left": null, '
    b'"updated_ms": 0, "waits_for": []}'
)
GOLDEN_FULL = (
    b'{"version": 1, "bookie": "b:2", "begun_ms": 8, "replacement": "b:9", "state": "emptied", '
    b'"ledgers_total": 4, "ledgers_left": 0, "bytes_total": 90, "bytes_left": 0, '
    b'"updated_ms": 11, "waits_for": ["ledger 4 is open."]}'
)
ONE = Decommission(bookie="b:1", begun_ms=7)
FULL = Decommission(
    bookie="b:2",
    begun_ms=8,
    replacement="b:9",
    state="emptied",
    ledgers_total=4,
    ledgers_left=0,
    bytes_total=90,
    bytes_left=0,
    updated_ms=11,
    waits_for=("ledger 4 is open.",),
)


def store() -> MemoryStore:
    return MemoryStore(MemoryTree(), lambda: 0)


@pytest.mark.parametrize(("one", "golden"), [(ONE, GOLDEN), (FULL, GOLDEN_FULL)])
async def test_the_bytes_stay_as_they_are(one: Decommission, golden: bytes) -> None:
    async with store() as metadata:
        decommissions = Decommissions(metadata)
        await decommissions.begin(one)
        assert (await metadata.get(path_of(one.bookie))).data == golden
        assert await decommissions.read(one.bookie) == replace(one, version=0)


async def test_a_decommission_is_begun_once_and_cancelled_once() -> None:
    async with store() as metadata:
        decommissions = Decommissions(metadata)
        assert await decommissions.read("b:1") is None
        assert await decommissions.list() == []
        await decommissions.begin(ONE)
        with pytest.raises(NodeExists, match="bookie b:1 is being decommissioned already"):
            await decommissions.begin(ONE)
        await decommissions.begin(FULL)
        assert [one.bookie for one in await decommissions.list()] == ["b:1", "b:2"]
        assert await decommissions.cancel("b:1")
        assert not await decommissions.cancel("b:1")
        assert [one.bookie for one in await decommissions.list()] == ["b:2"]


async def test_an_update_compares_the_version() -> None:
    async with store() as metadata:
        decommissions = Decommissions(metadata)
        await decommissions.begin(ONE)
        read = await decommissions.read("b:1")
        assert read is not None
        written = await decommissions.update(replace(read, ledgers_left=3, updated_ms=9))
        assert written == replace(read, ledgers_left=3, updated_ms=9, version=1)
        assert await decommissions.read("b:1") == written
        with pytest.raises(MetadataConflict, match="has version 1, not 0"):
            await decommissions.update(replace(read, ledgers_left=2))
        await decommissions.cancel("b:1")
        with pytest.raises(NoSuchNode, match="bookie b:1 was cancelled"):
            await decommissions.update(written)


async def test_what_a_later_release_added_is_kept() -> None:
    async with store() as metadata:
        decommissions = Decommissions(metadata)
        await metadata.create(
            path_of("b:1"), json.dumps(json.loads(GOLDEN) | {"colour": "green"}).encode()
        )
        read = await decommissions.read("b:1")
        assert read is not None
        await decommissions.update(replace(read, state="emptied"))
        stored = json.loads((await metadata.get(path_of("b:1"))).data)
        assert stored == json.loads(GOLDEN) | {"colour": "green", "state": "emptied"}


async def test_fields_that_an_older_release_did_not_write_have_their_defaults() -> None:
    async with store() as metadata:
        await metadata.create(path_of("b:1"), b'{"version": 1, "bookie": "b:1", "begun_ms": 7}')
        assert await Decommissions(metadata).read("b:1") == replace(ONE, version=0)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"bookie": "b:2"},
        {"bookie": 5},
        {"bookie": None},
        {"bookie": "a/b"},
        {"begun_ms": "7"},
        {"begun_ms": -1},
        {"begun_ms": None},
        {"begun_ms": 2**63},
        {"updated_ms": True},
        {"ledgers_left": -1},
        {"bytes_left": 1.5},
        {"state": "gone"},
        {"state": ["draining"]},
        {"replacement": "b:1"},
        {"replacement": "a/b"},
        {"replacement": 4},
        {"waits_for": "a"},
        {"waits_for": [1]},
        {"waits_for": None},
    ],
)
async def test_a_damaged_node_is_named_and_hides_no_other(change: dict[str, Any]) -> None:
    await _finds_damage(json.dumps(json.loads(GOLDEN) | change).encode())


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[]", b"null", b"[" * 100_000])
async def test_bytes_that_are_no_document_are_named_and_hide_no_other(data: bytes) -> None:
    await _finds_damage(data)


async def _finds_damage(data: bytes) -> None:
    async with store() as metadata:
        decommissions = Decommissions(metadata)
        await metadata.create(path_of("b:1"), data)
        await decommissions.begin(FULL)
        with pytest.raises(MetadataCorrupt, match="/ledgerstream/decommissions/b:1 cannot be read"):
            await decommissions.read("b:1")
        assert [one.bookie for one in await decommissions.list()] == ["b:2"]
        assert await decommissions.names() == {"b:1", "b:2"}
        async with aclosing(decommissions.watch("b:1")) as states:
            with pytest.raises(MetadataCorrupt):
                await anext(states)
        async with aclosing(decommissions.watch_begun("b:1")) as begun:
            assert await anext(begun)
        assert await decommissions.cancel("b:1")


async def test_a_damaged_node_is_not_overwritten() -> None:
    async with store() as metadata:
        await metadata.create(path_of("b:1"), b"{")
        with pytest.raises(MetadataCorrupt):
            await Decommissions(metadata).update(replace(ONE, version=0))
        assert (await metadata.get(path_of("b:1"))).data == b"{"


async def test_a_node_whose_name_is_no_id_hides_no_other() -> None:
    async with store() as metadata:
        await metadata.create("/ledgerstream/decommissions/readonly", GOLDEN)
        await Decommissions(metadata).begin(ONE)
        assert [one.bookie for one in await Decommissions(metadata).list()] == ["b:1"]


@pytest.mark.parametrize("bookie", ["", "a/b", "..", "readonly", "a b"])
async def test_an_id_that_no_bookie_has_is_refused(bookie: str) -> None:
    async with store() as metadata:
        decommissions = Decommissions(metadata)
        with pytest.raises(InvalidArgument):
            Decommission(bookie=bookie, begun_ms=1)
        with pytest.raises(InvalidArgument):
            Decommission(bookie="b:1", begun_ms=1, replacement=bookie)
        for call in (decommissions.read, decommissions.cancel):
            with pytest.raises(InvalidArgument):
                await call(bookie)
        assert await metadata.children("/ledgerstream/decommissions") == []


async def test_reasons_are_bounded() -> None:
    async with store() as metadata:
        decommissions = Decommissions(metadata)
        await decommissions.begin(ONE)
        read = await decommissions.read("b:1")
        assert read is not None
        written = await decommissions.update(replace(read, waits_for=("x" * 5000,) * 500))
        assert written.waits_for == ("x" * REASON_CHARS_MAX,) * REASONS_MAX
        assert await decommissions.read("b:1") == written


async def test_a_watch_follows_a_decommission_from_before_its_begin_to_its_end() -> None:
    async with store() as metadata:
        decommissions = Decommissions(metadata)
        async with (
            aclosing(decommissions.watch("b:1")) as states,
            aclosing(decommissions.watch_begun("b:1")) as begun,
        ):
            assert await anext(states) is None
            assert not await anext(begun)
            await decommissions.begin(ONE)
            read = await anext(states)
            assert read == replace(ONE, version=0)
            assert await anext(begun)
            written = await decommissions.update(replace(read, state="emptied"))
            assert await anext(states) == written
            await decommissions.cancel("b:1")
            assert await anext(states) is None
