"""Apache's Java client on ledgerstream bookies that encrypt, and that ask who a client is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio

from ledger.core.authentication.names import CERTIFICATE, DIGEST_MD5
from tests.interop.clients.java_ledgers import closed_ledger, created, opened, result, verify
from tests.interop.conftest import GetSharedJava, GetVm
from tests.interop.java_client import JavaClient, JavaError
from tests.interop.our_bookies import OurBookies, wait_until_async
from tests.interop.security import CERTIFIED, USER, Certificates, create_user, java_user
from tests.interop.shell import Shell
from tests.interop.timeouts import PATIENCE_S

pytestmark = [pytest.mark.interop, pytest.mark.zookeeper]

COUNT, SIZE = 40, 70_000
"""Entries of several TLS records each."""
GIVES_UP = {"maxNumEnsembleChanges": 2, "addEntryTimeoutSec": 5}


@dataclass(frozen=True, slots=True)
class Secured:
    """Three clusters of one bookie each."""

    certificates: Certificates
    encrypted: OurBookies
    """Requires TLS."""
    certified: OurBookies
    """Requires TLS with a client's certificate, which says who the client is."""
    guarded: OurBookies
    """Requires DIGEST-MD5, and encrypts on request."""

    @property
    def every(self) -> tuple[OurBookies, ...]:
        return self.encrypted, self.certified, self.guarded


@pytest.fixture(scope="module")
def secured(
    new_root: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    certificates = Certificates(directory)

    def bookie(name: str, **settings: Any) -> OurBookies:
        return OurBookies(
            directory / name,
            new_root(name),
            **certificates.of_our_bookie(),
            audit_file=str(directory / name / "audit.log"),
            **settings,
        )

    secured = Secured(
        certificates,
        bookie("encrypted", tls_required=True),
        bookie(
            "certified",
            tls_required=True,
            tls_client_certificate="required",
            authentication_mechanisms=[CERTIFICATE],
        ),
        bookie("guarded", authentication_mechanisms=[DIGEST_MD5], secrets_in_clear_allowed=True),
    )
    try:
        for one in secured.every:
            one.begin(0)
        for one in secured.every:
            one.wait_ready(0)
        trio.run(create_user, secured.guarded.uri)
        yield secured
    finally:
        for one in secured.every:
            one.kill_all()


class Clients:
    """Clients of one version and wire protocol of Apache's."""

    def __init__(self, get: GetSharedJava, version: str, wire: str) -> None:
        self._get = get
        self._version = version
        self._is_v2 = wire == "v2"
        self.has_stores = not self._is_v2
        """The two kinds of files, each with another implementation of TLS."""

    def get(self, bookies: OurBookies, **settings: Any) -> JavaClient:
        return self._get(self._version, bookies.uri, v2=self._is_v2, **{**GIVES_UP, **settings})


@pytest.fixture
def clients(java_shared: GetSharedJava, version: str, wire: str) -> Clients:
    return Clients(java_shared, version, wire)


async def works(java: JavaClient) -> None:
    """Checks that a client creates a ledger, appends, closes, opens and reads."""
    with trio.fail_after(PATIENCE_S):
        ledger = await closed_ledger(java, COUNT, SIZE, ensemble=1)
        reader = await opened(java, ledger["ledger"])
        await verify(java, reader["handle"], COUNT, SIZE, seed=ledger["ledger"])


async def works_in_the_end(java: JavaClient) -> None:
    """Java's client sends AUTH and START_TLS from two threads. In the rare case that AUTH is first,
    its answers in clear meet TLS, which no bookie accepts; the next connection is another draw."""
    for tries_left in reversed(range(5)):
        try:
            await works(java)
            break
        except JavaError as error:
            if not tries_left or "NotEnoughBookies" not in str(error):
                raise


async def is_refused(java: JavaClient) -> None:
    """Checks that a client cannot append, and learns it soon."""
    ledger = await created(java, ensemble=1)
    with (
        trio.fail_after(PATIENCE_S),
        pytest.raises(JavaError, match=r"NotEnoughBookies|Unauthorized|Write"),
    ):
        await java.call("append", handle=ledger["handle"], data=b"x")
    await java.call("abandon", handle=ledger["handle"])


def audited(bookies: OurBookies, **wanted: str) -> list[dict[str, Any]]:
    """Returns the lines of a bookie's audit log with these fields."""
    log = bookies.directory / "audit.log"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [line for line in lines if wanted.items() <= line.items()]


@result("TLS: create, add, read; refused without it, or if the bookie's authority is not trusted")
async def test_tls(secured: Secured, clients: Clients) -> None:
    certificates, bookies = secured.certificates, secured.encrypted
    stores = clients.has_stores
    checks = {"tlsHostnameVerificationEnabled": True}
    await works(clients.get(bookies, **certificates.of_java(stores=stores), **checks))
    await is_refused(clients.get(bookies))
    distrusts = certificates.of_java(certificates.stranger, stores=stores)
    await is_refused(clients.get(bookies, **distrusts))


@result("TLS with a client's certificate, which names the user; refused with none or another's")
async def test_certificates_of_clients(secured: Secured, clients: Clients) -> None:
    certificates, bookies = secured.certificates, secured.certified
    stores = clients.has_stores
    proved = {"user": CERTIFIED, "mechanism": CERTIFICATE, "outcome": "ok"}
    before = len(audited(bookies, **proved))
    await works(
        clients.get(bookies, **certificates.of_java(own=certificates.client, stores=stores))
    )
    await wait_until_async(
        lambda: len(audited(bookies, **proved)) > before, what="the audit log has the user"
    )
    await is_refused(clients.get(bookies, **certificates.of_java(stores=stores)))
    foreign = certificates.of_java(own=certificates.foreign, stores=stores)
    await is_refused(clients.get(bookies, **foreign))


@result("DIGEST-MD5, in clear and over TLS; refused with a wrong password, or none")
async def test_passwords(secured: Secured, clients: Clients) -> None:
    bookies = secured.guarded
    proved = {"user": USER, "mechanism": DIGEST_MD5, "outcome": "ok"}
    before = len(audited(bookies, **proved))
    encrypts = secured.certificates.of_java(stores=clients.has_stores)
    await works(clients.get(bookies, **java_user()))
    await works_in_the_end(clients.get(bookies, **java_user(), **encrypts))
    await wait_until_async(
        lambda: len(audited(bookies, **proved)) > before + 1, what="the audit log has the user"
    )
    await is_refused(clients.get(bookies))
    await is_refused(clients.get(bookies, **java_user("WrongPassword"), **encrypts))


@pytest.mark.interop_result(area="bookkeeper shell", feature="simpletest over TLS")
async def test_the_shell(secured: Secured, version: str, java_vm: GetVm, tmp_path: Path) -> None:
    tls = secured.certificates.of_java()
    shell = Shell(java_vm(version), secured.encrypted.uri, tmp_path, **tls)
    output = await shell.run("simpletest", "-e", 1, "-w", 1, "-a", 1, "-n", 50)
    assert "50 entries written to ledger" in output
