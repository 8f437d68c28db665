"""Operators' views of real bookie processes: metrics, `bookie show`, `bookie gc`."""

from __future__ import annotations

import json
import tomllib
import urllib.request
from collections import defaultdict
from pathlib import Path

import pytest
import tomli_w
import trio
from prometheus_client.parser import text_string_to_metric_families as parse

from bookie.standalone.cluster import StandaloneLayout
from ledger.metastore import open_store
from ledger.metastore.decommissions import Decommission, Decommissions
from tests.system.cluster import StandaloneCluster, wait_for
from tests.system.conftest import StartCluster

pytestmark = pytest.mark.system


def totals(cluster: StandaloneCluster) -> dict[str, float]:
    """Returns the value of each sample, summed over all bookies and labels."""
    layout = tomllib.loads((cluster.directory / "standalone.toml").read_text())
    found: dict[str, float] = defaultdict(float)
    for port in layout["http_ports"]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        for family in parse(text):
            for sample in family.samples:
                found[sample.name.removeprefix("ledgerstream_bookie_")] += sample.value
    return found


def test_numbers_of_all_bookies_change(cluster: StandaloneCluster) -> None:
    before = totals(cluster)
    assert (before["server_status"], before["adds_total"]) == (3, 0)
    cluster.run("append", "demo/clicks", stdin=b"".join(b"%d\n" % i for i in range(1000)))
    after = totals(cluster)
    assert after["adds_total"] > 0
    assert after["journal_add_seconds_count"] == after["journal_group_entries_count"] > 0
    assert after["journal_sync_seconds_count"] > 0
    assert after["write_cache_bytes"] > 0


def test_one_of_the_bookies_is_the_auditor_and_shows_its_audit(cluster: StandaloneCluster) -> None:
    cluster.run("append", "demo/audited", stdin=b"a\n")
    cluster.run("autorecovery", "audit")
    wait_for(lambda: totals(cluster)["audited_ledgers"] > 0)
    found = totals(cluster)
    assert found["is_auditor"] == 1
    assert (found["ledgers_below_write_quorum"], found["ledgers_without_copy"]) == (0, 0)
    shown = json.loads(cluster.run("bookie", "show", "--json"))
    assert sorted(one["autorecovery"]["is_auditor"] for one in shown) == [False, False, True]
    text = cluster.run("bookie", "show")
    assert text.count(b"is auditor") == 3
    status = json.loads(cluster.run("autorecovery", "status", "--json"))
    assert status["placement_fail"] == 0


def test_a_bookie_that_is_emptied_is_listed_as_such(cluster: StandaloneCluster) -> None:
    first = sorted(f"127.0.0.1:{port}" for port in cluster.ports())[0]

    async def change(begins: bool) -> None:
        async with open_store(cluster.uri) as store:
            decommissions = Decommissions(store)
            if begins:
                await decommissions.begin(Decommission(bookie=first, begun_ms=1))
            else:
                assert await decommissions.cancel(first)

    def state() -> tuple[object, object]:
        listed = json.loads(cluster.run("bookie", "list", "--json"))
        shown = json.loads(cluster.run("bookie", "show", first, "--json"))
        return next(one["state"] for one in listed if one["bookie"] == first), shown["state"]

    assert state() == ("up", "writable")
    trio.run(change, True)
    wait_for(lambda: state() == ("emptying", "read-only"))
    trio.run(change, False)
    wait_for(lambda: state() == ("up", "writable"))


def test_bookies_are_listed_with_the_ledgers_that_name_them(cluster: StandaloneCluster) -> None:
    before = json.loads(cluster.run("bookie", "list", "--json"))
    assert "ledgers" not in before[0]
    cluster.run("append", "demo/counted", stdin=b"a\n")
    listed = json.loads(cluster.run("bookie", "list", "--ledgers", "--json"))
    assert len(listed) == 3
    assert len({one["ledgers"] for one in listed}) == 1  # each ledger is at all three
    assert listed[0]["ledgers"] == listed[0]["fragments"] > 0


def test_bookies_are_shown_and_collect_on_request(cluster: StandaloneCluster) -> None:
    shown = json.loads(cluster.run("bookie", "show", "--json"))
    assert [one["bookie"] for one in shown] == sorted(f"127.0.0.1:{p}" for p in cluster.ports())
    one = shown[0]["bookie"]
    alone = json.loads(cluster.run("bookie", "show", one, "--json"))
    assert alone["state"] == "writable"
    assert alone["ledger_directories"][0]["ledgers"] == 0
    said = cluster.run("bookie", "show", one)
    assert b"writable" in said
    assert b"sync ms p99" in said
    reported = json.loads(cluster.run("bookie", "gc", one, "--json"))
    assert reported == {"bookie": one, "is_collecting": True}

    def rounds() -> int:
        found = json.loads(cluster.run("bookie", "show", one, "--json"))
        return int(found["ledger_directories"][0]["garbage_rounds"])

    wait_for(lambda: rounds() == 1)


def test_a_bookie_without_http_does_not_hide_the_others(start_cluster: StartCluster) -> None:
    cluster = start_cluster(bookies=2)
    cluster.end()
    config = cluster.directory / "bookie-1" / "bookie.toml"
    lines = config.read_text().splitlines(keepends=True)
    config.write_text("".join(line for line in lines if not line.startswith("http_port")))
    cluster.start()
    shown = cluster.try_run("bookie", "show", "--json")
    assert [one["bookie"] for one in json.loads(shown.stdout)] == [
        f"127.0.0.1:{cluster.ports()[1]}"
    ]
    assert b"has no HTTP server. Cure: set http_port in its settings" in shown.stderr


def test_an_older_directory_without_http_ports_is_served(tmp_path: Path) -> None:
    StandaloneLayout.open(tmp_path, 2)
    kept = tmp_path / "standalone.toml"
    stored = tomllib.loads(kept.read_text())
    del stored["http_ports"]
    kept.write_text(tomli_w.dumps(stored))
    layout = StandaloneLayout.open(tmp_path, None)
    assert layout.http_ports == ()
    assert "http_port = 0\n" in layout.bookie_config(1).read_text()


def test_a_bookie_that_does_not_answer_is_reported_in_a_line(shared: StandaloneCluster) -> None:
    absent = shared.try_run("bookie", "show", "127.0.0.1:1")
    assert absent.returncode == 1
    assert b"127.0.0.1:1 is not registered" in absent.stderr
    assert b"Traceback" not in absent.stderr
