"""The command `ledgerstream autorecovery` on the metadata of a cluster."""

from __future__ import annotations

import json
import os
import random
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ledger.autorecovery.published import (
    AUDIT_PATH,
    AuditReport,
    WorkerReport,
    publish_audit,
    publish_worker,
)
from ledger.cli import autorecovery
from ledger.cli.output import ClusterOption, OutputOption
from ledger.errors import InvalidArgument, MetadataCorrupt, NoSuchCluster
from ledger.metastore import open_store
from ledger.metastore.base import MetadataStore
from ledger.metastore.election import AuditorElection
from ledger.metastore.underreplication import UnderreplicationStore
from tests.clusters import make_cluster

JSON = OutputOption(json=True)
BASE = "/ledgers/underreplication"
NOW_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Metadata:
    """A cluster without bookies."""

    cluster: ClusterOption
    store: MetadataStore
    marks: UnderreplicationStore

    def elected(self, bookie_id: str) -> AbstractAsyncContextManager[Any]:
        return AuditorElection(self.store, "/ledgers", random.Random(1)).elected(bookie_id)


@pytest.fixture
async def metadata(tmp_path: Path) -> AsyncIterator[Metadata]:
    uri = f"sqlite://{tmp_path}/cluster.db"
    await make_cluster(uri)
    async with opened(uri) as store:
        marks = UnderreplicationStore(store, "/ledgers", lambda: NOW_MS)
        yield Metadata(ClusterOption(cluster=uri), store, marks)


@asynccontextmanager
async def opened(uri: str) -> AsyncIterator[MetadataStore]:
    async with open_store(uri) as store:
        yield store


def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


async def test_the_status_of_a_cluster_without_auto_recovery(
    metadata: Metadata, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await autorecovery.status(cluster=metadata.cluster, output=JSON) == 0
    assert printed(capsys) == {
        "is_enabled": True,
        "auditor": None,
        "lost_bookie_recovery_delay_s": None,
        "marked_ledgers": 0,
        "locks": [],
        "damaged": [],
    }
    assert await autorecovery.status(cluster=metadata.cluster) == 0
    shown = capsys.readouterr()
    assert shown.out == (
        "is enabled\tyes\nauditor\t-\nlost bookie recovery delay s\t-\nmarked ledgers\t0\n"
    )
    assert shown.err == "no process runs auto-recovery: nothing is healed\n"


async def test_the_status_shows_the_auditor_and_who_copies(
    metadata: Metadata, capsys: pytest.CaptureFixture[str]
) -> None:
    await metadata.marks.mark(7, ["b1"])
    await metadata.marks.mark(8, ["b1"])
    await metadata.marks.set_lost_bookie_recovery_delay_s(90)
    async with (
        metadata.elected("b2"),
        metadata.marks.lock(8, "b3"),
    ):
        await metadata.store.create(f"{BASE}/locks/urL0000000009", b"\xff", is_ephemeral=True)
        assert await autorecovery.status(cluster=metadata.cluster, output=JSON) == 0
        assert printed(capsys) == {
            "is_enabled": True,
            "auditor": "b2",
            "lost_bookie_recovery_delay_s": 90,
            "marked_ledgers": 2,
            "locks": [
                {"ledger_id": 8, "locked_by": "b3"},
                {"ledger_id": 9, "locked_by": "unknown"},
            ],
            "damaged": [],
        }
        assert await autorecovery.status(cluster=metadata.cluster) == 0
        assert capsys.readouterr().out.splitlines()[-2:] == ["8\tb3", "9\tunknown"]


async def test_the_status_shows_what_the_newest_audit_counted(
    metadata: Metadata, capsys: pytest.CaptureFixture[str]
) -> None:
    await publish_audit(
        metadata.store,
        AuditReport(
            auditor="b2",
            begun_ms=NOW_MS,
            placement_strict=11,
            placement_soft=3,
            placement_fail=1,
        ),
    )
    assert await autorecovery.status(cluster=metadata.cluster) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-4:] == [
        "audit ended\t-",
        "placement strict\t11",
        "placement soft\t3",
        "placement fail\t1",
    ]
    # The report of an earlier release has no such counts.
    before = (
        b'{"version": 1, "auditor": "b2", "begun_ms": 1, "ended_ms": 1700000000000, "ledgers": 5}'
    )
    await metadata.store.put(AUDIT_PATH, before)
    assert await autorecovery.status(cluster=metadata.cluster, output=JSON) == 0
    found = printed(capsys)
    assert (found["placement_strict"], found["placement_fail"]) == (None, None)
    assert found["audit_ended"] is not None


async def test_a_damaged_node_is_named_and_the_rest_is_shown(
    metadata: Metadata, capsys: pytest.CaptureFixture[str]
) -> None:
    await metadata.marks.mark(7, ["b1"])
    await metadata.store.create(f"{BASE}/auditorelection/V_0000000001", b"\xff")
    await metadata.store.create(f"{BASE}/lostBookieRecoveryDelay", b"soon")
    assert await autorecovery.status(cluster=metadata.cluster) == 1
    shown = capsys.readouterr()
    assert "marked ledgers\t1\n" in shown.out
    vote, delay = shown.err.splitlines()
    assert vote.startswith(f"damaged: the vote {BASE}/auditorelection/V_0000000001 cannot be read")
    assert delay.startswith(f"damaged: {BASE}/lostBookieRecoveryDelay holds b'soon'")
    assert await autorecovery.status(cluster=metadata.cluster, output=JSON) == 1
    assert len(printed(capsys)["damaged"]) == 2
    with pytest.raises(MetadataCorrupt, match="soon"):
        await autorecovery.delay(cluster=metadata.cluster)
    with pytest.raises(MetadataCorrupt, match="soon"):
        await autorecovery.audit(cluster=metadata.cluster)


async def test_auto_recovery_is_disabled_and_enabled(
    metadata: Metadata, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        await autorecovery.disable(cluster=metadata.cluster, output=JSON)
        assert printed(capsys) == {"is_enabled": False}
        assert not await metadata.marks.is_enabled()
    await autorecovery.disable(cluster=metadata.cluster)
    assert capsys.readouterr().err == (
        "auto-recovery is disabled in the whole cluster, until `ledgerstream autorecovery enable`\n"
    )
    for _ in range(2):
        await autorecovery.enable(cluster=metadata.cluster, output=JSON)
        assert printed(capsys) == {"is_enabled": True}
        assert await metadata.marks.is_enabled()


async def test_marked_ledgers_are_listed_with_what_is_known(
    metadata: Metadata, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await autorecovery.list_all(cluster=metadata.cluster) == 0
    assert capsys.readouterr() == ("", "no ledger is known to lack copies\n")
    await metadata.marks.mark(7, ["b1", "b2"])
    await metadata.marks.mark(5_000_000_000, ["b1"])
    await metadata.marks.mark(6, ["b3"])
    await metadata.store.put(f"{BASE}/ledgers/0000/0000/0000/0006/urL0000000006", b"replica: {")
    why = "needs 3 bookies, 2 are writable"
    await publish_worker(
        metadata.store,
        WorkerReport(worker="b9", updated_ms=NOW_MS, held=((5_000_000_000, why, NOW_MS, False),)),
    )
    async with metadata.marks.lock(7, "b9"):
        assert await autorecovery.list_all(cluster=metadata.cluster, output=JSON) == 1
        shown = capsys.readouterr()
        assert json.loads(shown.out) == [
            {
                "ledger_id": 6,
                "missing_at": "damaged",
                "since": None,
                "copied_by": None,
                "reason": None,
            },
            {
                "ledger_id": 7,
                "missing_at": ["b1", "b2"],
                "since": "2023-11-14T22:13:20.000Z",
                "copied_by": "b9",
                "reason": None,
            },
            {
                "ledger_id": 5_000_000_000,
                "missing_at": ["b1"],
                "since": "2023-11-14T22:13:20.000Z",
                "copied_by": None,
                "reason": why,
            },
        ]
        assert "urL0000000006 cannot be read" in shown.err
        assert await autorecovery.list_all(cluster=metadata.cluster) == 1
        lines = capsys.readouterr().out.splitlines()
        assert [line.split("\t")[:2] for line in lines] == [
            ["6", "damaged"],
            ["7", "b1, b2"],
            ["5000000000", "b1"],
        ]


async def test_the_delay_is_shown_and_set(
    metadata: Metadata, capsys: pytest.CaptureFixture[str]
) -> None:
    await autorecovery.delay(cluster=metadata.cluster)
    assert capsys.readouterr() == (
        "lost bookie recovery delay s\t-\n",
        "not set for the cluster: each auditor uses its own setting\n",
    )
    await autorecovery.delay(300, cluster=metadata.cluster)
    assert capsys.readouterr() == ("", "a lost bookie is waited for 300 s\n")
    await autorecovery.delay(cluster=metadata.cluster, output=JSON)
    assert printed(capsys) == {"lost_bookie_recovery_delay_s": 300}
    assert (await metadata.store.get(f"{BASE}/lostBookieRecoveryDelay")).data == b"300"


async def test_an_audit_is_asked_for(
    metadata: Metadata, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidArgument, match="there is no auditor"):
        await autorecovery.audit(cluster=metadata.cluster)
    async with metadata.elected("b2"):
        await metadata.marks.set_enabled(False)
        with pytest.raises(InvalidArgument, match="Cure: ledgerstream autorecovery enable"):
            await autorecovery.audit(cluster=metadata.cluster)
        assert await metadata.marks.lost_bookie_recovery_delay_s() is None, "nothing was changed"
        await metadata.marks.set_enabled(True)
        await autorecovery.audit(cluster=metadata.cluster)
        assert capsys.readouterr() == (
            "",
            "the cluster had no delay for lost bookies; it is 60 s now\n"
            "the auditor b2 was asked to look\n",
        )
        async with aclosing(metadata.marks.watch_delay()) as delays:
            assert await anext(delays) == 60
            await autorecovery.audit(cluster=metadata.cluster, output=JSON)
            assert await anext(delays) == 60
        assert printed(capsys) == {"auditor": "b2", "lost_bookie_recovery_delay_s": 60}


async def test_an_auditor_whose_vote_is_damaged_is_asked_all_the_same(
    metadata: Metadata, capsys: pytest.CaptureFixture[str]
) -> None:
    await metadata.marks.set_lost_bookie_recovery_delay_s(5)
    await metadata.store.create(f"{BASE}/auditorelection/V_0000000001", b"\xff")
    await autorecovery.audit(cluster=metadata.cluster)
    assert capsys.readouterr().err == "the auditor (its vote is damaged) was asked to look\n"


async def test_a_cluster_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    nowhere = ClusterOption(cluster=f"sqlite://{tmp_path}/none.db")
    with pytest.raises(NoSuchCluster):
        await autorecovery.disable(cluster=nowhere)
    assert not os.listdir(tmp_path)
