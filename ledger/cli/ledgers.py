"""`ledgerstream ledger`: commands for single ledgers, the layer below streams.

A ledger has one writer for its whole life. `create` makes one without a writer; the first `append`
claims it by a compare-and-set of its metadata, and closes it at the end.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from ledger.cli.lines import FileOrStdin
from ledger.cli.output import (
    AtLeastOne,
    AtLeastZero,
    ClusterOption,
    OutputOption,
    UsageError,
    examples,
    print_json,
    print_line,
    remark,
    stored_bytes_shown,
    text_or_base64,
    time_of,
    usage,
    write_output,
)

if TYPE_CHECKING:
    from ledger.core.entry import DigestType, Entry
    from ledger.core.metadata import LedgerMetadata
    from ledger.reading.reader import LedgerReader
    from ledger.writing.writer import LedgerWriter

app = App(
    name="ledger",
    help="The layer below streams.",
    help_epilogue=examples("ledgerstream ledger list"),
)

app.command(
    "ledger.cli.placement:check",
    name="check",
    help_epilogue=examples("ledgerstream ledger check --placement"),
)

DigestName = Literal["crc32c", "crc32", "hmac", "dummy"]
SeenPassword = Annotated[str, Parameter(show=False)]
"""A password as an argument, which everybody on the machine can see."""

_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()


def _password(argument: str, file: str | None) -> bytes:
    """Returns the password of a ledger. Raises UsageError, InvalidArgument."""
    from ledger.credentials import read_secret

    if file is None:
        if argument:
            remark("others on this machine can see --password: give --password-file FILE instead")
        return os.fsencode(argument)
    if argument:
        raise UsageError("give --password or --password-file, not both")
    return read_secret(file).reveal().encode()


def _facts(metadata: LedgerMetadata) -> dict[str, Any]:
    is_closed = metadata.is_closed
    return {
        "ledger_id": metadata.ledger_id,
        "state": metadata.state.name.lower(),
        "entries": metadata.last_entry_id + 1 if is_closed else None,
        "bytes": metadata.length if is_closed else None,
        "ensemble": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum,
        "ack_quorum": metadata.ack_quorum,
        "digest": metadata.digest_type.name.lower() if metadata.digest_type else None,
        "created": time_of(metadata.created_ms),
    }


@app.command(name="list", help_epilogue=examples("ledgerstream ledger list"))
async def list_ledgers(
    *, cluster: ClusterOption = _CLUSTER, output: OutputOption = _OUTPUT
) -> None:
    """List all ledgers."""
    from ledger.client import LedgerClient
    from ledger.errors import NoSuchLedger

    async with LedgerClient.connect(cluster.uri, options=cluster.options) as client:
        facts = []
        for ledger_id in await client.list_ledgers():
            try:
                facts.append(_facts(await client.ledger_metadata(ledger_id)))
            except NoSuchLedger:
                continue  # deleted since the listing
        output.show_list(facts, title="ledgers", none="no ledgers")


@app.command(help_epilogue=examples("ledgerstream ledger show 7"))
async def show(
    ledger_id: AtLeastZero, /, *, cluster: ClusterOption = _CLUSTER, output: OutputOption = _OUTPUT
) -> None:
    """Show a ledger: state, quorums, and which bookies hold which entries."""
    from ledger.client import LedgerClient

    async with LedgerClient.connect(cluster.uri, options=cluster.options) as client:
        metadata = await client.ledger_metadata(ledger_id)
    fragments = [
        {"first_entry": fragment.first_entry_id, "bookies": list(fragment.bookies)}
        for fragment in metadata.fragments
    ]
    custom = {name: text_or_base64(value) for name, value in metadata.custom.items()}
    if output.json:
        print_json(_facts(metadata) | {"fragments": fragments, "custom": custom})
        return
    output.show(_facts(metadata) | custom, title=f"ledger {ledger_id}")
    output.show_list(fragments, title="fragments", none="no fragments")


@app.command(
    help_epilogue=examples(
        "ledgerstream ledger create --ensemble 3 --write-quorum 3 --ack-quorum 2"
    )
)
async def create(
    *,
    ensemble: AtLeastOne = 3,
    write_quorum: AtLeastOne = 3,
    ack_quorum: AtLeastOne = 2,
    digest: DigestName = "crc32c",
    password: SeenPassword = "",
    password_file: str | None = None,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Create an empty ledger and print its id; `ledger append` writes it.

    Parameters
    ----------
    password_file
        A file with a password for the ledger, which only its owner can read.
    """
    from ledger.client import LedgerClient
    from ledger.core.entry import DigestType
    from ledger.core.quorum import check_sizes

    with usage():
        check_sizes(ensemble, write_quorum, ack_quorum)
    async with LedgerClient.connect(cluster.uri, options=cluster.options) as client:
        ledger_id = await client.reserve_ledger(
            ensemble_size=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest_type=DigestType[digest.upper()],
            password=_password(password, password_file),
        )
    if output.json:
        print_json({"ledger_id": ledger_id})
    else:
        print_line(str(ledger_id))


@app.command(help_epilogue=examples("ledgerstream ledger append 7 lines.txt"))
async def append(
    ledger_id: AtLeastZero,
    file: FileOrStdin = None,
    /,
    *,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Write a created ledger, one entry per line of FILE or stdin, and close it."""
    import trio

    from ledger.cli.lines import line_batches, opened
    from ledger.client import LedgerClient
    from ledger.writing.frames import ENTRY_PAYLOAD_BYTES_MAX

    started_s = trio.current_time()
    with opened(file) as source:
        async with (
            LedgerClient.connect(cluster.uri, options=cluster.options) as client,
            client.write_reserved(ledger_id) as writer,
            aclosing(line_batches(source, ENTRY_PAYLOAD_BYTES_MAX)) as batches,
        ):
            await _append_all(writer, batches)
        seconds = trio.current_time() - started_s
    count = writer.last_add_confirmed + 1
    facts = {
        "ledger_id": ledger_id,
        "entries": count,
        "bytes": writer.length,
        "seconds": round(seconds, 3),
        "entries_per_s": round(count / seconds) if seconds else None,
    }
    output.show(facts, title=f"ledger {ledger_id}")


async def _append_all(writer: LedgerWriter, batches: AsyncIterator[list[bytes]]) -> None:
    """Appends all lines. After an error in the input those before it are durable, which is
    reported."""
    from ledger.cli.standard_streams import StandardStreamFailed
    from ledger.errors import InvalidArgument

    try:
        async for lines in batches:
            for line in lines:
                while not writer.has_room:
                    await writer.wait_room()
                writer.append_nowait(line)
    except (InvalidArgument, OSError, StandardStreamFailed):
        await writer.flush()
        remark(f"durable before the error: {writer.last_add_confirmed + 1} entries")
        raise
    await writer.flush()


def _digest_type(name: DigestName | None) -> DigestType | None:
    from ledger.core.entry import DigestType

    return None if name is None else DigestType[name.upper()]


def _write_entries(
    entries: list[Entry], output: OutputOption, shown: Callable[[bytes], bytes]
) -> None:
    if output.json:
        for entry in entries:
            print_json({"entry": entry.entry_id, "payload": text_or_base64(bytes(entry.payload))})
    else:
        write_output(b"".join(shown(bytes(entry.payload)) + b"\n" for entry in entries))


async def _last_readable(reader: LedgerReader) -> int:
    if reader.is_closed:
        return reader.last_add_confirmed
    return await reader.read_last_confirmed()


@app.command(help_epilogue=examples("ledgerstream ledger read 7 --first 100 --last 199"))
async def read(
    ledger_id: AtLeastZero,
    /,
    *,
    first: AtLeastZero = 0,
    last: AtLeastZero | None = None,
    password: SeenPassword = "",
    password_file: str | None = None,
    digest: DigestName | None = None,
    raw: Annotated[bool, Parameter(negative="")] = False,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Print the entries of a ledger, one payload per line. The writer of an open one is not fenced.

    Parameters
    ----------
    first
        First entry id.
    last
        Last entry id; default: the last add confirmed.
    password_file
        A file with the password of the ledger, if it is not in its metadata.
    digest
        For a ledger whose metadata is too old to name one.
    raw
        Print payloads as they are on a terminal, too, where control characters are shown as \\x1b
        without it. A pipe or a file always gets them as they are.
    """
    from ledger.client import LedgerClient

    shown = stored_bytes_shown(is_raw=raw)
    async with (
        LedgerClient.connect(cluster.uri, options=cluster.options) as client,
        client.open_ledger(
            ledger_id,
            password=_password(password, password_file),
            recover=False,
            digest_type=_digest_type(digest),
        ) as reader,
    ):
        end = await _last_readable(reader)
        if last is not None:
            end = min(end, last)
        if first > end:
            return
        async for entries in reader.entries(first, end):
            _write_entries(entries, output, shown)


@app.command(help_epilogue=examples("ledgerstream ledger recover 7"))
async def recover(
    ledger_id: AtLeastZero,
    /,
    *,
    password: SeenPassword = "",
    password_file: str | None = None,
    digest: DigestName | None = None,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Fence a ledger's writer, find the end, and close it. Safe to repeat.

    Parameters
    ----------
    password_file
        A file with the password of the ledger, if it is not in its metadata.
    digest
        For a ledger whose metadata is too old to name one.
    """
    from ledger.client import LedgerClient

    async with (
        LedgerClient.connect(cluster.uri, options=cluster.options) as client,
        client.open_ledger(
            ledger_id, password=_password(password, password_file), digest_type=_digest_type(digest)
        ) as reader,
    ):
        output.show(_facts(reader.metadata), title=f"ledger {ledger_id}")


@app.command(help_epilogue=examples("ledgerstream ledger delete 7"))
async def delete(
    ledger_id: AtLeastZero, /, *, cluster: ClusterOption = _CLUSTER, output: OutputOption = _OUTPUT
) -> None:
    """Delete a ledger. Bookies reclaim the space with their next garbage collection."""
    from ledger.client import LedgerClient

    async with LedgerClient.connect(cluster.uri, options=cluster.options) as client:
        await client.delete_ledger(ledger_id)
    if output.json:
        print_json({"ledger_id": ledger_id, "deleted": True})
