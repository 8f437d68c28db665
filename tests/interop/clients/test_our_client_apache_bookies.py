"""The Python client on Apache's bookies: every call of the client, in both wire versions.

Both clients read what the Python client writes, byte for byte. The Python client reads, tails and
recovers ledgers of the Java client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import trio

from ledger.client import LedgerClient
from ledger.core.entry import DigestType
from ledger.core.metadata import LedgerState
from ledger.errors import LedgerFenced, NoSuchLedger, Unauthorized
from tests.interop.conftest import ApacheBookies, GetApacheBookies, GetSharedJava
from tests.interop.java_client import JavaClient, JavaError, payload
from tests.interop.our_client import (
    JAVA_DIGEST,
    PASSWORD,
    all_entries,
    append_for_ever,
    check_java_reads,
    follow,
    java_ledger,
    java_open,
    options_of,
    payloads,
    result,
    until,
    until_lac,
)
from tests.interop.timeouts import PATIENCE_S

pytestmark = pytest.mark.interop

BOOKIES = 4


@pytest.fixture
def cluster(version: str, apache_bookies: GetApacheBookies) -> ApacheBookies:
    return apache_bookies(version, BOOKIES)


@pytest.fixture
async def client(cluster: ApacheBookies, wire: str) -> AsyncIterator[LedgerClient]:
    options = options_of(wire)
    async with LedgerClient.connect(cluster.uri, options=options) as opened:
        yield opened


@pytest.fixture
async def client_v2(cluster: ApacheBookies) -> AsyncIterator[LedgerClient]:
    """The client with default settings: adds and reads over v2, the rest over v3."""
    options = options_of("v2")
    async with LedgerClient.connect(cluster.uri, options=options) as opened:
        yield opened


@pytest.fixture
def java(version: str, cluster: ApacheBookies, java_shared: GetSharedJava) -> JavaClient:
    return java_shared(version, cluster.uri)


@result("create, add, read, close, metadata, list, delete")
async def test_a_ledger_is_written_read_and_deleted(client: LedgerClient, java: JavaClient) -> None:
    entries = payloads(1, [0, 1, 31, 1000, 4096, 65_537, 0])
    async with client.create_ledger(password=PASSWORD, custom={"app": b"test"}) as writer:
        for i, data in enumerate(entries):
            assert await writer.append(data) == i
    ledger_id = writer.ledger_id
    async with client.open_ledger(ledger_id, password=PASSWORD) as reader:
        assert reader.is_closed
        assert reader.length == sum(map(len, entries))
        assert await all_entries(reader) == entries
        assert [bytes(e.payload) for e in await reader.read(2, 3)] == entries[2:4]
    await check_java_reads(java, ledger_id, entries, digest="CRC32C")
    metadata = await java.call("metadata", ledger=ledger_id)
    assert (metadata["state"], metadata["last"]) == ("CLOSED", len(entries) - 1)
    assert ledger_id in await client.list_ledgers()
    await client.delete_ledger(ledger_id)
    assert ledger_id not in (await java.call("list"))["ledgers"]
    with pytest.raises(JavaError, match="NoSuchLedger"):
        await java_open(java, ledger_id)
    with pytest.raises(NoSuchLedger):
        await client.open_ledger(ledger_id, password=PASSWORD)


@result("digests CRC32, CRC32C, HMAC, DUMMY, with and without password")
@pytest.mark.parametrize("password", [PASSWORD, b""], ids=["password", "no password"])
@pytest.mark.parametrize("digest", list(DigestType), ids=lambda d: d.name)
async def test_every_digest_type(
    client: LedgerClient, java: JavaClient, digest: DigestType, password: bytes
) -> None:
    entries = payloads(2, [300] * 50)
    writer = await client.create_ledger(digest_type=digest, password=password)
    await writer.append_many(entries)
    writer.abandon()
    # Recovery instead of close, so that digests of fencing and LAC responses are checked, too.
    async with client.open_ledger(writer.ledger_id, password=password) as reader:
        assert await all_entries(reader) == entries
    await check_java_reads(
        java, writer.ledger_id, entries, digest=JAVA_DIGEST[digest], password=password
    )
    theirs = await java.call("create", digest=JAVA_DIGEST[digest], password=password)
    await java.call("append_many", handle=theirs["handle"], seed=2, count=50, size=300)
    async with client.open_ledger(theirs["ledger"], password=password) as reader:
        assert await all_entries(reader) == entries
        assert reader.metadata.digest_type is digest


@result("wrong password is refused")
async def test_a_wrong_password_opens_nothing(client: LedgerClient, java: JavaClient) -> None:
    ledger = await java_ledger(java, 3, 10)
    with pytest.raises(Unauthorized):
        await client.open_ledger(ledger["ledger"], password=b"guess")
    async with client.open_ledger(ledger["ledger"], password=PASSWORD) as reader:
        assert reader.last_add_confirmed == 2


@result("5,000 entries pipelined, striped and not")
@pytest.mark.parametrize("quorums", [(3, 3, 2), (4, 2, 2)], ids=str)
async def test_many_entries_in_flight(
    client: LedgerClient, java: JavaClient, quorums: tuple[int, int, int]
) -> None:
    count, size = 5000, 256
    ensemble, write_quorum, ack_quorum = quorums
    async with client.create_ledger(
        ensemble_size=ensemble,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        password=PASSWORD,
    ) as writer:
        assert await writer.append_many(payload(3, i, size) for i in range(count)) == count - 1
        assert writer.statistics().ensemble_changes == 0
    async with client.open_ledger(writer.ledger_id, password=PASSWORD) as reader:
        assert await all_entries(reader) == payloads(3, [size] * count)
    handle = (await java_open(java, writer.ledger_id, digest="CRC32C"))["handle"]
    checked = await java.call("verify", handle=handle, seed=3, last=count - 1, size=size)
    assert checked == {"entries": count, "bytes": count * size}


@result("entries up to the frame limit")
async def test_large_entries(client: LedgerClient, java: JavaClient) -> None:
    entries = payloads(4, [3 << 20, 0, (5 << 20) - 700])
    async with client.create_ledger(password=PASSWORD) as writer:
        await writer.append_many(entries)
    async with client.open_ledger(writer.ledger_id, password=PASSWORD) as reader:
        assert await all_entries(reader) == entries
    handle = (await java_open(java, writer.ledger_id, digest="CRC32C"))["handle"]
    for i, data in enumerate(entries):  # Java requests a whole range, which is too much for it
        assert await java.read(handle, i, i) == [data]


@result("batch read; single reads from bookies without it", wire="v2")
async def test_old_bookies_disable_batch_reads_without_harm(
    client_v2: LedgerClient, version: str, java: JavaClient
) -> None:
    ledger = await java_ledger(java, 2000, 100)
    await java.call("close", handle=ledger["handle"])
    async with client_v2.create_ledger(password=PASSWORD) as writer:
        async with trio.open_nursery() as nursery:
            await nursery.start(append_for_ever, writer, 5, 500)
            async with client_v2.open_ledger(ledger["ledger"], password=PASSWORD) as reader:
                assert await all_entries(reader) == payloads(1, [100] * 2000)
            before = writer.last_add_confirmed
            await until(lambda: writer.last_add_confirmed >= before + 10)
            nursery.cancel_scope.cancel()
        # An old bookie closes the connection of the batch read, which is not that of the writer.
        assert writer.statistics().ensemble_changes == 0
        requests = reader.statistics().requests
        if version.startswith("4.16"):
            assert requests >= 2000
        else:
            assert requests < 200
        await writer.flush()
        total = writer.last_add_confirmed + 1
    await check_java_reads(java, writer.ledger_id, payloads(5, [500] * total), digest="CRC32C")


@result("recovery while a Java writer lives: it is fenced, nothing acknowledged is lost")
async def test_a_running_java_writer_is_fenced(client: LedgerClient, java: JavaClient) -> None:
    ledger = await java.call("create", password=PASSWORD, ensemble=4, write_quorum=3, ack_quorum=2)
    achieved: dict[str, Any] = {}

    async def write() -> None:
        # If a bookie answers "fenced" for an entry that others have confirmed already, Apache's
        # writer treats it as failed and looks for a fifth one. Either error may come first.
        with pytest.raises(JavaError, match=r"LedgerFenced|NotEnoughBookies") as caught:
            await java.call(
                "append_many", handle=ledger["handle"], seed=6, count=10**6, size=100, pause_us=300
            )
        achieved.update(caught.value.achieved)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await until_lac(java, "written", ledger["handle"], 200)
        async with client.open_ledger(ledger["ledger"], password=PASSWORD) as reader:
            assert reader.is_closed
            entries = await all_entries(reader)
    assert len(entries) > achieved["last"] >= 200
    assert entries == payloads(6, [100] * len(entries))
    await check_java_reads(java, ledger["ledger"], entries)


@result("our writer is fenced by a Java recovery")
async def test_java_fences_a_python_writer(client: LedgerClient, java: JavaClient) -> None:
    entries = payloads(7, [100] * 100)
    busy, idle = [await client.create_ledger(password=PASSWORD) for _ in range(2)]
    for writer in (busy, idle):
        await writer.append_many(entries)
        reader = await java_open(java, writer.ledger_id, digest="CRC32C")
        assert (reader["lac"], reader["length"], reader["closed"]) == (99, 10_000, True)
        assert await java.read(reader["handle"], 0, 99) == entries
    with pytest.raises(LedgerFenced):
        await busy.append(b"too late")
    # Java closed the ledger where the Python writer would have closed it: no entry is lost.
    assert (await idle.close()).last_entry_id == 99


@result("long poll with piggyback: tail of a Java writer to its close")
async def test_the_tail_of_a_java_writer(client: LedgerClient, java: JavaClient) -> None:
    count = 40
    ledger = await java.call("create", password=PASSWORD)
    seen: list[bytes] = []
    async with (
        client.open_ledger(ledger["ledger"], password=PASSWORD, recover=False) as reader,
        trio.open_nursery() as nursery,
    ):

        def has_seen(entries: int) -> bool:
            return len(seen) >= entries

        nursery.start_soon(follow, reader, seen)
        for i in range(count):
            await java.call("append", handle=ledger["handle"], data=payload(8, i, 50))
            await until(partial(has_seen, i))  # the next entry confirms the last one
        await java.call("close", handle=ledger["handle"])
        await until(lambda: len(seen) == count)
    assert seen == payloads(8, [50] * count)
    assert reader.is_closed
    assert reader.statistics().long_polls > 0
    # Most entries arrived with the responses to polls, without reads of their own.
    assert reader.statistics().requests < count


@result("explicit LAC, both ways")
async def test_an_idle_writer_sends_its_last_confirmed_entry(
    client: LedgerClient, version: str, cluster: ApacheBookies, java_shared: GetSharedJava
) -> None:
    java = java_shared(version, cluster.uri, explicitLacInterval=20)
    async with client.create_ledger(password=PASSWORD) as writer:
        await writer.append(b"only")
        theirs = await java_open(java, writer.ledger_id, recovery=False, digest="CRC32C")
        await until_lac(java, "explicit_lac", theirs["handle"], 0)
        assert await java.read(theirs["handle"], 0, 0) == [b"only"]

    ledger = await java.call("create", password=PASSWORD)
    await java.call("append", handle=ledger["handle"], data=b"theirs")
    async with client.open_ledger(ledger["ledger"], password=PASSWORD, recover=False) as reader:
        with trio.fail_after(PATIENCE_S):
            assert await reader.wait_lac_after(-1, PATIENCE_S) == 0
        assert await all_entries(reader) == [b"theirs"]


@result("deferred sync and force", wire="v3")
async def test_deferred_adds_are_confirmed_by_force(
    client_v2: LedgerClient, java: JavaClient
) -> None:
    entries = payloads(9, [100] * 200)
    async with client_v2.create_ledger(password=PASSWORD, deferred_sync=True) as writer:
        assert await writer.append_many(entries[:100]) == 99
        assert (writer.last_add_acknowledged, writer.last_add_confirmed) == (99, -1)
        assert await writer.force() == 99
        theirs = await java_open(java, writer.ledger_id, recovery=False, digest="CRC32C")
        await until_lac(java, "explicit_lac", theirs["handle"], 99)
        assert await java.read(theirs["handle"], 0, 99) == entries[:100]
        await writer.append_many(entries[100:])
        assert writer.last_add_confirmed == 99
    assert writer.metadata.last_entry_id == 199
    await check_java_reads(java, writer.ledger_id, entries, digest="CRC32C")
    async with client_v2.create_ledger(password=PASSWORD) as writer:
        await writer.append_many(entries)
        assert await writer.force() == 199  # of what is synced anyway

    ledger = await java.call("create", password=PASSWORD, deferred_sync=True)
    await java.call("append_many", handle=ledger["handle"], seed=9, count=100, size=100)
    async with client_v2.open_ledger(ledger["ledger"], password=PASSWORD, recover=False) as reader:
        assert await reader.read_last_confirmed() == -1
        assert (await java.call("force", handle=ledger["handle"]))["lac"] == 99
        await java.call("append", handle=ledger["handle"], data=entries[100])  # sends the LAC
        assert await reader.wait_lac_after(-1, PATIENCE_S) == 99
        assert await all_entries(reader) == entries[:100]


@result("bookie info", wire="v3")
async def test_bookie_info_is_the_same_for_java(client_v2: LedgerClient, java: JavaClient) -> None:
    ours = await client_v2.bookie_info()
    theirs = (await java.call("bookie_info"))["bookies"]
    assert set(ours) == set(theirs)
    assert len(ours) >= BOOKIES
    for bookie, space in ours.items():
        assert not isinstance(space, Exception), space
        assert space.total_bytes == theirs[bookie]["total"]
        assert 0 < space.free_bytes <= space.total_bytes


@result("ensemble change when a bookie is killed, also with deferred sync")
@pytest.mark.parametrize("deferred_sync", [False, True], ids=["synced", "deferred"])
async def test_a_killed_bookie_is_replaced(
    client: LedgerClient, cluster: ApacheBookies, java: JavaClient, deferred_sync: bool
) -> None:
    async def append(count: int) -> None:
        first = writer.last_add_pushed + 1
        await writer.append_many(payload(10, i, 200) for i in range(first, first + count))

    async with client.create_ledger(password=PASSWORD, deferred_sync=deferred_sync) as writer:
        await append(500)
        victim = writer.metadata.last_fragment.bookies[1]
        await trio.to_thread.run_sync(cluster.bookie(victim).kill)
        with trio.fail_after(PATIENCE_S):
            while writer.statistics().ensemble_changes == 0:
                await append(100)
        await append(500)
    total = writer.last_add_confirmed + 1
    assert total == writer.last_add_pushed + 1
    fragments = writer.metadata.fragments
    assert victim not in fragments[-1].bookies
    assert len(fragments) == 2
    entries = payloads(10, [200] * total)
    await check_java_reads(java, writer.ledger_id, entries, digest="CRC32C")
    # One copy of the first fragment is missing.
    async with client.open_ledger(writer.ledger_id, password=PASSWORD) as reader:
        assert await all_entries(reader) == entries
    await trio.to_thread.run_sync(cluster.bookie(victim).start)


@result("Java ledgers of several fragments, with a bookie gone")
async def test_a_java_ledger_with_an_ensemble_change(
    client: LedgerClient, cluster: ApacheBookies, java: JavaClient
) -> None:
    ledger = await java_ledger(java, 300, 100, ensemble=3, write_quorum=2, ack_quorum=2)
    (fragment,) = (await java.call("metadata", ledger=ledger["ledger"]))["fragments"]
    victim = fragment["bookies"][0]
    await trio.to_thread.run_sync(cluster.bookie(victim).kill)
    written = await java.call(
        "append_many", handle=ledger["handle"], seed=1, first=300, count=300, size=100
    )
    assert written["acked"] == 300
    # The Java writer is not closed: recovery reads the last fragment and adds its entries again.
    async with client.open_ledger(ledger["ledger"], password=PASSWORD) as reader:
        assert len(reader.metadata.fragments) >= 2
        assert await all_entries(reader) == payloads(1, [100] * 600)
    await trio.to_thread.run_sync(cluster.bookie(victim).start)


@result("LedgerHandleAdv: entries written out of order")
async def test_entries_that_a_java_writer_numbered_itself(
    client: LedgerClient, java: JavaClient
) -> None:
    ledger = await java.call("create", password=PASSWORD, adv=True)
    entries = payloads(11, [10 * (i + 1) for i in range(8)])

    async def write(entry_id: int) -> None:
        data = entries[entry_id]
        await java.call("write", handle=ledger["handle"], entry=entry_id, data=data)

    async with trio.open_nursery() as nursery:
        for entry_id in (1, 0, 3, 2, 7, 6, 5, 4):
            nursery.start_soon(write, entry_id)
    async with client.open_ledger(ledger["ledger"], password=PASSWORD) as reader:
        assert await all_entries(reader) == entries


@result("a recovery that Java began is finished")
async def test_a_ledger_left_in_recovery(client: LedgerClient, java: JavaClient) -> None:
    ledger = await java_ledger(java, 100, 100)
    stored, version = await client.ledgers.read(ledger["ledger"])
    await client.ledgers.compare_and_put(stored.in_recovery(), version)
    async with client.open_ledger(ledger["ledger"], password=PASSWORD) as reader:
        assert reader.metadata.state is LedgerState.CLOSED
        assert await all_entries(reader) == payloads(1, [100] * 100)
    await check_java_reads(java, ledger["ledger"], payloads(1, [100] * 100))
