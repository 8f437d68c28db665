"""A janitor reports damaged metadata, treats nothing as missing, and cleans up the rest."""

from __future__ import annotations

import pytest
import trio

from ledger.errors import MetadataCorrupt
from stream import Janitor, Namespace
from stream.cli.janitor import sweep as sweep_all
from stream.store.streams import namespace_path, stream_path
from tests.stream.retention.test_trash import WINDOW_MS, simulate_trash, write


def test_an_unreadable_ledger_is_counted_and_does_not_keep_other_orphans() -> None:
    async def scenario(namespace: Namespace) -> None:
        client = namespace.client
        await write(namespace, "s", [b"a"])
        async with client.create_ledger() as damaged:
            pass
        path = await client.ledgers.path(damaged.ledger_id)
        await client.store.put(path, b"no metadata at all")
        async with client.create_ledger(custom={"ledgerstream.stream": b"n/s"}) as orphan:
            pass
        report = await Janitor(client, "n", orphan_age_ms=-1).sweep()
        assert (report.failures, report.orphans_deleted) == (1, 1)
        left = await client.list_ledgers()
        assert damaged.ledger_id in left
        assert orphan.ledger_id not in left

    simulate_trash(scenario)


def test_partitions_of_a_node_that_cannot_be_read_are_not_taken_for_orphans() -> None:
    async def scenario(namespace: Namespace) -> None:
        await namespace.create_stream("p", partitions=2)
        await write(namespace, "s", [b"a"])
        await namespace.delete_stream("s")
        await namespace.client.store.put(stream_path("n", "p"), b"{}")
        await trio.sleep(WINDOW_MS / 1000)
        report = await Janitor(namespace.client, "n").sweep()
        assert (report.failures, report.streams, report.streams_purged) == (1, 2, 1)

    simulate_trash(scenario)


def test_an_unreadable_namespace_does_not_stop_others_from_being_cleaned() -> None:
    async def scenario(namespace: Namespace) -> None:
        client = namespace.client
        await Namespace(client, "broken").ensure()
        await client.store.put(namespace_path("broken"), b"{}")
        await write(namespace, "s", [b"a"])
        await namespace.delete_stream("s")
        await trio.sleep(WINDOW_MS / 1000)
        reports = await sweep_all(client)
        assert reports["broken"].failures == 1
        assert reports["n"].streams_purged == 1
        with pytest.raises(MetadataCorrupt):
            await Namespace(client, "broken").policy()

    simulate_trash(scenario)
