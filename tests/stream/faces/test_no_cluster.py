"""Connecting to a mistyped address raises NoSuchCluster on every face, and creates nothing."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
import trio

import stream
from ledger import NoSuchCluster
from ledger.client import LedgerClient
from stream import aio, blocking

TEXT = r"there is no cluster at sqlite://.*mistyped\.db does not exist\. Cure: "


@pytest.mark.parametrize("create", [True, False])
def test_no_face_creates_a_cluster(tmp_path: Path, create: bool) -> None:
    uri = f"sqlite://{tmp_path}/mistyped.db"

    async def in_trio() -> None:
        with pytest.raises(NoSuchCluster, match=TEXT):
            async with stream.Namespace.connect(uri, "demo", create=create):
                raise AssertionError("must not be entered")
        with pytest.raises(NoSuchCluster, match=TEXT):
            async with LedgerClient.connect(uri):
                raise AssertionError("must not be entered")

    async def in_asyncio() -> None:
        with pytest.raises(NoSuchCluster, match=TEXT):
            async with aio.Namespace.connect(uri, "demo", create=create):
                raise AssertionError("must not be entered")
        with pytest.raises(NoSuchCluster, match=TEXT):
            async with aio.LedgerClient.connect(uri):
                raise AssertionError("must not be entered")

    trio.run(in_trio)
    asyncio.run(in_asyncio())
    with (
        pytest.raises(NoSuchCluster, match=TEXT),
        blocking.Namespace.connect(uri, "demo", create=create),
    ):
        raise AssertionError("must not be entered")
    with pytest.raises(NoSuchCluster, match=TEXT), blocking.LedgerClient.connect(uri):
        raise AssertionError("must not be entered")
    assert os.listdir(tmp_path) == []
