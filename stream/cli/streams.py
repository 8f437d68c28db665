"""`ledgerstream stream`: manages whole streams; records.py handles their records."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from cyclopts import App, Parameter

from ledger.cli.output import (
    AtLeastOne,
    ClusterOption,
    OutputOption,
    UsageError,
    examples,
    print_json,
    remark,
    time_of,
    usage,
    write_output,
)

if TYPE_CHECKING:
    from ledger.client import LedgerClient
    from stream.cli.arguments import StreamName
    from stream.core.metadata.namespaces import NamespaceMetadata
    from stream.core.metadata.segments import Segment, Span
    from stream.core.metadata.streams import StreamInfo, StreamMetadata
    from stream.namespace import Namespace
    from stream.partitions.partitions import PartitionedInfo

app = App(
    name="stream",
    help="Create, grow, list, show, truncate, delete.",
    help_epilogue=examples("ledgerstream stream list"),
)

_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()
_SEGMENTS_SHOWN_MAX = 20
_SEGMENTS_PER_PAGE = 100
_Flag = Annotated[bool, Parameter(negative="")]


def _facts(name: StreamName, info: StreamInfo) -> dict[str, Any]:
    return {
        "stream": str(name),
        "records": info.records,
        "sealed_bytes": info.sealed_bytes,
        "segments": info.segments,
        "ledgers": info.ledgers,
        "created": time_of(info.created_ms),
        "first_position": str(info.first_position),
        "end_position": str(info.end_position),
        "first_sequence": info.first_sequence,
        "next_sequence": info.next_sequence,
        "epoch": info.epoch,
    }


def _partitioned_facts(name: StreamName, info: PartitionedInfo) -> dict[str, Any]:
    return {
        "stream": str(name),
        "records": info.records,
        "sealed_bytes": info.sealed_bytes,
        "segments": info.segments,
        "created": time_of(info.created_ms),
        "ledgers": sum(partition.ledgers for partition in info.partitions),
        "partitions": len(info.partitions),
    }


async def _facts_of(namespace: Namespace, name: StreamName) -> dict[str, Any]:
    """Of a plain stream, or of a partitioned one as a whole."""
    from stream.errors import IsPartitioned

    try:
        return _facts(name, await namespace.info(name.stream))
    except IsPartitioned:
        return _partitioned_facts(name, await namespace.partitioned_info(name.stream))


def _segment_facts(stream: StreamMetadata, segment: Segment) -> dict[str, Any]:
    is_open = segment.is_open
    return {
        "segment": segment.number,
        "ledger_id": segment.ledger_id,
        "state": _state(stream, segment),
        "records": None if is_open else segment.records,
        "bytes": None if is_open else segment.nbytes,
        "created": time_of(segment.created_ms),
        "first_sequence": segment.first_sequence,
        "entries": None if is_open else segment.last_entry + 1,
        "base_entry": segment.base_entry,
    }


def _state(stream: StreamMetadata, span: Span) -> str:
    if stream.is_dropped(span):
        return "dropped"
    return "open" if span.is_open else "sealed"


def _segments_by_state(stream: StreamMetadata) -> list[dict[str, Any]]:
    """Returns a row for each state: how many segments have it, and what is in them."""
    from stream.reading.seek import ledgers_of

    by_state: dict[str, list[Span]] = {}
    for span in (*stream.dropped(), *stream.live()):
        by_state.setdefault(_state(stream, span), []).append(span)
    return [
        {
            "segments": state,
            "number": sum(segment.count for segment in found),
            "ledgers": ledgers_of(found),
            "records": sum(segment.records for segment in found),
            "bytes": sum(segment.nbytes for segment in found),
            "first": found[0].number,
            "last": found[-1].last_number,
            "oldest": time_of(found[0].created_ms),
        }
        for state, found in by_state.items()
    ]


@app.command(
    help_epilogue=examples(
        "ledgerstream stream create demo/clicks",
        "ledgerstream stream create demo/views --partitions 8",
    )
)
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
    from stream.cli.arguments import parse_stream
    from stream.cli.connecting import connect

    name = parse_stream(stream)
    async with connect(cluster, name) as namespace:
        if await namespace.ensure():
            remark(f"namespace {name.namespace} is new, with the default policy")
        with usage():
            if partitions is None:
                await namespace.create_stream(name.stream)
            else:
                await namespace.create_stream(name.stream, partitions=partitions)
        output.show(await _facts_of(namespace, name), title=f"stream {name}")


@app.command(help_epilogue=examples("ledgerstream stream grow demo/views --partitions 16"))
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
        New number of partitions.
    """
    from stream.cli.arguments import parse_stream
    from stream.cli.connecting import connect

    name = parse_stream(stream)
    async with connect(cluster, name) as namespace:
        with usage():
            await namespace.grow_stream(name.stream, partitions=partitions)
        output.show(await _facts_of(namespace, name), title=f"stream {name}")


@app.command(
    name="list",
    help_epilogue=examples("ledgerstream stream list", "ledgerstream stream list demo --names"),
)
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
        Print only the names, which is fast for many thousands.
    """
    from ledger.client import LedgerClient
    from stream.cli.arguments import StreamName
    from stream.namespace import Namespace, list_namespaces

    facts: list[dict[str, Any]] = []
    async with LedgerClient.connect(cluster.uri, options=cluster.options) as client:
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
    import trio

    from stream.errors import NoSuchStream
    from stream.store.partitions import PARTITIONS_CONCURRENT_MAX

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


@app.command(
    help_epilogue=examples(
        "ledgerstream stream show demo/clicks",
        "ledgerstream stream show demo/clicks --segments --page 2",
    )
)
async def show(
    stream: str,
    /,
    *,
    segments: _Flag = False,
    page: AtLeastOne = 1,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Show a stream: where it begins and ends, and its segments; or its partitions.

    Parameters
    ----------
    stream
        NAMESPACE/STREAM.
    segments
        List the segments, a page of them at a time, also if they are many.
    page
        The page of segments to list, counted from 1.
    """
    from stream.cli.arguments import parse_stream
    from stream.cli.connecting import connect
    from stream.cli.retention import warn
    from stream.errors import IsPartitioned
    from stream.retention.policies import plans_of

    name = parse_stream(stream)
    async with connect(cluster, name) as namespace:
        try:
            facts = _facts(name, await namespace.info(name.stream))
        except IsPartitioned:
            await _show_partitioned(namespace, name, output)
            return
        policy = await namespace.policy()
        warn(await plans_of(namespace.client, policy, [name.stream]))
        asked = page if segments else None
        metadata, shown = await _read_shown(namespace, name, page=asked, is_json=output.json)
        is_said = output.json or not segments
        merging = await _merging_of(namespace.client, policy, metadata) if is_said else ""
    if output.json:
        rows = [_segment_facts(metadata, segment) for segment in shown.segments]
        print_json(facts | {"segments": rows, "segments_before": shown.skipped, "merging": merging})
        return
    if not segments:
        output.show(facts, title=f"stream {name}")
    _show_segments(name, metadata, shown, output, page=page if segments else None)
    if metadata.pages and merging:
        remark(f"merging of small segments (janitors with default settings): {merging}")


async def _merging_of(
    client: LedgerClient, policy: NamespaceMetadata, stream: StreamMetadata
) -> str:
    """Returns what a janitor with default settings merges next, or why nothing, as far as that
    costs little to find out."""
    from stream.core.segment_merging import LOOKED_MAX, MergeScope
    from stream.retention.segment_merging import COPY_S, MERGE_BYTES_PER_S, plan_merge

    scope = MergeScope(nbytes_max=MERGE_BYTES_PER_S * int(COPY_S), looked_max=LOOKED_MAX // 8)
    return (await plan_merge(client, policy, stream, scope)).reason


async def _show_partitioned(namespace: Namespace, name: StreamName, output: OutputOption) -> None:
    from stream.cli.arguments import StreamName
    from stream.cli.retention import warn
    from stream.retention.policies import plans_of

    info = await namespace.partitioned_info(name.stream)
    facts = _partitioned_facts(name, info)
    parts = [_facts(StreamName(name.namespace, p.name), p) for p in info.partitions]
    names = [part["stream"].partition("/")[2] for part in parts]
    warn(await plans_of(namespace.client, await namespace.policy(), names))
    if output.json:
        print_json(facts | {"by_partition": parts})
        return
    output.show(facts, title=f"stream {name}")
    output.show_list(parts, title="partitions", none="no partitions yet")


class _Shown(NamedTuple):
    """Some of `total` segments, those behind the first `skipped`, or rows in their place."""

    segments: Sequence[Segment]
    skipped: int
    total: int
    by_state: Sequence[dict[str, Any]] = ()


async def _read_shown(
    namespace: Namespace, name: StreamName, *, page: int | None, is_json: bool
) -> tuple[StreamMetadata, _Shown]:
    """Reads the stream, and what is shown of it. What was truncated is shown in short if its page
    is lost."""

    async def shown(present: StreamMetadata) -> tuple[StreamMetadata, _Shown]:
        ask = partial(_shown, name, page=page, is_json=is_json)
        pages = namespace.store.pages
        return present, await pages.resolve(present, ask, may_lack=present.is_dropped)

    return await namespace.store.consult(name.namespace, name.stream, shown)


def _shown(name: StreamName, stream: StreamMetadata, *, page: int | None, is_json: bool) -> _Shown:
    """Returns one page of the segments. Without a page, it returns all if they are few, else what
    they are by their state, or for programs the newest. Raises UsageError for a page that is not
    there."""
    total = sum(span.count for span in stream.spans())
    if page is None:
        skipped = total - len(stream.segments)
        is_long = total > _SEGMENTS_SHOWN_MAX and not is_json
        by_state = _segments_by_state(stream) if is_long else ()
        return _Shown(stream.segments, skipped, total, by_state)
    pages = max(1, -(-total // _SEGMENTS_PER_PAGE))
    if page > pages:
        raise UsageError(f"--page {page}: the last page of segments of {name} is {pages}")
    skipped = (page - 1) * _SEGMENTS_PER_PAGE
    return _Shown(stream.listed(skipped, _SEGMENTS_PER_PAGE), skipped, total)


def _show_segments(
    name: StreamName,
    metadata: StreamMetadata,
    shown: _Shown,
    output: OutputOption,
    *,
    page: int | None,
) -> None:
    if shown.by_state:
        output.show_list(shown.by_state, title="segments", none="")
        remark(f"`ledgerstream stream show {name} --segments` lists all {shown.total} segments")
        return
    pages, number = max(1, -(-shown.total // _SEGMENTS_PER_PAGE)), page or 1
    rows = [_segment_facts(metadata, segment) for segment in shown.segments]
    output.show_list(rows, title="segments", none="no segments yet")
    if pages > 1:
        following = f"; --page {number + 1} shows more" if number < pages else ""
        remark(f"page {number} of {pages}{following}")


@app.command(
    help_epilogue=examples(
        "ledgerstream stream truncate demo/clicks 3:120:0",
        "ledgerstream stream truncate demo/clicks time:2026-01-31T12:00:00Z",
    )
)
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
    from stream.cli.arguments import parse_from, parse_stream
    from stream.cli.connecting import connect
    from stream.core.position import FromTime, Position

    name = parse_stream(stream)
    to = parse_from(position, "position")
    if not isinstance(to, Position | FromTime):
        raise UsageError(
            f"truncate to a position like 3:120:0 or to time:2026-01-31T12:00:00Z, not {position!r}"
        )
    async with connect(cluster, name) as namespace:
        await _check_trash(namespace, yes)
        if not isinstance(to, FromTime):
            await namespace.truncate(name.stream, to)
        elif await namespace.partitions(name.stream) != [name.stream]:
            await namespace.truncate_partitions(name.stream, to)
        else:
            async with namespace.reader(name.stream, start=to) as reader:
                await namespace.truncate(name.stream, reader.position)
        output.show(await _facts_of(namespace, name), title=f"stream {name}")


@app.command(help_epilogue=examples("ledgerstream stream delete demo/clicks"))
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
    from ledger.units import duration_text
    from stream.cli.arguments import parse_stream
    from stream.cli.connecting import connect

    name = parse_stream(stream)
    async with connect(cluster, name) as namespace:
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
    from ledger.errors import InvalidArgument

    if not yes and (await namespace.policy()).trash_ms == 0:
        raise InvalidArgument(
            f"namespace {namespace.name} has no trash (trash_ms is 0): nothing can bring back what "
            f"is dropped or deleted; continue with --yes"
        )
