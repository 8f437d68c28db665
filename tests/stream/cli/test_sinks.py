"""The command `ledgerstream sink` on a cluster in this process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bookie.testing.in_process import InProcessCluster
from ledger.cli.output import ClusterOption, OutputOption
from ledger.errors import InvalidArgument
from stream import CommitOutOfOrder, Namespace
from stream.cli import sinks
from stream.sinks.sinks import SinkQuery, commit_batch
from tests.stream.sinks.sink_ledgers import write_ledger

JSON = OutputOption(json=True)


async def test_sinks_are_listed_shown_and_forgotten(
    ledgerstream_cluster: InProcessCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = ClusterOption(cluster=ledgerstream_cluster.uri)

    def printed() -> Any:
        return json.loads(capsys.readouterr().out)

    async with Namespace.connect(cluster.uri, "n", create=True) as namespace:
        await namespace.create_stream("s")
        for sink in ("k", "l", "m"):
            ledger = await write_ledger(namespace.client, "s", [[b"1", b"2"]])
            await commit_batch(namespace.client, [ledger], sink_id=sink, batch_id=7)
    await sinks.list_all(cluster=cluster, output=JSON)
    assert [(each["sink"], each["batch"], each["records"]) for each in printed()] == [
        ("k", 7, 2), ("l", 7, 2), ("m", 7, 2),
    ]  # fmt: skip
    await sinks.show("l", cluster=cluster, output=JSON)
    shown = printed()
    assert shown["last_batch"][0] | {"bytes": 0} == {
        "stream": "n/s", "first_segment": 2, "segments": 1, "first_sequence": 2, "records": 2,
        "bytes": 0,
    }  # fmt: skip
    await sinks.show("l", cluster=cluster)
    assert "n/s" in capsys.readouterr().out
    await sinks.forget("k", cluster=cluster, output=JSON)
    assert printed() == {"forgotten": ["k"]}
    for older_than, forgotten in (("1d", []), ("0s", ["l", "m"])):
        await sinks.forget(older_than=older_than, cluster=cluster, output=JSON)
        assert printed() == {"forgotten": forgotten}
    with pytest.raises(InvalidArgument, match="no sink 'k'"):
        await sinks.show("k", cluster=cluster, output=JSON)
    with pytest.raises(InvalidArgument, match="name a sink"):
        await sinks.forget(cluster=cluster)
    with pytest.raises(InvalidArgument, match="name a sink"):
        await sinks.forget("k", older_than="1d", cluster=cluster)


async def test_a_reset_sink_takes_the_next_batch_of_any_query(
    ledgerstream_cluster: InProcessCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = ClusterOption(cluster=ledgerstream_cluster.uri)
    one, two = (
        SinkQuery(query_id=name, run_id=f"run-{name}", checkpoint=f"/cp/{name}")
        for name in ("one", "two")
    )
    async with Namespace.connect(cluster.uri, "n", create=True) as namespace:
        await namespace.create_stream("s")

        async def commit(query: SinkQuery, batch_id: int) -> None:
            ledger = await write_ledger(namespace.client, "s", [[b"1"]])
            await commit_batch(
                namespace.client, [ledger], sink_id="k", batch_id=batch_id,
                origin=f"query {query.query_id}", query=query,
            )  # fmt: skip

        await commit(one, 0)
        with pytest.raises(CommitOutOfOrder, match="sink reset k --batch 16"):
            await commit(two, 17)
        await sinks.show("k", cluster=cluster, output=JSON)
        shown = json.loads(capsys.readouterr().out)
        assert (shown["query"], shown["run"], shown["checkpoint"]) == ("one", "run-one", "/cp/one")
        await sinks.reset("k", batch=16, cluster=cluster)
        assert "continues behind batch 16" in capsys.readouterr().err
        await commit(two, 17)
        with pytest.raises(CommitOutOfOrder, match="query two"):
            await commit(one, 18)
        await sinks.reset("new", batch=3, cluster=cluster, output=JSON)
        assert json.loads(capsys.readouterr().out) == {"sink": "new", "batch": 3}
        with pytest.raises(InvalidArgument, match="batch id -1"):
            await sinks.reset("new", batch=-1, cluster=cluster, output=JSON)
