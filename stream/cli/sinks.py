"""`ledgerstream sink`: shows the batches that sinks have committed, resets and forgets sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cyclopts import App

from ledger.cli.output import (
    ClusterOption,
    OutputOption,
    UsageError,
    examples,
    print_json,
    time_of,
    usage,
)

if TYPE_CHECKING:
    from stream.core.sinks import SinkMetadata

app = App(
    name="sink", help="List, show, reset, forget.", help_epilogue=examples("ledgerstream sink list")
)

_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()


def _facts(sink: SinkMetadata) -> dict[str, Any]:
    return {
        "sink": sink.sink_id,
        "batch": sink.batch_id,
        "committed": time_of(sink.committed_ms),
        "streams": sink.stream_count,
        "records": sink.records,
        "bytes": sink.nbytes,
    }


def _owner(sink: SinkMetadata) -> dict[str, Any]:
    owner = sink.owner
    return {
        "origin": sink.origin or None,
        "query": None if owner is None else owner.query_id,
        "name": None if owner is None else owner.name or None,
        "run": None if owner is None else owner.last_run_id or None,
        "checkpoint": None if owner is None else owner.checkpoint or None,
    }


@app.command(name="list", help_epilogue=examples("ledgerstream sink list"))
async def list_all(*, cluster: ClusterOption = _CLUSTER, output: OutputOption = _OUTPUT) -> None:
    """List the sinks of the cluster with the batch each committed last."""
    from ledger.client import LedgerClient
    from stream.store.sinks import find_sink, list_sinks

    async with LedgerClient.connect(cluster.uri, options=cluster.options) as client:
        found = [await find_sink(client.store, each) for each in await list_sinks(client.store)]
    facts = [_facts(sink) for sink in found if sink is not None]
    output.show_list(facts, title="sinks", none="no sink has committed anything")


@app.command(help_epilogue=examples("ledgerstream sink show orders"))
async def show(
    sink: str, /, *, cluster: ClusterOption = _CLUSTER, output: OutputOption = _OUTPUT
) -> None:
    """Show the last committed batch of a sink, and its streams."""
    from ledger.client import LedgerClient
    from stream.store.sinks import read_sink

    async with LedgerClient.connect(cluster.uri, options=cluster.options) as client:
        found = await read_sink(client.store, sink)
    rows = [
        {
            "stream": share.stream,
            "first_segment": share.first_segment,
            "segments": share.segments,
            "first_sequence": share.first_sequence,
            "records": share.records,
            "bytes": share.nbytes,
        }
        for share in found.streams
    ]
    if output.json:
        print_json({**_facts(found), **_owner(found), "last_batch": rows})
        return
    output.show({**_facts(found), **_owner(found)}, title=f"sink {sink}")
    output.show_list(rows, title=f"batch {found.batch_id}", none="nothing was in it")


@app.command(help_epilogue=examples("ledgerstream sink reset orders --batch 16"))
async def reset(
    sink: str,
    /,
    *,
    batch: int,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Declare the batches of a sink up to this one settled. Its query continues with the next.

    The cure where batches are missing that nobody can write again, after a restore for instance.
    The next query that writes batch BATCH + 1 owns the sink. No stream changes.

    Parameters
    ----------
    batch
        The number of the last batch that is settled.
    """
    from ledger.client import LedgerClient
    from stream.store.sinks import reset_sink

    async with LedgerClient.connect(cluster.uri, options=cluster.options) as client:
        await reset_sink(client.store, sink, batch, client.now_ms())
    output.report({"sink": sink, "batch": batch}, f"sink {sink} continues behind batch {batch}")


@app.command(
    help_epilogue=examples(
        "ledgerstream sink forget orders", "ledgerstream sink forget --older-than 90d"
    )
)
async def forget(
    sink: str | None = None,
    /,
    *,
    older_than: str | None = None,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Forget the committed batches of a sink. Only if its query never runs again.

    A batch that it repeats afterwards is appended again. No stream changes.

    Parameters
    ----------
    older_than
        Instead of one sink: all that have committed nothing for this time, like 90d.
    """
    from ledger.client import LedgerClient
    from ledger.units import parse_duration_ms
    from stream.retention.clock_check import trusted_now_ms
    from stream.store.sinks import find_sink, forget_sink, list_sinks

    if (sink is None) == (older_than is None):
        raise UsageError("name a sink, or say --older-than how long for all such sinks")
    forgotten = []
    async with LedgerClient.connect(cluster.uri, options=cluster.options) as client:
        if sink is not None:
            await forget_sink(client.store, sink)
            forgotten.append(sink)
        elif older_than is not None:
            with usage():
                older_ms = parse_duration_ms(older_than)
            before_ms = await trusted_now_ms(client) - older_ms
            for each in await list_sinks(client.store):
                found = await find_sink(client.store, each)
                if found is not None and found.committed_ms < before_ms:
                    await forget_sink(client.store, each)
                    forgotten.append(each)
    output.report({"forgotten": forgotten}, f"{len(forgotten)} sinks forgotten")
