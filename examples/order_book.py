"""An order book that never sells a share twice, by appends that fail if others came first.

    python -m examples.order_book CLUSTER

Each trader reads the stream into a book, decides, and appends with `expected_sequence`. The append
fails if another trader was faster: then the trader reads the new orders and decides again.
"""

from __future__ import annotations

import sys

import trio

from ledgerstream import EARLIEST, FromSequence, Namespace, SequenceMismatch, StreamWriter

SHARES = 20


class Book:
    def __init__(self) -> None:
        self.left = SHARES
        self.next_sequence = 0

    async def catch_up(self, namespace: Namespace) -> None:
        start = FromSequence(self.next_sequence) if self.next_sequence else EARLIEST
        async with namespace.reader("orders", start=start) as reader:
            async for batch in reader.read_to_end():
                for record in batch.records():
                    self.left -= int(record.value.split()[1])
                    self.next_sequence = record.sequence + 1


async def trade(namespace: Namespace, writer: StreamWriter, trader: str, lot: int) -> None:
    book = Book()
    while book.left > 0:
        bought = min(lot, book.left)
        try:
            await writer.append(f"{trader} {bought}".encode(), expected_sequence=book.next_sequence)
            print(f"{trader} bought {bought}")
        except SequenceMismatch:
            pass  # another trader was faster
        await book.catch_up(namespace)


async def main(cluster: str) -> None:
    async with Namespace.connect(cluster, "examples", create=True) as namespace:
        async with (
            namespace.writer("orders", create=True) as writer,
            trio.open_nursery() as nursery,
        ):
            for trader, lot in (("ann", 3), ("bob", 2), ("eve", 4)):
                nursery.start_soon(trade, namespace, writer, trader, lot)
        book = Book()
        await book.catch_up(namespace)
        print(f"{SHARES - book.left} of {SHARES} shares were sold in {book.next_sequence} trades")


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
