"""`ledgerstream group`: consumer groups, their members, assignments and lag."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cyclopts import App

from ledger.cli.output import ClusterOption, OutputOption, examples, print_json

if TYPE_CHECKING:
    from stream.cli.arguments import StreamName

app = App(
    name="group",
    help="List, show, delete.",
    help_epilogue=examples("ledgerstream group list demo/views"),
)

_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()


@app.command(name="list", help_epilogue=examples("ledgerstream group list demo/views"))
async def list_groups(
    stream: str, /, *, cluster: ClusterOption = _CLUSTER, output: OutputOption = _OUTPUT
) -> None:
    """List the consumer groups of a stream."""
    from stream.cli.arguments import parse_stream
    from stream.cli.connecting import connect

    name = parse_stream(stream)
    facts = []
    async with connect(cluster, name) as namespace:
        for group in await namespace.groups(name.stream):
            info = await namespace.group(name.stream, group)
            lags = [row.lag for row in info.partitions if row.lag is not None]
            facts.append(
                {
                    "group": group,
                    "members": len(info.members),
                    "partitions": len(info.partitions),
                    "lag_records": sum(lag.records for lag in lags),
                    "lag_bytes": sum(lag.bytes for lag in lags),
                    "lag_seconds": max((lag.seconds for lag in lags), default=0.0),
                }
            )
    output.show_list(facts, title=f"consumer groups of {name}", none="no consumer groups")


@app.command(help_epilogue=examples("ledgerstream group show demo/views billing"))
async def show(
    stream: str, group: str, /, *, cluster: ClusterOption = _CLUSTER, output: OutputOption = _OUTPUT
) -> None:
    """Show a consumer group: its members, and for each partition its holder and lag."""
    from stream.cli.arguments import parse_stream
    from stream.cli.connecting import connect

    name = parse_stream(stream)
    async with connect(cluster, name) as namespace:
        with _explained(name, await namespace.groups(name.stream), group):
            info = await namespace.group(name.stream, group)
    rows = [
        {
            "partition": row.partition,
            "holder": row.holder or None,
            "lag_records": None if row.lag is None else row.lag.records,
            "lag_seconds": None if row.lag is None else row.lag.seconds,
            "lag_bytes": None if row.lag is None else row.lag.bytes,
            "position": None if row.position is None else str(row.position),
            "assigned_to": row.assigned_to or None,
            "epoch": row.epoch,
        }
        for row in info.partitions
    ]
    facts = {
        "stream": str(name),
        "group": group,
        "generation": info.generation,
        "members": list(info.members),
    }
    if output.json:
        print_json(facts | {"partitions": rows})
        return
    output.show(facts, title=f"consumer group {group}")
    output.show_list(rows, title="partitions", none="no partitions")


@app.command(help_epilogue=examples("ledgerstream group delete demo/views billing"))
async def delete(
    stream: str, group: str, /, *, cluster: ClusterOption = _CLUSTER, output: OutputOption = _OUTPUT
) -> None:
    """Delete a consumer group without members, and its positions."""
    from stream.cli.arguments import parse_stream
    from stream.cli.connecting import connect

    name = parse_stream(stream)
    async with connect(cluster, name) as namespace:
        with _explained(name, await namespace.groups(name.stream), group):
            await namespace.delete_group(name.stream, group)
    output.report(
        {"stream": str(name), "group": group, "deleted": True},
        f"consumer group {group} of {name} is gone",
    )


@contextmanager
def _explained(name: StreamName, known: Collection[str], group: str) -> Iterator[None]:
    """Makes NoSuchGroup name a similar group, and the command that lists them."""
    from ledger.cli.contexts import did_you_mean
    from stream.errors import NoSuchGroup

    try:
        yield
    except NoSuchGroup:
        raise NoSuchGroup(
            f"no consumer group {group!r} on stream {name}{did_you_mean(group, known)}; "
            f"`ledgerstream group list {name}` shows all"
        ) from None
