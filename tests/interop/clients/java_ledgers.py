"""Helpers for ledgers of Apache's Java client on ledgerstream bookies."""

from __future__ import annotations

import pytest

from tests.interop.java_client import Answer, JavaClient

AREA = "Java client, our bookies"
PASSWORD = b"open sesame"
KIB = 1024
MIB = 1024 * KIB


def result(feature: str, wire: str | None = None) -> pytest.MarkDecorator:
    """Marks the test's row in docs/interoperability.md; `wire` None means the test's parameter."""
    return pytest.mark.interop_result(area=AREA, feature=feature, wire=wire)


async def created(java: JavaClient, **settings: object) -> Answer:
    return await java.call("create", **{"password": PASSWORD, **settings})


async def closed_ledger(java: JavaClient, count: int, size: int, **settings: object) -> Answer:
    """Creates a ledger of `count` entries payload(ledger id, i, size); returns the response."""
    ledger = await created(java, **settings)
    written = await java.call(
        "append_many", handle=ledger["handle"], seed=ledger["ledger"], count=count, size=size
    )
    assert written == {"acked": count, "last": count - 1, "lac": count - 1}
    closed = await java.call("close", handle=ledger["handle"])
    assert closed == {"last": count - 1, "length": count * size}
    return ledger


async def opened(java: JavaClient, ledger: int, **settings: object) -> Answer:
    return await java.call("open", ledger=ledger, **{"password": PASSWORD, **settings})


async def lac_of(java: JavaClient, handle: int) -> int:
    """Returns the last entry that the writer knows to be confirmed."""
    lac: int = (await java.call("written", handle=handle))["lac"]
    return lac


async def verify(java: JavaClient, handle: int, count: int, size: int, seed: int) -> None:
    """Checks that entries 0 .. count-1 are payload(seed, i, size), byte for byte."""
    if count:
        checked = await java.call("verify", handle=handle, last=count - 1, size=size, seed=seed)
        assert checked == {"entries": count, "bytes": count * size}
