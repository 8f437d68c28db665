"""Forged adds during a run: an attacker that knows every ledger's password changes no entry.

It reads an entry from a bookie, and sends the bookie other payloads for it with valid digests, over
both protocols, ordinary and of a recovery, while the ledger is written, recovered, closed and read
under faults. The model's readers notice each byte that changed.
"""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from typing import Final

import trio

from bookie.testing.cluster import SimCluster, small_config
from bookie.testing.scheduler import Simulation, run_simulated
from ledger.client import LedgerClient
from ledger.core.entry import HEADER, Digest, DigestType, master_key
from ledger.errors import LedgerError, Status
from ledger.wire.messages import AddRequest, ReadRequest, ReadResponse
from tests.sim.checks import check_convergence
from tests.sim.faults import Faults
from tests.sim.model import Model
from tests.sim.run import TIME_LIMIT_S, network_options
from tests.sim.workload import PASSWORD, Workload, WorkloadOptions

_TIMEOUT_S: Final = 1.0

REFUSED_MIN = 5
"""Forged adds that were answered before a run ends: with fewer it would prove nothing."""


@dataclass(slots=True)
class Forged:
    """What the attacker did."""

    refused: int = 0
    unanswered: int = 0
    closed_ledgers: int = 0
    """Refused adds to ledgers that were closed then."""


def run_forging(seed: int) -> Forged:
    """Runs one seed. Raises `Violation` or whatever else went wrong."""

    async def main(simulation: Simulation) -> Forged:
        chance = simulation.chance("run")
        cluster = SimCluster(
            simulation, bookies=3, config=small_config, network=network_options(chance)
        )
        async with cluster:
            model = Model(simulation.fail)
            options = WorkloadOptions(writers=2, recoverers=1, readers=2, entries_max=40)
            workload = Workload(cluster, model, options)
            workload.start()
            faults = Faults(cluster, workload, pause_mean_s=chance.choice((0.5, 2.0)))
            attack = _Attack(model, simulation.chance("attacker"))
            attacker = cluster.start_client(attack.run, name="attacker")
            await faults.run(chance.uniform(3, 8))
            attack.is_stopping = True
            await attacker.finished.wait()
            await check_convergence(cluster, workload, model)
            return attack.found

    logging.disable(logging.CRITICAL)
    try:
        return run_simulated(main, seed, time_limit_s=TIME_LIMIT_S)
    finally:
        logging.disable(logging.NOTSET)


class _Attack:
    def __init__(self, model: Model, chance: random.Random) -> None:
        self.model = model
        self.chance = chance
        self.found = Forged()
        self.is_stopping = False

    async def run(self, client: LedgerClient) -> None:
        while not self.is_stopping or self.found.refused < REFUSED_MIN:
            await trio.sleep(self.chance.uniform(0, 0.05))
            histories = [one for one in self.model.ledgers.values() if one.sizes]
            if not histories:
                continue
            history = self.chance.choice(histories[-4:])
            try:
                await self._forge(client, history.ledger_id, self.chance.randrange(40))
            except LedgerError:
                self.found.unanswered += 1

    async def _forge(self, client: LedgerClient, ledger_id: int, entry_id: int) -> None:
        metadata = await client.ledger_metadata(ledger_id)
        bookie = self.chance.choice(self.chance.choice(metadata.fragments).bookies)
        read = ReadRequest(ledger_id, entry_id)
        answer = await client.pool.call(bookie, read, timeout_s=_TIMEOUT_S)
        if not isinstance(answer, ReadResponse) or answer.status is not Status.OK:
            return
        assert answer.body is not None
        _, _, lac, length = HEADER.unpack_from(answer.body)
        digest = Digest(metadata.digest_type or DigestType.CRC32, PASSWORD)
        payload = bytearray(bytes(answer.body)[32 + digest.size :])
        if self.chance.random() < 0.5:
            payload += b"longer"
        else:
            payload[self.chance.randrange(len(payload))] ^= 1
        forged = b"".join(digest.encode_entry(ledger_id, entry_id, lac, length, bytes(payload)))
        add = AddRequest(
            ledger_id,
            entry_id,
            master_key(PASSWORD),
            forged,
            is_recovery=self.chance.random() < 0.5,
            is_deferred_sync=self.chance.random() < 0.2,  # over v3
        )
        status = (await client.pool.call(bookie, add, timeout_s=_TIMEOUT_S)).status
        if status is Status.OK:
            self.model.violated(f"{bookie} took a forged entry {entry_id} of ledger {ledger_id}")
        self.found.refused += 1
        self.found.closed_ledgers += metadata.is_closed
