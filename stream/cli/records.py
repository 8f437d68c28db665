"""`ledgerstream append`, `read`, `tail`: records as lines, or as JSON objects with all they have.

A value is written as it is, followed by a newline, and flushed at once: values with newlines in
them are kept apart only by --json.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated

from cyclopts import Parameter

from ledger.cli.lines import FileOrStdin
from ledger.cli.output import (
    ClusterOption,
    OutputOption,
    print_json,
    remark,
    text_or_base64,
    time_of,
    write_output,
)
from ledger.errors import InvalidArgument
from stream.cli.appending import Keys, append_lines
from stream.cli.arguments import StreamName, parse_from, parse_stream
from stream.core.position import EARLIEST, LATEST, FromSequence, Start
from stream.core.records import Record, RecordBatch
from stream.namespace import Namespace

_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()

From = Annotated[str | None, Parameter(name="--from")]


async def append(
    stream: str,
    file: FileOrStdin = None,
    /,
    *,
    acks: bool = False,
    key: str | None = None,
    key_separator: str | None = None,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Append lines to a stream, a record per line. Makes stream and namespace if missing.

    Parameters
    ----------
    stream
        NAMESPACE/STREAM.
    file
        Where the lines are; "-" or nothing is stdin.
    acks
        Print the position of the last durable record, and how many there are, again and again.
    key
        The key of all these records. In a partitioned stream a key has its partition.
    key_separator
        Each line is a key, this, and the value. A line without it has no key.
    """
    if key is not None and key_separator is not None:
        raise InvalidArgument("--key and --key-separator both give the key: use one of them")
    if key_separator == "":
        raise InvalidArgument("--key-separator is empty: use a tab, a colon, or the like")
    keys = Keys(
        constant=None if key is None else key.encode(),
        separator=None if key_separator is None else key_separator.encode(),
    )
    name = parse_stream(stream)
    async with Namespace.connect(cluster.uri, name.namespace) as namespace:
        await _make_if_missing(namespace, name)
        summary = await append_lines(
            namespace, name, file, prints_acks=acks, is_json=output.json, keys=keys
        )
    output.show(summary, title=f"appended to {name}")


async def _make_if_missing(namespace: Namespace, name: StreamName) -> None:
    if await namespace.ensure():
        remark(f"namespace {name.namespace} is new, with the default policy")
    if await namespace.ensure_stream(name.stream):
        remark(f"stream {name} is new")


async def read(
    stream: str,
    /,
    *,
    start: From = None,
    count: int | None = None,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Print the records of a stream to its present end, a value per line.

    Parameters
    ----------
    stream
        NAMESPACE/STREAM.
    start
        earliest (default), latest, a position, seq:N or time:ISO.
    count
        Stop after so many records.
    """
    name = parse_stream(stream)
    first = EARLIEST if start is None else parse_from(start)
    async with (
        Namespace.connect(cluster.uri, name.namespace) as namespace,
        namespace.reader(name.stream, start=first) as reader,
        aclosing(reader.read_to_end()) as batches,
    ):
        await _print(batches, count, is_json=output.json)


async def tail(
    stream: str,
    /,
    *,
    start: From = None,
    last: Annotated[int | None, Parameter(name=["-n", "--last"])] = None,
    count: int | None = None,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Follow a stream: print records as they come, until Ctrl-C.

    Parameters
    ----------
    stream
        NAMESPACE/STREAM.
    start
        latest (default), earliest, a position, seq:N or time:ISO.
    last
        Begin with the last N records there are.
    count
        Stop after so many records.
    """
    name = parse_stream(stream)
    if start is not None and last is not None:
        raise InvalidArgument("--from and -n both say where to begin: give one of them")
    async with Namespace.connect(cluster.uri, name.namespace) as namespace:
        first: Start = LATEST if start is None else parse_from(start)
        if last is not None:
            first = await _before_end(namespace, name, last)
        async with (
            namespace.reader(name.stream, start=first) as reader,
            aclosing(reader.batches()) as batches,
        ):
            await _print(batches, count, is_json=output.json)


async def _before_end(namespace: Namespace, name: StreamName, last: int) -> Start:
    facts = await namespace.info(name.stream)
    return FromSequence(max(facts.first_sequence, facts.next_sequence - last))


async def _print(batches: AsyncIterator[RecordBatch], count: int | None, *, is_json: bool) -> None:
    left = sys.maxsize if count is None else count
    if left <= 0:
        return
    async for batch in batches:
        if is_json:
            for record in batch.records()[:left]:
                print_json(json_of(record))
        else:
            values = batch.values()[:left]
            write_output(b"\n".join(values) + b"\n")
        left -= len(batch)
        if left <= 0:
            return


def json_of(record: Record) -> dict[str, object]:
    """All a record has. Bytes are text if they are UTF-8, else {"base64": ...}."""
    return {
        "position": str(record.position),
        "sequence": record.sequence,
        "append_time": time_of(record.append_time_ms),
        "event_time": time_of(record.event_time_ms),
        "key": None if record.key is None else text_or_base64(record.key),
        "value": text_or_base64(record.value),
        **({"headers": _headers(record)} if record.headers else {}),
    }


def _headers(record: Record) -> list[list[object]]:
    return [[name, text_or_base64(content)] for name, content in record.headers]
