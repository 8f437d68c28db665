"""Our client on Apache's bookies: every call of the client, in both wire versions.

What our client writes is read back by Apache's Java client and by ours, byte for byte; what Java
writes is read, followed and recovered by ours.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import trio

from ledger.client import LedgerClient
from ledger.core.entry import DigestType
from ledger.core.metadata import LedgerState
from ledger.errors import LedgerFenced, NoSuchLedger, Unauthorized
from ledger.options import ClientOptions
from ledger.reader import LedgerReader
from ledger.writer import LedgerWriter
from tests.interop.apache_bookie import SORTED_LEDGER_STORAGE
from tests.interop.conftest import ApacheBookies, GetApacheBookies, GetSharedJava
from tests.interop.java_client import JavaClient, JavaError, payload
from tests.interop.versions import VERSIONS

pytestmark = pytest.mark.interop

AREA = "our client, Apache bookies"
PASSWORD = b"open sesame"
BOOKIES = 4
JAVA_DIGEST = {
    DigestType.CRC32: "CRC32",
    DigestType.HMAC: "MAC",
    DigestType.CRC32C: "CRC32C",
    DigestType.DUMMY: "DUMMY",
}


def result(feature: str, wire: str | None = None) -> pytest.MarkDecorator:
    """The test's row in the table of docs/interoperability.md."""
    return pytest.mark.interop_result(area=AREA, feature=feature, wire=wire)


@pytest.fixture
def cluster(version: str, apache_bookies: GetApacheBookies) -> ApacheBookies:
    return apache_bookies(version, BOOKIES)


@pytest.fixture
async def client(cluster: ApacheBookies, wire: str) -> AsyncIterator[LedgerClient]:
    options = ClientOptions(wire_version=int(wire[1]), add_timeout_s=15, read_timeout_s=15)
    async with LedgerClient.connect(cluster.uri, options=options) as opened:
        yield opened


@pytest.fixture
async def client_v2(cluster: ApacheBookies) -> AsyncIterator[LedgerClient]:
    """As it is without settings: adds and reads over v2, the rest over v3."""
    options = ClientOptions(add_timeout_s=15, read_timeout_s=15)
    async with LedgerClient.connect(cluster.uri, options=options) as opened:
        yield opened


@pytest.fixture
def java(version: str, cluster: ApacheBookies, java_shared: GetSharedJava) -> JavaClient:
    return java_shared(version, cluster.uri)


def payloads(seed: int, sizes: Sequence[int]) -> list[bytes]:
    return [payload(seed, i, size) for i, size in enumerate(sizes)]


async def java_open(java: JavaClient, ledger_id: int, **options: Any) -> dict[str, Any]:
    return await java.call("open", ledger=ledger_id, **{"password": PASSWORD, **options})


async def check_java_reads(
    java: JavaClient, ledger_id: int, entries: list[bytes], **options: Any
) -> None:
    """A closed ledger, opened without recovery, holds exactly `entries`."""
    reader = await java_open(java, ledger_id, recovery=False, **options)
    length = sum(map(len, entries))
    assert (reader["lac"], reader["length"], reader["closed"]) == (len(entries) - 1, length, True)
    assert await java.read(reader["handle"], 0, len(entries) - 1) == entries


async def all_entries(reader: LedgerReader) -> list[bytes]:
    found = [entry async for some in reader.entries(0) for entry in some]
    assert [entry.entry_id for entry in found] == list(range(len(found)))
    return [bytes(entry.payload) for entry in found]


async def java_ledger(java: JavaClient, count: int, size: int, **created: Any) -> dict[str, Any]:
    """A ledger of the Java client with `count` entries, still open; `create`'s answer."""
    ledger = await java.call("create", password=PASSWORD, **created)
    written = await java.call(
        "append_many", handle=ledger["handle"], seed=1, count=count, size=size
    )
    assert written["acked"] == count
    return ledger


async def until(holds: Callable[[], bool]) -> None:
    """Returns once `holds()`: what another task or process does."""
    with trio.fail_after(60):
        while not holds():  # noqa: ASYNC110
            await trio.sleep(0.002)


async def until_lac(java: JavaClient, op: str, handle: int, lac: int) -> None:
    """Returns once Java knows that `lac` is confirmed."""
    with trio.fail_after(60):
        while (await java.call(op, handle=handle))["lac"] < lac:  # noqa: ASYNC110
            await trio.sleep(0.01)


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
    # Recovered, not closed: fencing and the LAC's answers are checked by digest too.
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
    for i, data in enumerate(entries):  # Java asks for a range at once, which is too much for it
        assert await java.read(handle, i, i) == [data]


@result("batch read; single reads from bookies without it", wire="v2")
async def test_old_bookies_cost_batch_reads_but_harm_nothing(
    client_v2: LedgerClient, version: str, java: JavaClient
) -> None:
    ledger = await java_ledger(java, 2000, 100)
    await java.call("close", handle=ledger["handle"])
    async with client_v2.create_ledger(password=PASSWORD) as writer:
        appended = 0

        async def append(task_status: trio.TaskStatus[None]) -> None:
            nonlocal appended
            while True:
                assert await writer.append(payload(5, appended, 500)) == appended
                appended += 1
                if appended == 10:
                    task_status.started()

        async with trio.open_nursery() as nursery:
            await nursery.start(append)
            async with client_v2.open_ledger(ledger["ledger"], password=PASSWORD) as reader:
                assert await all_entries(reader) == payloads(1, [100] * 2000)
            before = appended
            await until(lambda: appended >= before + 10)
            nursery.cancel_scope.cancel()
        # An old bookie closes the connection on which it is asked: the writer's was another.
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
async def test_a_living_java_writer_is_fenced(client: LedgerClient, java: JavaClient) -> None:
    ledger = await java.call("create", password=PASSWORD, ensemble=4, write_quorum=3, ack_quorum=2)
    achieved: dict[str, Any] = {}

    async def write() -> None:
        with pytest.raises(JavaError, match="LedgerFenced") as caught:
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
async def test_our_writer_is_fenced_by_java(client: LedgerClient, java: JavaClient) -> None:
    entries = payloads(7, [100] * 100)
    busy, idle = [await client.create_ledger(password=PASSWORD) for _ in range(2)]
    for writer in (busy, idle):
        await writer.append_many(entries)
        reader = await java_open(java, writer.ledger_id, digest="CRC32C")
        assert (reader["lac"], reader["length"], reader["closed"]) == (99, 10_000, True)
        assert await java.read(reader["handle"], 0, 99) == entries
    with pytest.raises(LedgerFenced):
        await busy.append(b"too late")
    # Java closed it where our writer would have: nobody lost anything.
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

        async def follow() -> None:
            async for entries in reader.tail(0):
                seen.extend(bytes(entry.payload) for entry in entries)

        def has_seen(entries: int) -> bool:
            return len(seen) >= entries

        nursery.start_soon(follow)
        for i in range(count):
            await java.call("append", handle=ledger["handle"], data=payload(8, i, 50))
            await until(partial(has_seen, i))  # the last is confirmed by the next one
        await java.call("close", handle=ledger["handle"])
        await until(lambda: len(seen) == count)
    assert seen == payloads(8, [50] * count)
    assert reader.is_closed
    assert reader.statistics().long_polls > 0
    # Most entries came along with the poll's answer: none of them was asked for.
    assert reader.statistics().requests < count


@result("explicit LAC, both ways")
async def test_an_idle_writer_tells_its_last_entry(
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
        with trio.fail_after(30):
            assert await reader.wait_lac_after(-1, 30) == 0
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

    ledger = await java.call("create", password=PASSWORD, deferred_sync=True)
    await java.call("append_many", handle=ledger["handle"], seed=9, count=100, size=100)
    async with client_v2.open_ledger(ledger["ledger"], password=PASSWORD, recover=False) as reader:
        assert await reader.read_last_confirmed() == -1
        assert (await java.call("force", handle=ledger["handle"]))["lac"] == 99
        await java.call("append", handle=ledger["handle"], data=entries[100])  # tells it
        assert await reader.wait_lac_after(-1, 30) == 99
        assert await all_entries(reader) == entries[:100]


@result("force of an ordinary ledger", wire="v3")
async def test_force_of_what_is_synced_anyway(client_v2: LedgerClient) -> None:
    async with client_v2.create_ledger(password=PASSWORD) as writer:
        await writer.append_many(payloads(9, [10] * 10))
        assert await writer.force() == 9


@result("bookie info", wire="v3")
async def test_bookie_info_is_what_java_hears(client_v2: LedgerClient, java: JavaClient) -> None:
    ours = await client_v2.bookie_info()
    theirs = (await java.call("bookie_info"))["bookies"]
    assert set(ours) == set(theirs)
    assert len(ours) >= BOOKIES
    for bookie, space in ours.items():
        assert not isinstance(space, Exception), space
        assert space.total_bytes == theirs[bookie]["total"]
        assert 0 < space.free_bytes <= space.total_bytes


class Challenge:
    """The client's side of ChallengeAuth.java."""

    plugin = "ledgerstream.interop.ChallengeAuth"

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        self.begun: list[str] = []

    def begin(self, bookie: str) -> ChallengeExchange:
        self.begun.append(bookie)
        return ChallengeExchange(self.secret)


class ChallengeExchange:
    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def first_payload(self) -> bytes:
        return b"hello"

    def answer(self, challenge: bytes) -> bytes | None:
        if challenge == b"welcome":
            return None
        return hashlib.sha256(self._secret + challenge).digest()


@pytest.fixture
def guarded(version: str, apache_bookies: GetApacheBookies) -> ApacheBookies:
    """A bookie that asks who comes."""
    factory = "ledgerstream.interop.ChallengeAuth"
    return apache_bookies(
        version, 1, bookieAuthProviderFactoryClass=factory, challengeAuthSecret="swordfish"
    )


@result("authentication: a challenge answered, a wrong secret refused")
async def test_a_bookie_that_asks_who_comes(guarded: ApacheBookies, wire: str) -> None:
    quorums: dict[str, Any] = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
    options = ClientOptions(wire_version=int(wire[1]), ensemble_change_timeout_s=0.5)
    entries = payloads(13, [100] * 100)
    challenge = Challenge(b"swordfish")
    async with LedgerClient.connect(guarded.uri, options=options, auth=challenge) as client:
        async with client.create_ledger(**quorums) as writer:
            await writer.append_many(entries)
        async with client.open_ledger(writer.ledger_id) as reader:
            assert await all_entries(reader) == entries
    assert set(challenge.begun) == {guarded.bookies[0].bookie_id}

    async with LedgerClient.connect(
        guarded.uri, options=options, auth=Challenge(b"haddock")
    ) as client:
        writer = await client.create_ledger(**quorums)
        with pytest.raises(Unauthorized, match=f"{guarded.bookies[0].bookie_id} refused .*Cure"):
            await writer.append(b"x")
    async with LedgerClient.connect(guarded.uri, options=options) as client:
        writer = await client.create_ledger(**quorums)
        with pytest.raises(Unauthorized, match="auth"):
            await writer.append(b"x")


@result("authentication: a bookie that asks nobody counts us in")
async def test_a_bookie_that_asks_nobody(cluster: ApacheBookies, wire: str) -> None:
    options, challenge = ClientOptions(wire_version=int(wire[1])), Challenge(b"unheard")
    async with LedgerClient.connect(cluster.uri, options=options, auth=challenge) as client:
        async with client.create_ledger(password=PASSWORD) as writer:
            await writer.append_many(payloads(14, [100] * 10))
        async with client.open_ledger(writer.ledger_id, password=PASSWORD) as reader:
            assert await all_entries(reader) == payloads(14, [100] * 10)
    assert challenge.begun


@result("ensemble change when a bookie is killed")
async def test_a_killed_bookie_is_replaced(
    client: LedgerClient, cluster: ApacheBookies, java: JavaClient
) -> None:
    size = 200

    async def append(writer: LedgerWriter, count: int) -> None:
        first = writer.last_add_pushed + 1
        await writer.append_many(payload(10, i, size) for i in range(first, first + count))

    async with client.create_ledger(password=PASSWORD) as writer:
        await append(writer, 500)
        victim = writer.metadata.last_fragment.bookies[1]
        await trio.to_thread.run_sync(cluster.bookie(victim).kill)
        with trio.fail_after(60):
            while writer.statistics().ensemble_changes == 0:
                await append(writer, 100)
        await append(writer, 500)
    total = writer.last_add_confirmed + 1
    fragments = writer.metadata.fragments
    assert victim not in fragments[-1].bookies
    assert len(fragments) == 2
    entries = payloads(10, [size] * total)
    await check_java_reads(java, writer.ledger_id, entries, digest="CRC32C")
    # With one copy of the first fragment gone.
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
    # The Java writer is left as it is: recovery reads and adds again in the last fragment.
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


@result("ledgers whose metadata names no digest", wire="v2")
@pytest.mark.parametrize("format_version", [1, 2])
async def test_metadata_of_old_releases(
    client_v2: LedgerClient, java: JavaClient, format_version: int
) -> None:
    ledger = await java_ledger(
        java, 20, 100, digest="MAC", ensemble=3, write_quorum=3, ack_quorum=3
    )
    ledgers = client_v2.ledgers
    stored, version = await ledgers.read(ledger["ledger"])
    # As releases before 4.1 wrote it: neither digest nor password.
    old = replace(stored, format_version=format_version, digest_type=None, password=b"")
    await ledgers.compare_and_put(old, version)
    async with client_v2.open_ledger(
        ledger["ledger"], password=PASSWORD, digest_type=DigestType.HMAC
    ) as reader:
        assert reader.metadata.digest_type is None
        assert await all_entries(reader) == payloads(1, [100] * 20)


@result("SortedLedgerStorage: add, recover, tail, read")
@pytest.mark.parametrize("version", [VERSIONS[1]], indirect=True)
async def test_the_other_storage(
    version: str, wire: str, apache_bookies: GetApacheBookies, java_shared: GetSharedJava
) -> None:
    cluster = apache_bookies(version, 3, storage=SORTED_LEDGER_STORAGE)
    java = java_shared(version, cluster.uri)
    options = ClientOptions(wire_version=int(wire[1]), add_timeout_s=15, read_timeout_s=15)
    entries = payloads(12, [1000] * 2000)
    async with LedgerClient.connect(cluster.uri, options=options) as client:
        writer = await client.create_ledger(password=PASSWORD)
        seen: list[bytes] = []
        async with (
            client.open_ledger(writer.ledger_id, password=PASSWORD, recover=False) as reader,
            trio.open_nursery() as nursery,
        ):

            async def follow() -> None:
                async for some in reader.tail(0):
                    seen.extend(bytes(entry.payload) for entry in some)

            nursery.start_soon(follow)
            await writer.append_many(entries)
            writer.abandon()
            async with client.open_ledger(writer.ledger_id, password=PASSWORD) as recovered:
                assert await all_entries(recovered) == entries
        assert seen == entries
        await check_java_reads(java, writer.ledger_id, entries, digest="CRC32C")
        ledger = await java_ledger(java, 500, 300)
        async with client.open_ledger(ledger["ledger"], password=PASSWORD) as reader:
            assert await all_entries(reader) == payloads(1, [300] * 500)
