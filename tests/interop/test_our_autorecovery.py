"""Our auto-recovery heals a cluster of Apache's bookies, of which one is killed and gone.

One scenario runs once per version: ledgers of the Java client, closed and open, and one of which a
live bookie lacks everything. The tests check the outcome.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace

import pytest
import trio

from ledger.client import LedgerClient
from ledger.core.metadata import LedgerMetadata
from tests.interop.conftest import ApacheBookies, GetApacheBookies, GetVm
from tests.interop.healing import (
    JavaLedger,
    append,
    check_healed,
    check_read_by_java,
    closed_by_java,
    created_by_java,
    named_bookies,
    wait_healed,
    wait_unmarked,
)
from tests.interop.java_client import JavaClient, JavaError, JavaVm
from tests.interop.our_autorecovery import QUICK, OurAutoRecovery
from tests.interop.shell import Shell, marked_count
from tests.interop.znodes import forget_registration

pytestmark = pytest.mark.interop

BOOKIES = 4
ENTRIES = 40
DIGESTS = ("CRC32", "CRC32C", "MAC", "DUMMY")
BUSY_ENTRIES = 300
BUSY_PAUSE_US = 10_000
IDLE_ENTRIES = 10


def result(feature: str) -> pytest.MarkDecorator:
    return pytest.mark.interop_result(
        area="our auto-recovery", feature=feature, note="Apache bookies"
    )


@dataclass(slots=True)
class Outcome:
    """The outcome of the scenario with one version."""

    cluster: ApacheBookies
    dead: str
    closed: list[JavaLedger] = field(default_factory=list)
    hollow: JavaLedger | None = None
    hollow_before: LedgerMetadata | None = None
    idle: JavaLedger | None = None
    idle_error: str | None = None
    busy: JavaLedger | None = None
    busy_acked: int = 0
    auditor: str = ""
    listed: str = "not asked"


@pytest.fixture(scope="module")
def outcome(
    java_vm: GetVm,
    version: str,
    apache_bookies: GetApacheBookies,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Outcome]:
    cluster = apache_bookies(version, BOOKIES)
    directory = tmp_path_factory.mktemp("our-autorecovery")
    healer = OurAutoRecovery(directory, cluster.uri, name="our-healer", **QUICK)
    shell = Shell(java_vm(version), cluster.uri, directory)
    try:
        yield trio.run(run_scenario, java_vm(version), cluster, healer, shell)
    finally:
        healer.kill()


async def run_scenario(
    vm: JavaVm, cluster: ApacheBookies, healer: OurAutoRecovery, shell: Shell
) -> Outcome:
    async with (
        LedgerClient.connect(cluster.uri) as ours,
        JavaClient.open(vm, cluster.uri) as theirs,
        trio.open_nursery() as nursery,
    ):
        outcome = Outcome(cluster, dead=cluster.bookies[0].bookie_id)
        for digest in DIGESTS:
            for write_quorum in (3, 2):
                outcome.closed.append(
                    await closed_by_java(
                        theirs, ENTRIES, write_quorum=write_quorum, digest=digest, password=b"open"
                    )
                )
        outcome.idle = await created_on(ours, theirs, outcome.dead)
        await append(theirs, outcome.idle, IDLE_ENTRIES)
        outcome.busy = await created_on(ours, theirs, outcome.dead)

        await trio.to_thread.run_sync(healer.start)
        await fill_a_live_bookie(ours, theirs, outcome)
        outcome.auditor = await shell.run("whoisauditor")

        busy_ended = trio.Event()
        nursery.start_soon(keep_writing, theirs, outcome, busy_ended)
        await trio.to_thread.run_sync(cluster.bookie(outcome.dead).kill)
        await trio.to_thread.run_sync(forget_registration, cluster.uri, outcome.dead)
        await busy_ended.wait()
        await wait_healed(ours, outcome.dead)
        outcome.listed = await shell.run("listunderreplicated")
        try:
            await theirs.call("append", handle=outcome.idle.handle, data=b"still there?")
        except JavaError as error:
            outcome.idle_error = error.name
    return outcome


async def created_on(ours: LedgerClient, theirs: JavaClient, bookie: str) -> JavaLedger:
    """Returns an open ledger that has the bookie in its ensemble."""
    while True:
        ledger = await created_by_java(theirs)
        if bookie in await named_bookies(ours, ledger.ledger_id):
            return ledger
        await theirs.call("close", handle=ledger.handle)


async def fill_a_live_bookie(ours: LedgerClient, theirs: JavaClient, outcome: Outcome) -> None:
    """Has metadata name a live bookie that has nothing of the ledger, marks it, and waits."""
    ledger = outcome.hollow = await closed_by_java(theirs, ENTRIES)

    def with_another(stored: LedgerMetadata) -> LedgerMetadata:
        (fragment,) = stored.fragments
        (spare,) = {b.bookie_id for b in outcome.cluster.bookies} - {*fragment.bookies}
        bookies = (spare, *fragment.bookies[1:])
        return replace(stored, fragments=(replace(fragment, bookies=bookies),))

    metadata = await ours.ledgers.update(ledger.ledger_id, with_another)
    outcome.hollow_before = metadata
    await ours.underreplication.mark(ledger.ledger_id, metadata.last_fragment.bookies[:1])
    await wait_unmarked(ours, ledger.ledger_id)
    await check_healed(ours, ledger.ledger_id, ENTRIES)


async def keep_writing(theirs: JavaClient, outcome: Outcome, ended: trio.Event) -> None:
    assert outcome.busy is not None
    try:
        await append(theirs, outcome.busy, BUSY_ENTRIES, pause_us=BUSY_PAUSE_US)
        outcome.busy_acked = BUSY_ENTRIES
        await theirs.call("close", handle=outcome.busy.handle)
    except JavaError as error:
        # Apache's writer also gives up where it sees no bookie to replace the dead one by.
        if error.name not in ("LedgerFenced", "LedgerClosed", "NotEnoughBookies"):
            raise
        outcome.busy_acked = error.achieved.get("acked", outcome.busy_acked)
    ended.set()


@pytest.fixture
async def ours(outcome: Outcome) -> AsyncIterator[LedgerClient]:
    async with LedgerClient.connect(outcome.cluster.uri) as client:
        yield client


@pytest.fixture
async def theirs(outcome: Outcome, java_vm: GetVm, version: str) -> AsyncIterator[JavaClient]:
    async with JavaClient.open(java_vm(version), outcome.cluster.uri, waits_closed=False) as client:
        yield client


@result("closed ledgers of a dead bookie are copied, every digest, every entry, byte for byte")
async def test_closed_ledgers_are_whole_again(
    outcome: Outcome, ours: LedgerClient, theirs: JavaClient
) -> None:
    assert len(outcome.closed) == 2 * len(DIGESTS)
    for ledger in outcome.closed:
        await check_healed(ours, ledger.ledger_id, ENTRIES, dead=[outcome.dead])
        await check_read_by_java(theirs, ledger, ENTRIES)


@result("a live bookie that lacks entries is filled, also one that does not list its entries")
async def test_a_live_bookie_is_filled_in_place(
    outcome: Outcome, ours: LedgerClient, theirs: JavaClient
) -> None:
    assert outcome.hollow is not None
    assert outcome.hollow_before is not None
    filled = outcome.hollow_before.last_fragment.bookies[0]
    if filled != outcome.dead:
        assert filled in await named_bookies(ours, outcome.hollow.ledger_id)
    await check_healed(ours, outcome.hollow.ledger_id, ENTRIES, dead=[outcome.dead])
    await check_read_by_java(theirs, outcome.hollow, ENTRIES)


@result("an open ledger of a Java writer that is idle: recovered, its writer is fenced")
async def test_an_idle_writer_is_fenced(
    outcome: Outcome, ours: LedgerClient, theirs: JavaClient
) -> None:
    assert outcome.idle is not None
    assert outcome.idle_error in ("LedgerFenced", "LedgerClosed")
    await check_healed(
        ours, outcome.idle.ledger_id, IDLE_ENTRIES, dead=[outcome.dead], recovered_from=0
    )
    await check_read_by_java(theirs, outcome.idle, IDLE_ENTRIES)


@result("an open ledger being written to: continues or is recovered, nothing is lost")
async def test_a_busy_writer_loses_nothing(
    outcome: Outcome, ours: LedgerClient, theirs: JavaClient
) -> None:
    assert outcome.busy is not None
    metadata = await ours.ledger_metadata(outcome.busy.ledger_id)
    entries = metadata.last_entry_id + 1
    assert 0 < outcome.busy_acked <= entries
    await check_healed(ours, outcome.busy.ledger_id, entries, dead=[outcome.dead], recovered_from=0)
    await check_read_by_java(theirs, outcome.busy, entries)


@result("whoisauditor names it, listunderreplicated is empty after the healing")
async def test_apaches_shell_says_so(outcome: Outcome, ours: LedgerClient) -> None:
    assert "our-healer" in outcome.auditor
    assert await ours.list_ledgers()
    assert marked_count(outcome.listed) == 0
