"""A noted address of a bookie is used for a limited time, and then looked up again."""

from __future__ import annotations

import trio
import trio.testing

from ledger.connection.addresses import TRUSTED_S, BookieAddresses
from ledger.metastore.bookies import BookieInfo, BookieRegistry
from ledger.metastore.memory import MemoryStore, MemoryTree

BOOKIE = "127.0.0.1:3181"


def test_a_noted_address_expires() -> None:
    async def scenario() -> None:
        registry = BookieRegistry(MemoryStore(MemoryTree(), lambda: 0))
        addresses = BookieAddresses(registry)
        async with registry.register(BOOKIE, BookieInfo("127.0.0.1", 4000)):
            addresses.note_id_is_address(BOOKIE, True)
            assert await addresses.resolve(BOOKIE) == ("127.0.0.1", 3181)
            await trio.sleep(TRUSTED_S - 1)
            assert await addresses.resolve(BOOKIE) == ("127.0.0.1", 3181)
            addresses.note_id_is_address(BOOKIE, True)  # noted again
            await trio.sleep(TRUSTED_S - 1)
            assert await addresses.resolve(BOOKIE) == ("127.0.0.1", 3181)
            await trio.sleep(1)
            assert await addresses.resolve(BOOKIE) == ("127.0.0.1", 4000)

    trio.run(scenario, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_noted_address_is_revoked() -> None:
    async def scenario() -> None:
        registry = BookieRegistry(MemoryStore(MemoryTree(), lambda: 0))
        addresses = BookieAddresses(registry)
        async with registry.register(BOOKIE, BookieInfo("127.0.0.1", 4000)):
            addresses.note_id_is_address(BOOKIE, True)
            addresses.note_id_is_address(BOOKIE, False)
            assert await addresses.resolve(BOOKIE) == ("127.0.0.1", 4000)

    trio.run(scenario, clock=trio.testing.MockClock(autojump_threshold=0))
