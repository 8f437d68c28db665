"""Clusters whose bookies have settings of their own, and what is to be true of healed ones."""

from __future__ import annotations

import json
import time
import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import tomli_w
import trio

from bookie.standalone.cluster import StandaloneLayout
from ledger.autorecovery.missing_entries import lacking_ranges
from ledger.client import LedgerClient
from ledger.core.availability import fixed_part
from ledger.errors import LedgerError
from ledger.runtime.concurrency import map_bounded
from tests.system.cluster import StandaloneCluster

PATIENCE_S = 120.0
_POLL_S = 0.2
_ASKED_AT_ONCE = 32


def new_cluster(
    directory: Path, bookies: int, *options: str, metadata: str | None = None, **settings: Any
) -> StandaloneCluster:
    """Returns a cluster that is not started, whose bookies have these settings, too."""
    layout = StandaloneLayout.open(directory, bookies, metadata)
    for number in range(1, bookies + 1):
        change_settings(layout.bookie_config(number), **settings)
    return StandaloneCluster(directory, bookies, options)


def change_settings(path: Path, **settings: Any) -> None:
    """Changes settings of a bookie that does not run."""
    path.write_text(tomli_w.dumps(tomllib.loads(path.read_text()) | settings))


def bookie_of(cluster: StandaloneCluster, number: int) -> str:
    """Returns the id of bookie `number`, counted from 1."""
    return f"127.0.0.1:{cluster.ports()[number - 1]}"


def status_of(cluster: StandaloneCluster) -> dict[str, Any]:
    """Returns what `status` says, about all ledgers."""
    done = cluster.try_run("status", "--json", "--ledgers-max", str(10**9))
    found: dict[str, Any] = json.loads(done.stdout)
    return found | {"exit_code": done.returncode}


async def until(
    condition: Callable[[], Awaitable[bool]],
    *,
    patience_s: float = PATIENCE_S,
    poll_s: float = _POLL_S,
    what: Callable[[], object] = lambda: "",
) -> None:
    """Returns when the condition holds; fails after `patience_s`."""
    deadline_s = time.monotonic() + patience_s
    while not await condition():
        assert time.monotonic() < deadline_s, f"not within {patience_s:g} s: {what()}"
        await trio.sleep(poll_s)


async def copies_lacking(client: LedgerClient) -> list[str]:
    """Asks each bookie that the metadata of a ledger names which entries it lacks; returns a line
    for each copy that is not whole, or that cannot be asked for."""
    lacking: list[str] = []

    async def look(ledger_id: int) -> None:
        metadata = fixed_part(await client.ledger_metadata(ledger_id))
        for bookie in dict.fromkeys(one for f in metadata.fragments for one in f.bookies):
            try:
                found: object = await lacking_ranges(client, metadata, bookie)
            except LedgerError as error:
                found = error
            if found:
                lacking.append(f"ledger {ledger_id} at {bookie}: {found}")

    await map_bounded(await client.list_ledgers(), look, concurrent_max=_ASKED_AT_ONCE)
    return lacking
