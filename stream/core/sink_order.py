"""Decides whether a batch may be the next one of a sink, or is a repetition of its last one.

Pure. Must never let rows of one query, or of one run of it, count as a repetition of another's, nor
pass over batches of which nothing is known. Each refusal names both sides and the cure.
"""

from __future__ import annotations

from collections.abc import Mapping

from stream.core.sink_owner import QUERY_ORIGIN, SinkQuery
from stream.core.sinks import SinkMetadata
from stream.errors import CommitOutOfOrder


def check_order(
    sink: SinkMetadata | None,
    sink_id: str,
    batch_id: int,
    origin: str = "",
    query: SinkQuery | None = None,
) -> None:
    """Checks a batch of `origin` against the state of its sink, None if it has committed nothing.

    `query`, as far as it is known, is what numbers the batches. Raises CommitOutOfOrder.
    """
    if sink is None:
        if query is not None and query.is_consecutive and batch_id > 0:
            raise CommitOutOfOrder(
                f"sink {sink_id!r} has committed nothing here, and this is batch {batch_id} of "
                f"{query}: nothing is known of its batches 0 to {batch_id - 1}. Either this is "
                f"another cluster, or its metadata were put back to an older state (`ledgerstream "
                f"metadata restores`), or the sink was forgotten, or the query had another sink. "
                f"{_cure_of_missing(sink_id, batch_id)}"
            )
        return
    _check_owner(sink, batch_id, origin, query)
    if batch_id == sink.batch_id and origin and sink.origin and origin != sink.origin:
        raise CommitOutOfOrder(
            f"sink {sink_id!r} committed batch {batch_id} already, of {sink.origin}; this one is "
            f"of {origin}. Cure: each query, also one with a new Spark checkpoint, and each of "
            f"several writes needs a sink id (txnAppId) of its own"
        )
    if batch_id < sink.batch_id:
        raise CommitOutOfOrder(
            f"sink {sink_id!r} committed batch {sink.batch_id} already, {batch_id} is older; "
            f"another query uses this sink id, or its Spark checkpoint is old. Cure: give each "
            f"query a sink id of its own (`ledgerstream sink show {sink_id}` shows its last batch)"
        )
    if query is not None and query.is_consecutive:
        _check_consecutive(sink, batch_id, query)


def check_streams(
    sink: SinkMetadata, query: SinkQuery | None, created_ms: Mapping[str, int]
) -> None:
    """Checks that the streams of a batch are those to which earlier batches were written.

    `created_ms` holds when each was created. Raises CommitOutOfOrder.
    """
    if query is None or not query.is_consecutive or sink.owner is None:
        return
    for stream, at_ms in created_ms.items():
        if sink.owner.created_ms.get(stream, at_ms) != at_ms:
            raise CommitOutOfOrder(
                f"stream {stream} was deleted and created again after {query} had written to it: "
                f"rows of the batches up to {sink.batch_id} of sink {sink.sink_id!r} are not in "
                f"the new one. Cure: write them again with a new Spark checkpoint (and another "
                f"sinkId, if it is given), or continue without them: `ledgerstream sink reset "
                f"{sink.sink_id} --batch {sink.batch_id}`"
            )


def _check_owner(sink: SinkMetadata, batch_id: int, origin: str, query: SinkQuery | None) -> None:
    is_own = sink.origin.startswith(QUERY_ORIGIN)
    owner_id = sink.origin.removeprefix(QUERY_ORIGIN) if is_own else ""
    owner_id = owner_id if sink.owner is None else sink.owner.query_id
    if query is None:
        if not is_own or not origin or origin.startswith(QUERY_ORIGIN):
            return  # nothing is known that could differ, or the origins are compared
    elif not owner_id or query.query_id == owner_id:
        return
    owner = f"{QUERY_ORIGIN}{owner_id}" if sink.owner is None else str(sink.owner)
    release = f"`ledgerstream sink forget {sink.sink_id}`"
    if query is not None and query.is_consecutive and batch_id > 0:
        release = f"`ledgerstream sink reset {sink.sink_id} --batch {batch_id - 1}`"
    here = str(query or origin)
    if batch_id > sink.batch_id:
        what = (
            f"belongs to {owner}, which committed batch {sink.batch_id} last; this is batch "
            f"{batch_id} of {here}"
        )
    elif batch_id == sink.batch_id:
        what = f"committed batch {batch_id} already, of {owner}; this one is of {here}"
    else:
        what = (
            f"committed batch {sink.batch_id} already, {batch_id} is older; another query uses "
            f"this sink id: it belongs to {owner}, and this is {here}"
        )
    raise CommitOutOfOrder(
        f"sink {sink.sink_id!r} {what}. The rows of one would count as repeated rows of the other. "
        f"Cure: give each query, also one with a new Spark checkpoint, a sink id of its own "
        f"(sinkId, txnAppId), or, if the first one will never run again, {release}"
    )


def _check_consecutive(sink: SinkMetadata, batch_id: int, query: SinkQuery) -> None:
    if batch_id > sink.batch_id + 1:
        raise CommitOutOfOrder(
            f"sink {sink.sink_id!r} committed batch {sink.batch_id} last, and this is batch "
            f"{batch_id} of {query}: nothing is known of the batches {sink.batch_id + 1} to "
            f"{batch_id - 1}. The metadata were put back to an older state (`ledgerstream metadata "
            f"restores`), or the query had another sink in between. "
            f"{_cure_of_missing(sink.sink_id, batch_id, sink.batch_id)}"
        )
    owner = sink.owner
    before = None if owner is None else owner.last_batch_of(query.run_id)
    if batch_id == sink.batch_id and before is not None and before < batch_id:
        raise CommitOutOfOrder(
            f"batch {batch_id} of sink {sink.sink_id!r} was committed by {owner}; this is "
            f"{query}, which had come to batch {before} itself: both are active, and each would "
            f"lose the rows of the other's batches. Cure: stop one of them; a query with a copy of "
            f"another's Spark checkpoint needs a sinkId of its own, and `ledgerstream sink reset "
            f"SINKID --batch {batch_id - 1}`"
        )


def _cure_of_missing(sink_id: str, batch_id: int, last: int | None = None) -> str:
    rewound = "" if last is None else (
        f", or with the present one put back to batch {last} (remove the files of later batches in "
        f"its directories commits and offsets)"
    )  # fmt: skip
    return (
        f"Cure: write their rows again, with a new Spark checkpoint (and another sinkId, if it is "
        f"given){rewound}; or continue without "
        f"them: `ledgerstream sink reset {sink_id} --batch {batch_id - 1}`"
    )
