"""Names that do not exist: the similar one that does is named, and what is missing."""

from __future__ import annotations

import pytest

from bookie.testing.in_process import InProcessCluster
from ledger.cli.output import ClusterOption, OutputOption
from stream import EARLIEST, Namespace
from stream.cli import cursors, groups, namespaces, streams, verify
from stream.cli.settings import PolicyOptions
from stream.errors import NoSuchCursor, NoSuchNamespace, NoSuchStream

JSON = OutputOption(json=True)


async def test_mistyped_names_are_answered_with_the_similar_one(
    ledgerstream_cluster: InProcessCluster,
) -> None:
    cluster = ClusterOption(cluster=ledgerstream_cluster.uri)
    async with Namespace.connect(cluster.uri, "demo", create=True) as namespace:
        await namespace.create_stream("clicks")
        await namespace.create_stream("views", partitions=2)
        await namespace.set_cursor("clicks", "billing", EARLIEST)
    for stream, text in (
        ("demo/clcks", "no stream 'clcks' in namespace 'demo'; did you mean 'clicks'?"),
        ("demo/vews#1", "no stream 'vews' in namespace 'demo'; did you mean 'views'?"),
        ("demo/zzz", "no stream 'zzz' in namespace 'demo', or it was deleted; create it"),
    ):
        with pytest.raises(NoSuchStream) as caught:
            await streams.show(stream, cluster=cluster, output=JSON)
        assert str(caught.value).startswith(text)
    with pytest.raises(NoSuchStream, match="did you mean 'clicks'"):
        await verify.verify("demo/clcks", cluster=cluster, output=JSON)
    with pytest.raises(NoSuchNamespace, match=r"no namespace 'dmo'; did you mean 'demo'\?"):
        await streams.show("dmo/clicks", cluster=cluster, output=JSON)
    with pytest.raises(NoSuchNamespace, match=r"no namespace 'zzz'; create it"):
        await streams.show("zzz/clicks", cluster=cluster, output=JSON)
    with pytest.raises(NoSuchNamespace, match=r"no namespace 'dem'; did you mean 'demo'\?"):
        await namespaces.delete("dem", cluster=cluster, output=JSON)
    with pytest.raises(NoSuchCursor, match=r"demo/clicks; did you mean 'billing'\?"):
        await cursors.show("demo/clicks", "biling", cluster=cluster, output=JSON)
    with pytest.raises(NoSuchStream, match="did you mean 'clicks'"):
        await groups.list_groups("demo/clcks", cluster=cluster, output=JSON)


async def test_more_bookies_than_are_up_are_warned_of(
    ledgerstream_cluster: InProcessCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = ClusterOption(cluster=ledgerstream_cluster.uri)
    wide = PolicyOptions(ensemble_size=5)
    await namespaces.create("big", policy=wide, cluster=cluster, output=JSON)
    assert "warning: namespace big has ensemble_size 5, and 3 bookies are up" in (
        capsys.readouterr().err
    )
    await namespaces.create("small", cluster=cluster, output=JSON)
    assert capsys.readouterr().err == ""
    await namespaces.set_policy("small", policy=wide, cluster=cluster, output=JSON)
    assert "warning: namespace small has ensemble_size 5" in capsys.readouterr().err
