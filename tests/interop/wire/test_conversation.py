"""The Java client has the same conversation with Apache's bookie and with ledgerstream's."""

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
    """A bookie without ledgers, with the storage that supports the whole protocol."""
    init_cluster(vm, uri)
    bookie = ApacheBookie(vm.version, directory / "bookie", uri, storage=SORTED_LEDGER_STORAGE)
    bookie.start()
    try:
        yield bookie
    finally:
        bookie.kill()


@pytest.mark.parametrize("wire", ["v2", "v3"])
@pytest.mark.interop_result(area="wire", feature="same conversation", wire=None)
async def test_both_bookies_have_the_same_conversation(
    version: str,
    wire: str,
    java_vm: GetVm,
    new_root: NewRoot,
    shared_zookeeper: RunningZooKeeper,
    tmp_path: Path,
) -> None:
    """The frames are equal, except for `NORMALISED`, and equal to the golden conversation.

    With RECORD_GOLDEN=1 in the environment the golden conversation is recorded.
    """

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
    """Normalises the response of a poll.

    Apache has separate threads for reads and adds: on a busy machine the add overtakes the poll
    that it should wake, which is then answered immediately, and without the time.
    """
    if len(lines) != len(expected):
        return lines
    return [
        known if line.startswith(_WOKEN) and line == known.replace(_TIME, "") else line
        for line, known in zip(lines, expected, strict=True)
    ]
