"""Apache's Java client on ledgerstream bookies: requests that must be refused or time out."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from pathlib import Path

import pytest
import trio

from bookie.standalone.zookeeper_server import find_java
from ledger.metastore import open_store
from ledger.metastore.ledgers import LedgerStore
from tests.interop.clients.java_ledgers import MIB, closed_ledger, created, opened, result, verify
from tests.interop.conftest import OUR_BOOKIES, GetSharedJava
from tests.interop.java_client import JavaClient, JavaError
from tests.interop.our_bookies import OurBookies
from tests.interop.timeouts import PATIENCE_S

pytestmark = pytest.mark.interop


# The client would change ensembles forever, with any bookies.
GIVES_UP = {"maxNumEnsembleChanges": 2, "addEntryTimeoutSec": 5}


@pytest.fixture
def other_client(
    version: str, wire: str, our_bookies: OurBookies, java_shared: GetSharedJava
) -> JavaClient:
    """A client with connections of its own, which a bookie may close."""
    return java_shared(version, our_bookies.uri, v2=wire == "v2", **GIVES_UP)


@result("wrong master key is refused by the bookies themselves")
async def test_a_wrong_master_key_fences_nothing(
    client: JavaClient, our_bookies: OurBookies
) -> None:
    """A client that may change metadata without the password cannot fence."""
    ledger = await created(client)
    await client.call("append_many", handle=ledger["handle"], seed=1, count=10, size=10)
    async with open_store(our_bookies.uri) as store:
        ledgers = LedgerStore(store)
        honest, version = await ledgers.read(ledger["ledger"])
        forged = dataclasses.replace(honest, password=b"guess")
        await ledgers.compare_and_put(forged, version)
        with pytest.raises(JavaError, match="UnauthorizedAccess"):
            await opened(client, ledger["ledger"], password=b"guess")
        _, version = await ledgers.read(ledger["ledger"])
        await ledgers.compare_and_put(honest, version)
    # The writer was not disturbed.
    await client.call("append_many", handle=ledger["handle"], seed=1, first=10, count=5, size=10)
    reader = await opened(client, ledger["ledger"])
    assert reader["lac"] == 14
    await verify(client, reader["handle"], 15, 10, seed=1)


@result("an entry beyond the frame limit fails, and affects no other entry")
async def test_an_entry_beyond_the_frame_limit(
    other_client: JavaClient, client: JavaClient
) -> None:
    bystander = await created(client)
    await client.call("append_many", handle=bystander["handle"], seed=1, count=10, size=100)
    ledger = await created(other_client)
    with trio.fail_after(PATIENCE_S), pytest.raises(JavaError, match="Write"):
        await other_client.call(
            "append_many", handle=ledger["handle"], count=1, size=5 * MIB + 1, window=1
        )
    await client.call(
        "append_many", handle=bystander["handle"], seed=1, first=10, count=10, size=100
    )
    reader = await opened(client, bystander["ledger"])
    await verify(client, reader["handle"], 20, 100, seed=1)
    # The failed ledger can be recovered: it is empty.
    assert (await opened(client, ledger["ledger"]))["lac"] == -1


@pytest.fixture(scope="module")
def trust_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a trust store: without one the client does not even request TLS."""
    store = tmp_path_factory.mktemp("tls") / "trust.p12"
    subprocess.run(
        [
            str(Path(find_java()).with_name("keytool")),
            *("-genkeypair", "-alias", "x", "-dname", "CN=x", "-keyalg", "EC"),
            *("-keystore", str(store), "-storetype", "PKCS12", "-storepass", "changeit"),
        ],
        check=True,
        capture_output=True,
    )
    store.with_suffix(".password").write_text("changeit")
    return store


@result("a client that requires TLS gets an error that there is none")
async def test_a_client_that_wants_tls_gets_an_error(
    version: str,
    wire: str,
    our_bookies: OurBookies,
    java_shared: GetSharedJava,
    trust_store: Path,
) -> None:
    java = java_shared(
        version,
        our_bookies.uri,
        v2=wire == "v2",
        tlsProviderFactoryClass="org.apache.bookkeeper.tls.TLSContextFactory",
        tlsProvider="JDK",
        tlsTrustStoreType="PKCS12",
        tlsTrustStore=trust_store,
        tlsTrustStorePasswordPath=trust_store.with_suffix(".password"),
        **GIVES_UP,
    )
    said_before = java.vm.log.stat().st_size
    ledger = await created(java)
    with trio.fail_after(PATIENCE_S), pytest.raises(JavaError, match="Write"):
        await java.call("append", handle=ledger["handle"], data=b"x")
    await java.call("abandon", handle=ledger["handle"])
    with java.vm.log.open() as log:
        log.seek(said_before)
        assert re.search(r"TLS.*EBADREQ|EBADREQ.*TLS", log.read())


@result("a bookie that hangs: writers and readers do not wait for it")
async def test_a_bookie_that_hangs(client: JavaClient, our_bookies: OurBookies) -> None:
    java = client
    old = await closed_ledger(java, 300, 100)
    ledger = await created(java)
    await java.call("append_many", handle=ledger["handle"], seed=1, count=100, size=100)
    metadata = await java.call("metadata", ledger=ledger["ledger"])
    hanging = our_bookies.number_of(metadata["fragments"][0]["bookies"][0])
    our_bookies.pause(hanging)
    try:
        with trio.fail_after(PATIENCE_S):
            await java.call(
                "append_many", handle=ledger["handle"], seed=1, first=100, count=900, size=100
            )
            reader = await opened(java, old["ledger"])
            await verify(java, reader["handle"], 300, 100, seed=old["ledger"])
            await java.call("close", handle=ledger["handle"])
    finally:
        our_bookies.resume(hanging)
    reader = await opened(java, ledger["ledger"])
    await verify(java, reader["handle"], 1000, 100, seed=1)


@pytest.fixture(autouse=True)
def all_run(our_bookies: OurBookies) -> None:
    """Restarts the bookies that a failed test has killed."""
    our_bookies.start_missing(OUR_BOOKIES)
