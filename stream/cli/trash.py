"""`ledgerstream stream trash|undelete|untruncate|purge`: lists and restores dropped data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ledger.cli.output import (
    ClusterOption,
    OutputOption,
    UsageError,
    examples,
    remark,
    time_of,
    usage,
)
from stream.cli.streams import app

if TYPE_CHECKING:
    from stream.core.metadata.streams import StreamMetadata
    from stream.core.position import Position
    from stream.namespace import Namespace

_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()


@app.command(help_epilogue=examples("ledgerstream stream trash demo"))
async def trash(
    namespace: str, /, *, cluster: ClusterOption = _CLUSTER, output: OutputOption = _OUTPUT
) -> None:
    """List what can be restored: deleted streams, and truncated segments."""
    from ledger.units import duration_text
    from stream.cli.connecting import connect

    async with connect(cluster, namespace) as streams:
        entries = await streams.trash()
        now_ms = streams.client.now_ms()
    output.show_list(
        [
            {
                "stream": f"{namespace}/{entry.stream}",
                "what": "deleted stream" if entry.is_deleted else "truncated segments",
                "records": entry.records,
                "bytes": entry.nbytes,
                "left": max(0, entry.purge_ms - now_ms)
                if output.json
                else duration_text(max(0, entry.purge_ms - now_ms)),
                "since": time_of(entry.since_ms),
                "segments": entry.segments,
                "gone_after": time_of(entry.purge_ms),
                "begins_at": str(entry.first_position),
            }
            for entry in entries
        ],
        title=f"trash of namespace {namespace}",
        none="the trash is empty",
    )


@app.command(
    help_epilogue=examples(
        "ledgerstream stream undelete demo/clicks",
        "ledgerstream stream undelete demo/clicks --as-name clicks-old",
    )
)
async def undelete(
    stream: str,
    /,
    *,
    as_name: str | None = None,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Restore the stream of this name that was deleted last, with its cursors.

    Parameters
    ----------
    as_name
        Bring it back under this name (without cursors), when its own is in use again.
    """
    from stream.cli.arguments import parse_stream
    from stream.cli.connecting import connect

    name = parse_stream(stream)
    async with connect(cluster, name) as namespace:
        await namespace.undelete_stream(name.stream, as_name)
    back = f"{name.namespace}/{as_name or name.stream}"
    output.report({"stream": back, "deleted": False}, f"stream {back} is back")


@app.command(
    help_epilogue=examples(
        "ledgerstream stream untruncate demo/clicks",
        "ledgerstream stream untruncate demo/clicks 3:120:0",
    )
)
async def untruncate(
    stream: str,
    position: str | None = None,
    /,
    *,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Restore truncated records, from POSITION on or all that are left."""
    from stream.cli.arguments import parse_stream
    from stream.cli.connecting import connect
    from stream.cli.retention import amount

    name = parse_stream(stream)
    to = None if position is None else _position(position)
    async with connect(cluster, name) as namespace:
        partitions = await namespace.partitions(name.stream)
        if to is not None and len(partitions) > 1:
            raise UsageError(
                f"stream {name} is partitioned: name a partition (like {name}#0), or leave the "
                f"position out to bring back all there is"
            )
        rows = []
        for partition in partitions:
            began_at, _ = await _begin(namespace, partition)
            await namespace.untruncate(partition, to)
            begins_at, records = await _begin(namespace, partition)
            plan = await namespace.explain_retention(partition)
            rows.append(
                {
                    "stream": f"{name.namespace}/{partition}",
                    "began_at": str(began_at),
                    "begins_at": str(begins_at),
                    "records": records,
                }
            )
            if plan.dropped:
                remark(
                    f"{partition}: the policy will drop {amount(plan.dropped)} again at the next "
                    f"sweep; to keep them change it now (ledgerstream namespace set "
                    f"{name.namespace} --retention-ms ...)"
                )
    output.show_list(rows, title=f"stream {name}", none="nothing")


async def _begin(namespace: Namespace, stream: str) -> tuple[Position, int]:
    """Returns where a stream begins, and how many sealed records it has."""
    pages = namespace.store.pages

    async def found(present: StreamMetadata) -> tuple[Position, int]:
        return await pages.resolve(
            present,
            lambda known: (known.first_available, sum(span.records for span in known.live())),
        )

    return await namespace.store.consult(namespace.name, stream, found)


@usage()
def _position(text: str) -> Position:
    from ledger.errors import InvalidArgument
    from stream.core.position import Position

    try:
        return Position.parse(text)
    except InvalidArgument:
        raise InvalidArgument(
            f"position {text!r}: write it as `read --json` prints it, like 3:120:0"
        ) from None


@app.command(help_epilogue=examples("ledgerstream stream purge demo/clicks --yes"))
async def purge(
    stream: str,
    /,
    *,
    yes: Annotated[bool, Parameter(negative="")] = False,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Delete permanently what the trash holds of a stream.

    Parameters
    ----------
    yes
        Really do it: nothing can bring it back. Without it that is an error.
    """
    from ledger.errors import InvalidArgument
    from stream.cli.arguments import parse_stream
    from stream.cli.connecting import connect

    name = parse_stream(stream)
    async with connect(cluster, name) as namespace:
        if not yes:
            raise InvalidArgument(
                f"this deletes what `ledgerstream stream trash {name.namespace}` lists of {name} "
                f"for good; continue with --yes"
            )
        ledgers = await namespace.purge(name.stream)
    output.report(
        {"stream": str(name), "ledgers_deleted": ledgers},
        f"the trash of stream {name} is empty: {ledgers} ledgers deleted",
    )
