"""`ledgerstream append`: appends the records of a file or of standard input.

inputs.py makes records of the input, appending.py reports which are durable. The reading half is
reading.py.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter, validators

from ledger.cli.lines import FileOrStdin
from ledger.cli.output import ClusterOption, OutputOption, UsageError, remark, usage
from stream.cli.inputs import InputFormat

if TYPE_CHECKING:
    from stream.cli.appending import Printed
    from stream.cli.arguments import StreamName
    from stream.cli.inputs import RecordTemplate
    from stream.namespace import Namespace

_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()

Bytes = Annotated[str | None, Parameter(allow_leading_hyphen=True)]
"""Any bytes, as the shell has given them."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOption:
    format: InputFormat = "lines"
    """lines: each line is a value. json: each line is an object as `read --json` prints it, with
    key, value, headers and event_time. raw: the whole input is one value."""

    key: Bytes = None
    """The key of all these records. In a partitioned stream a key has its partition."""

    key_separator: Bytes = None
    """Each line is a key, this, and the value. A line without it has no key."""

    header: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """NAME=VALUE, a header of all these records; may be repeated."""

    event_time: Bytes = None
    """The event time of all these records: 2026-01-31T12:00:00Z, 5m (ago), now, or milliseconds
    since 1970."""

    @usage()
    def template(self) -> RecordTemplate:
        """Raises InvalidArgument."""
        from ledger.errors import InvalidArgument
        from stream.cli.arguments import parse_event_time
        from stream.cli.inputs import RecordTemplate, parse_header

        if self.key is not None and self.key_separator is not None:
            raise InvalidArgument("--key and --key-separator both give the key: use one of them")
        if self.key_separator == "":
            raise InvalidArgument("--key-separator is empty: use a tab, a colon, or the like")
        template = RecordTemplate(
            key=None if self.key is None else os.fsencode(self.key),
            key_separator=None if self.key_separator is None else os.fsencode(self.key_separator),
            event_time_ms=None if self.event_time is None else parse_event_time(self.event_time),
            headers=tuple(map(parse_header, self.header)) or None,
        )
        if self.format == "json" and template != RecordTemplate():
            raise InvalidArgument(
                "--format json gives key, headers and event time of each record: leave out --key, "
                "--key-separator, --header and --event-time"
            )
        return template


_RECORDS = RecordOption()


async def append(
    stream: str,
    file: FileOrStdin = None,
    /,
    *surplus: Annotated[str, Parameter(show=False)],
    records: RecordOption = _RECORDS,
    expected_sequence: Annotated[int | None, Parameter(validator=validators.Number(gte=0))] = None,
    acks: bool = False,
    receipts: bool = False,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Append records to a stream, one per line. Creates stream and namespace if missing.

    Parameters
    ----------
    stream
        NAMESPACE/STREAM.
    file
        Where the records are; "-" or nothing is stdin.
    expected_sequence
        Append only if the first record gets this sequence number; nothing is appended otherwise.
    acks
        Print the position of the last durable record, and how many there are, again and again.
    receipts
        Print a receipt for each record once it is durable: JSON that says which bookies fsynced
        it. `stream verify --receipt` compares it with what the bookies have.
    """
    from ledger.cli.lines import opened
    from stream.cli.appending import Appending, append_records
    from stream.cli.arguments import parse_stream
    from stream.cli.connecting import connect
    from stream.cli.inputs import RecordInput
    from stream.core.names import parse_partition

    if surplus:
        raise UsageError(
            f"append reads one file, not {surplus[0]!r} as well; what follows -- is no option"
        )
    template, name = records.template(), parse_stream(stream)
    printed: Printed = "receipts" if receipts else "acks" if acks else "nothing"
    state = Appending(name, printed, is_json=output.json)
    with state.reported(), opened(file) as source:
        async with connect(cluster, name) as namespace:
            # What has records, or is a partition, must exist.
            if not expected_sequence and parse_partition(name.stream) is None:
                await _make_if_missing(namespace, name)
            given = RecordInput(source, records.format, template)
            await append_records(namespace, given, state, expected_sequence=expected_sequence)
        if receipts:
            remark(state.text())
        else:
            output.report(state.summary(), state.text())


async def _make_if_missing(namespace: Namespace, name: StreamName) -> None:
    if await namespace.ensure():
        remark(f"namespace {name.namespace} is new, with the default policy")
    if await namespace.ensure_stream(name.stream):
        remark(f"stream {name} is new")
