"""The Java client says the same to Apache's bookie and to ours, and is told the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.golden.conversation import Conversation, Event, exchanges, load, path_of, save
from tests.interop.apache_bookie import SORTED_LEDGER_STORAGE, ApacheBookie
from tests.interop.conftest import GetVm, init_cluster
from tests.interop.java_client import JavaVm
from tests.interop.wire.conversation import converse
from tests.interop.wire.recording_proxy import recording_proxy
from tests.real_cluster import real_cluster
from tests.zookeeper import RunningZooKeeper

pytestmark = pytest.mark.interop

NewRoot = Callable[[str], str]
SETTINGS = {"garbage_interval_ms": 3_600_000}
_WOKEN = "long poll woken by an add"
_TIME = " lacUpdateTimestamp: 1"


@contextmanager
def fresh_apache_bookie(vm: JavaVm, uri: str, directory: Path) -> Iterator[ApacheBookie]:
    """One that knows no ledger, with the storage that can do all the protocol has."""
    init_cluster(vm, uri)
    bookie = ApacheBookie(vm.version, directory / "bookie", uri, storage=SORTED_LEDGER_STORAGE)
    bookie.start()
    try:
        yield bookie
    finally:
        bookie.kill()


@pytest.mark.parametrize("wire", ["v2", "v3"])
@pytest.mark.interop_result(area="wire", feature="same conversation", wire=None)
async def test_both_bookies_say_the_same(
    version: str,
    wire: str,
    java_vm: GetVm,
    new_root: NewRoot,
    shared_zookeeper: RunningZooKeeper,
    tmp_path: Path,
) -> None:
    """Frame by frame, but for what `NORMALISED` names; and as it was said when the golden
    conversation was recorded (with RECORD_GOLDEN=1 in the environment: now)."""

    async def said(upstream: tuple[str, int], bookie: str) -> list[Event]:
        directory = tmp_path / bookie
        directory.mkdir()
        async with recording_proxy(upstream) as proxy:
            uris = new_root("conversation"), new_root("conversation")
            return await converse(
                java_vm(version),
                shared_zookeeper.address,
                uris,
                proxy,
                v2=wire == "v2",
                directory=directory,
            )

    with fresh_apache_bookie(java_vm(version), new_root("apache"), tmp_path) as apache:
        theirs = await said(("127.0.0.1", apache.port), "apache")
    golden = path_of(version, wire)
    if os.environ.get("RECORD_GOLDEN") == "1":
        origin = {
            "client": f"Apache BookKeeper {version}",
            "bookie": f"Apache BookKeeper {version}, SortedLedgerStorage",
            "wire": wire,
        }
        save(Conversation(origin, theirs), golden)
    async with real_cluster(tmp_path / "cluster", 1, **SETTINGS) as cluster:
        ours = await said(cluster.bookies[0].address, "ours")
    expected = exchanges(load(golden).events)
    assert exchanges(ours) == expected
    assert _as_if_in_time(exchanges(theirs), expected) == expected


def _as_if_in_time(lines: list[str], expected: list[str]) -> list[str]:
    """Apache's reads and adds have threads of their own: on a busy machine the add overtakes the
    poll that it is to wake, which is then answered at once, and without the time."""
    if len(lines) != len(expected):
        return lines
    return [
        told if line.startswith(_WOKEN) and line == told.replace(_TIME, "") else line
        for line, told in zip(lines, expected, strict=True)
    ]
