"""SinkBatch: the batch of a sink that a task writes. Imported by tasks that may make no ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from connectors.spark.sink.routing import Target


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """The tag of a task's ledgers: their sink, their batch, and the attempt of the task."""

    sink_id: str | None = None
    batch_id: int | None = None
    attempt: str = ""

    def tags(self, target: Target) -> Mapping[str, bytes]:
        from stream.sinks.sinks import ledger_tags

        return ledger_tags(
            target.namespace, target.stream,
            sink_id=self.sink_id, batch_id=self.batch_id, attempt=self.attempt,
        )  # fmt: skip
