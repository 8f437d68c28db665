"""A bookie's HTTP server over TLS, and the requests of commands to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from bookie.monitoring.http import http_address, serve_http
from bookie.monitoring.snapshot import Observer
from ledger.cli.http_client import ask
from ledger.errors import BookieUnavailable
from ledger.metastore.bookies import BookieInfo
from ledger.options import ClientOptions
from tests.bookie.monitoring.test_http import Client
from tests.bookie.server.permitted_cluster import until
from tests.bookie.server.test_audit import lines_of
from tests.certificates import Authority
from tests.real_cluster import real_cluster


@asynccontextmanager
async def encrypted(authority: Authority, **settings: Any) -> AsyncIterator[BookieInfo]:
    certificate, key = authority.issue("bookie", "127.0.0.1")
    tls: dict[str, Any] = {
        "tls_certificate_file": str(certificate),
        "tls_key_file": str(key),
        "http_tls": True,
        "garbage_interval_ms": 3_600_000,
    }
    async with (
        real_cluster(authority.directory, 1, **tls, **settings) as cluster,
        trio.open_nursery() as nursery,
    ):
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        bookie = cluster.bookies[0]
        observer = Observer(bookie, cluster.disks[0])
        nursery.start_soon(serve_http, listeners, observer, bookie.config.server_context())
        yield BookieInfo(
            "127.0.0.1", 1, http=http_address(listeners, "elsewhere"), is_http_encrypted=True
        )
        nursery.cancel_scope.cancel()


async def test_over_tls_only_tls_is_answered(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with encrypted(authority) as info:
        address = info.http
        assert address is not None
        options = ClientOptions(metadata_tls=True, tls_ca_file=str(authority.file))
        with trio.fail_after(30):
            answer = await ask("b1", info, "/healthz", options=options)
            assert answer == {"status": "writable"}
            with pytest.raises(BookieUnavailable, match="certificate is not accepted"):
                await ask("b1", info, "/healthz", options=ClientOptions())
            assert await Client(address).send(b"GET /healthz HTTP/1.1\r\n\r\n") == b""


async def test_each_handshake_that_fails_has_a_line_that_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority, audit = Authority(tmp_path), tmp_path / "audit.log"
    required = {
        "tls_client_certificate": "required",
        "tls_ca_file": str(authority.file),
        "audit_file": str(audit),
    }
    certificates = {
        "peer did not return a certificate": None,
        "its certificate is not accepted: certificate has expired": authority.issue(
            "late", begins_days=-9, ends_days=-1
        ),
        "its certificate is not accepted: self-signed certificate": authority.issue(
            "own", is_self_signed=True
        ),
        "its certificate is not accepted: unable to get local issuer certificate": Authority(
            tmp_path, "another"
        ).issue("foreign"),
    }

    def is_shown(why: str) -> bool:
        return f"cause={why}" in caplog.text and why in audit.read_text()

    async with encrypted(authority, **required) as info:
        assert info.http is not None
        for why, files in certificates.items():
            given: dict[str, Any] = {} if files is None else {
                "tls_certificate_file": str(files[0]), "tls_key_file": str(files[1])
            }  # fmt: skip
            options = ClientOptions(metadata_tls=True, tls_ca_file=str(authority.file), **given)
            with trio.fail_after(30):
                with pytest.raises(BookieUnavailable):
                    await ask("b1", info, "/healthz", options=options)
                await until(partial(is_shown, why))
        with trio.fail_after(30):
            assert await Client(info.http).send(b"GET /healthz HTTP/1.1\r\n\r\n") == b""
            await until(lambda: "cause=http request" in caplog.text)
        last = [one for one in lines_of(audit) if one["action"] == "authenticate"][-1]
        assert last["mechanism"] == "TLS"
        assert last["peer"].startswith("127.0.0.1:")
