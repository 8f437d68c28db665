"""Helpers for tests of ledgerstream's client with Apache's: ledgers of either, read by either."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import trio

from ledger.core.entry import DigestType
from ledger.options import ClientOptions
from ledger.reading.reader import LedgerReader
from ledger.writing.writer import LedgerWriter
from tests.interop.java_client import JavaClient, payload
from tests.interop.timeouts import CONNECT_TIMEOUT_S, PATIENCE_S, REQUEST_TIMEOUT_S

AREA = "our client, Apache bookies"
PASSWORD = b"open sesame"
JAVA_DIGEST = {
    DigestType.CRC32: "CRC32",
    DigestType.HMAC: "MAC",
    DigestType.CRC32C: "CRC32C",
    DigestType.DUMMY: "DUMMY",
}

PATIENT: dict[str, Any] = {
    "add_timeout_s": REQUEST_TIMEOUT_S,
    "read_timeout_s": REQUEST_TIMEOUT_S,
    "connect_timeout_s": CONNECT_TIMEOUT_S,
    "ensemble_change_timeout_s": REQUEST_TIMEOUT_S,
}
"""Options of the client with timeouts for a busy machine."""


def result(feature: str, wire: str | None = None) -> pytest.MarkDecorator:
    """Marks the test's row in the table of docs/interoperability.md."""
    return pytest.mark.interop_result(area=AREA, feature=feature, wire=wire)


def options_of(wire: str, **more: Any) -> ClientOptions:
    """Returns client options with timeouts for a busy machine."""
    return ClientOptions(wire_version=int(wire[1]), **{**PATIENT, **more})


def payloads(seed: int, sizes: Sequence[int]) -> list[bytes]:
    return [payload(seed, i, size) for i, size in enumerate(sizes)]


async def java_open(java: JavaClient, ledger_id: int, **options: Any) -> dict[str, Any]:
    return await java.call("open", ledger=ledger_id, **{"password": PASSWORD, **options})


async def check_java_reads(
    java: JavaClient, ledger_id: int, entries: list[bytes], **options: Any
) -> None:
    """Checks that a closed ledger, opened without recovery by Java, holds exactly `entries`."""
    reader = await java_open(java, ledger_id, recovery=False, **options)
    length = sum(map(len, entries))
    assert (reader["lac"], reader["length"], reader["closed"]) == (len(entries) - 1, length, True)
    assert await java.read(reader["handle"], 0, len(entries) - 1) == entries


async def all_entries(reader: LedgerReader) -> list[bytes]:
    found = [entry async for some in reader.entries(0) for entry in some]
    assert [entry.entry_id for entry in found] == list(range(len(found)))
    return [bytes(entry.payload) for entry in found]


async def append_for_ever(
    writer: LedgerWriter, seed: int, size: int, task_status: trio.TaskStatus[None]
) -> None:
    """Appends one entry after the other; reports the start when ten are confirmed."""
    while True:
        entry_id = await writer.append(payload(seed, writer.last_add_pushed + 1, size))
        if entry_id == 9:
            task_status.started()


async def follow(reader: LedgerReader, seen: list[bytes]) -> None:
    """Tails a ledger until it is closed."""
    async for entries in reader.tail(0):
        seen.extend(bytes(entry.payload) for entry in entries)


async def java_ledger(java: JavaClient, count: int, size: int, **created: Any) -> dict[str, Any]:
    """Creates an open ledger of the Java client with `count` entries; returns the response."""
    ledger = await java.call("create", password=PASSWORD, **created)
    written = await java.call(
        "append_many", handle=ledger["handle"], seed=1, count=count, size=size
    )
    assert written["acked"] == count
    return ledger


async def until(holds: Callable[[], bool]) -> None:
    """Waits until `holds()`, for states of other tasks and processes."""
    with trio.fail_after(PATIENCE_S):
        while not holds():  # noqa: ASYNC110
            await trio.sleep(0.002)


async def until_lac(java: JavaClient, op: str, handle: int, lac: int) -> None:
    """Waits until Java knows that `lac` is confirmed."""
    with trio.fail_after(PATIENCE_S):
        while (await java.call(op, handle=handle))["lac"] < lac:  # noqa: ASYNC110
            await trio.sleep(0.01)


class Challenge:
    """The client's side of ChallengeAuth.java."""

    plugin = "ledgerstream.interop.ChallengeAuth"

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        self.begun: list[str] = []

    def begin(self, bookie: str) -> ChallengeExchange:
        self.begun.append(bookie)
        return ChallengeExchange(self.secret)


class ChallengeExchange:
    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def first_payload(self) -> bytes:
        return b"hello"

    def answer(self, challenge: bytes) -> bytes | None:
        if challenge == b"welcome":
            return None
        return hashlib.sha256(self._secret + challenge).digest()
