"""`bookie rebalance` with real processes, after two bookies were added to three."""

from __future__ import annotations

import json
import random
import tomllib
from collections import Counter
from typing import Any

import pytest
import trio

from bookie.standalone.cluster import free_ports
from ledger.client import LedgerClient
from tests.system.cluster import StandaloneCluster
from tests.system.conftest import StartCluster
from tests.system.healing.clusters import bookie_of, change_settings, copies_lacking

pytestmark = pytest.mark.system

_LEDGERS = 120
_TOLERANCE = 0.05


def _add_bookie(cluster: StandaloneCluster, number: int) -> str:
    """Starts a bookie of its own in the cluster, as `bookie run` does; returns its id."""
    settings = tomllib.loads(cluster.settings_of(1).read_text())
    path = cluster.settings_of(number)
    path.parent.mkdir()
    path.touch()
    port, http_port = free_ports(2)
    change_settings(
        path,
        **settings
        | {
            "port": port,
            "http_port": http_port,
            "journal_directories": [str(path.parent / "journal")],
            "ledger_directories": [str(path.parent / "ledgers")],
        },
    )
    cluster.start_bookie(path)
    return f"127.0.0.1:{port}"


async def _write(uri: str) -> None:
    chance = random.Random(18)
    async with LedgerClient.connect(uri) as client:
        for _ in range(_LEDGERS):
            sizes = chance.choice([(3, 3, 2), (2, 2, 2), (3, 2, 1)])
            async with client.create_ledger(
                ensemble_size=sizes[0], write_quorum=sizes[1], ack_quorum=sizes[2]
            ) as writer:
                await writer.append_many([b"e" * 1000] * 20)


async def _lacking(uri: str) -> list[str]:
    async with LedgerClient.connect(uri) as client:
        return await copies_lacking(client)


async def _named(uri: str) -> dict[int, Any]:
    """Returns the bookies of the first fragment of each ledger."""
    async with LedgerClient.connect(uri) as client:
        ids = await client.list_ledgers()
        return {one: (await client.ledger_metadata(one)).fragments[0].bookies for one in ids}


def _rebalance(cluster: StandaloneCluster, *options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cluster.run("bookie", "rebalance", "--json", *options))
    return found


def test_copies_move_to_bookies_that_were_added(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    lines = b"".join(b"record %06d\n" % n for n in range(2000))
    cluster.run("append", "demo/kept", stdin=lines)
    trio.run(_write, cluster.uri)
    first = {bookie_of(cluster, number) for number in (1, 2, 3)}
    added = {_add_bookie(cluster, number) for number in (4, 5)}

    before = trio.run(_named, cluster.uri)
    planned = _rebalance(cluster, "--dry-run")
    assert planned["is_dry_run"]
    assert {one["to"] for one in planned["moves"]} == added
    assert planned["skew_before"] > 1.6, "three of five bookies have everything"
    assert trio.run(_named, cluster.uri) == before

    done = _rebalance(cluster, "--tolerance", str(_TOLERANCE))
    assert (done["copies_failed"], done["problems"]) == (0, [])
    assert done["copies_moved"] >= len(before) / 2
    after = trio.run(_named, cluster.uri)
    assert after.keys() == before.keys()
    assert all(len({*after[one]}) == len(before[one]) for one in before)
    assert {bookie for named in after.values() for bookie in named} == first | added
    assert trio.run(_lacking, cluster.uri) == []
    cluster.run("stream", "verify", "demo/kept")
    assert cluster.run("read", "demo/kept", "--from", "earliest", "-f", "%v\\n") == lines

    loads = {one["bookie"]: one["bytes_after"] for one in done["bookies"]}
    assert max(loads.values()) <= (1 + _TOLERANCE) * sum(loads.values()) / len(loads)
    counts = Counter(bookie for named in after.values() for bookie in {*named})
    listed = json.loads(cluster.run("bookie", "list", "--ledgers", "--json"))
    assert {one["bookie"]: one["ledgers"] for one in listed} == counts
    again = _rebalance(cluster, "--dry-run")
    assert again["copies_moved"] == 0, "nothing is left to be moved"
