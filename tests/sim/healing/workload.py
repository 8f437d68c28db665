"""What users do while bookies are lost for good: ledgers, a stream, and commits of a sink."""

from __future__ import annotations

import random

import trio

from bookie.testing.cluster import SimCluster
from ledger.client import LedgerClient
from ledger.errors import LedgerError, LedgerFenced
from stream.core.position import BEGINNING
from stream.namespace import Namespace
from stream.sinks.sinks import commit_batch
from stream.store.sinks import find_sink
from tests.sim.model import LedgerHistory, Model
from tests.sim.stream_model import StreamModel
from tests.sim.stream_workload import NAMESPACE, Actor, StreamWorkload
from tests.sim.workload import Workload
from tests.stream.sinks.sink_ledgers import write_ledger

ENSEMBLE_MAX = 5
_SINK = "sink"


class HealingModel(Model):
    """The model of ledgers, some of which auto-recovery recovers when their writers are gone.

    `recovered`: those ledgers; that no writer was alive is checked at that moment.
    """

    def __init__(self, *args: object, **settings: object) -> None:
        super().__init__(*args, **settings)  # type: ignore[arg-type]
        self.recovered: set[int] = set()

    def writer_failed(self, history: LedgerHistory, error: LedgerError) -> None:
        if isinstance(error, LedgerFenced) and history.ledger_id in self.recovered:
            self.count("writers whose session was lost, and ledger recovered")
            return
        super().writer_failed(history, error)


class HealingWorkload(Workload):
    """Ledgers that outlive the loss of `ack_quorum_min - 1` bookies.

    `is_exact`: every ack quorum is the write quorum, so that closed ledgers lack nothing that no
    bookie lost.
    """

    is_exact = False

    def _quorums(self, chance: random.Random) -> tuple[int, int, int]:
        least = self.options.ack_quorum_min
        ensemble = chance.randint(least, ENSEMBLE_MAX)
        write_quorum = chance.randint(least, ensemble)
        return ensemble, write_quorum, self._ack_quorum(chance, write_quorum)

    def _ack_quorum(self, chance: random.Random, write_quorum: int) -> int:
        if self.is_exact:
            return write_quorum
        return chance.randint(self.options.ack_quorum_min, write_quorum)


class HealingStreams(StreamWorkload):
    """A stream to which a sink commits batches, too."""

    def __init__(
        self,
        cluster: SimCluster,
        model: StreamModel,
        chance: random.Random,
        *,
        ack_quorum_min: int,
        is_exact: bool,
    ) -> None:
        super().__init__(cluster, model, chance, ack_quorum_min=ack_quorum_min)
        if is_exact:
            self._settings["ack_quorum"] = self._settings["write_quorum"]
        self._committed: list[bytes] = []

    def actors(self) -> dict[str, Actor]:
        actors = super().actors()
        if self.chance.random() < 0.6:
            actors["committer"] = self._commit
        return actors

    async def _commit(self, client: LedgerClient, chance: random.Random) -> None:
        await trio.sleep(chance.expovariate(0.5))
        quorum = int(self._settings["ack_quorum"] or 0)
        try:
            sink = await find_sink(client.store, _SINK)
            batch_id = 0 if sink is None else sink.batch_id + 1
            self._writers += 1
            name, values = f"b{self._writers}", list[list[bytes]]()
            for entry in range(chance.randint(1, 4)):
                values.append([b"%s/%d.%d" % (name.encode(), entry, n) for n in range(3)])
                for value in values[-1]:
                    self.model.attempted(name, value)
            ledger = await write_ledger(
                client,
                self.model.name,
                values,
                namespace=NAMESPACE,
                sink_id=_SINK,
                batch_id=batch_id,
                quorums=(3, quorum, quorum),
            )
            done = await commit_batch(client, [ledger], sink_id=_SINK, batch_id=batch_id)
        except LedgerError as error:
            self.model.count(f"sink: {type(error).__name__}")
            return
        if not done.is_repeat:
            self._committed += [value for entry in values for value in entry]
            self.model.count("sink batches")

    async def check(self, client: LedgerClient) -> None:
        await super().check(client)
        found = dict[bytes, None]()
        async with Namespace(client, NAMESPACE).reader(self.model.name) as reader:
            async for batch in reader.read_to_end():
                found |= {record.value: None for record in batch.records()}
        if self.model.truncated_to == BEGINNING:
            for value in self._committed:
                if value not in found:
                    self.model.violated(f"[I1] {value!r} of a committed batch is gone")
