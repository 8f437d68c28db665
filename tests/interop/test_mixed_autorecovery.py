"""Apache's auto-recovery and ours in one cluster, with bookies of both kinds.

One scenario runs once per version: bookies are lost one after the other, and each time the
auditor is killed. The tests check the outcome.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import trio

from ledger.client import LedgerClient
from tests.interop.apache_bookie import AutoRecovery
from tests.interop.conftest import ApacheBookies, GetApacheBookies, GetVm
from tests.interop.healing import (
    JavaLedger,
    check_healed,
    check_read_by_java,
    closed_by_java,
    closed_by_us,
    named_bookies,
    wait_healed,
)
from tests.interop.java_client import JavaClient, JavaVm
from tests.interop.our_autorecovery import QUICK, OurAutoRecovery
from tests.interop.our_bookies import OurBookies, wait_until_async
from tests.interop.timeouts import PATIENCE_S
from tests.interop.znodes import (
    ELECTION,
    forget_healer,
    forget_registration,
    znodes,
)

pytestmark = pytest.mark.interop

APACHES, OURS = 2, 4
ENTRIES = 20
LEDGERS = 16
STRANGER = "bookie-of-a-stranger"


def result(feature: str) -> pytest.MarkDecorator:
    return pytest.mark.interop_result(
        area="our auto-recovery", feature=feature, note="beside Apache's, mixed bookies"
    )


@dataclass(slots=True)
class Outcome:
    """The outcome of the scenario with one version."""

    uri: str
    of_java: list[JavaLedger] = field(default_factory=list)
    of_ours: list[int] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    auditors: list[str] = field(default_factory=list)
    locked: int = -1
    locked_before: set[str] = field(default_factory=set)
    locked_after: set[str] = field(default_factory=set)
    lock_owner: str | None = None


@pytest.fixture(scope="module")
def outcome(
    java_vm: GetVm,
    version: str,
    apache_bookies: GetApacheBookies,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Outcome]:
    apaches = apache_bookies(version, APACHES)
    directory = tmp_path_factory.mktemp("mixed")
    ours = OurBookies(directory, apaches.uri)
    healers = Healers(version, directory, apaches.uri)
    try:
        ours.start(*range(OURS))
        yield trio.run(run_scenario, java_vm(version), apaches, ours, healers)
    finally:
        healers.kill()
        ours.kill_all()


class Healers:
    """Apache's auto-recovery and ours; each process that is killed starts as another candidate."""

    def __init__(self, version: str, directory: Path, uri: str) -> None:
        self.uri = uri
        self.apache = AutoRecovery(version, directory / "apaches-healer", uri)
        self.ours = OurAutoRecovery(directory, uri, name="our-healer", **QUICK)

    async def wait_auditor(self, name: str) -> None:
        """Waits until a process is the auditor."""
        data = f'bookieId: "{name}"\n'.encode()
        await wait_until_async(
            lambda: ELECTION in (nodes := znodes(self.uri)) and nodes[ELECTION].data == data,
            what=f"{name} is the auditor",
        )

    async def kill_auditor(self, outcome: Outcome, name: str) -> None:
        """Kills the process that is the auditor, which must have this name."""
        await self.wait_auditor(name)
        outcome.auditors.append(name)
        if name == self.ours.name:
            await trio.to_thread.run_sync(self.ours.kill)
        else:
            await trio.to_thread.run_sync(self.apache.kill)
            forget = partial(forget_healer, self.uri, name, other=self.ours.name)
            await trio.to_thread.run_sync(forget)

    def kill(self) -> None:
        self.apache.kill()
        self.ours.kill()


async def run_scenario(
    vm: JavaVm, apaches: ApacheBookies, bookies: OurBookies, healers: Healers
) -> Outcome:
    outcome = Outcome(apaches.uri)
    async with (
        LedgerClient.connect(apaches.uri) as ours,
        JavaClient.open(vm, apaches.uri) as theirs,
    ):
        for number in range(LEDGERS // 2):
            write_quorum = 3 - number % 2
            outcome.of_java.append(await closed_by_java(theirs, ENTRIES, write_quorum=write_quorum))
            outcome.of_ours.append(await closed_by_us(ours, ENTRIES, write_quorum=write_quorum))

        async def lose(bookie: str) -> None:
            outcome.lost.append(bookie)
            if bookie in {one.bookie_id for one in apaches.bookies}:
                apaches.bookie(bookie).kill()
            else:
                bookies.kill(bookies.number_of(bookie))
            await trio.to_thread.run_sync(forget_registration, apaches.uri, bookie)

        first = bookies.bookie_id(0)
        outcome.locked = await ledger_on(ours, first)
        healers.apache.start()
        await healers.wait_auditor(healers.apache.bookie_id)
        await trio.to_thread.run_sync(healers.ours.start)
        async with ours.underreplication.lock(outcome.locked, STRANGER) as is_locked:
            assert is_locked
            outcome.locked_before = await named_bookies(ours, outcome.locked)
            await lose(first)
            await wait_only_marked(ours, outcome, first)
            outcome.locked_after = await named_bookies(ours, outcome.locked)
            outcome.lock_owner = await ours.underreplication.lock_owner(outcome.locked)
        await wait_healed(ours, first)

        # The auditor is killed while its marks are acted on: the next one finds the rest.
        second = apaches.bookies[0].bookie_id
        await lose(second)
        await healers.kill_auditor(outcome, healers.apache.bookie_id)
        await wait_healed(ours, first, second)

        healers.apache.start()
        third = bookies.bookie_id(1)
        await lose(third)
        await healers.kill_auditor(outcome, healers.ours.name)
        await wait_healed(ours, first, second, third)
        await healers.wait_auditor(healers.apache.bookie_id)
    return outcome


async def ledger_on(ours: LedgerClient, bookie: str) -> int:
    """Returns a closed ledger that has the bookie in its ensemble."""
    for ledger_id in await ours.list_ledgers():
        if bookie in await named_bookies(ours, ledger_id):
            return ledger_id
    raise AssertionError(f"no ledger names {bookie}")


async def wait_only_marked(ours: LedgerClient, outcome: Outcome, lost: str) -> None:
    """Waits until all ledgers but the locked one are healed."""
    others = [i for i in await ours.list_ledgers() if i != outcome.locked]

    async def is_so() -> bool:
        for ledger_id in others:
            if lost in await named_bookies(ours, ledger_id):
                return False
        return await ours.underreplication.list() == [outcome.locked]

    with trio.fail_after(PATIENCE_S):
        while not await is_so():  # noqa: ASYNC110
            await trio.sleep(0.1)


@pytest.fixture
async def ours(outcome: Outcome) -> AsyncIterator[LedgerClient]:
    async with LedgerClient.connect(outcome.uri) as client:
        yield client


@result("bookies lost one after the other: all ledgers are whole")
async def test_all_ledgers_are_whole_again(
    outcome: Outcome, ours: LedgerClient, java_vm: GetVm, version: str
) -> None:
    ids = [*outcome.of_ours, *(one.ledger_id for one in outcome.of_java)]
    assert len(ids) == LEDGERS
    for ledger_id in ids:
        await check_healed(ours, ledger_id, ENTRIES, dead=outcome.lost, are_lacs_changed=True)
    async with JavaClient.open(java_vm(version), outcome.uri, waits_closed=False) as theirs:
        for ledger in outcome.of_java:
            await check_read_by_java(theirs, ledger, ENTRIES)


@result("a ledger that is locked is left alone by the workers of both")
def test_a_locked_ledger_is_left_alone(outcome: Outcome) -> None:
    assert outcome.lock_owner == STRANGER
    assert outcome.lost[0] in outcome.locked_before
    assert outcome.locked_after == outcome.locked_before


@result("the auditor is killed in turns, the other kind takes over")
def test_both_kinds_were_auditors(outcome: Outcome) -> None:
    apaches, ours = outcome.auditors
    assert apaches.startswith("127.0.0.1:")
    assert ours == "our-healer"
