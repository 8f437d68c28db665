"""The Python client on Apache bookies with TLS, authentication, other storage, or old ledgers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import trio

from ledger.client import LedgerClient
from ledger.core.entry import DigestType
from ledger.errors import LedgerError, Unauthorized
from tests.interop.apache_bookie import SORTED_LEDGER_STORAGE
from tests.interop.conftest import ApacheBookies, GetApacheBookies, GetSharedJava
from tests.interop.our_client import (
    PASSWORD,
    Challenge,
    all_entries,
    check_java_reads,
    follow,
    java_ledger,
    options_of,
    payloads,
    result,
)
from tests.interop.security import JAAS_OPTIONS, Certificates, java_users, our_user
from tests.interop.timeouts import PATIENCE_S
from tests.interop.versions import VERSIONS

pytestmark = pytest.mark.interop


ONE_BOOKIE: dict[str, Any] = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def plain(
    version: str, apache_bookies: GetApacheBookies, certificates: Certificates
) -> ApacheBookies:
    """A bookie with the usual settings, that encrypts on request: by the JDK, with its key in a
    PKCS12 store."""
    tls = certificates.of_java(own=certificates.bookie, stores=True)
    return apache_bookies(version, 1, **{**tls, "tlsClientAuthentication": False})


@pytest.fixture
def guarded(version: str, apache_bookies: GetApacheBookies) -> ApacheBookies:
    """A bookie that requires authentication."""
    factory = "ledgerstream.interop.ChallengeAuth"
    return apache_bookies(
        version, 1, bookieAuthProviderFactoryClass=factory, challengeAuthSecret="swordfish"
    )


@result("authentication: a challenge answered, a wrong secret refused")
async def test_a_bookie_with_authentication(guarded: ApacheBookies, wire: str) -> None:
    options = options_of(wire, ensemble_change_timeout_s=0.5)
    entries = payloads(13, [100] * 100)
    challenge = Challenge(b"swordfish")
    async with LedgerClient.connect(guarded.uri, options=options, auth=challenge) as client:
        async with client.create_ledger(**ONE_BOOKIE) as writer:
            await writer.append_many(entries)
        async with client.open_ledger(writer.ledger_id) as reader:
            assert await all_entries(reader) == entries
    assert set(challenge.begun) == {guarded.bookies[0].bookie_id}

    async with LedgerClient.connect(
        guarded.uri, options=options, auth=Challenge(b"haddock")
    ) as client:
        writer = await client.create_ledger(**ONE_BOOKIE)
        with pytest.raises(Unauthorized, match=f"{guarded.bookies[0].bookie_id} refused .*Cure"):
            await writer.append(b"x")
    async with LedgerClient.connect(guarded.uri, options=options) as client:
        writer = await client.create_ledger(**ONE_BOOKIE)
        with pytest.raises(Unauthorized, match="auth"):
            await writer.append(b"x")


@pytest.fixture
def busy(
    version: str, apache_bookies: GetApacheBookies, certificates: Certificates
) -> ApacheBookies:
    """A bookie that is overloaded soon. It authenticates by DIGEST-MD5, and encrypts for clients
    with a certificate: by OpenSSL, with its key in a PEM file."""
    tls = certificates.of_java(own=certificates.bookie)
    limits = {"maxPendingAddRequestsPerThread": 20, "maxPendingReadRequestsPerThread": 20}
    return apache_bookies(version, 1, java_options=JAAS_OPTIONS, **tls, **java_users(), **limits)


@dataclass(frozen=True, slots=True)
class Clients:
    """Clients of one wire protocol on one bookie."""

    bookies: ApacheBookies
    wire: str

    async def works(self, **options: Any) -> None:
        """Checks that a client creates a ledger, appends, closes, opens and reads."""
        entries = payloads(16, [70_000] * 40)  # of several TLS records each
        given = options_of(self.wire, **options)
        with trio.fail_after(PATIENCE_S):
            async with LedgerClient.connect(self.bookies.uri, options=given) as client:
                async with client.create_ledger(**ONE_BOOKIE) as writer:
                    await writer.append_many(entries)
                async with client.open_ledger(writer.ledger_id) as reader:
                    assert await all_entries(reader) == entries

    async def is_refused(self, error: type[LedgerError], cause: str, **options: Any) -> None:
        """Checks that a client cannot append, and that it says why."""
        given = options_of(self.wire, **{"ensemble_change_timeout_s": 0.2, **options})
        with trio.fail_after(PATIENCE_S):
            async with LedgerClient.connect(self.bookies.uri, options=given) as client:
                writer = await client.create_ledger(**ONE_BOOKIE)
                with pytest.raises(error, match=cause):
                    await writer.append(b"x")


@result("TLS: create, add, read; a bookie of an authority that is not trusted gets no request")
async def test_tls(plain: ApacheBookies, wire: str, certificates: Certificates) -> None:
    clients = Clients(plain, wire)
    await clients.works(**certificates.of_our_client())
    distrusts = certificates.of_our_client(certificates.stranger)
    await clients.is_refused(LedgerError, "unable to get local issuer certificate", **distrusts)


@result("TLS with our certificate, and DIGEST-MD5; refused without one, or with another's")
async def test_certificates(busy: ApacheBookies, wire: str, certificates: Certificates) -> None:
    clients, ann = Clients(busy, wire), {"credentials": our_user()}
    own = certificates.of_our_client(own=certificates.client)
    await clients.works(**own, **ann)
    await clients.is_refused(Unauthorized, "requires authentication", **own)
    for refused in (None, certificates.foreign):
        without = certificates.of_our_client(own=refused)
        # What TLS says is lost if the bookie's reset arrives before the client has read it.
        said = "ended TLS before it authenticated|Connection reset|Broken pipe"
        await clients.is_refused(LedgerError, said, **without, **ann)


@result("DIGEST-MD5 in clear; refused with a wrong password, or none")
async def test_passwords(busy: ApacheBookies, wire: str) -> None:
    clients = Clients(busy, wire)
    await clients.works(credentials=our_user(), secrets_in_clear_allowed=True)
    await clients.is_refused(Unauthorized, "auth")
    # The bookie does not answer a wrong password.
    wrong = our_user("WrongPassword")
    await clients.is_refused(
        LedgerError,
        "no connection",
        credentials=wrong,
        connect_timeout_s=1.0,
        secrets_in_clear_allowed=True,
    )


@result("an overloaded bookie: rejected adds and reads are retried")
async def test_a_busy_bookie(busy: ApacheBookies, wire: str) -> None:
    entries = payloads(15, [2000] * 1500)
    options = options_of(wire, credentials=our_user(), secrets_in_clear_allowed=True)
    async with LedgerClient.connect(busy.uri, options=options) as client:
        async with client.create_ledger(**ONE_BOOKIE) as writer:
            await writer.append_many(entries)
            assert writer.statistics().ensemble_changes == 0
        async with client.open_ledger(writer.ledger_id) as reader:
            assert await all_entries(reader) == entries


@result("authentication: a bookie that requires none accepts us")
async def test_a_bookie_without_authentication(plain: ApacheBookies, wire: str) -> None:
    options, challenge = options_of(wire), Challenge(b"unheard")
    async with LedgerClient.connect(plain.uri, options=options, auth=challenge) as client:
        async with client.create_ledger(password=PASSWORD, **ONE_BOOKIE) as writer:
            await writer.append_many(payloads(14, [100] * 10))
        async with client.open_ledger(writer.ledger_id, password=PASSWORD) as reader:
            assert await all_entries(reader) == payloads(14, [100] * 10)
    assert challenge.begun


@result("ledgers whose metadata names no digest", wire="v2")
@pytest.mark.parametrize("format_version", [1, 2])
async def test_metadata_of_old_releases(
    plain: ApacheBookies, version: str, java_shared: GetSharedJava, format_version: int
) -> None:
    java = java_shared(version, plain.uri)
    ledger = await java_ledger(java, 20, 100, digest="MAC", ensemble=1)
    async with LedgerClient.connect(plain.uri, options=options_of("v2")) as client:
        stored, stored_version = await client.ledgers.read(ledger["ledger"])
        # Releases before 4.1 wrote neither digest nor password.
        old = replace(stored, format_version=format_version, digest_type=None, password=b"")
        await client.ledgers.compare_and_put(old, stored_version)
        async with client.open_ledger(
            ledger["ledger"], password=PASSWORD, digest_type=DigestType.HMAC
        ) as reader:
            assert reader.metadata.digest_type is None
            assert await all_entries(reader) == payloads(1, [100] * 20)


@result("SortedLedgerStorage: add, recover, tail, read")
@pytest.mark.parametrize("version", [VERSIONS[1]], indirect=True)
async def test_the_other_storage(
    version: str, wire: str, apache_bookies: GetApacheBookies, java_shared: GetSharedJava
) -> None:
    cluster = apache_bookies(version, 3, storage=SORTED_LEDGER_STORAGE)
    java = java_shared(version, cluster.uri)
    options = options_of(wire)
    entries = payloads(12, [1000] * 2000)
    async with LedgerClient.connect(cluster.uri, options=options) as client:
        writer = await client.create_ledger(password=PASSWORD)
        seen: list[bytes] = []
        async with (
            client.open_ledger(writer.ledger_id, password=PASSWORD, recover=False) as reader,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(follow, reader, seen)
            await writer.append_many(entries)
            writer.abandon()
            async with client.open_ledger(writer.ledger_id, password=PASSWORD) as recovered:
                assert await all_entries(recovered) == entries
        assert seen == entries
        await check_java_reads(java, writer.ledger_id, entries, digest="CRC32C")
        ledger = await java_ledger(java, 500, 300)
        async with client.open_ledger(ledger["ledger"], password=PASSWORD) as reader:
            assert await all_entries(reader) == payloads(1, [300] * 500)
