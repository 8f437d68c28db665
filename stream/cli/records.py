"""`ledgerstream append`: appends each line of a file or of standard input as a record.

appending.py reports which records are durable. The reading half is reading.py.
"""

from __future__ import annotations

from ledger.cli.lines import FileOrStdin, opened
from ledger.cli.output import ClusterOption, OutputOption, remark
from ledger.errors import InvalidArgument
from stream.cli.appending import Keys, append_lines
from stream.cli.arguments import StreamName, parse_stream
from stream.cli.receipts import append_with_receipts
from stream.namespace import Namespace

_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()


async def append(
    stream: str,
    file: FileOrStdin = None,
    /,
    *,
    acks: bool = False,
    receipts: bool = False,
    key: str | None = None,
    key_separator: str | None = None,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Append lines to a stream, a record per line. Creates stream and namespace if missing.

    Parameters
    ----------
    stream
        NAMESPACE/STREAM.
    file
        Where the lines are; "-" or nothing is stdin.
    acks
        Print the position of the last durable record, and how many there are, again and again.
    receipts
        Print a receipt for each record once it is durable: JSON that says which bookies fsynced
        it. `stream verify --receipt` holds it against what the bookies have.
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
    with opened(file) as source:
        async with Namespace.connect(cluster.uri, name.namespace) as namespace:
            await _make_if_missing(namespace, name)
            if receipts:
                count = await append_with_receipts(namespace, name, source, keys=keys)
                remark(f"appended {count} records to {name}")
                return
            summary = await append_lines(
                namespace, name, source, prints_acks=acks, is_json=output.json, keys=keys
            )
    output.show(summary, title=f"appended to {name}")


async def _make_if_missing(namespace: Namespace, name: StreamName) -> None:
    if await namespace.ensure():
        remark(f"namespace {name.namespace} is new, with the default policy")
    if await namespace.ensure_stream(name.stream):
        remark(f"stream {name} is new")
