"""Three pipelines stream -> Spark -> stream, with their input and the checks of their output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import trio

from ledger.client import LedgerClient
from stream.namespace import Namespace
from stream.retention.janitor import Janitor
from tests.spark.kills.feed import FedRecord, Feed, OutputMismatch, nbytes_of, output_of
from tests.spark.kills.orders import KillOrders
from tests.spark.kills.pipeline import QuerySpec
from tests.spark.streams import NAMESPACE, Streams

PARTITIONS = 2
_SMALL = {"maxRecordsPerTrigger": "1500", "minTasks": "2", "rowsPerBatch": "60"}
"""Several tasks per batch, several Arrow batches per task."""
_SWEEPS = 3
_SWEEPS_MAX = 300


class Scenario:
    """The pipelines of one world.

    Args:
        directory: for Spark checkpoints and orders.
        seed: determines the input.
    """

    def __init__(self, streams: Streams, directory: Path, seed: str) -> None:
        self.streams = streams
        self.orders: dict[str, KillOrders] = {}
        self.specs: list[QuerySpec] = []
        self._feeds: list[Feed] = []
        self._outputs: dict[str, tuple[list[str], list[Feed]]] = {}
        self._directory = directory
        # Inputs have many segments, some of them open.
        streams.namespace("inputs").set_policy(roll_bytes=1 << 17, roll_ms=10_000)
        self.warm_up = self._warm_up()
        self._add("plain", seed, partitions=None)
        self._add("fan-out", seed, partitions=PARTITIONS)
        self._add("shuffled", seed, partitions=None)

    def _warm_up(self) -> QuerySpec:
        """Returns a query of a few records that warms up each new driver."""
        streams = self.streams
        source = streams.written([b"warm", b"up"], word="warm-up")
        both = {"cluster": streams.cluster, "orders": str(self._directory / "no-orders")}
        read = {**both, **_SMALL, "stream": source, "startingPosition": "earliest"}
        write = {**both, "stream": streams.create("warmed-up")}
        return QuerySpec("warm-up", "shuffled", "", "", read, write)

    def _add(self, shape: str, seed: str, *, partitions: int | None) -> None:
        streams = self.streams
        source = streams.create(shape, partitions=partitions, namespace="inputs")
        target = streams.name(f"{shape}-out")
        outputs = [target] if partitions is None else [f"{target}{n}" for n in range(partitions)]
        for output in outputs:
            streams.make(output)
        feed = Feed(streams, source, f"{seed}/{shape}", partitions=partitions, at_once=20)
        feeds = [feed]
        if shape == "plain":
            # Another program appends to the stream that Spark writes to.
            beside = Feed(
                streams, target, f"{seed}/beside", partitions=None, at_once=1, origin=b"beside"
            )
            feeds.append(beside)
        self._feeds += feeds
        self._outputs[shape] = (outputs, feeds)
        directory = self._directory / shape
        orders = directory / "orders"
        both = {"cluster": streams.cluster, "orders": str(orders)}
        read = {**both, **_SMALL, "stream": source, "startingPosition": "earliest"}
        spec = QuerySpec(shape, shape, str(directory / "checkpoint"), target, read, both)
        if shape != "fan-out":
            # Some tasks return small results, others write ledgers, often in one batch.
            spec = replace(spec, write={**both, "stream": target, "smallResultBytes": "8k"})
        if shape == "shuffled":
            spec = replace(spec, write={**spec.write, "sortWithinBatch": "key", "sinkId": "sorted"})
        self.specs.append(spec)
        self.orders[shape] = KillOrders(orders)

    def start(self) -> None:
        for feed in self._feeds:
            feed.start()

    def stop(self) -> None:
        """Stops the feeds; all their records are durable then."""
        for feed in self._feeds:
            feed.stop()

    def check(self) -> dict[str, int]:
        """Checks that the outputs equal the inputs, byte for byte and in order; returns counts.

        Raises OutputMismatch.
        """
        found = [record for outputs in self._outputs.values() for record in self._check(*outputs)]
        return {"records compared": len(found), "bytes compared": sum(map(nbytes_of, found))}

    def _check(self, outputs: Sequence[str], feeds: Sequence[Feed]) -> list[FedRecord]:
        found: list[list[FedRecord]] = [output_of(self.streams, output) for output in outputs]
        records = sum(feed.expect_in(found) for feed in feeds)
        if records != sum(map(len, found)):
            raise OutputMismatch(
                f"{outputs} have {sum(map(len, found))} records, {records} were fed"
            )
        return [record for output in found for record in output]

    def check_ledgers(self) -> dict[str, int]:
        """Checks that each ledger belongs to a stream after a sweep. Raises OutputMismatch."""
        return trio.run(_ledgers_after_sweep, self.streams.cluster)


async def _ledgers_after_sweep(cluster: str) -> dict[str, int]:
    async with LedgerClient.connect(cluster) as client:
        before = len(await client.list_ledgers())
        for _ in range(
            _SWEEPS_MAX
        ):  # the cluster's janitor may be merging, a sweep drops one merge
            named, are_merges_left = await _named_after_sweep(client)
            left = set(await client.list_ledgers())
            if left == named and not are_merges_left:
                return {"ledgers of streams": len(left), "ledgers cleaned up": before - len(left)}
            await trio.sleep(0.1)
        raise OutputMismatch(
            f"{len(left - named)} ledgers belong to no stream ({sorted(left - named)[:5]}), "
            f"{len(named - left)} of streams are missing ({sorted(named - left)[:5]}), merges are "
            f"left: {are_merges_left}"
        )


async def _named_after_sweep(client: LedgerClient) -> tuple[set[int], bool]:
    """Returns the ledgers of all streams, and whether there are others that were merged."""
    named: set[int] = set()
    are_merges_left = False
    for name in (NAMESPACE, "inputs"):
        await Janitor(client, name, orphan_age_ms=0, sink_orphan_age_ms=0, replaced_ms=0).sweep()
        namespace = Namespace(client, name)
        for stream in await namespace.list_streams():
            for one in await _parts(namespace, stream):
                metadata = await namespace.stream_metadata(one)
                are_merges_left |= bool(metadata.pages.replaced)
                named.update(metadata.ledgers())
                segments = await namespace.segments(one, limit=1 << 30)
                named.update(segment.ledger_id for segment in segments)
    return named, are_merges_left


async def _parts(namespace: Namespace, stream: str) -> list[str]:
    parts = await namespace.partitions(stream)
    return parts or [stream]
