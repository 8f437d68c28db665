"""The commands `ledgerstream cursor` and `ledgerstream group` on a cluster in this process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bookie.testing.in_process import InProcessCluster
from ledger.cli.output import ClusterOption, OutputOption
from ledger.errors import InvalidArgument
from stream import LATEST, Namespace
from stream.cli import cursors, groups
from stream.errors import NoSuchCursor, NoSuchGroup

JSON = OutputOption(json=True)


async def test_cursors_and_groups_are_listed_shown_set_and_deleted(
    ledgerstream_cluster: InProcessCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = ClusterOption(cluster=ledgerstream_cluster.uri)

    def printed() -> Any:
        return json.loads(capsys.readouterr().out)

    async with Namespace.connect(cluster.uri, "demo", create=True) as namespace:
        await namespace.create_stream("clicks", partitions=2)
        for number in range(2):
            async with namespace.writer(f"clicks#{number}") as writer:
                await writer.append_many([b"%d" % n for n in range(4)])
        async with namespace.consumer("clicks", "billing", member="worker") as consumer:
            for _ in range(8):
                await consumer.next_record()
            await consumer.commit()

            await groups.show("demo/clicks", "billing", cluster=cluster, output=JSON)
            shown = printed()
            assert shown["members"] == ["worker"]
            assert [row["holder"] for row in shown["partitions"]] == ["worker", "worker"]
            assert [row["lag_records"] for row in shown["partitions"]] == [0, 0]
            await groups.list_groups("demo/clicks", cluster=cluster, output=JSON)
            assert [(g["group"], g["members"], g["lag_records"]) for g in printed()] == [
                ("billing", 1, 0)
            ]

        await cursors.set_cursor("demo/clicks", "billing", "earliest", cluster=cluster, output=JSON)
        assert [row["lag_records"] for row in printed()] == [4, 4]
        await cursors.set_cursor("demo/clicks#1", "audit", "1:0:3", cluster=cluster, output=JSON)
        assert (printed()["position"], await namespace.cursors("clicks#1") != []) == ("1:0:3", True)
        await cursors.list_cursors("demo/clicks", cluster=cluster, output=JSON)
        listed = printed()
        assert [(row["stream"], row["cursor"], row["lag_records"]) for row in listed] == [
            ("demo/clicks#0", "billing", 4),
            ("demo/clicks#1", "audit", 1),
            ("demo/clicks#1", "billing", 4),
        ]
        assert all(row["lag_bytes"] > 0 for row in listed)
        await cursors.show("demo/clicks#1", "audit", cluster=cluster, output=OutputOption())
        assert "lag records" in capsys.readouterr().out

        with pytest.raises(InvalidArgument, match="a position belongs to one of them"):
            await cursors.set_cursor("demo/clicks", "x", "1:0:0", cluster=cluster, output=JSON)
        await cursors.delete("demo/clicks", "audit", cluster=cluster, output=JSON)
        assert printed()["deleted"] is True
        with pytest.raises(NoSuchCursor, match="cursor list demo/clicks"):
            await cursors.show("demo/clicks", "audit", cluster=cluster, output=JSON)
        await groups.delete("demo/clicks", "billing", cluster=cluster, output=JSON)
        assert printed()["deleted"] is True
        with pytest.raises(NoSuchGroup):
            await groups.show("demo/clicks", "billing", cluster=cluster, output=JSON)
        await cursors.list_cursors("demo/clicks", cluster=cluster, output=JSON)
        assert printed() == []
        await namespace.set_cursor("clicks#0", "alone", LATEST)
        await groups.list_groups("demo/clicks", cluster=cluster, output=JSON)
        assert printed() == [], "a cursor without members is no group"
