"""Apache's Java client on ledgerstream bookies writes, reads, closes and deletes ledgers."""

from __future__ import annotations

import pytest

from tests.interop.clients.java_ledgers import KIB, MIB, PASSWORD, closed_ledger, opened, result
from tests.interop.conftest import GetSharedJava
from tests.interop.java_client import Answer, JavaClient, JavaError, payload, to_base64
from tests.interop.our_bookies import OurBookies, bytes_on_disk, wait_until_async
from tests.interop.results import not_supported
from tests.interop.timeouts import PATIENCE_S

pytestmark = pytest.mark.interop


@result("create, add, read, close, metadata, list")
async def test_a_ledger_reads_as_it_was_written(
    client: JavaClient, our_bookies: OurBookies
) -> None:
    ledger = await client.call(
        "create", ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD, digest="CRC32C"
    )
    entries = [payload(5, i, size) for i, size in enumerate([1, 31, 1000, 4096, 65_537])]
    for i, data in enumerate(entries):
        assert await client.call("append", handle=ledger["handle"], data=data) == {"last": i}
    length = sum(map(len, entries))
    assert await client.call("close", handle=ledger["handle"]) == {"last": 4, "length": length}

    reader = await opened(client, ledger["ledger"])
    assert (reader["lac"], reader["length"], reader["closed"]) == (4, length, True)
    assert await client.read(reader["handle"], 0, 4) == entries
    assert await client.read(reader["handle"], 2, 2) == [entries[2]]

    metadata = await client.call("metadata", ledger=ledger["ledger"])
    assert (metadata["state"], metadata["last"], metadata["length"]) == ("CLOSED", 4, length)
    (fragment,) = metadata["fragments"]
    ours = {our_bookies.bookie_id(number) for number in our_bookies.running}
    assert len(set(fragment["bookies"])) == 3
    assert set(fragment["bookies"]) <= ours
    assert ledger["ledger"] in (await client.call("list"))["ledgers"]


@result("digests CRC32, CRC32C, MAC, DUMMY, with and without password")
@pytest.mark.parametrize("password", [PASSWORD, b""], ids=["password", "no password"])
@pytest.mark.parametrize("digest", ["CRC32", "CRC32C", "MAC", "DUMMY"])
async def test_every_digest_type(client: JavaClient, digest: str, password: bytes) -> None:
    ledger = await client.call("create", digest=digest, password=password)
    await client.call("append_many", handle=ledger["handle"], seed=1, count=100, size=300)
    # Recovery instead of close, so that digests of fencing and LAC responses are checked, too.
    reader = await opened(client, ledger["ledger"], digest=digest, password=password)
    assert (reader["lac"], reader["length"], reader["closed"]) == (99, 30_000, True)
    checked = await client.call("verify", handle=reader["handle"], seed=1, last=99, size=300)
    assert checked == {"entries": 100, "bytes": 30_000}
    metadata = await client.call("metadata", ledger=ledger["ledger"])
    assert metadata["digest"] == digest
    assert metadata["password"] == to_base64(password)


@result("wrong password is refused")
async def test_a_wrong_password_opens_nothing(client: JavaClient) -> None:
    ledger = await closed_ledger(client, 3, 10)
    for recovery in (True, False):
        with pytest.raises(JavaError, match="UnauthorizedAccess"):
            await opened(client, ledger["ledger"], password=b"guess", recovery=recovery)
    assert (await opened(client, ledger["ledger"]))["lac"] == 2


@result("20,000 entries of 1 KiB pipelined; reading by 8 threads")
async def test_many_entries_in_flight(client: JavaClient) -> None:
    count, size = 20_000, KIB
    ledger = await closed_ledger(client, count, size)
    reader = await opened(client, ledger["ledger"])

    async def verify(**how: int) -> Answer:
        return await client.call(
            "verify", handle=reader["handle"], seed=ledger["ledger"], size=size, **how
        )

    assert await verify(last=count - 1) == {"entries": count, "bytes": count * size}
    # Each of them reads the whole range.
    assert (await verify(last=2499, threads=8, step=100))["entries"] == 2500


@result("empty entries, and entries up to the frame limit")
async def test_empty_and_big_entries(client: JavaClient) -> None:
    sizes = [0, 0, 5 * MIB - 600, 0, 3 * MIB, 1]
    ledger = await client.call("create", password=PASSWORD)
    for i, size in enumerate(sizes):
        data = payload(9, i, size)
        assert await client.call("append", handle=ledger["handle"], data=data) == {"last": i}
    reader = await opened(client, ledger["ledger"])
    assert (reader["lac"], reader["length"]) == (5, sum(sizes))
    for i, size in enumerate(sizes):
        assert await client.read(reader["handle"], i, i) == [payload(9, i, size)]


@result("striped ledgers: ensemble wider than the write quorum")
@pytest.mark.parametrize("quorums", [(4, 2, 2), (3, 2, 1), (4, 3, 2), (1, 1, 1)], ids=str)
async def test_striped_ledgers(client: JavaClient, quorums: tuple[int, int, int]) -> None:
    ensemble, write_quorum, ack_quorum = quorums
    ledger = await closed_ledger(
        client, 500, 200, ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum
    )
    metadata = await client.call("metadata", ledger=ledger["ledger"])
    assert len(metadata["fragments"][0]["bookies"]) == ensemble
    reader = await opened(client, ledger["ledger"])
    checked = await client.call(
        "verify", handle=reader["handle"], seed=ledger["ledger"], last=499, size=200
    )
    assert checked["entries"] == 500


@result("own entry ids, out of order (LedgerHandleAdv)")
async def test_entries_with_ids_that_the_writer_chooses(client: JavaClient) -> None:
    ledger = await client.call("create", password=PASSWORD, adv=True)
    requests = [
        client.vm.request("write", handle=ledger["handle"], entry=i, data=payload(2, i, 50))
        for i in (2, 0, 3, 1, 5, 4)
    ]
    assert [r.result(PATIENCE_S)["last"] for r in requests] == [2, 0, 3, 1, 5, 4]
    with pytest.raises(JavaError, match="DuplicateEntryId"):
        await client.call("write", handle=ledger["handle"], entry=3, data=b"again")
    await client.call("close", handle=ledger["handle"])
    reader = await opened(client, ledger["ledger"])
    assert await client.read(reader["handle"], 0, 5) == [payload(2, i, 50) for i in range(6)]


@result("ledger under an id of the writer's choice")
async def test_a_chosen_ledger_id(client: JavaClient, version: str, wire: str) -> None:
    chosen = (1 << 40) + hash_of(version, wire)  # beyond 31 bits: the long hierarchical paths
    ledger = await client.call("create", password=PASSWORD, adv=True, ledger=chosen)
    assert ledger["ledger"] == chosen
    await client.call("write", handle=ledger["handle"], entry=0, data=b"x")
    await client.call("close", handle=ledger["handle"])
    reader = await opened(client, chosen)
    assert await client.read(reader["handle"], 0, 0) == [b"x"]
    with pytest.raises(JavaError, match="LedgerExist"):
        await client.call("create", password=PASSWORD, adv=True, ledger=chosen)


def hash_of(*words: str) -> int:
    return int.from_bytes(payload(0, len("".join(words)), 3), "big") + sum(map(ord, "".join(words)))


@result("custom metadata")
async def test_custom_metadata(client: JavaClient) -> None:
    custom = {"application": b"pulsar", "empty": b"", "bytes": bytes(range(256))}
    ledger = await closed_ledger(
        client, 1, 1, custom={name: to_base64(value) for name, value in custom.items()}
    )
    metadata = await client.call("metadata", ledger=ledger["ledger"])
    assert metadata["custom"] == {name: to_base64(value) for name, value in custom.items()}


@result("batch read")
async def test_batch_reads_keep_both_limits(client: JavaClient, wire: str, version: str) -> None:
    if version.startswith("4.16"):
        not_supported("the client has no batch read before 4.17")
    ledger = await closed_ledger(client, 100, KIB)
    reader = (await opened(client, ledger["ledger"]))["handle"]
    if wire == "v3":
        with pytest.raises(JavaError, match="UnsupportedOperation"):
            await client.call("batch_read", handle=reader, first=0, count=10, bytes=MIB)
        not_supported("the client refuses batch reads in v3 itself")

    async def read(first: int, count: int, size: int) -> list[int]:
        answer = await client.call(
            "batch_read", handle=reader, first=first, count=count, bytes=size
        )
        for entry in answer["entries"]:
            expected = payload(ledger["ledger"], entry["entry"], KIB)
            assert entry["data"] == to_base64(expected)
        return [entry["entry"] for entry in answer["entries"]]

    assert await read(0, 10, MIB) == list(range(10))
    assert await read(95, 10, MIB) == list(range(95, 100))
    by_size = await read(50, 50, 10 * KIB)
    assert by_size == list(range(50, 50 + len(by_size)))
    assert 5 <= len(by_size) <= 10
    assert await read(7, 10, 1) == [7]  # one entry comes, however large
    assert await read(0, 0, MIB) == list(range(100))  # no limit by number
    with pytest.raises(JavaError, match="Read"):
        await read(100, 1, MIB)


@result("batch read of unconfirmed entries, striped ledger", wire="v2")
async def test_batch_reads_of_an_open_ledger(
    version: str, our_bookies: OurBookies, java_shared: GetSharedJava
) -> None:
    if version.startswith(("4.16", "4.17")):
        not_supported("the client has no batch read of unconfirmed entries before 4.18")
    java = java_shared(version, our_bookies.uri, v2=True)
    ledger = await java.call("create", ensemble=4, write_quorum=2, password=PASSWORD)
    await java.call("append_many", handle=ledger["handle"], seed=1, count=20, size=100)
    reader = (await opened(java, ledger["ledger"], recovery=False))["handle"]
    seen = 0
    while seen < 20:
        answer = await java.call(
            "batch_read_unconfirmed", handle=reader, first=seen, count=20 - seen, bytes=MIB
        )
        for entry in answer["entries"]:
            assert entry["entry"] == seen
            assert entry["data"] == to_base64(payload(1, seen, 100))
            seen += 1


@result("force, and adds with deferred sync")
async def test_deferred_sync_is_confirmed_by_force(client: JavaClient, wire: str) -> None:
    if wire == "v2":
        ledger = await client.call("create", password=PASSWORD, deferred_sync=True)
        with pytest.raises(JavaError, match="IllegalOp"):
            await client.call("append", handle=ledger["handle"], data=b"x")
        not_supported("the client refuses deferred sync in v2 itself")
    ledger = await client.call("create", password=PASSWORD, deferred_sync=True)
    written = await client.call("append_many", handle=ledger["handle"], seed=3, count=50, size=100)
    # The adds are acknowledged but not synced, so that no entry is confirmed.
    assert (written["acked"], written["last"], written["lac"]) == (50, 49, -1)
    assert await client.call("force", handle=ledger["handle"]) == {"lac": 49}
    await client.call("append_many", handle=ledger["handle"], seed=3, first=50, count=10, size=100)
    assert await client.call("force", handle=ledger["handle"]) == {"lac": 59}
    await client.call("close", handle=ledger["handle"])
    reader = await opened(client, ledger["ledger"])
    checked = await client.call("verify", handle=reader["handle"], seed=3, last=59, size=100)
    assert checked["entries"] == 60


@result("delete; the bookies' garbage collection gives the space back", wire="-")
async def test_a_deleted_ledger_is_collected(
    client_v3: JavaClient, our_bookies: OurBookies
) -> None:
    """Writes 80 MiB to entry logs of 32 MiB, so that at least one log holds nothing else.

    A log may be a little smaller, because an entry is never split.
    """
    size, log_size = 80 * MIB, 31 * MIB
    ledger = await client_v3.call("create", ensemble=1, password=PASSWORD)
    metadata = await client_v3.call("metadata", ledger=ledger["ledger"])
    number = our_bookies.number_of(metadata["fragments"][0]["bookies"][0])

    sizes = [0]

    def used() -> int:
        sizes.append(bytes_on_disk(our_bookies.directory, f"ours-{number}/ledgers/*.log"))
        return sizes[-1]

    def is_settled() -> bool:
        """Waits until the entries of other tests are in the logs: checkpoints add no more."""
        used()
        return len(sizes) > 60 and len(set(sizes[-60:])) == 1

    await wait_until_async(is_settled, what="other tests' entries are in entry logs")
    before = used()
    count = size // (64 * KIB)
    await client_v3.call("append_many", handle=ledger["handle"], count=count, size=64 * KIB)
    await client_v3.call("close", handle=ledger["handle"])
    await wait_until_async(lambda: used() > before + size, what="all is in entry logs")
    await client_v3.call("delete", ledger=ledger["ledger"])
    assert ledger["ledger"] not in (await client_v3.call("list"))["ledgers"]
    with pytest.raises(JavaError, match="NoSuchLedger"):
        await opened(client_v3, ledger["ledger"])
    await wait_until_async(lambda: used() <= max(sizes) - log_size, what="an entry log is gone")


@result("bookie info: free and total space")
async def test_bookie_info(client: JavaClient, our_bookies: OurBookies) -> None:
    bookies = (await client.call("bookie_info"))["bookies"]
    assert set(bookies) == {our_bookies.bookie_id(number) for number in our_bookies.running}
    for space in bookies.values():
        assert 0 < space["free"] <= space["total"]


@result("registration: available bookies and their properties", wire="-")
async def test_bookies_are_seen(client_v3: JavaClient, our_bookies: OurBookies) -> None:
    seen = await client_v3.call("bookies")
    ours = sorted(our_bookies.bookie_id(number) for number in our_bookies.running)
    assert seen == {"available": ours, "all": ours, "read_only": []}
    service = await client_v3.call("bookie_service", bookie=ours[0])
    assert service["properties"]["software"] == "ledgerstream"
    host, port = ours[0].split(":")
    (endpoint,) = service["endpoints"]
    assert (endpoint["host"], endpoint["port"], endpoint["protocol"]) == (
        host,
        int(port),
        "bookie-rpc",
    )


@result("list of a ledger's entries at one bookie", wire="v3")
async def test_entries_of_a_ledger_at_a_bookie(client_v3: JavaClient) -> None:
    ledger = await closed_ledger(client_v3, 100, 10, ensemble=3, write_quorum=2)
    metadata = await client_v3.call("metadata", ledger=ledger["ledger"])
    for position, bookie in enumerate(metadata["fragments"][0]["bookies"]):
        held = await client_v3.call(
            "entries_of_ledger", ledger=ledger["ledger"], bookie=bookie, last=120
        )
        expected = [i for i in range(100) if position in (i % 3, (i + 1) % 3)]
        assert held == {"entries": expected, "total": len(expected)}
