"""Apache's `bookkeeper shell` shows and controls our auto-recovery of our bookies.

One scenario runs once per version: a bookie dies, its copies are made slowly enough to look at,
stopped, continued and completed. The tests check the outcome.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field

import pytest
import trio

from ledger.autorecovery.published import read_audit
from ledger.client import LedgerClient
from ledger.metastore.election import AuditorElection
from tests.interop.conftest import OUR_BOOKIES, GetVm
from tests.interop.healing import (
    JavaLedger,
    check_healed,
    check_read_by_java,
    closed_by_java,
    closed_by_us,
    named_bookies,
    start_from_scratch,
    wait_healed,
)
from tests.interop.java_client import JavaClient, JavaVm
from tests.interop.our_autorecovery import QUICK, OurAutoRecovery
from tests.interop.our_bookies import OurBookies
from tests.interop.shell import Shell, marked_count
from tests.interop.timeouts import PATIENCE_S
from tests.interop.znodes import forget_registration, znodes

pytestmark = pytest.mark.interop

ENTRIES = 20
BIG_ENTRIES, BIG_SIZE = 128, 65_536
COPY_BYTES_PER_S = 100_000
"""The copy of the big ledger takes longer than everything that is done meanwhile."""


def result(feature: str) -> pytest.MarkDecorator:
    return pytest.mark.interop_result(
        area="our auto-recovery", feature=f"shell: {feature}", note="our bookies"
    )


@dataclass(slots=True)
class Outcome:
    """The outcome of the scenario with one version."""

    dead: str
    live: str
    big: int
    of_java: JavaLedger
    others: list[int] = field(default_factory=list)
    auditors: list[str] = field(default_factory=list)
    delay: str = ""
    delay_s: int | None = None
    marked_while_awaited: list[int] = field(default_factory=list)
    lost_while_awaited: tuple[str, ...] = ("nobody looked",)
    worker: str = ""
    in_progress: str = ""
    is_big_untouched: bool = False
    marks: dict[int, tuple[str, ...]] = field(default_factory=dict)
    listed: str = ""
    listed_of_live: str = ""
    listed_without_live: str = ""
    decommissioned: str = ""
    listed_at_the_end: str = ""


@pytest.fixture(scope="module")
def outcome(
    java_vm: GetVm,
    version: str,
    our_bookies: OurBookies,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Outcome]:
    start_from_scratch(our_bookies, OUR_BOOKIES)
    directory = tmp_path_factory.mktemp("shell")
    slow = OurAutoRecovery(
        directory, our_bookies.uri, name="our-slow", copy_bytes_per_s=COPY_BYTES_PER_S
    )
    quick = OurAutoRecovery(directory, our_bookies.uri, name="our-quick", **QUICK)
    try:
        yield trio.run(run_scenario, java_vm(version), our_bookies, slow, quick)
    finally:
        slow.kill()
        quick.kill()


async def run_scenario(
    vm: JavaVm, bookies: OurBookies, slow: OurAutoRecovery, quick: OurAutoRecovery
) -> Outcome:
    port = int(bookies.bookie_id(0).rpartition(":")[2])
    shell = Shell(vm, bookies.uri, slow.log.parent, port)
    async with (
        LedgerClient.connect(bookies.uri) as ours,
        JavaClient.open(vm, bookies.uri) as theirs,
        trio.open_nursery() as nursery,
    ):
        for ledger_id in await ours.list_ledgers():
            await ours.delete_ledger(ledger_id)
        outcome = await with_ledgers(ours, theirs)
        await trio.to_thread.run_sync(slow.start)
        await until(lambda: is_elected(ours), "an auditor is elected")
        outcome.auditors.append(await shell.run("whoisauditor"))
        await lose_a_bookie(shell, ours, bookies, outcome)
        await look_and_disable(shell, ours, outcome)

        await shell.run("autorecovery", "-enable")
        await until(lambda: is_locked(ours, outcome.big), "the worker continues")
        delay = f"{ours.ledgers.root}/underreplication/lostBookieRecoveryDelay"
        before = (await ours.store.get(delay)).version
        done = trio.Event()

        async def decommission() -> None:
            with trio.fail_after(PATIENCE_S):
                outcome.decommissioned = await shell.run(
                    "decommissionbookie", "-bookieid", outcome.dead
                )
            done.set()

        async def is_audit_wanted() -> bool:
            return (await ours.store.get(delay)).version > before

        nursery.start_soon(decommission)
        await until(is_audit_wanted, "the shell waits for the ledgers of the bookie")
        await trio.to_thread.run_sync(quick.start)
        assert await trio.to_thread.run_sync(slow.stop) == 143
        await done.wait()
        await wait_healed(ours, outcome.dead)
        outcome.auditors.append(await shell.run("whoisauditor"))
        outcome.listed_at_the_end = await shell.run("listunderreplicated")
    return outcome


async def is_elected(ours: LedgerClient) -> bool:
    election = AuditorElection(ours.store, ours.ledgers.root, ours.rng)
    return await election.auditor() is not None


async def with_ledgers(ours: LedgerClient, theirs: JavaClient) -> Outcome:
    big = await closed_by_us(ours, BIG_ENTRIES, size=BIG_SIZE)
    of_java = await closed_by_java(theirs, ENTRIES, write_quorum=2)
    dead, live, *_ = sorted(await named_bookies(ours, big))
    outcome = Outcome(dead, live, big, of_java)
    for write_quorum in (3, 2, 3, 2):
        outcome.others.append(await closed_by_us(ours, ENTRIES, write_quorum=write_quorum))
    return outcome


async def lose_a_bookie(
    shell: Shell, ours: LedgerClient, bookies: OurBookies, outcome: Outcome
) -> None:
    """Kills a bookie, which is waited for until the delay is 1 s; returns while only the big ledger
    is being copied."""
    await shell.run("lostbookierecoverydelay", "-set", 3600)
    outcome.delay = await shell.run("lostbookierecoverydelay", "-get")
    outcome.delay_s = await ours.underreplication.lost_bookie_recovery_delay_s()
    bookies.kill(bookies.number_of(outcome.dead))
    await trio.to_thread.run_sync(forget_registration, bookies.uri, outcome.dead)
    wanted_ms = ours.now_ms()
    await shell.run("triggeraudit")

    async def is_audited() -> bool:
        report = await read_audit(ours.store)
        if report is None or not report.ended_ms or report.begun_ms < wanted_ms:
            return False
        outcome.lost_while_awaited = report.bookies_lost
        return True

    await until(is_audited, "the auditor has done what the shell asked for")
    outcome.marked_while_awaited = await ours.underreplication.list()
    await shell.run("lostbookierecoverydelay", "-set", 1)  # the shell refuses 0

    async def is_big_left() -> bool:
        marked = await ours.underreplication.list()
        return marked == [outcome.big] and await is_locked(ours, outcome.big)

    await until(is_big_left, "all but the big ledger are healed")


async def look_and_disable(shell: Shell, ours: LedgerClient, outcome: Outcome) -> None:
    marks = ours.underreplication
    outcome.worker = (await marks.locked())[outcome.big]
    outcome.in_progress = await shell.run("queryautorecoverystatus")
    await shell.run("autorecovery", "-disable")

    async def is_stopped() -> bool:
        return not await marks.locked()

    await until(is_stopped, "the worker has stopped")
    outcome.is_big_untouched = outcome.dead in await named_bookies(ours, outcome.big)
    await marks.mark(outcome.others[0], [outcome.live])
    await marks.mark(outcome.others[1], ["127.0.0.1:1", outcome.live])
    for ledger_id in await marks.list():
        mark = await marks.read(ledger_id)
        assert mark is not None
        outcome.marks[ledger_id] = mark.replicas
    command = ("listunderreplicated", "-printmissingreplica")
    outcome.listed = await shell.run(*command)
    outcome.listed_of_live = await shell.run(*command, "-missingreplica", outcome.live)
    outcome.listed_without_live = await shell.run(
        *command, "-excludingmissingreplica", outcome.live
    )


async def is_locked(ours: LedgerClient, ledger_id: int) -> bool:
    return await ours.underreplication.lock_owner(ledger_id) is not None


async def until(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    """Waits for a state of other processes, which send no notification."""
    with trio.move_on_after(PATIENCE_S):
        while not await holds():  # noqa: ASYNC110
            await trio.sleep(0.05)
        return
    raise AssertionError(f"not within {PATIENCE_S} s: {what}")


def listed_replicas(said: str) -> dict[int, tuple[str, ...]]:
    """Returns the ledgers that listunderreplicated printed, with their missing replicas."""
    found: dict[int, tuple[str, ...]] = {}
    for line in said.splitlines():
        if ledger := re.match(r"(?:Under-replicated ledger \{ledgerId=)?(\d+)\b", line):
            latest = int(ledger[1])
            found[latest] = ()
        elif replica := re.search(r"[mM]issingReplica(?: : |=)([^ },]+)", line):
            found[latest] += (replica[1],)
    assert marked_count(said) == len(found)
    return found


@pytest.fixture
async def ours(outcome: Outcome, our_bookies: OurBookies) -> AsyncIterator[LedgerClient]:
    async with LedgerClient.connect(our_bookies.uri) as client:
        yield client


@result("whoisauditor names our process, and the next one")
def test_the_auditor_is_named(outcome: Outcome) -> None:
    assert ["our-slow" in said for said in outcome.auditors] == [True, False]
    assert ["our-quick" in said for said in outcome.auditors] == [False, True]


@result("lostbookierecoverydelay -set and -get, triggeraudit")
def test_the_delay_is_obeyed(outcome: Outcome) -> None:
    assert "3600" in outcome.delay
    assert outcome.delay_s == 3600
    assert outcome.lost_while_awaited == ()
    assert outcome.marked_while_awaited == []


@result("queryautorecoverystatus shows our locks")
def test_ledgers_in_progress_are_shown(outcome: Outcome) -> None:
    assert re.search(rf"\b{outcome.big}\b", outcome.in_progress)
    assert outcome.worker in outcome.in_progress


@result("listunderreplicated shows our marks, by missing replica, too")
def test_marks_are_listed(outcome: Outcome) -> None:
    assert len(outcome.marks) == 3
    assert listed_replicas(outcome.listed) == outcome.marks
    of_live = {i: r for i, r in outcome.marks.items() if outcome.live in r}
    assert 0 < len(of_live) < len(outcome.marks)
    assert listed_replicas(outcome.listed_of_live) == of_live
    assert listed_replicas(outcome.listed_without_live) == {
        i: r for i, r in outcome.marks.items() if i not in of_live
    }


@result("autorecovery -disable stops our workers, -enable has them continue")
async def test_disabled_workers_stop(outcome: Outcome, ours: LedgerClient) -> None:
    assert outcome.is_big_untouched
    await check_healed(ours, outcome.big, BIG_ENTRIES, dead=[outcome.dead], size=BIG_SIZE)


@result("decommissionbookie of a bookie that our workers empty")
async def test_a_bookie_is_decommissioned(
    outcome: Outcome, ours: LedgerClient, our_bookies: OurBookies, java_vm: GetVm, version: str
) -> None:
    assert "properly replicated" in outcome.decommissioned
    assert outcome.dead not in await ours.bookies.all()
    assert f"cookies/{outcome.dead}" not in znodes(our_bookies.uri)
    assert listed_replicas(outcome.listed_at_the_end) == {}
    for ledger_id in (*outcome.others, outcome.of_java.ledger_id):
        await check_healed(ours, ledger_id, ENTRIES, dead=[outcome.dead])
    async with JavaClient.open(java_vm(version), our_bookies.uri, waits_closed=False) as theirs:
        await check_read_by_java(theirs, outcome.of_java, ENTRIES)
