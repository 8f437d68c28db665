"""Reads from an existing BookKeeper cluster, for example Pulsar's, without disturbing it.

    python -m examples.bookkeeper_reader zk://host:2181/ledgers            lists the ledgers
    python -m examples.bookkeeper_reader zk://host:2181/ledgers 42 [PASSWORD]   tails one

Ledgers are opened with `recover=False`: their writer is not fenced and continues. Nothing is
written or deleted. A tail ends when its ledger is closed.
"""

from __future__ import annotations

import sys

import trio

from ledger.client import LedgerClient
from ledger.errors import NoSuchLedger


async def list_ledgers(client: LedgerClient) -> None:
    """Prints the id, state, last entry (of a closed ledger), bookies and owner of each ledger."""
    for ledger_id in await client.list_ledgers():
        try:
            metadata = await client.ledger_metadata(ledger_id)
        except NoSuchLedger:
            continue  # deleted in the meantime
        last = metadata.last_entry_id if metadata.is_closed else "-"
        owner = " ".join(f"{name}={value!r}" for name, value in sorted(metadata.custom.items()))
        bookies = ",".join(metadata.last_fragment.bookies)
        print(ledger_id, metadata.state.name.lower(), last, bookies, owner, sep="\t")


async def tail(client: LedgerClient, ledger_id: int, password: bytes) -> None:
    """Prints each entry once it is confirmed: its id, its size, the beginning of its payload."""
    async with client.open_ledger(ledger_id, password=password, recover=False) as reader:
        async for entries in reader.tail(0):
            for entry in entries:
                start = bytes(entry.payload[:40])
                print(entry.entry_id, len(entry.payload), start, sep="\t", flush=True)


async def main(cluster: str, ledger_id: str, password: str) -> None:
    async with LedgerClient.connect(cluster) as client:
        if ledger_id:
            await tail(client, int(ledger_id), password.encode())
        else:
            await list_ledgers(client)


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 4:
        sys.exit(__doc__)
    cluster_, ledger_id_, password_ = (*sys.argv[1:], "", "")[:3]
    trio.run(main, cluster_, ledger_id_, password_)
