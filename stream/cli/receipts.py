"""`ledgerstream append --receipts`: a receipt as a line of JSON for each record, in order.

Many records are in flight at a time; a receipt is printed when its record is durable.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

import trio

from ledger.cli.lines import Input, line_batches
from ledger.cli.output import remark, write_output
from ledger.errors import InvalidArgument, LedgerError
from stream.cli.appending import NO_KEYS, Keys
from stream.core.entry.format import RECORD_BYTES_MAX

if TYPE_CHECKING:
    from stream.cli.arguments import StreamName
    from stream.namespace import Namespace
    from stream.writing.receipt import ReceiptTicket
    from stream.writing.writer import StreamWriter

_BATCHES_AHEAD_MAX = 16


async def append_with_receipts(
    namespace: Namespace, name: StreamName, source: Input, *, keys: Keys = NO_KEYS
) -> int:
    """Appends all lines of `source`, prints their receipts and returns their number."""
    if await namespace.partitions(name.stream) != [name.stream]:
        raise InvalidArgument(
            f"stream {name} is partitioned: append with receipts to one partition, {name}#0 say"
        )
    printed = 0
    send, receive = trio.open_memory_channel["list[ReceiptTicket]"](_BATCHES_AHEAD_MAX)

    async def print_receipts() -> None:
        nonlocal printed
        async with receive:
            async for tickets in receive:
                lines = [(await ticket.receipt()).to_json() for ticket in tickets]
                write_output("".join(f"{line}\n" for line in lines).encode())
                printed += len(lines)

    try:
        async with namespace.writer(name.stream) as writer, trio.open_nursery() as nursery:
            nursery.start_soon(print_receipts)
            async with send, aclosing(line_batches(source, RECORD_BYTES_MAX)) as batches:
                async for lines in batches:
                    await send.send(await _append(writer, lines, keys))
    except* LedgerError:
        if printed:
            remark(f"durable before the error: {printed} records, as their receipts say")
        raise
    return printed


async def _append(writer: StreamWriter, lines: Sequence[bytes], keys: Keys) -> list[ReceiptTicket]:
    tickets: list[ReceiptTicket] = []
    for line in lines:
        key, value = keys.split(line)
        while not writer.has_room:
            await writer.wait_room()
        tickets.append(writer.receipt_of(writer.append_nowait(value, key)))
    return tickets
