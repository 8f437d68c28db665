"""Without a trash deletions and truncations are permanent, so the command line requires --yes."""

from __future__ import annotations

import pytest

from bookie.testing.in_process import InProcessCluster
from ledger.cli.output import ClusterOption, OutputOption
from ledger.errors import InvalidArgument
from stream import Namespace
from stream.cli import streams

JSON = OutputOption(json=True)


async def test_irreversible_commands_require_yes(ledgerstream_cluster: InProcessCluster) -> None:
    cluster = ClusterOption(cluster=ledgerstream_cluster.uri)
    async with Namespace.connect(cluster.uri, "demo", create=True) as namespace:
        await namespace.set_policy(trash_ms=0)
        for _ in range(2):
            async with namespace.writer("clicks", create=True) as writer:
                await writer.append(b"x")
        with pytest.raises(InvalidArgument, match=r"demo has no trash .* continue with --yes"):
            await streams.truncate("demo/clicks", "2:0:0", cluster=cluster, output=JSON)
        with pytest.raises(InvalidArgument, match="continue with --yes"):
            await streams.delete("demo/clicks", cluster=cluster, output=JSON)
        assert (await namespace.info("clicks")).records == 2
        await streams.truncate("demo/clicks", "2:0:0", yes=True, cluster=cluster, output=JSON)
        assert (await namespace.info("clicks")).records == 1
        await streams.delete("demo/clicks", yes=True, cluster=cluster, output=JSON)
        await namespace.set_policy(trash_ms=1000)
        await namespace.create_stream("clicks")
        await streams.delete("demo/clicks", cluster=cluster, output=JSON)
        assert await namespace.list_streams() == []
