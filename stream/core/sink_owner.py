"""The query that numbers the batches of a sink, and the runs of it that have committed them.

Pure. A query that is started again from its Spark checkpoint keeps its id and gets a new run id;
with another checkpoint it is another query. Must never let the rows of one query, or of one run,
count as a repetition of another's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from stream.core.metadata.documents import text_value, whole_number

RUNS_REMEMBERED_MAX: Final = 8
_TEXT_LENGTH_MAX: Final = 1000
QUERY_ORIGIN: Final = "query "
"""With this begins the `origin` of a query's sink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkQuery:
    """A query that writes batches. Only `query_id` and `run_id` decide; the rest is for people.

    `is_consecutive`: it numbers its batches one by one, without leaving out a number.
    """

    query_id: str
    run_id: str = ""
    name: str = ""
    checkpoint: str = ""
    is_consecutive: bool = True

    def __str__(self) -> str:
        return _described(self.query_id, self.run_id, self.name, self.checkpoint)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOwner:
    """What the node of a sink holds of its query.

    `runs` are the newest runs, each with the last batch that it committed or repeated; the last of
    them has committed the last batch. `created_ms` holds when each stream was created, of those
    that the sink has written to.
    """

    query_id: str
    name: str = ""
    checkpoint: str = ""
    runs: tuple[tuple[str, int], ...] = ()
    created_ms: Mapping[str, int]

    def __str__(self) -> str:
        return _described(self.query_id, self.last_run_id, self.name, self.checkpoint)

    @property
    def last_run_id(self) -> str:
        return self.runs[-1][0] if self.runs else ""

    def last_batch_of(self, run_id: str) -> int | None:
        return dict(self.runs).get(run_id)

    def repeated(self, run_id: str, batch_id: int) -> SinkOwner | None:
        """Returns the owner after a run that it did not know repeated a batch, or None."""
        if not run_id or not self.runs or self.last_batch_of(run_id) is not None:
            return None
        runs = (*self.runs[:-1], (run_id, batch_id), self.runs[-1])
        return replace(self, runs=runs[-RUNS_REMEMBERED_MAX:])


def owner_after(
    query: SinkQuery,
    batch_id: int,
    before: SinkOwner | None,
    created_ms: Mapping[str, int],
    streams_max: int,
) -> SinkOwner:
    """Returns the owner after `query` committed a batch to streams that were created then.

    It remembers up to `streams_max` streams: those of this batch first.
    """
    runs: tuple[tuple[str, int], ...] = ()
    streams: dict[str, int] = {}
    if query.is_consecutive:
        runs = () if before is None else before.runs
        runs = tuple(run for run in runs if run[0] != query.run_id)
        runs = (*runs, (query.run_id, batch_id)) if query.run_id else ()
        known = {} if before is None else before.created_ms
        others = {name: at for name, at in known.items() if name not in created_ms}
        streams = dict(list({**created_ms, **others}.items())[:streams_max])
    return SinkOwner(
        query_id=query.query_id,
        name=query.name[:_TEXT_LENGTH_MAX],
        checkpoint=query.checkpoint[:_TEXT_LENGTH_MAX],
        runs=runs[-RUNS_REMEMBERED_MAX:],
        created_ms=streams,
    )


def _described(query_id: str, run_id: str, name: str, checkpoint: str) -> str:
    facts = (("name", name), ("run", run_id), ("checkpoint", checkpoint))
    known = ", ".join(f"{what} {fact}" for what, fact in facts if fact)
    return f"{QUERY_ORIGIN}{query_id}{known and f' ({known})'}"


# Bytes


def owner_document(owner: SinkOwner) -> dict[str, object]:
    return {
        "query": owner.query_id,
        "name": owner.name,
        "checkpoint": owner.checkpoint,
        "runs": [list(run) for run in owner.runs],
        "created_ms": dict(owner.created_ms),
    }


def read_owner(document: object, streams_max: int) -> SinkOwner:
    """Returns the owner in a part of a document. Raises ValueError, TypeError."""
    if not isinstance(document, dict) or document.keys() != _FIELDS:
        raise ValueError(f"the owner {str(document)[:100]!r} does not have the fields of an owner")
    runs, streams = document["runs"], document["created_ms"]
    if not isinstance(runs, list) or len(runs) > RUNS_REMEMBERED_MAX:
        raise ValueError("runs is not a short list")
    if not isinstance(streams, dict) or len(streams) > streams_max:
        raise ValueError("created_ms is not a short table")
    return SinkOwner(
        query_id=text_value(document["query"]),
        name=text_value(document["name"]),
        checkpoint=text_value(document["checkpoint"]),
        runs=tuple((text_value(run), whole_number(batch)) for run, batch in runs),
        created_ms={text_value(name): whole_number(at) for name, at in streams.items()},
    )


_FIELDS: Final = frozenset(("query", "name", "checkpoint", "runs", "created_ms"))
