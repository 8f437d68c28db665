"""A bookie's HTTP server over TLS, and the requests of commands to it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from bookie.monitoring.http import http_address, serve_http
from bookie.monitoring.snapshot import Observer
from ledger.cli.http_client import ask
from ledger.errors import BookieUnavailable
from ledger.metastore.bookies import BookieInfo
from ledger.options import ClientOptions
from tests.bookie.monitoring.test_http import Client
from tests.certificates import Authority
from tests.real_cluster import real_cluster


async def test_over_tls_only_tls_is_answered(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("bookie", "127.0.0.1")
    tls = {"tls_certificate_file": str(certificate), "tls_key_file": str(key), "http_tls": True}
    async with (
        real_cluster(tmp_path, 1, garbage_interval_ms=3_600_000, **tls) as cluster,
        trio.open_nursery() as nursery,
    ):
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        bookie = cluster.bookies[0]
        observer = Observer(bookie, cluster.disks[0])
        nursery.start_soon(serve_http, listeners, observer, bookie.config.server_context())
        address = http_address(listeners, "elsewhere")
        assert address is not None
        info = BookieInfo("127.0.0.1", 1, http=address, is_http_encrypted=True)
        options = ClientOptions(metadata_tls=True, tls_ca_file=str(authority.file))
        with trio.fail_after(30):
            answer = await ask("b1", info, "/healthz", options=options)
            assert answer == {"status": "writable"}
            with pytest.raises(BookieUnavailable, match="certificate is not accepted"):
                await ask("b1", info, "/healthz", options=ClientOptions())
            assert await Client(address).send(b"GET /healthz HTTP/1.1\r\n\r\n") == b""
        nursery.cancel_scope.cancel()
