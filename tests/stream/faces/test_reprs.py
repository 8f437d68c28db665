"""What a REPL shows of the objects of streams."""

from __future__ import annotations

import asyncio

import trio

import ledger
import stream
from bookie.testing import InProcessCluster
from ledgerstream import aio, blocking


def test_objects_say_what_they_are(ledgerstream_cluster: InProcessCluster) -> None:
    uri = ledgerstream_cluster.uri
    with blocking.Namespace.connect(uri, "demo", create=True) as namespace:
        assert repr(namespace) == f"<Namespace 'demo' of {uri}>"
        with namespace.writer("log", create=True) as writer:
            assert repr(writer) == "<StreamWriter of 'log', epoch 1, at sequence 0>"
            ticket = writer.append_nowait(b"one")
            assert repr(ticket) in ("<Ticket in flight>", "<Ticket 1:0:0>")
            ticket.wait()
            assert repr(ticket) == "<Ticket 1:0:0>"
            assert repr(writer.producer("p")) == "<Producer 'p', next sequence 0>"
        assert "closed" in repr(writer)
        with namespace.reader("log") as reader:
            assert repr(reader) == "<StreamReader of 'log' at 1:0:0>"
            assert repr(next(reader.batches())) == "<RecordBatch of 1 records, 1:0:0 to 1:0:0>"
            reader.close()
        assert repr(reader) == "<StreamReader of 'log', closed>"
        with namespace.cursor("log", "c") as cursor, namespace.consumer("log", "g") as consumer:
            assert repr(cursor) == "<Cursor 'c' of 'log' at 1:0:0>"
            assert repr(consumer).startswith("<Consumer 'm-")
            assert " of group 'g' at 'log', holds " in repr(consumer)
        with namespace.merged_reader("log") as merged:
            assert repr(merged) == "<MergedReader of log>"
        with namespace.partitioned_writer("many", create=2) as many:
            assert repr(many) == "<PartitionedWriter of 'many', 2 partitions>"
            assert repr(many.append_nowait(b"x", key=b"k")).startswith("<PartitionTicket ")
    with blocking.LedgerClient.connect(uri) as client:
        assert repr(client) == f"<LedgerClient of {uri}>"


def test_objects_of_asyncio_and_trio_say_the_same(ledgerstream_cluster: InProcessCluster) -> None:
    uri = ledgerstream_cluster.uri
    shown = []

    async def in_asyncio() -> None:
        async with aio.Namespace.connect(uri, "demo", create=True) as namespace:
            shown.append(repr(namespace))
            async with namespace.writer("log", create=True) as writer:
                shown.append(repr(writer))
            async with namespace.reader("log") as reader:
                shown.append(repr(reader))

    async def in_trio() -> None:
        async with stream.Namespace.connect(uri, "demo") as namespace:
            assert repr(namespace) == shown[0]
            async with namespace.writer("log") as writer:
                assert repr(writer) == shown[1].replace("epoch 1", "epoch 2")
            async with namespace.reader("log") as reader:
                assert repr(reader) == shown[2].replace("2:0:0", "3:0:0")
            assert repr(namespace.reader("log")) == "<StreamReader of 'log', not open yet>"
            ledger_writer = await namespace.client.create_ledger()
            assert repr(ledger_writer) == f"<LedgerWriter of ledger {ledger_writer.ledger_id}>"
            await ledger_writer.close()
        async with ledger.LedgerClient.connect(uri) as client:
            assert repr(client) == f"<LedgerClient of {uri}>"

    asyncio.run(in_asyncio())
    trio.run(in_trio)
