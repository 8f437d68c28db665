"""Apache's auditor and replication worker copy the ledgers of a dead ledgerstream bookie.

One scenario runs once per version: it has closed and open ledgers, and kills (-9) and
decommissions a bookie. The tests check the outcome.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace

import pytest
import trio

from ledger.autorecovery.copier import Copier, CopierOptions
from ledger.client import LedgerClient
from ledger.core.autorecovery.plan import with_moved_copy
from ledger.core.entry import Digest, DigestType
from ledger.core.metadata import Fragment, LedgerMetadata
from ledger.errors import LedgerClosed, LedgerError, LedgerFenced
from ledger.writing.writer import LedgerWriter
from tests.interop.apache_bookie import AutoRecovery
from tests.interop.conftest import OUR_BOOKIES, GetVm
from tests.interop.healing import named_bookies, start_from_scratch, wait_unmarked
from tests.interop.java_client import JavaClient, JavaError, JavaVm, payload
from tests.interop.our_autorecovery import QUICK, OurAutoRecovery
from tests.interop.our_bookies import OurBookies, wait_until_async
from tests.interop.replicas import read_replicas
from tests.interop.shell import Shell
from tests.interop.timeouts import PATIENCE_S
from tests.interop.znodes import (
    forget_healer,
    forget_registration,
    root_of,
    znodes,
    zookeeper_client,
)

pytestmark = pytest.mark.interop

ENTRIES = 30
SIZE = 700
PAUSE_S = 0.01
HOLLOW_ENTRIES = 5
REPLICAS_CHECK = "underreplication/replicascheckctime"


def result(feature: str) -> pytest.MarkDecorator:
    return pytest.mark.interop_result(area="auto-recovery", feature=feature)


@dataclass(slots=True)
class Outcome:
    """The outcome of the scenario with one version."""

    dead: str
    closed: dict[int, int] = field(default_factory=dict)
    """Ledgers that were closed before the bookie died, and their numbers of entries."""

    idle: int = -1
    idle_error: LedgerError | None = None
    idle_of_java: int = -1
    idle_of_java_error: str | None = None
    busy: int = -1
    busy_acked: int = 0
    busy_error: LedgerError | None = None
    hollow: int = -1
    """A ledger whose metadata has entries that no bookie has."""

    missed: tuple[str, ...] = ()
    """The bookies that our writer marked, after the only one that missed entries."""
    missed_still: list[tuple[int, str]] = field(default_factory=lambda: [(-1, "not checked")])
    missed_holders: set[str] = field(default_factory=set)
    holed: int = -1
    """A marked ledger of which a bookie has only the first and the last entry."""
    holed_at: str = ""
    holes_after_apaches_check: list[tuple[int, str]] = field(default_factory=list)
    holes_after_ours: list[tuple[int, str]] = field(default_factory=lambda: [(-1, "not checked")])

    log_before: str = ""
    said_by_decommission: str = ""
    auditor: str = ""


@pytest.fixture(scope="module")
def outcome(
    java_vm: GetVm,
    version: str,
    our_bookies: OurBookies,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Outcome]:
    start_from_scratch(our_bookies, OUR_BOOKIES)
    directory = tmp_path_factory.mktemp("autorecovery")
    auto_recovery = AutoRecovery(
        version, directory, our_bookies.uri, auditorReplicasCheckInterval=2
    )
    try:
        yield trio.run(run_scenario, java_vm(version), our_bookies, auto_recovery)
    finally:
        auto_recovery.kill()


async def run_scenario(vm: JavaVm, bookies: OurBookies, auto_recovery: AutoRecovery) -> Outcome:
    port = int(bookies.bookie_id(0).rpartition(":")[2])
    shell = Shell(vm, bookies.uri, auto_recovery.directory, port)
    async with (
        LedgerClient.connect(bookies.uri) as ours,
        JavaClient.open(vm, bookies.uri) as theirs,
        trio.open_nursery() as nursery,
    ):
        for ledger_id in await ours.list_ledgers():
            await ours.delete_ledger(ledger_id)
        missed, missed_by = await ledger_that_a_bookie_missed(ours, bookies)
        idle, busy = await new_writer(ours), await new_writer(ours)
        shared = set(idle.metadata.last_fragment.bookies) & {*busy.metadata.last_fragment.bookies}
        outcome = Outcome(dead=min(shared), idle=idle.ledger_id, busy=busy.ledger_id)
        for write_quorum in (3, 2):
            for _ in range(2):
                outcome.closed[await closed_by_java(theirs, write_quorum)] = ENTRIES
                outcome.closed[await closed_by_us(ours, write_quorum)] = ENTRIES
        await idle.append_many([payload(idle.ledger_id, i, SIZE) for i in range(ENTRIES)])
        theirs_idle = await idle_writer_of_java(theirs, outcome)
        outcome.hollow = await hollow_ledger(ours, outcome)
        await make_holes(ours, outcome)

        auto_recovery.start()
        outcome.missed = missed_by
        await see_marks_acted_on(ours, outcome, missed)
        await wait_until_async(
            lambda: REPLICAS_CHECK in znodes(bookies.uri),
            what="the auditor has compared what the bookies hold",
        )
        outcome.log_before = auto_recovery.log.read_text()
        await ours.delete_ledger(outcome.hollow)
        outcome.auditor = await shell.run("whoisauditor")

        stop = trio.Event()
        nursery.start_soon(keep_writing, busy, outcome, stop)
        await trio.sleep(20 * PAUSE_S)
        bookies.kill(bookies.number_of(outcome.dead))
        await trio.to_thread.run_sync(forget_registration, bookies.uri, outcome.dead)
        # Returns when no ledger needs the bookie any more, after 30 s or more.
        with trio.fail_after(PATIENCE_S):
            command = "decommissionbookie", "-bookieid", outcome.dead
            outcome.said_by_decommission = await shell.run(*command)
        stop.set()
        try:
            await idle.append(payload(idle.ledger_id, ENTRIES, SIZE))
            await idle.close()
        except LedgerError as error:
            outcome.idle_error = error
        try:
            await theirs.call("append", handle=theirs_idle, data=b"still there?")
        except JavaError as error:
            outcome.idle_of_java_error = error.name
        await check_entries_by_ours(ours, auto_recovery, outcome)
    return outcome


async def ledger_that_a_bookie_missed(
    ours: LedgerClient, bookies: OurBookies
) -> tuple[int, tuple[str, ...]]:
    """Returns a closed ledger of which a bookie that was down for a while lacks entries, and the
    bookie and those that its writer has marked. Meanwhile there is no bookie to replace it."""
    writer = await new_writer(ours)
    ledger_id, ensemble = writer.ledger_id, writer.metadata.last_fragment.bookies
    await writer.append_many([payload(ledger_id, i, SIZE) for i in range(ENTRIES)])
    (spare,) = {*await ours.bookies.available()} - {*ensemble}
    numbers = [bookies.number_of(one) for one in (spare, ensemble[0])]
    for number in numbers:
        bookies.kill(number)
    await writer.append_many([payload(ledger_id, i, SIZE) for i in range(ENTRIES, 2 * ENTRIES)])
    await writer.close()
    await trio.to_thread.run_sync(bookies.start, *numbers)
    with trio.fail_after(PATIENCE_S):
        while (mark := await ours.underreplication.read(ledger_id)) is None:  # noqa: ASYNC110
            await trio.sleep(0.05)
    assert await missing_copies(ours, ledger_id), "the bookie missed nothing"
    return ledger_id, (ensemble[0], *mark.replicas)


async def missing_copies(ours: LedgerClient, ledger_id: int) -> list[tuple[int, str]]:
    """Returns the entries of a closed ledger that a bookie of their write set lacks, and it."""
    replicas = await read_replicas(ours.pool, await ours.ledger_metadata(ledger_id))
    return [
        (each.entry_id, bookie)
        for each in replicas
        for bookie, body in each.by_bookie.items()
        if body is None
    ]


async def make_holes(ours: LedgerClient, outcome: Outcome) -> None:
    """Makes a ledger of which a bookie lacks all but the ends, and marks it as a writer would."""
    while True:
        ledger_id = await closed_by_us(ours, 3)
        outcome.closed[ledger_id] = ENTRIES
        metadata = await ours.ledger_metadata(ledger_id)
        (fragment,) = metadata.fragments
        if outcome.dead in fragment.bookies:
            break
    (holed_at,) = {*await ours.bookies.available()} - {*fragment.bookies}
    async with Copier(ours, CopierOptions()) as copier:
        report = await copier.copy(metadata, holed_at, [(0, 0), (ENTRIES - 1, ENTRIES - 1)])
    assert report.is_complete
    replaced = next(one for one in fragment.bookies if one != outcome.dead)
    await ours.ledgers.update(
        ledger_id, lambda stored: with_moved_copy(stored, 0, replaced, holed_at) or stored
    )
    await ours.underreplication.mark(ledger_id, [holed_at])
    outcome.holed, outcome.holed_at = ledger_id, holed_at


async def see_marks_acted_on(ours: LedgerClient, outcome: Outcome, missed: int) -> None:
    await wait_unmarked(ours, missed)
    await wait_unmarked(ours, outcome.holed)
    outcome.missed_still = await missing_copies(ours, missed)
    outcome.missed_holders = await named_bookies(ours, missed)
    await ours.delete_ledger(missed)
    outcome.holes_after_apaches_check = await missing_copies(ours, outcome.holed)


async def check_entries_by_ours(ours: LedgerClient, theirs: AutoRecovery, outcome: Outcome) -> None:
    """Replaces Apache's auto-recovery by ours, whose weekly check is due."""
    await trio.to_thread.run_sync(theirs.kill)
    uri = theirs.uri
    await trio.to_thread.run_sync(forget_healer, uri, theirs.bookie_id)
    with zookeeper_client(uri) as zookeeper:
        zookeeper.delete(f"{root_of(uri)}/{REPLICAS_CHECK}")
    healer = OurAutoRecovery(theirs.directory, uri, name="our-healer", **QUICK)
    try:
        await trio.to_thread.run_sync(healer.start)
        await wait_until_async(
            lambda: REPLICAS_CHECK in znodes(uri), what="our auditor has asked all bookies"
        )
        await wait_unmarked(ours, outcome.holed)
    finally:
        healer.kill()
    outcome.holes_after_ours = await missing_copies(ours, outcome.holed)


async def new_writer(ours: LedgerClient) -> LedgerWriter:
    return await ours.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)


async def keep_writing(writer: LedgerWriter, outcome: Outcome, stop: trio.Event) -> None:
    try:
        while not stop.is_set():
            await writer.append(payload(writer.ledger_id, outcome.busy_acked, SIZE))
            outcome.busy_acked += 1
            await trio.sleep(PAUSE_S)
        await writer.close()
    except LedgerError as error:
        outcome.busy_error = error


async def closed_by_java(theirs: JavaClient, write_quorum: int) -> int:
    made = await theirs.call("create", ensemble=3, write_quorum=write_quorum, ack_quorum=2)
    ledger: int = made["ledger"]
    await theirs.call("append_many", handle=made["handle"], seed=ledger, count=ENTRIES, size=SIZE)
    await theirs.call("close", handle=made["handle"])
    return ledger


async def idle_writer_of_java(theirs: JavaClient, outcome: Outcome) -> int:
    """Returns the handle of an open ledger that has the bookie in its ensemble."""
    while True:
        made = await theirs.call("create", ensemble=3, write_quorum=3, ack_quorum=2)
        ledger: int = made["ledger"]
        metadata = await theirs.call("metadata", ledger=ledger)
        if outcome.dead in metadata["fragments"][0]["bookies"]:
            break
        await theirs.call("close", handle=made["handle"])
        outcome.closed[ledger] = 0
    await theirs.call("append_many", handle=made["handle"], seed=ledger, count=ENTRIES, size=SIZE)
    outcome.idle_of_java = ledger
    handle: int = made["handle"]
    return handle


async def closed_by_us(ours: LedgerClient, write_quorum: int) -> int:
    async with ours.create_ledger(
        ensemble_size=3, write_quorum=write_quorum, ack_quorum=2
    ) as writer:
        await writer.append_many([payload(writer.ledger_id, i, SIZE) for i in range(ENTRIES)])
    return writer.ledger_id


async def hollow_ledger(ours: LedgerClient, outcome: Outcome) -> int:
    ledger_id = await ours.ledgers.next_ledger_id()
    living = [bookie for bookie in await ours.bookies.all() if bookie != outcome.dead]
    metadata = LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        fragments=(Fragment(0, tuple(living[:3])),),
        digest_type=DigestType.CRC32C,
    )
    await ours.ledgers.create(replace(metadata).closed(HOLLOW_ENTRIES - 1, 50))
    return ledger_id


@pytest.fixture
async def ours(outcome: Outcome, our_bookies: OurBookies) -> AsyncIterator[LedgerClient]:
    async with LedgerClient.connect(our_bookies.uri) as client:
        yield client


async def check_whole(ours: LedgerClient, ledger_id: int, entries: int, dead: str) -> None:
    """Checks that every entry is on all bookies of its write set, and not on the dead one."""
    metadata = await ours.ledger_metadata(ledger_id)
    assert metadata.is_closed
    assert metadata.last_entry_id == entries - 1
    assert dead not in {bookie for fragment in metadata.fragments for bookie in fragment.bookies}
    digest = Digest(metadata.digest_type or DigestType.CRC32C, metadata.password)
    replicas = await read_replicas(ours.pool, metadata)
    assert len(replicas) == entries
    for each in replicas:
        assert len(each.by_bookie) == metadata.write_quorum
        for bookie, body in each.by_bookie.items():
            assert body is not None, f"entry {each.entry_id} of {ledger_id} is not on {bookie}"
            entry = digest.decode_entry(ledger_id, each.entry_id, body)
            assert entry.payload == payload(ledger_id, each.entry_id, SIZE)
            assert entry.length == (each.entry_id + 1) * SIZE


@result("closed ledgers of a dead bookie are copied, every entry, byte for byte")
async def test_closed_ledgers_are_fully_replicated_again(
    outcome: Outcome, ours: LedgerClient
) -> None:
    assert len(outcome.closed) >= 8
    for ledger_id, entries in outcome.closed.items():
        await check_whole(ours, ledger_id, entries, outcome.dead)


@result("an open ledger without a running writer: recovered, its writer is fenced")
async def test_an_idle_java_writer_gets_an_error(outcome: Outcome, ours: LedgerClient) -> None:
    assert outcome.idle_of_java_error in ("LedgerFenced", "LedgerClosed")
    await check_whole(ours, outcome.idle_of_java, ENTRIES, outcome.dead)


@result("an idle writer of ours: replaces the bookie itself, or gets an error")
async def test_an_idle_python_writer_continues_or_gets_an_error(
    outcome: Outcome, ours: LedgerClient
) -> None:
    if outcome.idle_error is None:
        await check_whole(ours, outcome.idle, ENTRIES + 1, outcome.dead)
    else:
        assert isinstance(outcome.idle_error, LedgerFenced | LedgerClosed)
        await check_whole(ours, outcome.idle, ENTRIES, outcome.dead)


@result("an open ledger being written to: continues or is recovered, nothing is lost")
async def test_a_busy_writer_loses_nothing(outcome: Outcome, ours: LedgerClient) -> None:
    assert outcome.busy_acked > 20
    assert outcome.busy_error is None or isinstance(outcome.busy_error, LedgerFenced | LedgerClosed)
    metadata = await ours.ledger_metadata(outcome.busy)
    # An entry in flight at the end of the writer may be stored.
    assert metadata.last_entry_id in (outcome.busy_acked - 1, outcome.busy_acked)
    await check_whole(ours, outcome.busy, metadata.last_entry_id + 1, outcome.dead)


@result("a mark of our writer: Apache's worker copies what the bookie missed to another one")
def test_what_a_bookie_missed_is_copied(outcome: Outcome) -> None:
    away, *marked = outcome.missed
    assert marked == [away]
    assert outcome.missed_still == []
    assert away not in outcome.missed_holders


@result("holes between the ends of a fragment: not found by Apache's worker, but by our check")
async def test_holes_are_found_by_our_check_of_entries(
    outcome: Outcome, ours: LedgerClient
) -> None:
    holes = [(entry_id, outcome.holed_at) for entry_id in range(1, ENTRIES - 1)]
    assert outcome.holes_after_apaches_check == holes
    assert outcome.holes_after_ours == []
    await check_whole(ours, outcome.holed, ENTRIES, outcome.dead)


@result("decommissionbookie, whoisauditor")
async def test_the_bookie_is_decommissioned(
    outcome: Outcome, ours: LedgerClient, our_bookies: OurBookies
) -> None:
    assert "127.0.0.1" in outcome.auditor
    assert "properly replicated" in outcome.said_by_decommission
    assert outcome.dead not in await ours.bookies.all()
    nodes = znodes(our_bookies.uri)
    assert f"cookies/{outcome.dead}" not in nodes
    assert not [name for name in nodes if name.rpartition("/")[2].startswith("urL")]


@result("replicas check over the bookies' lists of entries")
def test_the_replicas_check_finds_exactly_the_missing_entries(outcome: Outcome) -> None:
    said = [line for line in outcome.log_before.splitlines() if "missing all replicas" in line]
    assert said
    assert all(str(outcome.hollow) in line.split() or f"={outcome.hollow}" in line for line in said)
    assert "Unable to GetListOfEntries" not in outcome.log_before
