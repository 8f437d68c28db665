"""What a bookie says about its certificate: at its start, and before the certificate expires."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from bookie.config import BookieConfig
from bookie.server.encryption import ServerTls
from ledger.errors import InvalidArgument
from tests.bookie.server.test_server import SETTINGS
from tests.certificates import Authority
from tests.real_cluster import now_ms, real_cluster


async def test_a_bookie_with_an_unusable_key_makes_nothing(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("bookie", "127.0.0.1")
    files: dict[str, Any] = {"tls_certificate_file": str(certificate), "tls_key_file": str(key)}
    key.chmod(0o644)
    with pytest.RaisesGroup(
        pytest.RaisesExc(InvalidArgument, match="others can read or change the private key")
    ):
        async with real_cluster(tmp_path, 1, **(SETTINGS | files)):
            raise AssertionError("it serves")
    assert not (tmp_path / "0").exists()


async def test_the_end_of_a_certificate_is_announced_once_a_day(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("bookie", "127.0.0.1", ends_days=31)
    config = BookieConfig(
        metadata_uri="memory:",
        journal_directories=("j",),
        ledger_directories=("l",),
        tls_certificate_file=str(certificate),
        tls_key_file=str(key),
    )
    context = config.server_context()
    assert context is not None
    tls = ServerTls(context)
    began_ms = now_ms()
    with trio.move_on_after(86_400 * 33 - 3600):
        await tls.warn_of_expiry(lambda: began_ms + round(trio.current_time() * 1000))
    levels = [record.levelname for record in caplog.records]
    assert levels == ["WARNING"] * 30 + ["ERROR"] * 2
    caplog.clear()
    authority.issue("bookie", "127.0.0.1", ends_days=365)
    with trio.move_on_after(3600):
        await tls.warn_of_expiry(now_ms)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    caplog.clear()
    tls.check_names("127.0.0.1")
    assert not caplog.records
    tls.check_names("127.0.0.9")
    assert "not for 127.0.0.9 but for 127.0.0.1" in caplog.text
