"""Sorts a whole batch: the sorted ledgers of its tasks are ordered, or merged if they overlap.

Ledgers whose ranges do not overlap are only ordered. Others are merged into new ledgers, entry by
entry: memory is bounded by a few entries of each ledger merged at once, whatever the size of the
batch. Runs on the driver before the commit. Must never change or delete a ledger of a task.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack

import pyarrow as pa

from connectors.spark.sink.ledger_output import LedgerOutput, rows_of
from connectors.spark.sink.routing import Target
from connectors.spark.sink.sink_batch import SinkBatch
from connectors.spark.sink.sort_order import Key, SortOrder
from connectors.spark.sink.task_results import TaskLedger
from ledger.client import LedgerClient
from ledger.errors import LedgerError
from ledger.reading.reader import LedgerReader
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.sinks import SinkLedger
from stream.store.streams import StreamStore

_log = logging.getLogger(__name__)

MERGED_AT_ONCE_MAX = 16
"""Ledgers that are merged at once; more are merged in rounds."""


def overlapping(ledgers: Sequence[TaskLedger]) -> list[list[TaskLedger]]:
    """Returns groups of overlapping ledgers; each group sorts completely before the next one.

    Ledgers keep their order in a group, and no group can be split further. If one ledger ends with
    the key with which another begins, they do not overlap if the first is also the first here.
    """
    groups: list[list[tuple[int, TaskLedger]]] = []
    end: Key | None = None
    last = -1
    """The index of the last ledger whose range reaches `end`."""
    for index, each in sorted(enumerate(ledgers), key=lambda one: range_of(one[1])[0]):
        low, high = range_of(each)
        if end is not None and (low < end or (low == end and index < last)):
            groups[-1].append((index, each))
            end, last = max((end, last), (high, index))
        else:
            groups.append([(index, each)])
            end, last = high, index
    return [[each for _, each in sorted(group, key=_index)] for group in groups]


def _index(one: tuple[int, TaskLedger]) -> int:
    return one[0]


def range_of(each: TaskLedger) -> tuple[Key, Key]:
    """Returns the bounds of a ledger's sort keys."""
    assert each.low is not None, "a ledger without its range"
    assert each.high is not None, "a ledger without its range"
    return each.low, each.high


async def in_total_order(
    client: LedgerClient,
    ledgers: Sequence[TaskLedger],
    order: SortOrder,
    batch: SinkBatch,
    entry_bytes: int,
) -> list[SinkLedger]:
    """Returns ledgers that hold the same records, sorted over all tasks, for each stream.

    Equal rows keep the order of the ledgers, and their order in a ledger. Raises what reading and
    writing ledgers raises, after deleting the new ledgers.
    """
    streams: dict[Target, list[TaskLedger]] = {}
    for each in ledgers:
        target = Target(each.ledger.namespace, each.ledger.stream)
        streams.setdefault(target, []).append(each)
    merge = _Merge(client, order, batch, entry_bytes)
    found: list[SinkLedger] = []
    try:
        for target, its in streams.items():
            for group in overlapping(its):
                found += await merge.merged(target, [[each.ledger] for each in group])
    except BaseException:
        await merge.abort()
        raise
    await merge.delete_intermediate(found)
    return found


class _Merge:
    def __init__(
        self, client: LedgerClient, order: SortOrder, batch: SinkBatch, entry_bytes: int
    ) -> None:
        self._client = client
        self._order = order
        self._batch = batch
        self._entry_bytes = entry_bytes
        self._made: list[int] = []

    async def merged(self, target: Target, runs: list[list[SinkLedger]]) -> list[SinkLedger]:
        """Merges runs of ledgers, each of them sorted, into one run."""
        while len(runs) > 1:
            policy, _ = await StreamStore(self._client.store).read_namespace(target.namespace)
            step = MERGED_AT_ONCE_MAX
            runs = [
                await self._merge_some(target, policy, runs[first : first + step])
                for first in range(0, len(runs), step)
            ]
        return runs[0]

    async def _merge_some(
        self, target: Target, policy: NamespaceMetadata, runs: list[list[SinkLedger]]
    ) -> list[SinkLedger]:
        if len(runs) == 1:
            return runs[0]
        output = LedgerOutput(self._client, target, policy, self._batch, self._entry_bytes)
        try:
            inputs = [_Input(self._client, run) for run in runs]
            async with AsyncExitStack() as stack:
                for each in inputs:
                    stack.push_async_callback(each.close)
                await self._merge_rows(inputs, output)
            return await output.close()
        except BaseException:
            output.abandon()
            raise
        finally:
            self._made += output.made

    async def _merge_rows(self, inputs: list[_Input], output: LedgerOutput) -> None:
        order = self._order
        while True:
            for each in inputs:
                await each.fill()
            inputs = [each for each in inputs if each.rows is not None]
            if not inputs:
                return
            # No row that is still to be read sorts before this bound. In the inputs up to this
            # one, rows that equal the bound are complete, too.
            ends = [(each.last_key(order), i) for i, each in enumerate(inputs) if each.has_more]
            bound, which = min(ends) if ends else (None, 0)
            taken = [
                each.take(order, bound, with_equal=index <= which)
                for index, each in enumerate(inputs)
            ]
            ready = [rows for rows in taken if rows.num_rows]
            rows = ready[0] if len(ready) == 1 else order.sorted(pa.concat_batches(ready))
            await output.add(rows)

    async def delete_intermediate(self, cluster: Sequence[SinkLedger]) -> None:
        """Deletes the new ledgers that only an earlier round needed."""
        kept_ids = {ledger.ledger_id for ledger in cluster}
        await self._delete([made for made in self._made if made not in kept_ids])

    async def abort(self) -> None:
        """Deletes all new ledgers, as far as that is possible immediately."""
        await self._delete(self._made)

    async def _delete(self, ledger_ids: Sequence[int]) -> None:
        # The ledgers are not known outside of this merge: no commit can be in progress.
        for ledger_id in ledger_ids:
            try:
                await self._client.delete_ledger(ledger_id)
            except LedgerError as error:
                _log.info("left to the janitor ledger=%d cause=%s", ledger_id, error)


class _Input:
    """A sorted run of ledgers, read one entry at a time."""

    def __init__(self, client: LedgerClient, ledgers: list[SinkLedger]) -> None:
        self.rows: pa.RecordBatch | None = None
        """The rows of the current entry; None at the end."""
        self._client = client
        self._places = [
            (ledger.ledger_id, entry)
            for ledger in ledgers
            for entry in range(ledger.end.last_entry + 1)
        ]
        self._next = 0
        self._first = 0
        self._reader: LedgerReader | None = None

    @property
    def has_more(self) -> bool:
        """Whether more entries follow the current one."""
        return self._next < len(self._places)

    async def fill(self) -> None:
        """Reads the next entry if all rows were taken."""
        if self.rows is not None and self._first < self.rows.num_rows:
            return
        self.rows, self._first = None, 0
        if not self.has_more:
            return
        ledger_id, entry = self._places[self._next]
        self._next += 1
        if self._reader is None or self._reader.ledger_id != ledger_id:
            await self.close()
            self._reader = await self._client.open_ledger(ledger_id, recover=False)
        read = (await self._reader.read(entry, entry))[0]
        self.rows = rows_of(read.payload, entry)

    def last_key(self, order: SortOrder) -> Key:
        """Returns the key of the last row of the current entry."""
        assert self.rows is not None, "the run has ended"
        return order.key(self.rows, self.rows.num_rows - 1)

    def take(self, order: SortOrder, bound: Key | None, *, with_equal: bool) -> pa.RecordBatch:
        """Takes the rows before the bound, or up to it if `with_equal`; None: all current rows."""
        assert self.rows is not None, "the run has ended"
        first, stop = self._first, self.rows.num_rows
        if bound is not None:
            stop = order.stop_of(self.rows, first, bound, with_equal=with_equal)
        self._first = stop
        return self.rows.slice(first, stop - first)

    async def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.__aexit__(None, None, None)
