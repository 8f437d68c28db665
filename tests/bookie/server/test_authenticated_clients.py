"""Clients with certificates, with credentials in their options, and without any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ledger.core.authentication.names import SCRAM_SHA_256
from ledger.errors import Status, Unauthorized
from ledger.runtime.network import PeerCertificate
from tests.bookie.server.test_authentication import (
    PASSWORD,
    guarded,
    log_in,
    raw,
    scram_client,
    server_side,
)
from tests.bookie.server.test_server import add
from tests.certificates import Authority


def asks_for_certificates(directory: Path) -> dict[str, str]:
    authority = Authority(directory)
    certificate, key = authority.issue("bookie", "127.0.0.1")
    return {
        "tls_certificate_file": str(certificate),
        "tls_key_file": str(key),
        "tls_ca_file": str(authority.file),
        "tls_client_certificate": "optional",
    }


async def test_a_certificate_is_an_identity(tmp_path: Path, monkeypatch: Any) -> None:
    async def of(name: str | None) -> Any:
        found = None if name is None else PeerCertificate(common_name=name)
        monkeypatch.setattr(
            "ledger.runtime.network.TcpTransport.peer_certificate", found, raising=False
        )
        async with raw(cluster, 2) as peer:
            answer = await peer.ask(add(7, 0))
            who.append(server_side(cluster).principal)
            return answer

    who: list[str] = []
    settings = asks_for_certificates(tmp_path)
    async with guarded(tmp_path, "CERTIFICATE", SCRAM_SHA_256, **settings) as cluster:
        for name, status in (
            ("bookie-1.example.com", Status.OK),
            (None, Status.UNAUTHORIZED),
            ("odd name", Status.UNAUTHORIZED),
            ("anonymous", Status.UNAUTHORIZED),
        ):
            answer = await of(name)
            assert answer is not None
            assert answer.status is status
    assert who == ["bookie-1.example.com", "anonymous", "anonymous", "anonymous"]


async def test_a_certificate_without_the_name_of_a_user_counts_once_per_connection(
    tmp_path: Path, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Not for each request of a flood: failures make all of its address wait."""
    monkeypatch.setattr(
        "ledger.runtime.network.TcpTransport.peer_certificate",
        PeerCertificate(common_name="odd name"),
        raising=False,
    )
    settings = asks_for_certificates(tmp_path)
    async with (
        guarded(tmp_path, "CERTIFICATE", SCRAM_SHA_256, **settings) as cluster,
        raw(cluster, 3) as peer,
    ):
        for entry_id in range(5):
            assert (await peer.ask(add(7, entry_id))).status is Status.UNAUTHORIZED
        server = cluster.bookies[0].server
        assert server is not None
        assert server.statistics().authentications_failed == 1
        await log_in(peer, scram_client())
    assert "mechanism=CERTIFICATE user=? cause=user name 'odd name'" in caplog.text


@pytest.mark.parametrize("wire_version", [2, 3])
async def test_a_client_authenticates_all_its_connections(
    tmp_path: Path, wire_version: int
) -> None:
    async with (
        guarded(tmp_path) as cluster,
        cluster.client(credentials=PASSWORD, wire_version=wire_version) as client,
    ):
        made = client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        async with made as writer:
            await writer.append_many([b"%d" % n for n in range(300)])
        async with client.open_ledger(writer.ledger_id) as reader:
            assert len(await reader.read(0, 299)) == 300
        server = cluster.bookies[0].server
        assert server is not None
        assert {one.principal for one in server._connections.values()} == {"ann"}
        assert server.authenticator is not None
        assert server.authenticator.counts.succeeded == server.statistics().connections_accepted


async def test_a_client_without_credentials_learns_what_is_missing(tmp_path: Path) -> None:
    async with (
        guarded(tmp_path) as cluster,
        cluster.client(ensemble_change_timeout_s=0.3) as client,
    ):
        writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        with pytest.raises(Unauthorized, match="requires authentication"):
            await writer.append(b"x")
