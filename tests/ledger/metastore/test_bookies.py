"""The registry of bookies: ids, addresses, and registrations that last until a bookie leaves."""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import pytest
import trio
import trio.testing

from ledger.errors import (
    BookieUnavailable,
    InvalidArgument,
    MetadataConflict,
    MetadataCorrupt,
    NodeExists,
    NoSuchNode,
)
from ledger.metastore.base import Create, Delete, Node
from ledger.metastore.bookies import (
    BookieInfo,
    BookieRegistry,
    decode_info,
    encode_info,
)
from ledger.metastore.cookie import Cookie
from ledger.metastore.layout import Layout
from ledger.metastore.memory import MemoryStore, MemoryTree
from ledger.metastore.paths import check_bookie_id
from ledger.proto.data_formats_pb2 import BookieServiceInfoFormat

from .conftest import OpenSession

INFO = BookieInfo("10.0.0.1", 3181, {"rack": "r1"})


def now_ms() -> int:
    return 1_700_000_000_000


def cookie_of(bookie_id: str) -> Cookie:
    return Cookie(bookie_id=bookie_id, journal_directories=("/j",), ledger_directories=("/l",))


async def wait_for_ids(
    changes: AsyncGenerator[dict[str, BookieInfo], None], wanted: list[str]
) -> None:
    with trio.fail_after(5):
        async for bookies in changes:
            if list(bookies) == wanted:
                return


async def test_a_bookie_is_visible_while_it_is_registered(open_session: OpenSession) -> None:
    async with open_session() as mine, open_session() as theirs:
        registry, seen = BookieRegistry(mine), BookieRegistry(theirs)
        async with registry.register("b1", INFO), registry.register("a1", INFO, read_only=True):
            assert await seen.available() == {"b1": INFO}
            assert (await seen.available())["b1"].properties == {"rack": "r1"}
            assert list(await seen.read_only()) == ["a1"]
            assert await seen.all() == ["a1", "b1"]
            assert await seen.address("a1") == ("10.0.0.1", 3181)
        assert await seen.available() == {}
        assert await seen.read_only() == {}


async def test_a_registration_is_read_once_while_it_is_there() -> None:
    tree = MemoryTree()
    gets: list[str] = []

    class Counting(MemoryStore):
        async def get(self, path: str) -> Node:
            gets.append(path)
            return await super().get(path)

    async with MemoryStore(tree, now_ms) as theirs, Counting(tree, now_ms) as mine:
        registry = BookieRegistry(mine)
        async with BookieRegistry(theirs).register("b1", INFO):
            for _ in range(3):
                assert await registry.available() == {"b1": INFO}
            assert gets == ["/ledgers/available/b1"]
        assert await registry.available() == {}
        moved = BookieInfo("10.0.0.9", 3181)
        async with BookieRegistry(theirs).register("b1", moved):
            assert await registry.available() == {"b1": moved}
            assert await registry.read_only() == {}


async def test_watchers_see_bookies_register_and_leave(open_session: OpenSession) -> None:
    async with (
        open_session() as mine,
        open_session() as theirs,
        aclosing(BookieRegistry(theirs).watch_available()) as changes,
    ):
        await wait_for_ids(changes, [])
        async with BookieRegistry(mine).register("b1", INFO):
            await wait_for_ids(changes, ["b1"])
        await wait_for_ids(changes, [])


async def test_a_bookie_whose_session_expired_registers_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tree = MemoryTree()
    async with (
        MemoryStore(tree, now_ms) as mine,
        MemoryStore(tree, now_ms) as theirs,
        BookieRegistry(mine).register("b1", INFO),
        aclosing(theirs.watch_children("/ledgers/available")) as changes,
    ):
        with trio.fail_after(5):
            for _ in range(3):
                while await anext(changes) != ["b1"]:
                    pass
                mine.expire_session()
            while await anext(changes) != ["b1"]:
                pass
        assert await BookieRegistry(theirs).available() == {"b1": INFO}


async def test_a_registration_that_an_operator_deleted_is_restored(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with MemoryStore(MemoryTree(), now_ms) as store:
        registry = BookieRegistry(store)
        async with (
            registry.register("b1", INFO),
            aclosing(registry.watch_available()) as changes,
        ):
            await store.delete("/ledgers/available/b1")
            await wait_for_ids(changes, ["b1"])


async def test_a_bookie_switches_to_read_only_and_back() -> None:
    async with MemoryStore(MemoryTree(), now_ms) as store:
        registry = BookieRegistry(store)
        async with registry.register("b1", INFO) as registration:
            for is_read_only in (True, True, False, False, True):
                await registration.set_read_only(is_read_only)
                await trio.testing.wait_all_tasks_blocked()
                assert list(await registry.read_only()) == ["b1"][: int(is_read_only)]
                assert list(await registry.available()) == ["b1"][int(is_read_only) :]
            assert registration.is_read_only
        assert await registry.read_only() == {}


async def test_the_remains_of_a_dead_predecessor_are_taken_over_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tree = MemoryTree()
    async with MemoryStore(tree, now_ms) as dead, MemoryStore(tree, now_ms) as store:
        registry = BookieRegistry(store)
        await dead.create("/ledgers/available/b1", encode_info(INFO), is_ephemeral=True)
        begun = trio.current_time()
        async with registry.register("b1", INFO, read_only=True):
            assert trio.current_time() == begun
            assert await registry.available() == {}
        await dead.create("/ledgers/available/b1", encode_info(INFO), is_ephemeral=True)
        async with registry.register("b1", INFO):
            assert trio.current_time() == begun
            dead.expire_session()  # its late end must not remove the new registration
            assert list(await registry.available()) == ["b1"]


async def test_a_bookie_whose_id_was_taken_meanwhile_ends_and_leaves_the_registration(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The bookie was paused until its session had ended, and never saw the node missing."""
    tree = MemoryTree()
    path, theirs = "/ledgers/available/b1", encode_info(BookieInfo("10.0.0.2", 3181))
    async with MemoryStore(tree, now_ms) as other, MemoryStore(tree, now_ms) as store:

        async def serve() -> None:
            async with BookieRegistry(store).register("b1", INFO):
                await other.transaction([Delete(path), Create(path, theirs, is_ephemeral=True)])
                await trio.sleep_forever()

        with trio.fail_after(60), pytest.raises(MetadataConflict, match="registered by another"):
            await serve()
        assert (await other.get(path)).data == theirs


async def test_an_id_in_use_by_another_bookie_is_refused_after_the_wait(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tree = MemoryTree()
    async with (
        MemoryStore(tree, now_ms) as other,
        MemoryStore(tree, now_ms) as store,
        BookieRegistry(other).register("b1", BookieInfo("10.0.0.2", 3181)),
    ):
        begun = trio.current_time()
        with pytest.raises(MetadataConflict, match=r"registered by another.*10\.0 s"):
            async with BookieRegistry(store).register("b1", INFO):
                raise AssertionError("must not be entered")
        assert trio.current_time() - begun == 10
        assert await BookieRegistry(store).address("b1") == ("10.0.0.2", 3181)


async def test_an_id_is_free_as_soon_as_the_other_leaves(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tree = MemoryTree()
    async with MemoryStore(tree, now_ms) as other, MemoryStore(tree, now_ms) as store:
        moved = BookieInfo("10.0.0.9", 3181)
        await other.create("/ledgers/available/b1", encode_info(moved), is_ephemeral=True)

        async def leave() -> None:
            await trio.sleep(3)
            other.expire_session()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(leave)
            async with BookieRegistry(store).register("b1", INFO):
                assert trio.current_time() < 4
                assert await BookieRegistry(store).available() == {"b1": INFO}


async def test_the_block_raises_what_its_body_raised() -> None:
    async with MemoryStore(MemoryTree(), now_ms) as store:
        with pytest.raises(KeyError, match="mine"):
            async with BookieRegistry(store).register("b1", INFO):
                raise KeyError("mine")
        assert await BookieRegistry(store).available() == {}


async def test_an_unregistered_bookie_has_the_address_in_its_id() -> None:
    async with MemoryStore(MemoryTree(), now_ms) as store:
        registry = BookieRegistry(store)
        assert await registry.address("db-1:3181") == ("db-1", 3181)
        for bookie_id in ("seven", "db-1:", "db-1:99999", ":3181"):
            with pytest.raises(BookieUnavailable, match=bookie_id):
                await registry.address(bookie_id)


async def test_an_invalid_registration_does_not_hide_others() -> None:
    async with MemoryStore(MemoryTree(), now_ms) as store:
        registry = BookieRegistry(store)
        await store.create("/ledgers/available/broken", b"\xff\xff\xff")
        await store.create("/ledgers/available/nowhere", b"")
        await store.create("/ledgers/available/10.0.0.3:3181", b"")
        async with registry.register("good", INFO):
            found = await registry.available()
            assert found == {"10.0.0.3:3181": BookieInfo("10.0.0.3", 3181), "good": INFO}
            with pytest.raises(MetadataCorrupt, match="broken"):
                await registry.address("broken")


@pytest.mark.parametrize("bookie_id", ["", "readonly", "a/b", "a b", "ü", "a\n", "..", "."])
def test_impossible_ids_are_refused(bookie_id: str) -> None:
    with pytest.raises(InvalidArgument):
        check_bookie_id(bookie_id)


@pytest.mark.parametrize(("host", "port"), [("", 1), ("h", 0), ("h", 65536), ("h", -1)])
def test_impossible_addresses_are_refused(host: str, port: int) -> None:
    with pytest.raises(InvalidArgument):
        BookieInfo(host, port)


def test_registrations_are_the_bytes_apache_reads() -> None:
    # Field 6: endpoint {id 1, port 2, host 3, protocol 4}; field 7: map entry {1, 2}.
    endpoint = b"\x0a\x06bookie" + b"\x10\xed\x18" + b"\x1a\x0810.0.0.1" + b"\x22\x0abookie-rpc"
    entry = b"\x0a\x04rack" + b"\x12\x02r1"
    expected = b"\x32%c" % len(endpoint) + endpoint + b"\x3a%c" % len(entry) + entry
    assert encode_info(INFO) == expected
    assert decode_info("b1", expected) == INFO


def test_the_endpoint_of_the_bookie_is_found_among_others() -> None:
    http = b"\x0a\x0ahttpserver\x10\x50\x1a\x01h\x22\x04http"
    data = b"\x32%c" % len(http) + http + encode_info(INFO)
    assert decode_info("b1", data) == replace(INFO, http=("h", 80))
    with pytest.raises(MetadataCorrupt, match="no bookie-rpc endpoint"):
        decode_info("b1", b"\x32%c" % len(http) + http)


def test_an_endpoint_is_recognised_by_its_protocol_and_may_have_more_fields() -> None:
    message = BookieServiceInfoFormat(properties={"rack": "r1"})
    message.endpoints.add(id="admin", protocol="http", host="10.0.0.7", port=8080)
    message.endpoints.add(
        id="10.0.0.1:3181",
        protocol="bookie-rpc",
        host="10.0.0.1",
        port=3181,
        auth=["sasl"],
        extensions=["tls"],
    )
    found = decode_info("b1", message.SerializeToString())
    assert found == replace(INFO, http=("10.0.0.7", 8080), starts_tls=True)


def test_the_http_endpoint_has_apaches_name() -> None:
    info = replace(INFO, http=("10.0.0.1", 8080))
    endpoints = BookieServiceInfoFormat.FromString(encode_info(info)).endpoints
    assert [(one.id, one.protocol, one.host, one.port) for one in endpoints] == [
        ("bookie", "bookie-rpc", "10.0.0.1", 3181),
        ("httpserver", "http", "10.0.0.1", 8080),
    ]
    assert decode_info("b1", encode_info(info)) == info
    with pytest.raises(InvalidArgument):
        replace(INFO, http=("h", 0))


def test_an_invalid_http_endpoint_does_not_hide_a_bookie() -> None:
    message = BookieServiceInfoFormat.FromString(encode_info(INFO))
    message.endpoints.add(id="httpserver", protocol="http", host="h", port=0)
    assert decode_info("b1", message.SerializeToString()) == INFO


def test_tls_is_published_with_apaches_extension_and_an_endpoint_of_ours() -> None:
    info = replace(INFO, starts_tls=True, tls_port=3182, http=("h", 80), is_http_encrypted=True)
    address = b"\x1a\x0810.0.0.1"
    rpc = b"\x0a\x06bookie" + b"\x10\xed\x18" + address + b"\x22\x0abookie-rpc" + b"\x32\x03tls"
    tls = b"\x0a\x0abookie-tls" + b"\x10\xee\x18" + address + b"\x22\x0ebookie-rpc-tls"
    http = b"\x0a\x0ahttpserver" + b"\x10\x50" + b"\x1a\x01h" + b"\x22\x05https"
    entry = b"\x0a\x04rack" + b"\x12\x02r1"
    endpoints = b"".join(b"\x32%c" % len(one) + one for one in (rpc, tls, http))
    assert encode_info(info) == endpoints + b"\x3a%c" % len(entry) + entry
    assert decode_info("b1", encode_info(info)) == info
    with pytest.raises(InvalidArgument):
        replace(INFO, tls_port=70_000)


async def test_cookies_are_kept_under_their_version() -> None:
    async with MemoryStore(MemoryTree(), now_ms) as store:
        registry = BookieRegistry(store)
        assert await registry.read_cookie("b1") is None
        await registry.write_cookie("b1", cookie_of("b1"))
        with pytest.raises(NodeExists):
            await registry.write_cookie("b1", cookie_of("b1"))
        assert await registry.read_cookie("b1") == (cookie_of("b1"), 0)
        assert await registry.all() == ["b1"]
        await registry.write_cookie("b1", cookie_of("b2"), 0)
        with pytest.raises(MetadataConflict):
            await registry.write_cookie("b1", cookie_of("b1"), 0)
        with pytest.raises(MetadataConflict):
            await registry.delete_cookie("b1", 0)
        await registry.delete_cookie("b1")
        with pytest.raises(NoSuchNode):
            await registry.delete_cookie("b1")
        assert await registry.all() == []


async def test_a_cluster_is_created_once(open_session: OpenSession) -> None:
    async with open_session() as one, open_session() as two:
        with pytest.raises(NoSuchNode, match="no cluster at /ledgers"):
            await BookieRegistry(one).instance_id()
        ids: list[str] = []

        async def make(registry: BookieRegistry, seed: int) -> None:
            ids.append(await registry.init_cluster(random.Random(seed)))

        async with trio.open_nursery() as nursery:
            for seed in range(4):
                nursery.start_soon(make, BookieRegistry((one, two)[seed % 2]), seed)
        assert len(set(ids)) == 1
        assert uuid.UUID(ids[0]).version == 4
        assert await BookieRegistry(two).instance_id() == ids[0]
        assert await one.children("/ledgers") == ["INSTANCEID", "LAYOUT", "available"]
        assert await one.children("/ledgers/available") == ["readonly"]
        layout = (await one.get("/ledgers/LAYOUT")).data
        assert layout == b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"


async def test_the_first_layout_of_a_cluster_is_kept() -> None:
    async with MemoryStore(MemoryTree(), now_ms) as store:
        registry = BookieRegistry(store)
        instance_id = await registry.init_cluster(random.Random(0), Layout.FLAT)
        flat = b"2\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory:1"
        assert (await store.get("/ledgers/LAYOUT")).data == flat
        assert await registry.init_cluster(random.Random(1)) == instance_id
        with pytest.raises(InvalidArgument, match=r"layout flat.*asks for hierarchical"):
            await registry.init_cluster(random.Random(1), Layout.HIERARCHICAL)


async def test_in_a_cluster_of_an_unknown_layout_nothing_is_created() -> None:
    async with MemoryStore(MemoryTree(), now_ms) as store:
        await store.create("/ledgers/LAYOUT", b"2\norg.example.NewLedgerManagerFactory:1")
        with pytest.raises(MetadataCorrupt, match="NewLedgerManagerFactory"):
            await BookieRegistry(store).init_cluster(random.Random(0))
        assert await store.children("/ledgers") == ["LAYOUT"]
