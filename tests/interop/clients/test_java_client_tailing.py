"""Apache's Java client on ledgerstream bookies reads or recovers ledgers that are being written."""

from __future__ import annotations

import time

import pytest
import trio

from tests.interop.clients.java_ledgers import PASSWORD, created, lac_of, opened, result, verify
from tests.interop.conftest import GetSharedJava
from tests.interop.java_client import Answer, JavaClient, JavaError, payload, to_base64
from tests.interop.our_bookies import OurBookies
from tests.interop.takeover.judge import lengths_by_java
from tests.interop.timeouts import PATIENCE_S

pytestmark = pytest.mark.interop

LONG_MS = round(1000 * PATIENCE_S)
"""Timeout of a poll where the test waits for another event."""


async def write(java: JavaClient, handle: int, first: int, count: int, size: int = 100) -> None:
    await java.call(
        "append_many", handle=handle, seed=1, first=first, count=count, size=size, window=1
    )


class Poll:
    """A long poll in flight; the end of the block waits for its response."""

    def __init__(
        self,
        java: JavaClient,
        handle: int,
        entry: int,
        timeout_ms: int = LONG_MS,
        *,
        parallel: bool = False,
    ) -> None:
        self._arguments: dict[str, object] = {
            "handle": handle,
            "entry": entry,
            "timeout_ms": timeout_ms,
            "parallel": parallel,
        }
        self._java = java
        self.answer: Answer = {}

    async def run(self) -> None:
        self.answer = await self._java.call("long_poll", **self._arguments)

    @property
    def entry(self) -> int | None:
        found = self.answer.get("entry")
        if found is None:
            return None
        assert found["data"] == to_base64(payload(1, found["entry"], 100))
        number: int = found["entry"]
        return number


async def let_park(poll: Poll) -> None:
    """Waits for the poll to reach the bookies, which park it."""
    await trio.sleep(0.3)
    assert not poll.answer


@result("long poll: woken by the next add, with its entry", wire="v3")
@pytest.mark.parametrize("parallel", [False, True], ids=["one bookie", "all bookies"])
async def test_a_parked_poll_is_woken_by_the_next_add(
    client_v3: JavaClient, parallel: bool
) -> None:
    java = client_v3
    ledger = await created(java)
    await write(java, ledger["handle"], 0, 1)
    reader = (await opened(java, ledger["ledger"], recovery=False))["handle"]
    for entry in range(3):
        poll = Poll(java, reader, entry, parallel=parallel)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll.run)
            await let_park(poll)
            await write(java, ledger["handle"], entry + 1, 1)
        assert poll.answer["lac"] >= entry
        assert poll.entry == entry


@result("long poll: what is confirmed already is answered at once", wire="v3")
async def test_a_poll_for_a_confirmed_entry_does_not_wait(client_v3: JavaClient) -> None:
    java = client_v3
    ledger = await created(java)
    await write(java, ledger["handle"], 0, 10)
    reader = (await opened(java, ledger["ledger"], recovery=False))["handle"]
    poll = Poll(java, reader, 5)
    await poll.run()
    assert poll.entry == 5
    assert poll.answer["lac"] >= 8


@result("long poll: in v2 it is a read, answered at once", wire="v2")
async def test_a_poll_in_v2_is_a_read(
    version: str, our_bookies: OurBookies, java_shared: GetSharedJava
) -> None:
    java = java_shared(version, our_bookies.uri, v2=True)
    ledger = await created(java)
    await write(java, ledger["handle"], 0, 10)
    reader = (await opened(java, ledger["ledger"], recovery=False))["handle"]
    poll = Poll(java, reader, 5)
    await poll.run()
    assert poll.entry == 5
    begun_s = time.monotonic()
    await Poll(java, reader, 10).run()
    assert time.monotonic() - begun_s < LONG_MS / 1000


@result("long poll: woken by an explicit LAC", wire="v3")
async def test_a_parked_poll_is_woken_by_an_explicit_lac(
    version: str, our_bookies: OurBookies, java_shared: GetSharedJava
) -> None:
    java = java_shared(version, our_bookies.uri, explicitLacInterval=50)
    ledger = await created(java)
    await write(java, ledger["handle"], 0, 1)  # a bookie parks no poll for a ledger unknown
    reader = (await opened(java, ledger["ledger"], recovery=False))["handle"]
    for entry in range(1, 4):
        poll = Poll(java, reader, entry)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll.run)
            await let_park(poll)
            # Nothing follows this add: only an explicit LAC can confirm it.
            await write(java, ledger["handle"], entry, 1)
        assert poll.answer["lac"] == entry
        assert poll.entry == entry


@result("long poll: its time runs out", wire="v3")
async def test_a_poll_on_an_idle_ledger_ends_with_its_time(client_v3: JavaClient) -> None:
    java = client_v3
    ledger = await created(java)
    await write(java, ledger["handle"], 0, 3)
    reader = (await opened(java, ledger["ledger"], recovery=False))["handle"]
    begun_s = time.monotonic()
    poll = Poll(java, reader, 2, timeout_ms=700)
    await poll.run()
    assert poll.answer == {"lac": 1}
    assert 0.6 < time.monotonic() - begun_s < LONG_MS / 1000


@result("long poll: the ledger is closed meanwhile", wire="v3")
async def test_a_polling_reader_sees_the_close(client_v3: JavaClient) -> None:
    java = client_v3
    ledger = await created(java)
    await write(java, ledger["handle"], 0, 3)
    reader = (await opened(java, ledger["ledger"], recovery=False))["handle"]
    poll = Poll(java, reader, 2, timeout_ms=1000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(poll.run)
        await let_park(poll)
        await java.call("close", handle=ledger["handle"])
    # Bookies do not learn of a close; the client sees the metadata change, and polls again.
    for _ in range(20):
        if poll.answer["lac"] == 2:
            break
        await poll.run()
    assert poll.answer["lac"] == 2
    state = await java.call("handle", handle=reader)
    assert (state["closed"], state["lac"], state["length"]) == (True, 2, 300)
    await verify(java, reader, 3, 100, seed=1)


@result("explicit LAC")
async def test_an_explicit_lac_is_written_and_read(
    version: str, wire: str, our_bookies: OurBookies, java_shared: GetSharedJava
) -> None:
    java = java_shared(version, our_bookies.uri, v2=wire == "v2", explicitLacInterval=50)
    ledger = await created(java)
    reader = (await opened(java, ledger["ledger"], recovery=False))["handle"]
    await write(java, ledger["handle"], 0, 1)
    with trio.fail_after(PATIENCE_S):
        while (await java.call("explicit_lac", handle=reader))["lac"] != 0:  # noqa: ASYNC110
            await trio.sleep(0.02)
    # In v2 "read LAC" is a read of the last entry, whose LAC confirms nothing.
    assert await java.call("read_lac", handle=reader) == {"lac": -1 if wire == "v2" else 0}
    if wire == "v3":
        assert await java.read(reader, 0, 0) == [payload(1, 0, 100)]


@result("LAC and unconfirmed entries of an open ledger")
async def test_an_open_ledger_is_read_up_to_its_lac_and_beyond(client: JavaClient) -> None:
    ledger = await created(client)
    await write(client, ledger["handle"], 0, 10)
    reader = (await opened(client, ledger["ledger"], recovery=False))["handle"]
    # The last entry has the LAC of the entries before it.
    assert await client.call("read_lac", handle=reader) == {"lac": 8}
    assert await client.call("try_read_lac", handle=reader) == {"lac": 8}
    assert await client.read(reader, 0, 8) == [payload(1, i, 100) for i in range(9)]
    with pytest.raises(JavaError, match="Read"):
        await client.call("read", handle=reader, first=9, last=9)
    assert await client.read(reader, 9, 9, op="read_unconfirmed") == [payload(1, 9, 100)]
    with pytest.raises(JavaError, match="NoSuchEntry"):
        await client.call("read_unconfirmed", handle=reader, first=10, last=10)
    # None of this has disturbed the writer.
    await write(client, ledger["handle"], 10, 1)


@result("tailing: reads on while the ledger is written")
async def test_a_tail_reads_every_entry_in_order(client: JavaClient, wire: str) -> None:
    count = 2000
    ledger = await created(client)

    async def write_and_close() -> None:
        await client.call(
            "append_many",
            handle=ledger["handle"],
            seed=1,
            count=count,
            size=100,
            window=20,
            pause_us=200,
        )
        await client.call("close", handle=ledger["handle"])

    seen = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(write_and_close)
        reader = (await opened(client, ledger["ledger"], recovery=False))["handle"]
        while seen < count:
            if wire == "v3":
                asked = {"handle": reader, "entry": seen, "timeout_ms": 500}
                lac = (await client.call("long_poll", **asked))["lac"]
            else:
                lac = (await client.call("read_lac", handle=reader))["lac"]
            if lac >= seen:
                read = await client.read(reader, seen, lac)
                assert read == [payload(1, i, 100) for i in range(seen, lac + 1)]
                seen = lac + 1
    assert seen == count


@result("recovery while the writer lives: it is fenced, nothing acknowledged is lost")
@pytest.mark.parametrize("recovered_by", ["v2", "v3"])
async def test_recovery_fences_a_living_writer(
    client: JavaClient,
    recovered_by: str,
    version: str,
    our_bookies: OurBookies,
    java_shared: GetSharedJava,
) -> None:
    # A separate client with connections of its own, as in another program.
    other = java_shared(version, our_bookies.uri, v2=recovered_by == "v2", clientRole="standard")
    size, window = 500, 1000
    ledger = await created(client)
    failures: list[JavaError] = []

    async def write_until_fenced() -> None:
        try:
            await client.call(
                "append_many",
                handle=ledger["handle"],
                seed=1,
                count=1_000_000,
                size=size,
                window=window,
            )
        except JavaError as error:
            failures.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write_until_fenced)
        with trio.fail_after(PATIENCE_S):
            while await lac_of(client, ledger["handle"]) < 1000:  # noqa: ASYNC110
                await trio.sleep(0.01)
        reader = await opened(other, ledger["ledger"])
    (failure,) = failures
    assert failure.name == "LedgerFenced"
    acknowledged = failure.achieved["last"] + 1
    assert failure.achieved["acked"] == acknowledged > 1000
    assert reader["closed"]
    assert reader["lac"] + 1 >= acknowledged
    # Apache's recovery gets the length wrong if it finds nothing after the LAC that it has read:
    # tests/interop/clients/test_recovered_length.py. After a failure one more entry may be pushed.
    sizes = [size] * (acknowledged + window + 1)
    assert reader["length"] in lengths_by_java(sizes, reader["lac"], acknowledged - 1)
    await verify(other, reader["handle"], reader["lac"] + 1, size, seed=1)
    with pytest.raises(JavaError, match=r"Ledger(Fenced|Closed)"):
        await client.call("append", handle=ledger["handle"], data=b"late")
    metadata = await client.call("metadata", ledger=ledger["ledger"])
    assert (metadata["state"], metadata["last"]) == ("CLOSED", reader["lac"])


@result("two recoveries at once agree")
async def test_two_recoveries_at_once(
    client: JavaClient,
    version: str,
    wire: str,
    our_bookies: OurBookies,
    java_shared: GetSharedJava,
) -> None:
    other = java_shared(version, our_bookies.uri, v2=wire == "v2", clientRole="standard")
    ledger = await created(client, ensemble=4, write_quorum=3, ack_quorum=2)
    await client.call("append_many", handle=ledger["handle"], seed=1, count=300, size=100)
    answers: list[Answer] = []

    async def recover(java: JavaClient) -> None:
        answers.append(await java.call("open", ledger=ledger["ledger"], password=PASSWORD))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(recover, client)
        nursery.start_soon(recover, other)
    assert [(a["lac"], a["length"], a["closed"]) for a in answers] == [(299, 30_000, True)] * 2
