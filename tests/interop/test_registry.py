"""The registry and the tree of a cluster: each side accepts those of the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from ledger.client import LedgerClient
from ledger.core.metadata import LedgerState
from ledger.core.placement.topology import Place
from ledger.errors import InvalidArgument, MetadataCorrupt
from ledger.metastore import open_store
from ledger.metastore.bookies import OUR_SOFTWARE, SOFTWARE_PROPERTY, BookieInfo, BookieRegistry
from ledger.metastore.layout import Layout
from tests.interop.apache_bookie import ApacheBookie
from tests.interop.conftest import GetApacheBookies, GetJava, GetVm, init_cluster
from tests.interop.our_bookies import OurBookies, wait_until_async
from tests.interop.znodes import Znode, root_of, znodes, zookeeper_client

pytestmark = pytest.mark.interop

NewRoot = Callable[[str], str]
ALONE = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}
ONE = "<bookie>"


def result(feature: str) -> pytest.MarkDecorator:
    return pytest.mark.interop_result(area="metadata", feature=feature)


@contextmanager
def our_bookie(directory: Path, uri: str) -> Iterator[OurBookies]:
    bookies = OurBookies(directory, uri)
    try:
        bookies.start(0)
        yield bookies
    finally:
        bookies.kill_all()


def anonymous(nodes: dict[str, Znode], bookie_id: str, directory: Path) -> dict[str, Znode]:
    """Returns the nodes without the parts that must differ.

    These are the bookie's name, its directories, the cluster's id, and the property that identifies
    ledgerstream bookies.
    """
    instance_id = nodes["INSTANCEID"].data
    software = b":\x18\n\x08software\x12\x0cledgerstream"
    port = _varint(int(bookie_id.rpartition(":")[2]))

    def of(znode: Znode) -> Znode:
        data = znode.data.replace(instance_id, b"<cluster>").replace(bookie_id.encode(), b"<id>")
        data = data.replace(str(directory).encode(), b"<directory>").replace(software, b"")
        return Znode(data.replace(b"\x10" + port + b"\x1a", b"<port>"), znode.is_ephemeral)

    return {name.replace(bookie_id, ONE): of(znode) for name, znode in nodes.items()}


def _varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


@result("nodes of a new cluster and its bookie: the same names and bytes")
def test_both_create_a_cluster_alike(
    java_vm: GetVm, new_root: NewRoot, version: str, tmp_path: Path
) -> None:
    """Each bookie starts in the cluster that the other side created."""
    theirs, ours = new_root("made-by-java"), new_root("made-by-us")
    init_cluster(java_vm(version), theirs)
    made_by_java = znodes(theirs)
    with our_bookie(tmp_path / "ours", theirs) as bookies:
        in_theirs = anonymous(znodes(theirs), bookies.bookie_id(0), tmp_path / "ours" / "ours-0")
    with our_bookie(tmp_path / "maker", ours) as maker:
        made_by_us = {
            name: znode for name, znode in znodes(ours).items() if maker.bookie_id(0) not in name
        }
        assert {**made_by_us, "INSTANCEID": None} == {
            **made_by_java,
            "cookies": made_by_us["cookies"],  # there since our bookie started
            "INSTANCEID": None,
        }
        assert len(made_by_us["INSTANCEID"].data) == len(made_by_java["INSTANCEID"].data) == 36
        apache = ApacheBookie(version, tmp_path / "apache", ours)
        try:
            apache.start()
            nodes = znodes(ours)
        finally:
            apache.kill()
        others = {name: znode for name, znode in nodes.items() if maker.bookie_id(0) not in name}
        in_ours = anonymous(others, apache.bookie_id, tmp_path / "apache")
    assert in_theirs == in_ours
    assert in_ours[f"available/{ONE}"].is_ephemeral
    assert not in_ours[f"cookies/{ONE}"].is_ephemeral


@result("bookies that write, that only read, that are down; their addresses")
async def test_java_sees_ledgerstream_bookies(
    java: GetJava, our_bookies: OurBookies, version: str, zookeeper_root: str
) -> None:
    ours = sorted(our_bookies.bookie_id(number) for number in our_bookies.running)
    elsewhere = BookieInfo("10.1.2.3", 4181, {"rack": "ü1"})
    async with open_store(zookeeper_root) as store:
        registry = BookieRegistry(store)
        async with (
            registry.register("archive-1", elsewhere, read_only=True),
            java(version, zookeeper_root) as client,
        ):
            seen = await client.call("bookies")
            assert seen == {"available": ours, "read_only": ["archive-1"], "all": ours}
            service = await client.call("bookie_service", bookie=ours[0])
            host, _, port = ours[0].partition(":")
            assert service["endpoints"] == [
                {"id": "bookie", "host": host, "port": int(port), "protocol": "bookie-rpc"}
            ]
            assert service["properties"] == {SOFTWARE_PROPERTY: OUR_SOFTWARE}
            service = await client.call("bookie_service", bookie="archive-1")
            (endpoint,) = service["endpoints"]
            assert (endpoint["host"], endpoint["port"]) == ("10.1.2.3", 4181)
            assert service["properties"] == {"rack": "ü1"}
        async with java(version, zookeeper_root) as client:
            assert (await client.call("bookies"))["read_only"] == []


@result("Apache's bookies, their addresses and cookies")
async def test_the_python_client_sees_apache_bookies(
    apache_bookies: GetApacheBookies, version: str
) -> None:
    cluster = apache_bookies(version, 1)
    (bookie,) = cluster.bookies
    async with open_store(cluster.uri) as store:
        registry = BookieRegistry(store)
        assert await registry.available() == {
            bookie.bookie_id: BookieInfo("127.0.0.1", bookie.port)
        }
        # It publishes no location: it is in the default rack.
        assert (await registry.candidates()).places == {bookie.bookie_id: Place("127.0.0.1")}
        assert await registry.read_only() == {}
        assert await registry.all() == [bookie.bookie_id]
        assert await registry.address(bookie.bookie_id) == ("127.0.0.1", bookie.port)
        found = await registry.read_cookie(bookie.bookie_id)
        assert found is not None
        cookie, cookie_version = found
        assert cookie_version == 0
        assert cookie.bookie_id == bookie.bookie_id
        assert cookie.instance_id == await registry.instance_id()
        assert cookie.ledger_directories == (str(bookie.settings["ledgerDirectories"]),)


@pytest.fixture(scope="module", params=["hierarchical", "longhierarchical", "flat"])
def laid_out(
    request: pytest.FixtureRequest, new_root: NewRoot, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The URI, with its layout, of a cluster with one ledgerstream bookie."""
    uri = new_root(request.param).replace("zk://", f"zk+{request.param}://")
    with our_bookie(tmp_path_factory.mktemp(request.param), uri):
        yield uri


@result("layouts hierarchical, longhierarchical and flat: ledgers, listing, deleting")
async def test_ledgers_of_every_layout_are_found_by_both(
    java: GetJava, version: str, laid_out: str
) -> None:
    layout = Layout(laid_out.partition("://")[0].removeprefix("zk+"))
    anywhere = laid_out.replace(f"zk+{layout.value}", "zk")
    async with java(version, laid_out) as client, LedgerClient.connect(anywhere) as ours:
        theirs = await client.call("create", **ALONE)
        await client.call("append", handle=theirs["handle"], data=b"from Java")
        await client.call("close", handle=theirs["handle"])
        async with ours.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as writer:
            await writer.append(b"from Python")
            await writer.flush()
            mine = writer.ledger_id
        assert mine != theirs["ledger"]
        names = {name for name in znodes(laid_out) if name.rpartition("/")[2].startswith("L")}
        for ledger_id in (mine, theirs["ledger"]):
            assert layout.path("", ledger_id)[1:] in names
        assert {mine, theirs["ledger"]} <= set(await ours.list_ledgers())
        assert await ours.list_ledgers() == sorted((await client.call("list"))["ledgers"])
        async with ours.open_ledger(theirs["ledger"]) as reader:
            assert [entry.payload for entry in await reader.read(0, 0)] == [b"from Java"]
        opened = await client.call("open", ledger=mine)
        assert await client.read(opened["handle"], 0, 0) == [b"from Python"]
        await client.call("delete", ledger=mine)
        await ours.delete_ledger(theirs["ledger"])
        assert await ours.list_ledgers() == (await client.call("list"))["ledgers"] == []


async def test_an_address_with_another_layout_is_refused(our_bookies: OurBookies) -> None:
    flat = our_bookies.uri.replace("zk://", "zk+flat://")
    before = znodes(flat)
    async with LedgerClient.connect(flat) as client:
        with pytest.raises(InvalidArgument, match="asks for flat"):
            await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
    assert znodes(flat).keys() == before.keys()


async def test_an_unknown_layout_is_not_changed(new_root: NewRoot, tmp_path: Path) -> None:
    uri = new_root("unknown")
    with zookeeper_client(uri) as zookeeper:
        layout = b"2\norg.example.LedgerManagerFactory:1"
        zookeeper.create(f"{root_of(uri)}/LAYOUT", layout, makepath=True)
    before = znodes(uri)
    with pytest.raises(AssertionError, match=r"org\.example\.LedgerManagerFactory"):
        OurBookies(tmp_path, uri).start(0)
    async with LedgerClient.connect(uri) as client:
        with pytest.raises(MetadataCorrupt, match=r"org\.example\.LedgerManagerFactory"):
            await client.list_ledgers()
    assert znodes(uri) == before


@result("ledger ids: both sides create at once; beyond 31 bits")
@pytest.mark.parametrize("high_bits", [0, 5], ids=["short", "long"])
async def test_no_ledger_id_is_allocated_twice(
    java: GetJava, version: str, high_bits: int, our_bookies: OurBookies
) -> None:
    uri = our_bookies.uri
    if high_bits:
        with zookeeper_client(uri) as zookeeper:
            zookeeper.ensure_path(f"{root_of(uri)}/idgen-long/HOB-{high_bits:010d}")
    taken: list[int] = []
    async with java(version, uri) as client, LedgerClient.connect(uri) as ours:
        # One Java client cannot allocate long ids safely from several threads.
        java_tasks = 1 if high_bits else 3

        async def by_java() -> None:
            for _ in range(30 // java_tasks):
                taken.append((await client.call("create", **ALONE))["ledger"])

        async def by_us() -> None:
            for _ in range(10):
                async with ours.create_ledger(
                    ensemble_size=1, write_quorum=1, ack_quorum=1
                ) as writer:
                    taken.append(writer.ledger_id)

        async with trio.open_nursery() as nursery:
            for _ in range(java_tasks):
                nursery.start_soon(by_java)
            for _ in range(3):
                nursery.start_soon(by_us)
        assert len(set(taken)) == len(taken) == 60
        assert {ledger_id >> 32 for ledger_id in taken} == {high_bits}
        for ledger_id in taken[:4]:
            metadata = await ours.ledger_metadata(ledger_id)
            said = await client.call("metadata", ledger=ledger_id)
            assert said["state"] == metadata.state.name
            assert metadata.state in (LedgerState.OPEN, LedgerState.CLOSED)
    await wait_until_async(
        lambda: not [name for name in znodes(uri) if name.startswith("idgen") and "ID-" in name],
        what="the nodes of counting are gone",
    )
    if high_bits:
        with zookeeper_client(uri) as zookeeper:
            zookeeper.delete(f"{root_of(uri)}/idgen-long", recursive=True)
