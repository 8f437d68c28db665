"""Plays one takeover with real processes, and tells what everybody saw.

The clients outlive the plays, a ledger does not. A bookie that the play kills is started again,
with its data and port, at the latest when the play is over.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from ledger.metastore.base import MetadataStore
from tests.interop.java_client import payload
from tests.interop.mixed_bookies import Stage
from tests.interop.replicas import read_replicas, replica_faults
from tests.interop.takeover.clients import PacedWriter, PythonSide, RecoveryFailed, Side
from tests.interop.takeover.judge import End, Story, faults, misjudged_lengths
from tests.interop.takeover.plan import Kill, KillMoment, Language, Moment, Plan, Recovery
from tests.interop.timeouts import PATIENCE_S

_RETRY_PAUSE_S = 0.25

MakeSide = Callable[[Plan, tuple[str, ...]], AbstractAsyncContextManager[Side]]
"""The other language's client for a play: (plan, ids of its bookies)."""


class TakeoverFaulty(AssertionError):
    """What must hold did not; the text repeats the play."""


class Play:
    """One interleaving on a stage.

    Args:
        make_java: the Java client of a plan's version and wire version; a test of the play
            itself may give our own client instead.
    """

    def __init__(self, plan: Plan, stage: Stage, store: MetadataStore, make_java: MakeSide) -> None:
        self.plan = plan
        self._stage = stage
        self.store = store
        self._make_java = make_java
        self._sides: dict[Language, Side] = {}
        self._stopped = trio.Event()

    async def run(self) -> Story:
        """Raises TakeoverFaulty with everything that is wrong."""
        plan, stage = self.plan, self._stage
        await stage.wait_serving(plan.bookies)
        story: Story | None = None
        try:
            with trio.fail_after(PATIENCE_S):
                async with self._cast() as python:
                    story = await self._act(python)
        except Exception as error:
            seen = "" if story is None else f"\n{story}"
            raise TakeoverFaulty(f"{plan.title()}: {error!r}{seen}") from error
        found = faults(story, expected_payloads(plan, story.writer.pushed))
        if found:
            names = dict(zip(plan.bookies, stage.ids(plan.bookies), strict=True))
            raise TakeoverFaulty(
                f"{plan.title()}, ledger {story.ledger_id}, bookies {names}:\n  "
                + "\n  ".join(found)
            )
        return story

    @asynccontextmanager
    async def _cast(self) -> AsyncIterator[PythonSide]:
        plan = self.plan
        ids = self._stage.ids(plan.bookies)
        async with trio.open_nursery() as nursery, self._make_java(plan, ids) as java:
            python = PythonSide(self.store, nursery, ids, f"{plan.seed}/{plan.number}")
            self._sides = {Language.PYTHON: python, Language.JAVA: java}
            yield python
            nursery.cancel_scope.cancel()

    async def _act(self, python: PythonSide) -> Story:
        plan = self.plan
        writer = await self._sides[plan.writer].begin(plan.shape, plan.password, plan.pace)
        story = Story(plan, writer.ledger_id)
        await self._wait_moment(writer)
        async with trio.open_nursery() as nursery:
            if plan.kill is not None and plan.kill.moment is KillMoment.DURING:
                nursery.start_soon(self._kill_during, plan.kill)
            for number, recovery in enumerate(plan.recoveries):
                nursery.start_soon(self._recover, number, recovery, story)
        if plan.kill is not None and plan.kill.moment is KillMoment.AFTER:
            await self._kill(plan.kill)
        story.writer = await writer.finish()
        if plan.shape.ack_quorum == 1:
            await self._stage.wait_serving(plan.ensemble)  # one may hold what no other does
        await self._read(python, story)
        self._restart_victim()
        return story

    async def _wait_moment(self, writer: PacedWriter) -> None:
        """Returns when the takeover is to begin."""
        plan = self.plan
        if plan.moment is not Moment.IN_FLIGHT:
            await writer.wait_acked(plan.acks)
        if plan.kill is not None and plan.kill.moment is KillMoment.BEFORE:
            await self._kill(plan.kill)
        if plan.moment is Moment.CLOSING:
            await writer.begin_close()
        if plan.moment is not Moment.AFTER_ACKS:
            await trio.sleep(plan.delay_ms / 1000)

    async def _kill(self, kill: Kill) -> None:
        victim = self.plan.bookies[kill.index]
        await self._stage.kill(victim)
        if kill.restarts_at_once:
            self._stage.begin_start(victim)

    async def _kill_during(self, kill: Kill) -> None:
        await trio.sleep(self.plan.delay_ms / 2000)
        await self._kill(kill)

    def _restart_victim(self) -> None:
        kill = self.plan.kill
        if kill is not None and not kill.restarts_at_once:
            self._stage.begin_start(self.plan.bookies[kill.index])

    async def _recover(self, number: int, recovery: Recovery, story: Story) -> None:
        plan = self.plan
        side = self._sides[recovery.language]
        what = (story.ledger_id, plan.shape, plan.password)
        await trio.sleep(recovery.begins_ms / 1000)
        if recovery.gives_up_ms is not None:
            await self.recover_and_stop(side, story.ledger_id, recovery.gives_up_ms)
            self._stopped.set()
            return
        if recovery.waits_for_stopped:
            await self._stopped.wait()
        while True:  # the play has a deadline
            try:
                end = await side.recover(*what)
            except RecoveryFailed as error:
                story.retries.append(f"{side.name}: {error}")
                await trio.sleep(_RETRY_PAUSE_S)
                continue
            story.recovered[f"{side.name} {number}"] = end
            return

    async def recover_and_stop(self, side: Side, ledger_id: int, after_ms: float) -> None:
        """Begins a recovery that is stopped after so long; a play may do it in its own way."""
        plan = self.plan
        await side.recover_and_stop(ledger_id, plan.shape, plan.password, after_ms)

    async def _read(self, python: PythonSide, story: Story) -> None:
        """What both languages read from the closed ledger, and what its bookies hold."""
        plan = self.plan
        metadata = await python.metadata(story.ledger_id)
        if not metadata.is_closed:
            return
        story.metadata = End(metadata.last_entry_id, metadata.length)
        for side in self._sides.values():
            end, payloads = await side.read_closed(story.ledger_id, plan.shape, plan.password)
            story.told[side.name] = end
            story.read[side.name] = payloads
        down = {
            self._stage.ids([name])[0] for name in plan.bookies if not self._stage.is_serving(name)
        }
        async with python.client() as client:
            replicas = await read_replicas(client.pool, metadata, without=down)
        sizes = [len(data) for data in expected_payloads(plan, story.writer.pushed)]
        story.lengths = misjudged_lengths(plan, metadata, story.writer, sizes)
        story.replica_faults = replica_faults(
            metadata,
            replicas,
            recovered_from=0,
            is_length_doubtful=bool(story.lengths),
            may_be_torn=self._stage.apaches_of([plan.victim] if plan.victim else []),
        )


def expected_payloads(plan: Plan, count: int) -> list[bytes]:
    """What the writer gave for its first `count` entries."""
    sizes = plan.pace.sizes
    return [payload(plan.pace.seed, i, sizes[i] if i < len(sizes) else 1) for i in range(count)]
