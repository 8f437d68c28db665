"""A whole Pulsar broker on ledgerstream bookies, in a cluster that Pulsar's own program created.

The broker uses Pulsar's metadata driver and wire v2, its defaults. The Python client also reads
what the broker has written, without disturbing it. The cluster begins in clear, and the first test
switches it to TLS, with certificates on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from ledger.client import LedgerClient
from ledger.core.entry import DigestType
from ledger.options import ClientOptions
from tests.interop.our_bookies import OurBookies
from tests.interop.pulsar.processes import PROGRAM, Broker, Driver, digest_of, payload
from tests.interop.security import TLS_FACTORY, Certificates
from tests.interop.timeouts import PATIENCE_S

pytestmark = [pytest.mark.interop, pytest.mark.zookeeper]

AREA = "Pulsar, our bookies"
BOOKIES = 4
SIZE = 200
FRAME_BYTES_MAX = 5_253_120
"""As Pulsar configures its bookies: a frame is larger than the largest message, 5 MiB."""
LARGE = 5 * 1024 * 1024 - 100


class Cluster:
    """Ledgerstream bookies, a broker on them and a client program."""

    def __init__(self, directory: Path, uri: str) -> None:
        self.uri = uri
        self.directory = directory
        self.bookies = OurBookies(directory, uri, frame_bytes_max=FRAME_BYTES_MAX)
        # Consumed messages stay, so that they can be read again.
        self.broker = Broker(
            directory,
            uri.removeprefix("zk://").removesuffix("/ledgers"),
            defaultRetentionTimeInMinutes=-1,
            defaultRetentionSizeInMB=-1,
        )
        self.client: Driver | None = None
        self.options: ClientOptions | None = None
        """Of a Python client; None before the cluster is encrypted."""

    def start(self) -> None:
        self.broker.init_cluster()
        self.bookies.start_missing(BOOKIES)
        self.broker.start()
        self.client = Driver("PulsarClientDriver", self.directory / "client.log", self.broker.url)

    def encrypt(self) -> None:
        """Starts bookies and broker again, after kills: they no longer serve what is in clear."""
        if self.options is not None:
            return
        certificates = Certificates(self.directory)
        self.broker.kill()
        self.bookies.kill_all()
        self.bookies.change(
            tls_required=True, tls_client_certificate="required", **certificates.of_our_bookie()
        )
        self.bookies.start_missing(BOOKIES)
        own, key = certificates.client
        self.broker.settings |= {
            "bookkeeperTLSProviderFactoryClass": TLS_FACTORY,
            "bookkeeperTLSClientAuthentication": True,
            "bookkeeperTLSCertificateFilePath": own,
            "bookkeeperTLSKeyFileType": "PEM",
            "bookkeeperTLSKeyFilePath": key,
            "bookkeeperTLSTrustCertTypes": "PEM",
            "bookkeeperTLSTrustCertsFilePath": certificates.authority.file,
        }
        self.broker.start()
        self.options = ClientOptions(**certificates.of_our_client(own=certificates.client))

    async def call(self, op: str, **arguments: Any) -> dict[str, Any]:
        assert self.client is not None
        return await self.client.call(op, **arguments)

    def end(self) -> None:
        if self.client is not None:
            self.client.close()
        self.broker.kill()
        self.bookies.kill_all()


@pytest.fixture(scope="module")
def started(
    new_root: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("pulsar"), new_root("pulsar"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()


@pytest.fixture
def clear(started: Cluster) -> Cluster:
    """The module's cluster, with all of its bookies running; in clear if no test ran before."""
    started.bookies.start_missing(BOOKIES)
    return started


@pytest.fixture
def cluster(clear: Cluster) -> Cluster:
    """The module's cluster, with TLS."""
    clear.encrypt()
    return clear


def result(feature: str) -> pytest.MarkDecorator:
    return pytest.mark.interop_result(area=AREA, feature=feature, wire="v2", program=PROGRAM)


async def ledgers_of(cluster: Cluster, topic: str) -> list[int]:
    """Returns the ledgers of a topic, oldest first, as reported by the broker."""
    path = f"persistent/public/default/{topic}/internalStats"
    stats = await cluster.broker.admin("GET", path)
    return [ledger["ledgerId"] for ledger in stats["ledgers"]]


def message_of(entry: bytes) -> bytes:
    """Returns the message in a Pulsar entry that is neither a batch nor compressed.

    These are the last bytes, after the message's own metadata.
    """
    assert entry[:2] == b"\x0e\x01", "begins with Pulsar's mark of a checksum"
    return entry[-SIZE:]


@result("broker: produce, consume; a bookie is killed, then all, which is started again with TLS")
async def test_messages_survive_kills_and_the_switch_to_tls(clear: Cluster) -> None:
    topic = "persistent://public/default/outlives"
    await clear.call("subscribe", topic=topic, subscription="s")
    produced = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kill_a_bookie, clear, "outlives")
        while produced < 4000 or len(clear.bookies.running) == BOOKIES:
            await clear.call("produce", topic=topic, first=produced, count=1000, size=SIZE)
            produced += 1000
    consumed = await clear.call("consume", topic=topic, count=produced)
    assert consumed["sha256"] == digest_of(0, produced, SIZE)

    await clear.call("produce", topic=topic, first=produced, count=1000, size=SIZE)
    await trio.to_thread.run_sync(clear.encrypt)
    await clear.call("produce", topic=topic, first=produced + 1000, count=1000, size=SIZE)
    # A subscription may get unacknowledged messages again; a reader gets each message once.
    whole = await clear.call("read", topic=topic)
    assert whole["numbers"] == list(range(produced + 2000))
    assert whole["sha256"] == digest_of(0, produced + 2000, SIZE)


async def kill_a_bookie(cluster: Cluster, topic: str) -> None:
    """Kills a bookie when the broker has begun to write the topic."""
    path = f"persistent/public/default/{topic}/stats"
    while True:
        stats = await cluster.broker.admin("GET", path)
        if stats["msgInCounter"] > 500:
            break
        await trio.sleep(0.01)
    cluster.bookies.kill(0)


@result("broker over TLS: topic unloaded and loaded, schema, compaction, deletion")
async def test_topic_operations_of_a_broker(cluster: Cluster) -> None:
    topic = "persistent://public/default/keys"
    await cluster.call("produce", topic=topic, first=0, count=500, size=SIZE, keys=10)
    await cluster.broker.admin("PUT", "persistent/public/default/keys/unload")
    await cluster.call("produce", topic=topic, first=500, count=500, size=SIZE, keys=10)

    path = "persistent/public/default/keys/compaction"
    await cluster.broker.admin("PUT", path)
    with trio.fail_after(PATIENCE_S):
        while True:
            compaction = await cluster.broker.admin("GET", path)
            if compaction["status"] != "RUNNING":
                break
            await trio.sleep(0.1)
    assert compaction["status"] == "SUCCESS", compaction
    compacted = await cluster.call("read", topic=topic, compacted=True)
    assert compacted["numbers"] == list(range(990, 1000))

    for number in (1, 2):
        with_schema = "persistent://public/default/clicks"
        clicks = await cluster.call("clicks", topic=with_schema, number=number)
        await cluster.broker.admin("PUT", "persistent/public/default/clicks/unload")
    assert clicks["numbers"] == [1, 2]

    async with LedgerClient.connect(cluster.uri, options=cluster.options) as client:
        ledgers = await ledgers_of(cluster, "keys")
        assert set(ledgers) <= set(await client.list_ledgers())
        digests = {(await client.ledger_metadata(i)).digest_type for i in ledgers}
        assert digests == {DigestType.CRC32C}
        await cluster.call("close", topic=topic)
        await cluster.broker.admin("DELETE", "persistent/public/default/keys?force=true")
        with trio.fail_after(PATIENCE_S):
            while True:
                if not set(ledgers) & set(await client.list_ledgers()):
                    break
                await trio.sleep(0.1)


@result("broker over TLS: lists the bookies; messages of 5 MiB")
async def test_large_messages_go_through(cluster: Cluster) -> None:
    listed = await cluster.broker.admin("GET", "bookies/all")
    ours = {cluster.bookies.bookie_id(number) for number in range(BOOKIES)}
    assert {bookie["bookieId"] for bookie in listed["bookies"]} == ours

    topic = "persistent://public/default/large"
    await cluster.call("subscribe", topic=topic, subscription="s")
    await cluster.call("produce", topic=topic, first=0, count=3, size=LARGE)
    consumed = await cluster.call("consume", topic=topic, count=3)
    assert consumed["sha256"] == digest_of(0, 3, LARGE)


@result("broker over TLS: its topic is tailed by our client and written on, undisturbed")
async def test_an_active_topic_is_tailed(cluster: Cluster) -> None:
    topic = "persistent://public/default/tailed"
    await cluster.call("produce", topic=topic, first=0, count=100, size=SIZE)
    (ledger_id,) = await ledgers_of(cluster, "tailed")
    seen: list[bytes] = []
    async with LedgerClient.connect(cluster.uri, options=cluster.options) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tail, client, ledger_id, seen)
            await cluster.call("produce", topic=topic, first=100, count=300, size=SIZE)
            # 400 of the 500 of a ledger: the tail waits, until the ledger is full and closed.
            await cluster.call("produce", topic=topic, first=400, count=200, size=SIZE)
        assert seen == [payload(number, SIZE) for number in range(500)]
        assert (await client.ledger_metadata(ledger_id)).last_entry_id == 499
        assert len(await ledgers_of(cluster, "tailed")) == 2


async def tail(client: LedgerClient, ledger_id: int, seen: list[bytes]) -> None:
    async with client.open_ledger(ledger_id, recover=False) as reader:
        async for entries in reader.tail(0):
            seen += [message_of(entry.payload) for entry in entries]
