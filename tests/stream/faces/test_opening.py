"""Writers and readers that are opened without a block: notebooks, REPLs, attributes of classes."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import warnings

import pytest
import trio

import ledger
import stream
from bookie.testing import InProcessCluster
from ledgerstream import aio, blocking
from tests.tidy.checkout import ROOT

pytestmark = pytest.mark.filterwarnings("error")


def test_a_notebook_needs_no_block(ledgerstream_cluster: InProcessCluster) -> None:
    namespace = blocking.Namespace.open(ledgerstream_cluster.uri, "demo", create=True)
    writer = namespace.open_writer("log", create=True)
    position = writer.append(b"one")
    reader = namespace.open_reader("log")
    assert next(reader).position == position
    writer.append(b"two")
    assert next(reader).value == b"two"
    cursor = namespace.open_cursor("log", "c")
    cursor.advance(position)
    consumer = namespace.open_consumer("log", "g")
    delivery = next(consumer)
    assert [record.value for record in delivery.batch.records()][:1] == [b"one"]
    for opened in (consumer, cursor, reader, writer, namespace):
        opened.close()
        opened.close()  # again
    with blocking.Namespace.connect(ledgerstream_cluster.uri, "demo") as again:
        assert again.info("log").records == 2
        assert [each.name for each in again.cursors("log")] == ["c", "g"]


def test_closing_a_namespace_closes_what_was_opened_from_it(
    ledgerstream_cluster: InProcessCluster,
) -> None:
    namespace = blocking.Namespace.open(ledgerstream_cluster.uri, "demo", create=True)
    writer = namespace.open_writer("log", create=True)
    tickets = [writer.append_nowait(b"%d" % n) for n in range(100)]
    reader = namespace.open_reader("log")
    namespace.close()
    assert [ticket.wait().entry >= 0 for ticket in tickets] == [True] * 100
    assert reader is not None
    with blocking.Namespace.connect(ledgerstream_cluster.uri, "demo") as again:
        assert again.info("log").records == 100
        assert not again.info("log").has_open_segment
        late = again.open_writer("log")
        late.append(b"late")
    del late
    with blocking.Namespace.connect(ledgerstream_cluster.uri, "demo") as again:
        assert again.info("log").records == 101
        assert not again.info("log").has_open_segment


def test_what_is_used_is_not_collected(ledgerstream_cluster: InProcessCluster) -> None:
    """The block is a temporary object that nobody keeps."""
    with blocking.Namespace.connect(ledgerstream_cluster.uri, "demo", create=True) as namespace:
        writer = namespace.writer("log", create=True).__enter__()
        gc.collect()
        for n in range(3):
            writer.append(b"%d" % n)
        writer.close()


def test_what_is_dropped_says_so_and_harms_nothing(ledgerstream_cluster: InProcessCluster) -> None:
    with blocking.Namespace.connect(ledgerstream_cluster.uri, "demo", create=True) as namespace:
        writer = namespace.open_writer("log", create=True)
        writer.append(b"acknowledged")
        dropped = [writer]
        del writer
        with pytest.warns(ResourceWarning, match=r"StreamWriter.* was not closed"):
            dropped.clear()
        with namespace.writer("log") as writer:
            writer.append(b"next")
        assert [record.value for record in namespace.read_last("log", 9)] == [
            b"acknowledged", b"next",
        ]  # fmt: skip


def test_an_object_that_is_not_open_says_how_to_open_it(
    ledgerstream_cluster: InProcessCluster,
) -> None:
    connecting = blocking.Namespace.connect(ledgerstream_cluster.uri, "demo", create=True)
    with pytest.raises(AttributeError, match=r"Namespace.connect\(...\) is not open yet.*`with`"):
        connecting.writer  # type: ignore[attr-defined]  # noqa: B018
    namespace = connecting.open()
    assert namespace.name == "demo"
    namespace.close()


def test_asyncio_opens_with_await(ledgerstream_cluster: InProcessCluster) -> None:
    async def main() -> None:
        namespace = await aio.Namespace.open(ledgerstream_cluster.uri, "demo", create=True)
        writer = await namespace.open_writer("log", create=True)
        position = await writer.append(b"one")
        reader = await namespace.open_reader("log")
        assert (await anext(reader)).position == position
        await reader.aclose()
        await writer.close()
        await namespace.close()
        again = await aio.Namespace.connect(ledgerstream_cluster.uri, "demo")
        assert (await again.info("log")).records == 1
        with pytest.raises(AttributeError, match="is not open yet"):
            again.writer("log").append  # type: ignore[attr-defined]  # noqa: B018
        await again.close()

    asyncio.run(main())
    asyncio.run(main_again(ledgerstream_cluster.uri))


async def main_again(uri: str) -> None:
    """A second event loop in the same process, as notebooks have."""
    async with aio.Namespace.connect(uri, "demo") as namespace:
        assert (await namespace.info("log")).records == 1


def test_a_program_that_ends_without_closing_ends(ledgerstream_cluster: InProcessCluster) -> None:
    program = f"""
from ledgerstream.blocking import Namespace
namespace = Namespace.open({ledgerstream_cluster.uri!r}, "demo", create=True)
writer = namespace.open_writer("log", create=True)
writer.append(b"acknowledged")
print("end")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"end\n", b"")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with blocking.Namespace.connect(ledgerstream_cluster.uri, "demo") as namespace:
            assert namespace.read_last("log", 1)[0].value == b"acknowledged"


def test_trio_opens_without_a_block(ledgerstream_cluster: InProcessCluster) -> None:
    async def main() -> None:
        namespace = await stream.Namespace.open(ledgerstream_cluster.uri, "demo", create=True)
        writer = await namespace.open_writer("log", create=True)
        position = await writer.append(b"one")
        reader = await namespace.open_reader("log")
        assert (await anext(reader)).position == position
        merged = await namespace.open_merged_reader("log")
        assert (await anext(merged)).record.value == b"one"
        cursor = await namespace.open_cursor("log", "c")
        cursor.advance(position)
        consumer = await namespace.open_consumer("log", "g")
        assert (await anext(consumer)).batch.last_position == position
        partitioned = await namespace.open_partitioned_writer("many", create=2)
        await partitioned.append(b"x", key=b"k")
        for opened in (partitioned, consumer, cursor, writer, namespace):
            await opened.close()
            await opened.close()  # again
        await merged.aclose()
        await reader.aclose()
        async with stream.Namespace.connect(ledgerstream_cluster.uri, "demo") as again:
            assert (await again.info("log")).records == 1
            assert not (await again.info("log")).has_open_segment
            assert [each.name for each in await again.cursors("log")] == ["c", "g"]

    trio.run(main)


def test_closing_a_namespace_of_trio_closes_what_was_opened_from_it(
    ledgerstream_cluster: InProcessCluster,
) -> None:
    async def main() -> None:
        namespace = await stream.Namespace.open(ledgerstream_cluster.uri, "demo", create=True)
        writer = await namespace.open_writer("log", create=True)
        tickets = [writer.append_nowait(b"%d" % n) for n in range(100)]
        reader = await namespace.open_reader("log")
        await namespace.close()
        assert [(await ticket.wait()).entry >= 0 for ticket in tickets] == [True] * 100
        with pytest.raises(ledger.LedgerClosed):
            await anext(reader)
        client = await ledger.LedgerClient.open(ledgerstream_cluster.uri)
        again = stream.Namespace(client, "demo")
        async with again.writer("log") as late:
            await late.append(b"late")
        assert (await again.info("log")).records == 101
        await client.close()

    trio.run(main)


def test_an_error_of_opening_in_trio_is_raised_as_it_is(
    ledgerstream_cluster: InProcessCluster,
) -> None:
    async def main() -> None:
        namespace = await stream.Namespace.open(ledgerstream_cluster.uri, "demo", create=True)
        with pytest.raises(stream.NoSuchStream):
            await namespace.open_writer("absent")
        with pytest.raises(stream.NoSuchStream):
            await namespace.open_reader("absent")
        with trio.move_on_after(0) as scope:
            await namespace.open_writer("log", create=True)
        assert scope.cancelled_caught
        await namespace.close()

    trio.run(main)


def test_objects_of_trio_say_what_asyncio_uses(ledgerstream_cluster: InProcessCluster) -> None:
    async def main() -> None:
        for opening in (
            stream.Namespace.connect(ledgerstream_cluster.uri, "demo"),
            ledger.LedgerClient.connect(ledgerstream_cluster.uri),
        ):
            assert "connect(...), not open yet" in repr(opening)
            with pytest.raises(RuntimeError, match=r"with asyncio use `ledgerstream.aio`"):
                await opening
            with pytest.raises(RuntimeError, match=r"in plain functions `ledgerstream.blocking`"):
                async with opening:
                    pass

    asyncio.run(main())


def test_closing_all_goes_on_behind_an_error(ledgerstream_cluster: InProcessCluster) -> None:
    async def main() -> None:
        namespace = await stream.Namespace.open(ledgerstream_cluster.uri, "demo", create=True)
        other = await namespace.open_writer("other", create=True)
        fenced = await namespace.open_writer("log", create=True)
        await other.append(b"kept")
        await fenced.append(b"kept")
        async with (
            stream.Namespace.connect(ledgerstream_cluster.uri, "demo") as second,
            second.writer("log") as thief,
        ):
            await thief.append(b"mine now")
            with pytest.raises(ledger.LedgerError):
                await fenced.append(b"too late")
        with pytest.raises(ledger.LedgerError):
            await namespace.close()
        async with stream.Namespace.connect(ledgerstream_cluster.uri, "demo") as second:
            assert not (await second.info("other")).has_open_segment

    trio.run(main)


@pytest.mark.filterwarnings("default")
def test_what_trio_leaves_open_says_so_and_harms_nothing(
    ledgerstream_cluster: InProcessCluster,
) -> None:
    async def main() -> None:
        namespace = await stream.Namespace.open(ledgerstream_cluster.uri, "demo", create=True)
        writer = await namespace.open_writer("log", create=True)
        await writer.append(b"acknowledged")

    def run() -> None:
        trio.run(main)
        gc.collect()

    with pytest.warns(ResourceWarning, match="was not closed") as warned:
        run()
    assert any("StreamWriter" in str(each.message) for each in warned)
    with blocking.Namespace.connect(ledgerstream_cluster.uri, "demo") as namespace:
        assert [record.value for record in namespace.read_last("log", 9)] == [b"acknowledged"]
