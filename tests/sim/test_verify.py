"""Verification on the simulated cluster: bookies that lie, rot, vanish; and who finds it out."""

from __future__ import annotations

import random
from contextlib import suppress
from unittest import mock

import pytest
import trio

from bookie.server.deferred_replies import ReplyTarget
from bookie.server.reads import Reads
from bookie.testing import CrashKind, SimCluster, simulate
from ledger.client import LedgerClient
from ledger.core.copies import CopyState, CopyVerdict
from ledger.errors import LedgerError, RetryableError, Status
from ledger.options import ClientOptions
from ledger.wire.messages import ReadRequest, ReadResponse
from stream.canary import Canary, CanaryOptions, CanaryRound
from stream.core.position import Truncated
from stream.core.receipt import Receipt
from stream.namespace import Namespace
from stream.retention.janitor import Janitor
from stream.verify import StreamReport
from tests.effort import scaled
from tests.sim.bugs import bug_planted

IMPATIENT = ClientOptions(add_timeout_s=0.5, read_timeout_s=0.5, ensemble_change_timeout_s=2.0)
MARKER = b"a value that is easy to find"


def states_of(report: StreamReport) -> list[tuple[str, CopyState]]:
    return [
        (fault.bookie, fault.state)
        for segment in report.segments
        if segment.ledger is not None
        for fault in segment.ledger.faults
    ]


async def one_record(namespace: Namespace) -> Receipt:
    await namespace.ensure()
    async with namespace.writer("s", create=True) as writer:
        receipt = await writer.append(MARKER, receipt=True)
    assert len(receipt.acks) == 3
    return receipt


def test_a_bookie_that_acknowledged_and_forgot_is_convicted_by_the_receipt() -> None:
    convicted: list[int] = []

    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client(options=IMPATIENT) as client:
            namespace = Namespace(client, "demo")
            await namespace.ensure()
            async with namespace.writer("s", create=True) as writer:
                with bug_planted("ack-before-fsync"):
                    cluster.disk("bookie-1").options.slow_factor = 20
                    receipt = await writer.append(MARKER, receipt=True)
                    await cluster.kill_bookie("bookie-1", CrashKind.POWER_LOST_ALL)
            await cluster.start_bookie("bookie-1")
            plain = await namespace.verify("s")
            report = await namespace.verify("s", receipt=receipt)
            if plain.verdict is CopyVerdict.WHOLE or "bookie-1:3181" not in receipt.bookies:
                return  # it was faster than the loss of power, or too slow to send the lie
            # Without the receipt there is only a copy less than there should be.
            assert plain.verdict is CopyVerdict.REDUCED
            assert report.verdict is CopyVerdict.DAMAGE
            for found in (plain, report):
                assert states_of(found) == [("bookie-1:3181", CopyState.MISSING)]
            convicted.append(1)

    for seed in range(scaled(ci=2, night=32)):
        simulate(scenario, seed)
    assert convicted


def test_bookies_that_keep_their_word_are_whole_after_the_loss_of_power() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client(options=IMPATIENT) as client:
            namespace = Namespace(client, "demo")
            receipt = await one_record(namespace)
            for name in cluster.bookies:
                await cluster.kill_bookie(name, CrashKind.POWER_LOST_ALL)
            await cluster.start_all()
            await trio.sleep(2)
            report = await namespace.verify("s", receipt=receipt)
            assert report.verdict is CopyVerdict.WHOLE, report

    for seed in range(scaled(ci=1, night=20)):
        simulate(scenario, seed)


def test_a_flipped_bit_on_a_disk_is_corrupt_and_never_missing() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client(options=IMPATIENT) as client:
            namespace = Namespace(client, "demo")
            receipt = await one_record(namespace)
            await trio.sleep(5)  # it has left the journal
            disk = cluster.disk("bookie-2")
            logs = {p: i for p, i in disk.inodes.items() if p.startswith("/ledgers")}
            [(path, offset)] = [
                (path, at)
                for path, inode in logs.items()
                if (at := inode.read(0, inode.size).find(MARKER)) >= 0
            ]
            await cluster.kill_bookie("bookie-2")
            disk.flip_bit(path, offset + 3)
            await cluster.start_bookie("bookie-2")
            for report in (
                await namespace.verify("s"), await namespace.verify("s", receipt=receipt)
            ):  # fmt: skip
                assert report.verdict is CopyVerdict.DAMAGE
                assert states_of(report) == [("bookie-2:3181", CopyState.CORRUPT)]
                assert report.lost_entries == 0

    simulate(scenario, 1)


def test_bookies_out_of_reach_are_a_doubt_and_whole_again_when_they_are_back() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("auditor", IMPATIENT) as client:
            namespace = Namespace(client, "demo")
            receipt = await one_record(namespace)
            cluster.network.partition(["auditor"], ["bookie-0", "bookie-1"])
            report = await namespace.verify("s", receipt=receipt)
            assert report.verdict is CopyVerdict.DOUBT
            assert states_of(report) == [
                ("bookie-0:3181", CopyState.UNREACHABLE),
                ("bookie-1:3181", CopyState.UNREACHABLE),
            ]
            assert report.lost_entries == 0
            cluster.network.heal()
            await trio.sleep(5)
            report = await namespace.verify("s", receipt=receipt)
            assert report.verdict is CopyVerdict.WHOLE

    simulate(scenario, 2)


def test_a_receipt_of_a_record_that_recovery_confirmed() -> None:
    """The writer's own ledger fails under it; what was in flight is recovered or sent again."""

    async def scenario(cluster: SimCluster) -> None:
        receipts: list[Receipt] = []
        async with cluster.client("writer", IMPATIENT) as client:
            namespace = Namespace(client, "demo")
            await namespace.ensure()
            async with namespace.writer("s", create=True) as writer:

                async def append(number: int) -> None:
                    receipts.append(await writer.append(b"%d" % number, receipt=True))

                await append(0)
                async with trio.open_nursery() as nursery:
                    for number in range(1, 40):
                        nursery.start_soon(append, number)
                        if number == 20:
                            cluster.kill_bookie_now("bookie-0")
                            cluster.kill_bookie_now("bookie-1")
                        await trio.sleep(0.05)
                    await trio.sleep(5)
                    await cluster.start_all()
                assert writer.statistics().repairs > 0
            for receipt in receipts:
                report = await namespace.verify("s", receipt=receipt)
                assert report.verdict in (CopyVerdict.WHOLE, CopyVerdict.REDUCED), report
            values = [record.sequence for record in await namespace.read_last("s", 100)]
        assert values == sorted(receipt.sequence for receipt in receipts) == list(range(40))

    for seed in range(scaled(ci=1, night=16)):
        simulate(scenario, seed)


def test_a_canary_is_content_with_honest_bookies_whatever_is_killed() -> None:
    async def scenario(cluster: SimCluster) -> None:
        rounds: list[CanaryRound] = []
        async with cluster.client(options=IMPATIENT) as client:
            namespace = Namespace(client, "ops")
            await namespace.ensure()
            options = CanaryOptions(interval_s=0.2, timeout_s=10, remembered=20)
            canary = Canary(namespace, "canary", options)

            def on_round(report: CanaryRound) -> None:
                rounds.append(report)
                if report.number == 30:
                    cluster.kill_bookie_now("bookie-0", CrashKind.POWER_LOST_TORN)
                if report.number == 40:
                    cluster.begin_bookie("bookie-0")

            worst = await canary.run(on_round, rounds=120)
            assert worst < CopyVerdict.DAMAGE, [r.alerts for r in rounds if r.alerts]
            assert [report.number for report in rounds] == list(range(1, 121))
            assert rounds[-1].verdict is CopyVerdict.WHOLE, rounds[-1]
            assert len(rounds[-1].acks) == 3
            # It does not grow: about three times what is remembered.
            info = await namespace.info("canary")
            assert info.records <= 3 * 20 + 50
            assert await namespace.trash() == []

    simulate(scenario, 1)


def test_a_canary_finds_a_bookie_that_forgets_later() -> None:
    read = Reads.read
    forgetful: list[Reads] = []

    def read_forgetfully(self: Reads, body: ReadRequest, target: ReplyTarget) -> bool:
        if self in forgetful and body.entry_id == 3:
            target.reply(ReadResponse(Status.NO_SUCH_ENTRY, body.ledger_id, body.entry_id))
            return True
        if body.entry_id == 20 and not forgetful:
            forgetful.append(self)
        return read(self, body, target)

    async def scenario(cluster: SimCluster) -> None:
        rounds: list[CanaryRound] = []
        async with cluster.client(options=IMPATIENT) as client:
            namespace = Namespace(client, "ops")
            await namespace.ensure()
            canary = Canary(namespace, "canary", CanaryOptions(interval_s=0.2, timeout_s=10))
            worst = await canary.run(rounds.append, rounds=1000, stop_on_violation=True)
            assert worst is CopyVerdict.DAMAGE
            assert 20 < len(rounds) < 1000
            assert all(report.verdict is CopyVerdict.WHOLE for report in rounds[:-1])
            assert rounds[-1].checked_again is not None
            assert rounds[-1].checked_again.entry == 3
            [(verdict, text)] = rounds[-1].alerts
            assert verdict is CopyVerdict.DAMAGE
            assert "missing at bookie-" in text

    with mock.patch.object(Reads, "read", read_forgetfully):
        simulate(scenario, 0)


async def sweep(client: LedgerClient, chance: random.Random) -> None:
    while True:
        with suppress(LedgerError):
            await Janitor(client, "demo", orphan_age_ms=1000).sweep()
        await trio.sleep(chance.random())


async def disturb(cluster: SimCluster, chance: random.Random) -> None:
    while True:
        await trio.sleep(2 * chance.random())
        bookie = chance.choice(cluster.bookies)
        await cluster.kill_bookie(bookie, chance.choice([*CrashKind]))
        await trio.sleep(3 * chance.random())
        await cluster.start_bookie(bookie)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "seconds"), [(0, 8), (1, 8)])
def test_no_false_alarm_while_everything_moves(seed: int, seconds: float) -> None:
    """Writers roll and are replaced, the janitor deletes, bookies die and restart: whatever is
    verified meanwhile, nothing is called damaged."""

    async def scenario(cluster: SimCluster) -> None:
        verdicts: list[CopyVerdict] = []
        chance = cluster.simulation.chance("story")
        options = {"roll_bytes": 1 << 16, "retention_bytes": 1 << 17, "trash_ms": 0}
        async with (
            cluster.client("one", IMPATIENT) as one,
            cluster.client("two", IMPATIENT) as two,
            cluster.client("auditor", IMPATIENT) as auditor,
            cluster.client("janitor", IMPATIENT) as cleaner,
        ):
            await Namespace(one, "demo").ensure(**options)  # type: ignore[arg-type]
            await Namespace(one, "demo").create_stream("s")
            kept: list[Receipt] = []

            async def write() -> None:
                while True:
                    namespace = Namespace(chance.choice([one, two]), "demo")
                    try:
                        async with namespace.writer("s") as writer:
                            for _ in range(chance.randrange(1, 40)):
                                size = chance.randrange(6000)
                                kept.append(await writer.append(bytes(size), receipt=True))
                    except LedgerError:
                        await trio.sleep(0.1)

            async def audit() -> None:
                namespace = Namespace(auditor, "demo")
                while True:
                    receipt = chance.choice([None, *kept[-20:]])
                    try:
                        report = await namespace.verify("s", receipt=receipt)
                    except (Truncated, RetryableError):
                        continue
                    assert report.verdict < CopyVerdict.DAMAGE, (receipt, report.as_dict())
                    verdicts.append(report.verdict)

            with trio.move_on_after(seconds):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(sweep, cleaner, chance)
                    nursery.start_soon(disturb, cluster, chance)
                    for task in (write, audit, audit):
                        nursery.start_soon(task)
        assert verdicts.count(CopyVerdict.WHOLE) > seconds / 3, verdicts

    simulate(scenario, seed, bookies=4)
