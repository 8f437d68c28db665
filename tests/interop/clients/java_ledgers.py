"""Ledgers of Apache's Java client on our bookies: what several modules of that suite do."""

from __future__ import annotations

import pytest

from tests.interop.java_client import Answer, JavaClient

AREA = "Java client, our bookies"
PASSWORD = b"open sesame"
KIB = 1024
MIB = 1024 * KIB


def result(feature: str, wire: str | None = None) -> pytest.MarkDecorator:
    """The test's row in the table of docs/interoperability.md; `wire` None: its parameter."""
    return pytest.mark.interop_result(area=AREA, feature=feature, wire=wire)


async def created(java: JavaClient, **settings: object) -> Answer:
    return await java.call("create", **{"password": PASSWORD, **settings})


async def closed_ledger(java: JavaClient, count: int, size: int, **settings: object) -> Answer:
    """A ledger of `count` entries of payload(ledger id, i, size); `create`'s answer."""
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
    """What the writer knows to be confirmed."""
    lac: int = (await java.call("written", handle=handle))["lac"]
    return lac


async def verify(java: JavaClient, handle: int, count: int, size: int, seed: int) -> None:
    """Entries 0 .. count-1 are payload(seed, i, size), byte for byte."""
    if count:
        checked = await java.call("verify", handle=handle, last=count - 1, size=size, seed=seed)
        assert checked == {"entries": count, "bytes": count * size}
