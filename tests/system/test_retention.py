"""An operator changes retention: previews it, confirms it, and restores deleted data."""

from __future__ import annotations

import json

import pytest

from ledger.client import LedgerClient
from stream.store.streams import stream_path
from tests.system.cluster import StandaloneCluster
from tests.system.conftest import StartCluster

pytestmark = pytest.mark.system


def test_retention_is_explained_confirmed_and_undone(start_cluster: StartCluster) -> None:
    cluster = start_cluster("--janitor-interval-s", "0")  # the test runs it explicitly
    cluster.run("namespace", "create", "demo", "--trash-ms", "1h")
    for _ in range(3):
        cluster.run("append", "demo/lines", stdin=b"one\ntwo\n")
    change = ("namespace", "set", "demo", "--retention-bytes", "1B")
    tried = json.loads(cluster.run(*change, "--dry-run", "--json"))
    (loss,) = tried["consequences"]
    assert (loss["stream"], loss["segments_dropped"], loss["records_dropped"]) == (
        "lines",
        [1, 2],
        4,
    )
    refused = cluster.try_run(*change)
    assert refused.returncode == 1
    assert b"confirm with --yes" in refused.stderr
    assert json.loads(cluster.run("namespace", "show", "demo", "--json"))["retention_bytes"] is None
    cluster.run(*change, "--yes")
    (plan,) = json.loads(cluster.run("retention", "explain", "demo/lines", "--json"))
    assert [reported["verdict"] for reported in plan["segments"]] == ["drop", "drop", "keep"]
    assert b"retention_bytes wants 1 B" in cluster.run("retention", "explain", "demo/lines")
    cluster.run("janitor", "--once")
    assert cluster.run("read", "demo/lines") == b"one\ntwo\n"
    (entry,) = json.loads(cluster.run("stream", "trash", "demo", "--json"))
    assert (entry["what"], entry["segments"]) == ("truncated segments", 2)
    cluster.run("namespace", "set", "demo", "--retention-bytes", "ever")
    cluster.run("stream", "untruncate", "demo/lines")
    assert cluster.run("read", "demo/lines") == 3 * b"one\ntwo\n"


def test_a_deleted_stream_is_restored_or_purged(cluster: StandaloneCluster) -> None:
    cluster.run("append", "demo/lines", stdin=b"one\n")
    cluster.run("stream", "delete", "demo/lines")
    assert json.loads(cluster.run("stream", "list", "demo", "--json")) == []
    cluster.run("stream", "undelete", "demo/lines", "--as-name", "back")
    assert cluster.run("read", "demo/back") == b"one\n"
    cluster.run("stream", "delete", "demo/back")
    assert cluster.try_run("namespace", "delete", "demo").returncode == 1
    assert cluster.try_run("stream", "purge", "demo/back").returncode == 1
    purged = json.loads(cluster.run("stream", "purge", "demo/back", "--yes", "--json"))
    assert purged["ledgers_deleted"] == 1
    assert cluster.try_run("stream", "undelete", "demo/back").returncode == 1
    cluster.run("namespace", "delete", "demo")
    assert json.loads(cluster.run("ledger", "list", "--json")) == []


async def test_an_incomplete_sweep_is_reported(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster("--janitor-interval-s", "0")
    cluster.run("append", "demo/lines", stdin=b"one\n")
    cluster.run("append", "demo/other", stdin=b"two\n")
    assert cluster.try_run("janitor", "--once").returncode == 0
    async with LedgerClient.connect(cluster.uri) as client:
        path = stream_path("demo", "lines")
        await client.store.put(path, b"junk", (await client.store.get(path)).version)
    swept = cluster.try_run("janitor", "--once", "--json")
    (report,) = json.loads(swept.stdout)
    assert (swept.returncode, report["failures"], report["streams"]) == (1, 1, 1)
    assert b"lines" in swept.stderr
