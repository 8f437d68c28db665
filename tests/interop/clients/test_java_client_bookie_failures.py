"""Apache's Java client on ledgerstream bookies, some of which are killed (-9) and may restart."""

from __future__ import annotations

import pytest
import trio

from tests.interop.clients.java_ledgers import created, lac_of, opened, result, verify
from tests.interop.conftest import OUR_BOOKIES, GetSharedJava
from tests.interop.java_client import Answer, JavaClient, JavaError
from tests.interop.our_bookies import OurBookies
from tests.interop.timeouts import PATIENCE_S

pytestmark = pytest.mark.interop

SIZE = 500


@pytest.fixture(autouse=True)
def all_run(our_bookies: OurBookies) -> None:
    """Restarts the bookies that a failed test has killed."""
    our_bookies.start_missing(OUR_BOOKIES)


class Load:
    """Keeps appends in flight until `end`; all of them must be acknowledged."""

    def __init__(self, java: JavaClient, ledger: Answer) -> None:
        self._java = java
        self._ledger: int = ledger["ledger"]
        self._handle: int = ledger["handle"]
        self._ends = False
        self.count = 0

    async def run(self) -> None:
        while not self._ends:
            written = await self._java.call(
                "append_many",
                handle=self._handle,
                seed=1,
                first=self.count,
                count=500,
                size=SIZE,
                window=50,
                pause_us=500,
            )
            assert written["acked"] == 500
            self.count += 500

    def end(self) -> None:
        """Ends after the appends in flight."""
        self._ends = True

    async def wait_more(self, count: int = 300) -> None:
        """Waits until the writer knows that `more` entries are confirmed."""
        entry = await lac_of(self._java, self._handle) + count
        with trio.fail_after(PATIENCE_S):
            while await lac_of(self._java, self._handle) < entry:  # noqa: ASYNC110
                await trio.sleep(0.01)

    async def wait_fragments(self, count: int) -> None:
        """Waits until the metadata shows this number of ensemble changes."""
        with trio.fail_after(PATIENCE_S):
            while len(await self._fragments()) < count:  # noqa: ASYNC110
                await trio.sleep(0.02)

    async def _fragments(self) -> list[Answer]:
        metadata = await self._java.call("metadata", ledger=self._ledger)
        fragments: list[Answer] = metadata["fragments"]
        return fragments


async def in_ensemble(java: JavaClient, ledger: int, our_bookies: OurBookies) -> list[int]:
    """Returns the numbers of the bookies of the ledger's last fragment."""
    metadata = await java.call("metadata", ledger=ledger)
    return [our_bookies.number_of(b) for b in metadata["fragments"][-1]["bookies"]]


async def kill(our_bookies: OurBookies, *numbers: int) -> None:
    for number in numbers:
        await trio.to_thread.run_sync(our_bookies.kill, number)


async def start(our_bookies: OurBookies, *numbers: int) -> None:
    await trio.to_thread.run_sync(our_bookies.start, *numbers)


async def check_all(java: JavaClient, ledger: Answer, count: int) -> None:
    """Checks that another reader finds every entry."""
    reader = await opened(java, ledger["ledger"])
    assert (reader["lac"], reader["length"]) == (count - 1, count * SIZE)
    await verify(java, reader["handle"], count, SIZE, seed=1)


@result("ensemble change: a bookie is killed under load")
async def test_a_killed_bookie_is_replaced(client: JavaClient, our_bookies: OurBookies) -> None:
    ledger = await created(client)
    load = Load(client, ledger)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load.run)
        await load.wait_more()
        dead = (await in_ensemble(client, ledger["ledger"], our_bookies))[1]
        await kill(our_bookies, dead)
        await load.wait_fragments(2)
        await load.wait_more()
        load.end()
    await client.call("close", handle=ledger["handle"])
    metadata = await client.call("metadata", ledger=ledger["ledger"])
    assert len(metadata["fragments"]) == 2
    assert our_bookies.bookie_id(dead) not in metadata["fragments"][-1]["bookies"]
    # This holds while the bookie is down, too: two of three replicas are left.
    await check_all(client, ledger, load.count)
    await start(our_bookies, dead)
    await check_all(client, ledger, load.count)


@result("ensemble change: the bookie returns and is used again")
async def test_a_restarted_bookie_is_used_again(
    client: JavaClient, our_bookies: OurBookies
) -> None:
    ledger = await created(client)
    load = Load(client, ledger)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load.run)
        await load.wait_more()
        first = (await in_ensemble(client, ledger["ledger"], our_bookies))[0]
        await kill(our_bookies, first)
        await load.wait_fragments(2)
        await start(our_bookies, first)
        second = (await in_ensemble(client, ledger["ledger"], our_bookies))[2]
        assert second != first
        await kill(our_bookies, second)
        await load.wait_fragments(3)
        await load.wait_more()
        load.end()
    await client.call("close", handle=ledger["handle"])
    # One of four bookies is dead: the restarted one must replace it.
    assert first in await in_ensemble(client, ledger["ledger"], our_bookies)
    await start(our_bookies, second)
    await check_all(client, ledger, load.count)


@result("no spare bookie: the writer waits until one returns (delayEnsembleChange)")
async def test_without_a_spare_the_writer_continues(
    version: str, wire: str, our_bookies: OurBookies, java_shared: GetSharedJava
) -> None:
    java = java_shared(version, our_bookies.uri, v2=wire == "v2", delayEnsembleChange=True)
    ledger = await created(java, ensemble=4, write_quorum=4, ack_quorum=3)
    load = Load(java, ledger)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load.run)
        await load.wait_more()
        await kill(our_bookies, 2)
        await load.wait_more(600)
        await start(our_bookies, 2)
        await load.wait_more()
        load.end()
    await java.call("close", handle=ledger["handle"])
    metadata = await java.call("metadata", ledger=ledger["ledger"])
    assert len(metadata["fragments"]) == 1
    await check_all(java, ledger, load.count)


@result("recovery with a bookie of the ensemble dead")
async def test_recovery_without_one_bookie(client: JavaClient, our_bookies: OurBookies) -> None:
    ledger = await created(client, ensemble=3, write_quorum=3, ack_quorum=2)
    await client.call("append_many", handle=ledger["handle"], seed=1, count=500, size=SIZE)
    dead = (await in_ensemble(client, ledger["ledger"], our_bookies))[0]
    await kill(our_bookies, dead)
    await check_all(client, ledger, 500)
    with pytest.raises(JavaError, match=r"Ledger(Fenced|Closed)"):
        await client.call("append", handle=ledger["handle"], data=b"late")
    await start(our_bookies, dead)


@result("all bookies killed and started again: every acknowledged entry is there")
async def test_all_bookies_killed_at_once(client: JavaClient, our_bookies: OurBookies) -> None:
    ledgers = []
    for quorums in ((3, 3, 2), (4, 2, 2), (1, 1, 1)):
        ensemble, write_quorum, ack_quorum = quorums
        ledger = await created(
            client, ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum
        )
        await client.call("append_many", handle=ledger["handle"], seed=1, count=500, size=SIZE)
        ledgers.append(ledger)
    everyone = range(OUR_BOOKIES)
    await kill(our_bookies, *everyone)
    await start(our_bookies, *everyone)
    for ledger in ledgers:
        await check_all(client, ledger, 500)
    # Fencing is on the disks, too.
    await kill(our_bookies, *everyone)
    await start(our_bookies, *everyone)
    for ledger in ledgers:
        with pytest.raises(JavaError, match=r"Ledger(Fenced|Closed)"):
            await client.call("append", handle=ledger["handle"], data=b"late")
