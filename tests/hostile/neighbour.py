"""A client that is entitled to what it does: it appends and reads all the time, and must neither
lose an entry nor see an error, whatever others send."""

from __future__ import annotations

import random
import time

import trio

from ledger.client import LedgerClient
from ledger.writing.writer import LedgerWriter
from tests.hostile.bookies import AttackedBookie

_PAUSE_S = 0.005
_CLIENT_S = 5.0
"""How often another client of the neighbour connects and reads."""


class Neighbour:
    """The neighbour at one bookie; any error of it ends the campaign."""

    def __init__(self, bookie: AttackedBookie, rng: random.Random) -> None:
        self._bookie = bookie
        self._rng = rng
        self.entries: list[bytes] = []
        self.ledger_id = -1
        self.reads = self.clients = 0
        self.slowest_s = 0.0
        """The longest append or read."""
        self._stopped = trio.Event()

    def stop(self) -> None:
        self._stopped.set()

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Works until `stop`, and then reads everything again."""
        async with LedgerClient.connect(self._bookie.uri, options=self._bookie.options()) as client:
            made = client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
            async with made as writer, trio.open_nursery() as nursery:
                self.ledger_id = writer.ledger_id
                for _ in range(20):
                    await self._append(writer)
                task_status.started()
                nursery.start_soon(self._connect_again)
                await self._work(client, writer)
                nursery.cancel_scope.cancel()
            async with client.open_ledger(self.ledger_id) as reader:
                found = await reader.read(0, len(self.entries) - 1)
                assert [bytes(one.payload) for one in found] == self.entries, "entries were lost"

    async def _work(self, client: LedgerClient, writer: LedgerWriter) -> None:
        async with client.open_ledger(self.ledger_id, recover=False) as reader:
            while not self._stopped.is_set():
                begun_at = time.monotonic()
                await self._append(writer)
                await reader.read_last_confirmed()
                at = self._rng.randrange(len(self.entries) - 10)
                (entry,) = await reader.read(at, at)
                assert bytes(entry.payload) == self.entries[at], "another entry was read"
                self.reads += 1
                self.slowest_s = max(self.slowest_s, time.monotonic() - begun_at)
                await trio.sleep(_PAUSE_S)

    async def _append(self, writer: LedgerWriter) -> None:
        payload = self._rng.randbytes(100)
        entry_id = await writer.append(payload)
        assert entry_id == len(self.entries)
        self.entries.append(payload)

    async def _connect_again(self) -> None:
        while True:
            await trio.sleep(_CLIENT_S)
            options = self._bookie.options()
            async with (
                LedgerClient.connect(self._bookie.uri, options=options) as client,
                client.open_ledger(self.ledger_id, recover=False) as reader,
            ):
                await reader.read(0, 5)
                self.clients += 1
