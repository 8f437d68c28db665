"""SmallLedgers: the driver writes the small results of a batch, as one ledger for each stream.

The ledgers are closed by the transaction that commits the batch, and deleted if it fails. Must
never delete a ledger without checking that no stream has it, once a commit knows it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import trio

from connectors.spark.sink.ledger_output import LedgerOutput, rows_of
from connectors.spark.sink.routing import Target
from connectors.spark.sink.sink_batch import SinkBatch
from connectors.spark.sink.sort_order import SortOrder
from connectors.spark.sink.task_ledgers import delete_ledgers
from connectors.spark.sink.task_results import SmallResult, TaskLedger
from ledger.client import LedgerClient
from ledger.errors import LedgerError
from ledger.runtime.concurrency import map_bounded
from stream.errors import CompressionUnavailable
from stream.sinks.sinks import SinkLedger, UnclosedLedger, discard_ledgers

_DISCARD_S = 2.0
_DECODED_AT_ONCE = 64
"""Entries that are decoded in one turn of the loop: some 2 ms if they are of one row."""


@dataclass(slots=True)
class _Run:
    """Results of tasks that follow each other, for one stream. `is_alone`: no task has a ledger for
    it."""

    target: Target
    results: list[SmallResult]
    is_alone: bool = True


async def _decoded(results: Sequence[SmallResult]) -> AsyncIterator[pa.RecordBatch]:
    """Yields the rows of each entry. Other tasks of the loop run between a few of them."""
    entries = (payload for result in results for payload in result.entries)
    for number, payload in enumerate(entries):
        if number % _DECODED_AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
        yield rows_of(payload, number)


class SmallLedgers:
    """The ledgers with the small results of one batch; `discard` deletes them after a failure.

    Args:
        client: of the cluster.
        batch: the tag of the ledgers.
        order: by which the rows of a batch are sorted, or None.
        entry_bytes: the approximate size of entries.
    """

    def __init__(
        self, client: LedgerClient, batch: SinkBatch, order: SortOrder | None, entry_bytes: int
    ) -> None:
        self._client = client
        self._batch = batch
        self._order = order
        self._entry_bytes = entry_bytes
        self._outputs: list[LedgerOutput] = []
        self._done: list[SinkLedger] = []

    @property
    def unclosed(self) -> list[UnclosedLedger]:
        """The ledgers that the commit closes."""
        return [each for output in self._outputs for each in output.unclosed]

    async def write(self, results: Sequence[TaskLedger | SmallResult]) -> list[TaskLedger]:
        """Returns the ledgers of a batch in the order of its tasks, which is that of `results`.

        Small results of tasks that follow each other become one ledger for each stream, or more if
        it exceeds `roll_bytes`; their rows are sorted if the batch is. Raises what creating and
        writing a ledger raises.
        """
        streams: dict[Target, list[TaskLedger | _Run]] = {}
        for each in results:
            if isinstance(each, TaskLedger):
                target = Target(each.ledger.namespace, each.ledger.stream)
                streams.setdefault(target, []).append(each)
                continue
            parts = streams.setdefault(each.target, [])
            if parts and isinstance(parts[-1], _Run):
                parts[-1].results.append(each)
            else:
                parts.append(_Run(each.target, [each]))
        runs: list[_Run] = []
        for parts in streams.values():
            for part in parts:
                if isinstance(part, _Run):
                    part.is_alone = len(parts) == 1
                    runs.append(part)
        try:
            written = iter(await map_bounded(runs, self._write))
        except CompressionUnavailable as error:
            raise CompressionUnavailable(
                f"the driver cannot write the small results of tasks: {error} for the driver's "
                "Python, too, or set smallResultBytes=0, so that each task writes ledgers of its "
                "own; nothing of the batch is committed"
            ) from None
        found: list[TaskLedger] = []
        for parts in streams.values():
            for part in parts:
                found += next(written) if isinstance(part, _Run) else [part]
        return found

    async def _write(self, run: _Run) -> list[TaskLedger]:
        order = self._order
        output = LedgerOutput(
            self._client, run.target, run.results[0].policy, self._batch, self._entry_bytes,
            # Sorted rows beside a ledger of a task are merged with it: they are read before the
            # commit. Those of a run that is alone are in order, in however many ledgers.
            leaves_open=order is None or run.is_alone,
        )  # fmt: skip
        self._outputs.append(output)
        rows: pa.RecordBatch | None = None
        if order is None:
            async for part in _decoded(run.results):
                await output.add(part)
        else:
            parts = [part async for part in _decoded(run.results)]
            rows = order.sorted(pa.concat_batches(parts))
            await output.add(rows)
        ledgers = await output.close()
        self._done += ledgers
        is_new = any(result.is_new for result in run.results)
        found, first = [], 0
        for ledger in ledgers:
            low = high = None
            if order is not None and rows is not None:
                low, high = order.bounds(rows.slice(first, ledger.end.records))
            found.append(TaskLedger(ledger, low, high, is_new))
            first += ledger.end.records
        return found

    async def discard(self) -> None:
        """Deletes the ledgers that are in no stream, as far as that is possible immediately."""
        done = {ledger.ledger_id for ledger in self._done}
        made = [ledger_id for output in self._outputs for ledger_id in output.made]
        for output in self._outputs:
            output.abandon()
        await delete_ledgers(self._client, [each for each in made if each not in done])
        with trio.move_on_after(_DISCARD_S, shield=True), suppress(LedgerError):
            await discard_ledgers(
                self._client, self._done,
                sink_id=self._batch.sink_id, batch_id=self._batch.batch_id,
            )  # fmt: skip
