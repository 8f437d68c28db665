"""Times that are wrong by a year are shown with what follows and the cure."""

from __future__ import annotations

import json

import pytest

from bookie.testing.in_process import InProcessCluster
from ledger.cli.output import ClusterOption, OutputOption
from ledger.client import LedgerClient
from ledger.errors import MetadataUnavailable
from stream import Namespace
from stream.cli import janitor as cli_janitor
from stream.cli import retention, sinks, streams
from stream.errors import ClockInDoubt
from stream.retention.clock_check import MARK_PATH

YEAR = 365 * 86_400_000
TABLE, JSON = OutputOption(), OutputOption(json=True)


async def test_explain_and_show_warn_of_a_record_stamped_a_year_ahead(
    ledgerstream_cluster: InProcessCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = ClusterOption(cluster=ledgerstream_cluster.uri)
    async with Namespace.connect(cluster.uri, "ahead", create=True) as namespace:
        await namespace.set_policy(retention_ms=7 * 86_400_000)
        right_ms = namespace.client.now_ms
        namespace.client.now_ms = lambda: right_ms() + YEAR
        async with namespace.writer("s", create=True) as writer:
            await writer.append(b"x")
    capsys.readouterr()
    expected = "warning: stream s: the newest record of segment 1 is stamped "
    for command, argument in ((retention.explain, "ahead/s"), (streams.show, "ahead/s")):
        await command(argument, cluster=cluster, output=TABLE)
        [line] = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
        assert line.startswith(expected)
        assert "Cure: " in line
    await retention.explain("ahead", cluster=cluster, output=JSON)
    assert expected in capsys.readouterr().err
    await retention.explain("ahead/s", cluster=cluster, output=JSON)
    [plan] = json.loads(capsys.readouterr().out)
    assert "ahead of this clock" in plan["warnings"][0]


async def test_a_janitor_behind_the_last_sweep_fails_until_its_clock_is_trusted(
    ledgerstream_cluster: InProcessCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = ClusterOption(cluster=ledgerstream_cluster.uri)

    async def sweep(*, trust_clock: bool = False) -> tuple[int | None, int]:
        code = await cli_janitor.janitor(
            once=True, trust_clock=trust_clock, cluster=cluster, output=JSON
        )
        reports = json.loads(capsys.readouterr().out)
        return code, sum(report["failures"] for report in reports)

    async with LedgerClient.connect(cluster.uri) as client:
        await Namespace(client, "quiet").ensure()
        assert (await sweep())[0] == 0
        await client.store.put(MARK_PATH, b"%d" % (client.now_ms() + YEAR))
        code, failures = await sweep()
        assert code == 1
        assert failures > 0
        with pytest.raises(ClockInDoubt, match="behind the last sweep"):
            await sinks.forget(older_than="90d", cluster=cluster, output=JSON)
        assert (await sweep(trust_clock=True))[0] == 0
        assert (await sweep())[0] == 0
        assert not issubclass(ClockInDoubt, MetadataUnavailable)
