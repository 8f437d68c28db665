"""`ledgerstream stream`: manages whole streams; records.py handles their records."""

from __future__ import annotations

from typing import Annotated, Any

import trio
from cyclopts import App, Parameter

from ledger.cli.output import (
    ClusterOption,
    OutputOption,
    print_json,
    remark,
    time_of,
    write_output,
)
from ledger.errors import InvalidArgument
from ledger.units import duration_text
from stream.cli.arguments import StreamName, parse_from, parse_stream
from stream.core.metadata.streams import Segment, StreamInfo, StreamMetadata
from stream.core.position import FromTime, Position
from stream.errors import IsPartitioned, NoSuchStream
from stream.namespace import Namespace, list_namespaces
from stream.partitions.partitions import PartitionedInfo
from stream.store.partitions import PARTITIONS_CONCURRENT_MAX

app = App(name="stream", help="Create, grow, list, show, truncate, delete.")

_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()
_Flag = Annotated[bool, Parameter(negative="")]


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


def _partitioned_facts(name: StreamName, info: PartitionedInfo) -> dict[str, Any]:
    return {
        "stream": str(name),
        "partitions": len(info.partitions),
        "records": info.records,
        "segments": info.segments,
        "sealed_bytes": info.sealed_bytes,
        "created": time_of(info.created_ms),
    }


async def _facts_of(namespace: Namespace, name: StreamName) -> dict[str, Any]:
    """Of a plain stream, or of a partitioned one as a whole."""
    try:
        return _facts(name, await namespace.info(name.stream))
    except IsPartitioned:
        return _partitioned_facts(name, await namespace.partitioned_info(name.stream))


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
    stream: str,
    /,
    *,
    partitions: int | None = None,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Create an empty stream NAMESPACE/STREAM; the namespace too, if missing.

    Parameters
    ----------
    stream
        NAMESPACE/STREAM.
    partitions
        Create it with N partitions, written in parallel; it can grow later. Without it the
        stream has no partitions.
    """
    name = parse_stream(stream)
    async with Namespace.connect(cluster.uri, name.namespace) as namespace:
        if await namespace.ensure():
            remark(f"namespace {name.namespace} is new, with the default policy")
        if partitions is None:
            await namespace.create_stream(name.stream)
        else:
            await namespace.create_stream(name.stream, partitions=partitions)
        output.show(await _facts_of(namespace, name), title=f"stream {name}")


@app.command
async def grow(
    stream: str,
    /,
    *,
    partitions: int,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Give a partitioned stream more partitions. Some keys move to the new ones.

    Parameters
    ----------
    stream
        NAMESPACE/STREAM.
    partitions
        How many there shall be.
    """
    name = parse_stream(stream)
    async with Namespace.connect(cluster.uri, name.namespace) as namespace:
        await namespace.grow_stream(name.stream, partitions=partitions)
        output.show(await _facts_of(namespace, name), title=f"stream {name}")


@app.command(name="list")
async def list_streams(
    namespace: str | None = None,
    /,
    *,
    names: _Flag = False,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """List the streams of one namespace, or of all. Partitioned ones are one line each.

    Parameters
    ----------
    namespace
        NAMESPACE; all of them by default.
    names
        Print names only: of many thousands at once.
    """
    from ledger.client import LedgerClient

    facts: list[dict[str, Any]] = []
    async with LedgerClient.connect(cluster.uri) as client:
        for each in await list_namespaces(client) if namespace is None else [namespace]:
            streams = Namespace(client, each)
            listed = [StreamName(each, stream) for stream in await streams.list_streams()]
            if names:
                facts += [{"stream": str(name)} for name in listed]
            else:
                facts += await _all_facts(streams, listed)
    if names and not output.json:
        write_output("".join(f"{fact['stream']}\n" for fact in facts).encode())
    else:
        # Plain and partitioned streams have different columns; a row has all of them.
        columns = dict.fromkeys(column for fact in facts for column in fact)
        rows = [{column: fact.get(column) for column in columns} for fact in facts]
        output.show_list(rows, title="streams", none="no streams")


async def _all_facts(namespace: Namespace, names: list[StreamName]) -> list[dict[str, Any]]:
    found: dict[StreamName, dict[str, Any]] = {}
    waiting = iter(names)

    async def take_turns() -> None:
        for name in waiting:
            try:
                found[name] = await _facts_of(namespace, name)
            except NoSuchStream:
                continue  # deleted since the listing

    async with trio.open_nursery() as nursery:
        for _ in range(PARTITIONS_CONCURRENT_MAX):
            nursery.start_soon(take_turns)
    return [found[name] for name in names if name in found]


@app.command
async def show(
    stream: str, /, *, cluster: ClusterOption = _CLUSTER, output: OutputOption = _OUTPUT
) -> None:
    """Show a stream: where it begins and ends, and its segments; or its partitions."""
    name = parse_stream(stream)
    async with Namespace.connect(cluster.uri, name.namespace) as namespace:
        try:
            metadata = await namespace.stream_metadata(name.stream)
            facts = _facts(name, await namespace.info(name.stream))
        except IsPartitioned:
            info = await namespace.partitioned_info(name.stream)
            facts = _partitioned_facts(name, info)
            what = "partitions"
            parts = [_facts(StreamName(name.namespace, p.name), p) for p in info.partitions]
        else:
            what = "segments"
            parts = [_segment_facts(metadata, segment) for segment in metadata.segments]
    if output.json:
        key = "segments" if what == "segments" else "by_partition"
        print_json(facts | {key: parts})
        return
    output.show(facts, title=f"stream {name}")
    output.show_list(parts, title=what, none=f"no {what} yet")


@app.command
async def truncate(
    stream: str,
    position: str,
    /,
    *,
    yes: _Flag = False,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Drop all records before POSITION (as `read --json` prints it), or time:ISO.

    All partitions of a stream together are truncated to a time; one of them, NAMESPACE/STREAM#N,
    to a position too.

    Parameters
    ----------
    yes
        Continue although the namespace has no trash. Without it that is an error.
    """
    name = parse_stream(stream)
    to = parse_from(position)
    if not isinstance(to, Position | FromTime):
        raise InvalidArgument(
            f"truncate to a position like 3:120:0 or to time:2026-01-31T12:00:00Z, not {position!r}"
        )
    async with Namespace.connect(cluster.uri, name.namespace) as namespace:
        await _check_trash(namespace, yes)
        if not isinstance(to, FromTime):
            await namespace.truncate(name.stream, to)
        elif await namespace.partitions(name.stream) != [name.stream]:
            await namespace.truncate_partitions(name.stream, to)
        else:
            async with namespace.reader(name.stream, start=to) as reader:
                await namespace.truncate(name.stream, reader.position)
        output.show(await _facts_of(namespace, name), title=f"stream {name}")


@app.command
async def delete(
    stream: str,
    /,
    *,
    yes: _Flag = False,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Delete a stream; it can be restored while it is in the trash.

    Parameters
    ----------
    yes
        Continue although the namespace has no trash. Without it that is an error.
    """
    name = parse_stream(stream)
    async with Namespace.connect(cluster.uri, name.namespace) as namespace:
        await _check_trash(namespace, yes)
        await namespace.delete_stream(name.stream)
        trash_ms = (await namespace.policy()).trash_ms
    fate = f"stream {name} is gone"
    if trash_ms > 0:
        fate = (
            f"stream {name} is deleted; it can be brought back for {duration_text(trash_ms)} "
            f"(ledgerstream stream undelete {name})"
        )
    output.report({"stream": str(name), "deleted": True}, fate)


async def _check_trash(namespace: Namespace, yes: bool) -> None:
    """Raises InvalidArgument if dropped data cannot be restored, unless `yes` allows it."""
    if not yes and (await namespace.policy()).trash_ms == 0:
        raise InvalidArgument(
            f"namespace {namespace.name} has no trash (trash_ms is 0): nothing can bring back what "
            f"is dropped or deleted; continue with --yes"
        )
