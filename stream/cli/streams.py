"""`ledgerstream stream`: streams as a whole; their records are the business of `records`."""

from __future__ import annotations

from typing import Any

from cyclopts import App

from ledger.cli.output import ClusterOption, OutputOption, print_json, remark, time_of
from ledger.errors import InvalidArgument
from stream.cli.arguments import StreamName, parse_from, parse_stream
from stream.core.metadata import Segment, StreamMetadata
from stream.core.position import Position
from stream.errors import NoSuchStream
from stream.namespace import Namespace, StreamInfo, list_namespaces

app = App(name="stream", help="Create, list, show, truncate, delete.")

_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()


def _facts(name: StreamName, info: StreamInfo) -> dict[str, Any]:
    return {
        "stream": str(name),
        "records": info.records,
        "first_sequence": info.first_sequence,
        "next_sequence": info.next_sequence,
        "first_position": str(info.first_position),
        "end_position": str(info.end_position),
        "segments": info.segments,
        "sealed_bytes": info.sealed_bytes,
        "epoch": info.epoch,
        "created": time_of(info.created_ms),
    }


def _segment_facts(stream: StreamMetadata, segment: Segment) -> dict[str, Any]:
    is_open = segment.is_open
    return {
        "segment": segment.number,
        "ledger_id": segment.ledger_id,
        "state": "dropped" if stream.is_dropped(segment) else segment.state.value,
        "first_sequence": segment.first_sequence,
        "entries": None if is_open else segment.last_entry + 1,
        "records": None if is_open else segment.records,
        "bytes": None if is_open else segment.nbytes,
        "created": time_of(segment.created_ms),
    }


@app.command
async def create(
    stream: str, /, *, cluster: ClusterOption = _CLUSTER, output: OutputOption = _OUTPUT
) -> None:
    """Create an empty stream NAMESPACE/STREAM; the namespace too, if missing."""
    name = parse_stream(stream)
    async with Namespace.connect(cluster.uri, name.namespace) as namespace:
        if await namespace.ensure():
            remark(f"namespace {name.namespace} is new, with the default policy")
        await namespace.create_stream(name.stream)
        output.show(_facts(name, await namespace.info(name.stream)), title=f"stream {name}")


@app.command(name="list")
async def list_streams(
    namespace: str | None = None,
    /,
    *,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """List the streams of one namespace, or of all."""
    from ledger.client import LedgerClient

    facts = []
    async with LedgerClient.connect(cluster.uri) as client:
        names = await list_namespaces(client) if namespace is None else [namespace]
        for each in names:
            streams = Namespace(client, each)
            await streams.policy()  # a namespace that is not there is an error, not empty
            for stream in await streams.list_streams():
                try:
                    facts.append(_facts(StreamName(each, stream), await streams.info(stream)))
                except NoSuchStream:
                    continue  # deleted since the listing
    output.show_list(facts, title="streams", none="no streams")


@app.command
async def show(
    stream: str, /, *, cluster: ClusterOption = _CLUSTER, output: OutputOption = _OUTPUT
) -> None:
    """Show a stream: where it begins and ends, and its segments."""
    name = parse_stream(stream)
    async with Namespace.connect(cluster.uri, name.namespace) as namespace:
        info = await namespace.info(name.stream)
        metadata = await namespace.stream_metadata(name.stream)
    facts = _facts(name, info)
    segments = [_segment_facts(metadata, segment) for segment in metadata.segments]
    if output.json:
        print_json(facts | {"segments": segments})
        return
    output.show(facts, title=f"stream {name}")
    output.show_list(segments, title="segments", none="no segments yet")


@app.command
async def truncate(
    stream: str,
    position: str,
    /,
    *,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Drop all records before POSITION (as `read --json` prints it)."""
    name = parse_stream(stream)
    to = parse_from(position)
    if not isinstance(to, Position):
        raise InvalidArgument(f"truncate to a position like 3:120:0, not {position!r}")
    async with Namespace.connect(cluster.uri, name.namespace) as namespace:
        await namespace.truncate(name.stream, to)
        output.show(_facts(name, await namespace.info(name.stream)), title=f"stream {name}")


@app.command
async def delete(
    stream: str, /, *, cluster: ClusterOption = _CLUSTER, output: OutputOption = _OUTPUT
) -> None:
    """Delete a stream with all its data."""
    name = parse_stream(stream)
    async with Namespace.connect(cluster.uri, name.namespace) as namespace:
        await namespace.delete_stream(name.stream)
    if output.json:
        print_json({"stream": str(name), "deleted": True})
    else:
        remark(f"stream {name} is gone")
