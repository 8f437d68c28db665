"""`ledgerstream cursor`: shows, sets and deletes stored reading positions.

On a partitioned stream the commands apply to the cursors of all its partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cyclopts import App

from ledger.cli.output import ClusterOption, OutputOption, UsageError, examples, time_of

if TYPE_CHECKING:
    from stream.cli.arguments import StreamName
    from stream.core.metadata.cursors import CursorMetadata
    from stream.namespace import Namespace

app = App(
    name="cursor",
    help="List, show, set, delete.",
    help_epilogue=examples("ledgerstream cursor list demo/clicks"),
)

_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()


async def _facts(namespace: Namespace, cursor: CursorMetadata) -> dict[str, Any]:
    lag = await namespace.cursor_lag(cursor.stream, cursor.name)
    return {
        "cursor": cursor.name,
        "stream": f"{namespace.name}/{cursor.stream}",
        "lag_records": lag.records,
        "lag_seconds": lag.seconds,
        "lag_bytes": lag.bytes,
        "position": str(cursor.position),
        "holder": cursor.holder or None,
        "epoch": cursor.epoch,
        "changed": time_of(cursor.changed_ms),
    }


@app.command(name="list", help_epilogue=examples("ledgerstream cursor list demo/clicks"))
async def list_cursors(
    stream: str, /, *, cluster: ClusterOption = _CLUSTER, output: OutputOption = _OUTPUT
) -> None:
    """List the cursors of a stream, including those of consumer groups, with their lag."""
    from stream.cli.arguments import parse_stream
    from stream.cli.connecting import connect

    name = parse_stream(stream)
    async with connect(cluster, name) as namespace:
        facts = [
            await _facts(namespace, cursor)
            for partition in await namespace.partitions(name.stream)
            for cursor in await namespace.cursors(partition)
        ]
    output.show_list(facts, title=f"cursors of {name}", none="no cursors")


async def _found(namespace: Namespace, name: StreamName, cursor: str) -> list[dict[str, Any]]:
    """Returns the facts of the cursor in each partition that has it. Raises NoSuchCursor."""
    from ledger.cli.contexts import did_you_mean
    from stream.errors import NoSuchCursor

    known = [
        each
        for partition in await namespace.partitions(name.stream)
        for each in await namespace.cursors(partition)
    ]
    found = [each for each in known if each.name == cursor]
    if not found:
        similar = did_you_mean(cursor, [each.name for each in known])
        raise NoSuchCursor(
            f"no cursor {cursor!r} on stream {name}{similar}; `ledgerstream cursor list {name}` "
            f"shows all"
        )
    return [await _facts(namespace, each) for each in found]


def _show(facts: list[dict[str, Any]], cursor: str, output: OutputOption) -> None:
    if len(facts) == 1:
        output.show(facts[0], title=f"cursor {cursor}")
    else:
        output.show_list(facts, title=f"cursor {cursor}", none="no cursors")


@app.command(help_epilogue=examples("ledgerstream cursor show demo/clicks billing"))
async def show(
    stream: str,
    cursor: str,
    /,
    *,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Show a cursor: its position, its holder, and its lag."""
    from stream.cli.arguments import parse_stream
    from stream.cli.connecting import connect

    name = parse_stream(stream)
    async with connect(cluster, name) as namespace:
        _show(await _found(namespace, name, cursor), cursor, output)


@app.command(
    name="set",
    help_epilogue=examples(
        "ledgerstream cursor set demo/clicks billing earliest",
        "ledgerstream cursor set demo/clicks billing time:2026-01-31T12:00:00Z",
    ),
)
async def set_cursor(
    stream: str,
    cursor: str,
    to: str,
    /,
    *,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Set a cursor, forward or back; create it if there is none.

    A client that uses it is notified; a consumer group continues from there by itself.

    Parameters
    ----------
    to
        earliest, latest, a position, seq:N, end:N, time:ISO, event-time:ISO or cursor:NAME.
    """
    from stream.cli.arguments import parse_from, parse_stream
    from stream.cli.connecting import connect
    from stream.core.position import Position

    name, start = parse_stream(stream), parse_from(to, "position")
    async with connect(cluster, name) as namespace:
        partitions = await namespace.partitions(name.stream)
        if isinstance(start, Position) and partitions != [name.stream]:
            raise UsageError(
                f"stream {name} has {len(partitions)} partitions, and a position belongs to one "
                f"of them: name it, like {name.namespace}/{partitions[0]}"
            )
        for partition in partitions:
            await namespace.set_cursor(partition, cursor, start)
        _show(await _found(namespace, name, cursor), cursor, output)


@app.command(help_epilogue=examples("ledgerstream cursor delete demo/clicks billing"))
async def delete(
    stream: str,
    cursor: str,
    /,
    *,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Delete a cursor. Retention no longer waits for it; a client that uses it is notified."""
    from stream.cli.arguments import parse_stream
    from stream.cli.connecting import connect

    name = parse_stream(stream)
    async with connect(cluster, name) as namespace:
        for facts in await _found(namespace, name, cursor):
            await namespace.delete_cursor(parse_stream(facts["stream"]).stream, cursor)
    output.report(
        {"stream": str(name), "cursor": cursor, "deleted": True},
        f"cursor {cursor} of {name} is gone",
    )
