"""Pulsar's managed ledger on ledgerstream bookies.

The Python client also reads what Pulsar has written. It opens ledgers without recovery, so that it
does not disturb a running writer.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from ledger.client import LedgerClient
from tests.interop.our_bookies import OurBookies
from tests.interop.pulsar.processes import PROGRAM, Driver, PulsarGone, digest_of, payload
from tests.interop.timeouts import PATIENCE_S
from tests.zookeeper import RunningZooKeeper

pytestmark = [pytest.mark.interop, pytest.mark.zookeeper]

AREA = "Pulsar, our bookies"
ENTRIES = 10_000
ENTRIES_PER_LEDGER = 1000
SIZE = 200
GetDriver = Callable[..., Driver]


@pytest.fixture
def managed_ledgers(
    tmp_path: Path, our_bookies: OurBookies, shared_zookeeper: RunningZooKeeper
) -> Iterator[GetDriver]:
    """Returns processes with a managed ledger factory: `managed_ledgers("v2")`.

    Pulsar has two forms of a metadata URI: BookKeeper's, and its own, which has another driver.
    """
    chroot = our_bookies.uri.removeprefix("zk://").removesuffix("/ledgers")
    drivers: list[Driver] = []

    def start(wire: str) -> Driver:
        uri = f"zk+null://{chroot}/ledgers" if wire == "v2" else f"metadata-store:zk:{chroot}"
        log = tmp_path / f"managed-ledger-{len(drivers)}.log"
        drivers.append(Driver("ManagedLedgerDriver", log, chroot, uri, wire))
        return drivers[-1]

    our_bookies.start_missing(4)
    yield start
    for driver in drivers:
        driver.close()


async def open_managed(driver: Driver, name: str) -> dict[str, Any]:
    """Opens a managed ledger with the cursor "c", recovering what another process left open."""
    return await driver.call(
        "open",
        name=name,
        cursors=["c"],
        ensemble=3,
        write_quorum=3,
        ack_quorum=2,
        entries_per_ledger=ENTRIES_PER_LEDGER,
    )


@asynccontextmanager
async def opened(driver: Driver, name: str) -> AsyncIterator[dict[str, Any]]:
    yield await open_managed(driver, name)
    await driver.call("close", name=name)


async def payloads_of(client: LedgerClient, ledger_id: int) -> list[bytes]:
    """Returns the payloads of a ledger, read by the Python client without recovery."""
    async with client.open_ledger(ledger_id, recover=False) as reader:
        if reader.last_add_confirmed < 0:
            return []
        return [e.payload for e in await reader.read(0, reader.last_add_confirmed)]


async def ledgers_of(driver: Driver, name: str) -> list[dict[str, int]]:
    ledgers: list[dict[str, int]] = (await driver.call("ledgers", name=name))["ledgers"]
    return ledgers


async def until(client: LedgerClient, holds: Callable[[set[int]], bool]) -> None:
    """Waits for changes that Pulsar makes to ledgers in the background, without notification."""
    with trio.fail_after(PATIENCE_S):
        while True:
            if holds(set(await client.list_ledgers())):
                return
            await trio.sleep(0.1)


class Appender:
    """Appends to a managed ledger until its process is killed."""

    def __init__(self, driver: Driver, name: str) -> None:
        self.acknowledged = 0
        self._driver, self._name = driver, name
        self._changed = trio.Event()

    async def run(self) -> None:
        while True:
            arguments = {"first": self.acknowledged, "count": 100, "size": SIZE}
            try:
                await self._driver.call("append", name=self._name, **arguments)
            except PulsarGone:
                return
            self.acknowledged += 100
            self._changed.set()

    async def wait_more(self, count: int) -> None:
        wanted = self.acknowledged + count
        while self.acknowledged < wanted:
            self._changed = trio.Event()
            await self._changed.wait()


@pytest.mark.interop_result(
    area=AREA,
    feature="managed ledger: append with rollover, cursors, reopen, trim, delete",
    wire=None,
    program=PROGRAM,
)
@pytest.mark.parametrize("wire", ["v2", "v3"])
async def test_a_managed_ledger_works_on_ledgerstream_bookies(
    managed_ledgers: GetDriver, our_bookies: OurBookies, wire: str
) -> None:
    name = f"public/default/persistent/lives-{wire}"
    driver = managed_ledgers(wire)
    async with LedgerClient.connect(our_bookies.uri) as client:
        before = set(await client.list_ledgers())
        async with opened(driver, name):
            await driver.call("append", name=name, first=0, count=ENTRIES, size=SIZE)
            read = await driver.call("read", name=name, cursor="c", count=ENTRIES)
            assert read["sha256"] == digest_of(0, ENTRIES, SIZE)

        async with opened(driver, name) as answer:
            assert answer["entries"] == ENTRIES
            read = await driver.call("read", name=name, cursor="c", count=ENTRIES)
            assert read["sha256"] == digest_of(0, ENTRIES, SIZE)
            ledgers = await ledgers_of(driver, name)
            full = [ledger for ledger in ledgers if ledger["entries"]]
            assert [ledger["entries"] for ledger in full] == [ENTRIES_PER_LEDGER] * 10

            # The Python client finds and reads what Pulsar has written.
            assert {ledger["ledger"] for ledger in ledgers} <= set(await client.list_ledgers())
            digest = hashlib.sha256()
            for ledger in full:
                metadata = await client.ledger_metadata(ledger["ledger"])
                assert metadata.is_closed
                assert metadata.length == ledger["bytes"]
                assert metadata.custom["application"] == b"pulsar"
                for data in await payloads_of(client, ledger["ledger"]):
                    digest.update(data)
            assert digest.hexdigest() == digest_of(0, ENTRIES, SIZE)

            # Consumed ledgers are deleted.
            at = {"ledger": full[4]["ledger"], "entry": ENTRIES_PER_LEDGER - 1}
            await driver.call("mark_delete", name=name, cursor="c", **at)
            await driver.call("trim", name=name)
            gone = {ledger["ledger"] for ledger in full[:4]}
            await until(client, lambda ids: not gone & ids)

        async with opened(driver, name) as answer:
            assert answer["cursors"]["c"] == [full[4]["ledger"], ENTRIES_PER_LEDGER - 1]
            read = await driver.call("read", name=name, cursor="c", count=ENTRIES // 2)
            assert read["sha256"] == digest_of(ENTRIES // 2, ENTRIES // 2, SIZE)
        await driver.call("delete", name=name)
        await until(client, lambda ids: not ids - before)


@pytest.mark.interop_result(
    area=AREA,
    feature="managed ledger: writer and one bookie killed, recovered by another process",
    wire=None,
    program=PROGRAM,
)
@pytest.mark.parametrize("wire", ["v2", "v3"])
async def test_a_killed_managed_ledger_is_recovered(
    managed_ledgers: GetDriver, our_bookies: OurBookies, wire: str
) -> None:
    name = f"public/default/persistent/killed-{wire}"
    first, second = managed_ledgers(wire), managed_ledgers(wire)
    await open_managed(first, name)
    appender = Appender(first, name)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(appender.run)
        await appender.wait_more(1500)
        our_bookies.kill(0)
        await appender.wait_more(1500)
        first.kill()
    acknowledged = appender.acknowledged

    async with LedgerClient.connect(our_bookies.uri) as client, opened(second, name) as answer:
        assert answer["entries"] >= acknowledged
        read = await second.call("read", name=name, cursor="c", count=acknowledged)
        assert read["sha256"] == digest_of(0, acknowledged, SIZE)
        found: list[bytes] = []
        for ledger in await ledgers_of(second, name):
            found += await payloads_of(client, ledger["ledger"])
        assert len(found) == answer["entries"]
        assert found == [payload(number, SIZE) for number in range(len(found))]
