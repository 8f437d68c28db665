"""Apache's `bookkeeper shell` administers a cluster of ledgerstream bookies like its own."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trio

from ledger.client import LedgerClient
from ledger.core.metadata import LedgerMetadata
from ledger.core.metadata_format import decode, encode
from ledger.errors import NoSuchNode
from ledger.metastore import open_store
from ledger.metastore.bookies import BookieInfo, BookieRegistry
from tests.clusters import make_cluster
from tests.interop.conftest import OUR_BOOKIES, GetJava, GetVm
from tests.interop.java_client import JavaClient, JavaError
from tests.interop.our_bookies import OurBookies
from tests.interop.results import not_supported
from tests.interop.shell import Shell, numbers
from tests.interop.znodes import forget_registration, root_of, znodes, zookeeper_client

pytestmark = pytest.mark.interop

ENTRIES = 20
LIVING_SETTINGS = {"ensemble": 3, "write_quorum": 3, "ack_quorum": 2}
Ledger = tuple[int, list[bytes]]
"""Creates a ledger; returns its id and its entries."""


def result(feature: str) -> pytest.MarkDecorator:
    return pytest.mark.interop_result(area="bookkeeper shell", feature=feature)


@pytest.fixture
async def ours(our_bookies: OurBookies) -> AsyncIterator[LedgerClient]:
    """A client of the cluster, in which all bookies run and there are no ledgers."""
    await trio.to_thread.run_sync(our_bookies.start_missing, OUR_BOOKIES)
    async with LedgerClient.connect(our_bookies.uri) as client:
        for ledger_id in await client.list_ledgers():
            await client.delete_ledger(ledger_id)
        yield client


@pytest.fixture
async def theirs(java: GetJava, version: str, our_bookies: OurBookies) -> AsyncIterator[JavaClient]:
    async with java(version, our_bookies.uri) as client:
        yield client


@pytest.fixture
def shell(java_vm: GetVm, version: str, our_bookies: OurBookies, tmp_path: Path) -> Shell:
    """A shell as on the machine of the first ledgerstream bookie."""
    port = int(our_bookies.bookie_id(0).rpartition(":")[2])
    return Shell(java_vm(version), our_bookies.uri, tmp_path, port)


async def ledger_of_java(client: JavaClient, **settings: int) -> Ledger:
    made = await client.call("create", **{**LIVING_SETTINGS, **settings})
    entries = [f"entry {number} of Java".encode() * (number + 1) for number in range(ENTRIES)]
    for entry in entries:
        await client.call("append", handle=made["handle"], data=entry)
    await client.call("close", handle=made["handle"])
    return made["ledger"], entries


async def ledger_of_ours(client: LedgerClient, write_quorum: int = 3) -> Ledger:
    entries = [f"entry {number} of Python".encode() * (number + 1) for number in range(ENTRIES)]
    async with client.create_ledger(
        write_quorum=write_quorum, ack_quorum=2, custom={"application": b"\xffshell"}
    ) as writer:
        await writer.append_many(entries)
    return writer.ledger_id, entries


async def check_read_by_both(ours: LedgerClient, theirs: JavaClient, ledger: Ledger) -> None:
    ledger_id, entries = ledger
    async with ours.open_ledger(ledger_id, recover=False) as reader:
        assert reader.is_closed
        assert [bytes(e.payload) for e in await reader.read(0, len(entries) - 1)] == entries
    opened = await theirs.call("open", ledger=ledger_id, recovery=False)
    assert await theirs.read(opened["handle"], 0, len(entries) - 1) == entries


@result("simpletest")
async def test_simpletest(shell: Shell, ours: LedgerClient) -> None:
    said = await shell.run("simpletest", "-e", 3, "-w", 3, "-a", 2, "-n", 50)
    assert "50 entries written to ledger" in said
    assert await ours.list_ledgers() == []  # it cleans up


@result("bookiesanity")
async def test_bookiesanity(shell: Shell) -> None:
    assert "Bookie sanity test succeeded" in await shell.run("bookiesanity", "-e", 20)


@result("listbookies -rw, -ro, -a, -h")
async def test_listbookies(shell: Shell, our_bookies: OurBookies, ours: LedgerClient) -> None:
    living = {our_bookies.bookie_id(number) for number in our_bookies.running}
    archive = "127.0.0.1:1"

    def listed(said: str) -> set[str]:
        return set(re.findall(r"BookieID:([^,]+), IP:127\.0\.0\.1, Port:", said))

    async with ours.bookies.register(archive, BookieInfo("127.0.0.1", 1), read_only=True):
        assert listed(await shell.run("listbookies", "-rw", "-h")) == living
        assert listed(await shell.run("listbookies", "-ro", "-h")) == {archive}
        assert listed(await shell.run("listbookies", "-a", "-h")) == living
    assert "No bookie exists" in await shell.run("listbookies", "-ro")


@result("listledgers, -m, -bookieid; ledgermetadata")
async def test_ledgers_and_their_metadata(
    shell: Shell, ours: LedgerClient, theirs: JavaClient
) -> None:
    ledgers = [await ledger_of_java(theirs), await ledger_of_ours(ours)]
    ids = sorted(ledger_id for ledger_id, _ in ledgers)
    assert sorted(numbers(await shell.run("listledgers"), "ledgerID", "ledgerId")) == ids
    said = await shell.run("listledgers", "-m")
    for ledger_id in ids:
        metadata = await ours.ledger_metadata(ledger_id)
        assert as_printed(metadata) in said
        alone = await shell.run("ledgermetadata", "-l", ledger_id)
        assert as_printed(metadata) in alone
        assert numbers(alone, "ledgerID", "ledgerId") == [ledger_id]
    assert "customMetadata={}" in said
    assert "application=base64:/3NoZWxs" in said
    holders = {ledger_id: (await ours.ledger_metadata(ledger_id)).fragments for ledger_id in ids}
    for bookie in await ours.bookies.all():
        held = [i for i, fragments in holders.items() if bookie in fragments[0].bookies]
        listing = await shell.run("listledgers", "-bookieid", bookie)
        assert sorted(numbers(listing, "ledgerID", "ledgerId")) == held


def as_printed(metadata: LedgerMetadata) -> str:
    (fragment,) = metadata.fragments
    return (
        f"ensembleSize={metadata.ensemble_size}, writeQuorumSize={metadata.write_quorum}, "
        f"ackQuorumSize={metadata.ack_quorum}, state=CLOSED, length={metadata.length}, "
        f"lastEntryId={metadata.last_entry_id}, digestType=CRC32C, password=base64:, "
        f"ensembles={{0=[{', '.join(fragment.bookies)}]}}"
    )


@result("ledgermetadata -dumptofile, -restorefromfile, -update; deleteledger")
async def test_metadata_is_dumped_and_restored(
    shell: Shell, ours: LedgerClient, tmp_path: Path
) -> None:
    ledger_id, _ = await ledger_of_ours(ours)
    dump = tmp_path / "metadata"
    await shell.run("ledgermetadata", "-l", ledger_id, "-dumptofile", dump)
    stored = await ours.ledger_metadata(ledger_id)
    assert decode(ledger_id, dump.read_bytes()).custom == stored.custom

    assert ledger_id in await ours.list_ledgers()
    await shell.run("deleteledger", "-f", "-l", ledger_id)
    assert await ours.list_ledgers() == []
    await shell.run("ledgermetadata", "-l", ledger_id, "-restorefromfile", dump)
    restored = await ours.ledger_metadata(ledger_id)
    assert (restored.fragments, restored.last_entry_id) == (stored.fragments, ENTRIES - 1)
    assert restored.custom == stored.custom

    forged = decode(ledger_id, dump.read_bytes())
    dump.write_bytes(encode(forged).replace(b"\xffshell", b"\xffSHELL"))
    await shell.run("ledgermetadata", "-l", ledger_id, "-restorefromfile", dump, "-update")
    assert (await ours.ledger_metadata(ledger_id)).custom["application"] == b"\xffSHELL"
    await ours.delete_ledger(ledger_id)


@result("readledger, also -m, and -b of one bookie")
async def test_readledger(shell: Shell, ours: LedgerClient, theirs: JavaClient) -> None:
    for ledger_id, entries in (await ledger_of_java(theirs), await ledger_of_ours(ours)):
        said = await shell.run("readledger", "-l", ledger_id, "-fe", 0, "-le", ENTRIES - 1)
        assert numbers(said, "Eid", "entryId") == list(range(ENTRIES))
        lengths = [sum(map(len, entries[: number + 1])) for number in range(ENTRIES)]
        assert numbers(said, "EntrySize", "entrySize") == lengths
        said = await shell.run("readledger", "-l", ledger_id, "-fe", 3, "-le", 5, "-m")
        assert [entry.decode() in said for entry in entries[:7]] == [
            False, False, False, True, True, True, False
        ]  # fmt: skip
        for bookie in (await ours.ledger_metadata(ledger_id)).last_fragment.bookies:
            said = await read_from(shell, ledger_id, bookie)
            assert set(range(9)) <= set(numbers(said, "Eid", "entryId"))


async def read_from(shell: Shell, ledger_id: int, bookie: str) -> str:
    """Runs a command that may fail in its own shutdown, after all of its output."""
    for _ in range(10):
        try:
            return await shell.run("readledger", "-l", ledger_id, "-fe", 0, "-le", 9, "-b", bookie)
        except JavaError as error:
            if "Executor is shutting down" not in error.message:
                raise
    raise AssertionError("the command never came to its end")


@result("whatisinstanceid, cookie_get, endpointinfo")
async def test_facts_of_the_cluster(
    shell: Shell, our_bookies: OurBookies, ours: LedgerClient
) -> None:
    said = await shell.run("whatisinstanceid")
    assert await ours.bookies.instance_id() in said
    for number in range(OUR_BOOKIES):
        bookie = our_bookies.bookie_id(number)
        cookie = znodes(our_bookies.uri)[f"cookies/{bookie}"].data.decode()
        assert cookie in await shell.run("cookie_get", bookie)
        said = await shell.run("endpointinfo", "-b", bookie)
        for word in (bookie, "bookie-rpc", "127.0.0.1", "software", "ledgerstream"):
            assert word in said


@result("bookieinfo")
async def test_bookieinfo(shell: Shell, our_bookies: OurBookies) -> None:
    said = await shell.run("bookieinfo")
    # The free space may change between the responses of two bookies, the total does not.
    total = shutil.disk_usage(our_bookies.directory).total
    sizes = re.findall(r"[Tt]otal(?:: |=)(\d+)\(", said)
    assert [int(size) for size in sizes[:OUR_BOOKIES]] == [total] * OUR_BOOKIES
    for number in range(OUR_BOOKIES):
        assert our_bookies.bookie_id(number) in said


@result("clusterinfo")
async def test_clusterinfo(shell: Shell, ours: LedgerClient) -> None:
    if shell.version.startswith("4.16."):
        not_supported("the shell has no such command")
    archive = ours.bookies.register("127.0.0.1:1", BookieInfo("127.0.0.1", 1), read_only=True)
    async with archive:
        said = await shell.run("clusterinfo")
    assert re.search(r'"totalBookiesCount" : 4\b', said)
    assert re.search(r'"writableBookiesCount" : 4\b', said)
    assert re.search(r'"readonlyBookiesCount" : 1\b', said)


@result("updateBookieInLedger")
async def test_a_bookie_is_renamed_in_all_ledgers(
    shell: Shell, our_bookies: OurBookies, ours: LedgerClient, theirs: JavaClient
) -> None:
    ledgers = [await ledger_of_java(theirs), await ledger_of_ours(ours)]
    before = {i: await ours.ledger_metadata(i) for i, _ in ledgers}
    old, new = before[ledgers[1][0]].last_fragment.bookies[1], "moved-bookie"
    number = our_bookies.number_of(old)

    async def rename(one: str, other: str) -> None:
        await shell.run("updateBookieInLedger", "-sb", one, "-db", other, "-s", 1000)

    await kill(our_bookies, number)
    await rename(old, new)
    for ledger_id, metadata in before.items():
        expected = tuple(new if b == old else b for b in metadata.last_fragment.bookies)
        renamed = await ours.ledger_metadata(ledger_id)
        assert renamed.last_fragment.bookies == expected
        assert renamed.custom == metadata.custom
    await trio.to_thread.run_sync(our_bookies.start, number)
    await rename(new, old)
    for ledger in ledgers:
        await check_read_by_both(ours, theirs, ledger)


async def kill(our_bookies: OurBookies, number: int) -> None:
    """Kills a bookie with -9; returns when its registration is deleted."""
    our_bookies.kill(number)
    bookie_id = our_bookies.bookie_id(number)
    await trio.to_thread.run_sync(forget_registration, our_bookies.uri, bookie_id)


@result("recover -q, -dr, -d: a dead bookie's ledgers go to others, and its cookie goes")
async def test_recover(
    shell: Shell, our_bookies: OurBookies, ours: LedgerClient, theirs: JavaClient
) -> None:
    ledgers = [
        await ledger_of_java(theirs),
        await ledger_of_java(theirs, write_quorum=2),
        await ledger_of_ours(ours),
        await ledger_of_ours(ours, write_quorum=2),
    ]
    before = {i: await ours.ledger_metadata(i) for i, _ in ledgers}
    dead = before[ledgers[2][0]].last_fragment.bookies[0]
    number = our_bookies.number_of(dead)
    held = sorted(i for i, metadata in before.items() if dead in metadata.last_fragment.bookies)
    await kill(our_bookies, number)
    said = await shell.run("recover", "-f", "-q", dead)
    assert sorted(map(int, re.findall(r"ledger (?:\{key=)?(\d+)", said))) == held
    await shell.run("recover", "-f", "-dr", dead)
    assert {i: await ours.ledger_metadata(i) for i in before} == before

    await shell.run("recover", "-f", "-d", dead)
    for ledger in ledgers:
        metadata = await ours.ledger_metadata(ledger[0])
        assert dead not in {b for fragment in metadata.fragments for b in fragment.bookies}
        assert (metadata.length, metadata.custom) == (
            before[ledger[0]].length,
            before[ledger[0]].custom,
        )
        await check_read_by_both(ours, theirs, ledger)
    assert dead not in await ours.bookies.all()

    # With its disk the bookie is refused now; with an empty disk it is a new bookie.
    with pytest.raises(AssertionError, match="the cluster does not know bookie"):
        await trio.to_thread.run_sync(our_bookies.start, number)
    shutil.rmtree(our_bookies.directory / f"ours-{number}")
    await trio.to_thread.run_sync(our_bookies.start, number)
    assert dead in await ours.bookies.available()


@result("initnewcluster, metaformat, nukeexistingcluster")
async def test_clusters_are_created_and_removed(
    java_vm: GetVm, new_root: Callable[[str], str], version: str, tmp_path: Path
) -> None:
    uri = new_root("nuked")
    root = root_of(uri)
    with zookeeper_client(uri) as zookeeper:
        zookeeper.ensure_path(root.rpartition("/")[0])
    shell = Shell(java_vm(version), uri, tmp_path)
    await shell.run("initnewcluster")
    async with open_store(uri, may_create=True) as store:  # bound to no cluster
        registry = BookieRegistry(store)
        first = await registry.instance_id()
        await shell.run("metaformat", "-n", "-f")
        second = await registry.instance_id()
        assert second != first
        await shell.run("nukeexistingcluster", "-p", root, "-i", second)
        with pytest.raises(NoSuchNode):
            await registry.instance_id()

    made = await make_cluster(uri)  # and one created by ledgerstream
    async with LedgerClient.connect(uri) as client:
        with pytest.raises(AssertionError):
            await shell.run("nukeexistingcluster", "-p", root, "-i", first)
        assert await client.bookies.instance_id() == made
        await shell.run("nukeexistingcluster", "-p", root, "-i", made)
        with zookeeper_client(uri) as zookeeper:
            assert zookeeper.exists(root) is None
