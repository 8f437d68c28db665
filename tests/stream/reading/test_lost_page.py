"""Reading a stream whose oldest page is missing."""

from __future__ import annotations

from functools import partial

import pytest

from bookie.testing import SimCluster, simulate
from stream import EARLIEST, FromEnd, FromSequence, FromTime
from stream.core.metadata.pages import page_name
from stream.core.metadata.segments import SegmentEnd
from stream.core.sinks import committed
from stream.reading.backward import read_last
from stream.store.pages import PageLost, forget_pages, pages_path
from tests.stream.sim_namespace import sim_namespace
from tests.stream.whole_streams import read_all


def test_without_the_oldest_page_only_its_own_records_cannot_be_read() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sim_namespace(cluster) as namespace:
            store = namespace.client.store
            await namespace.create_stream("s")
            ends = [((1 << 40) + n, SegmentEnd(9, 10, 100, 1, 1)) for n in range(600)]
            many = partial(committed, ends=ends, now_ms=1)
            stream = await namespace.store.update_stream("n", "s", many)
            before_ms = namespace.client.now_ms()
            async with namespace.writer("s") as writer:
                await writer.append_many([b"last", b"very last"])
            oldest = page_name(stream.pages.roots[0])
            await store.delete(f"{pages_path(stream.pages.folder)}/{oldest}")
            forget_pages(store)

            for start in (FromSequence(6_000), FromTime(before_ms), FromEnd(2)):
                records = await read_all(namespace, "s", start)
                assert [one.value for one in records] == [b"last", b"very last"], start
            (last,) = await read_last(namespace.backward_batches("s"), 1)
            assert last.value == b"very last"
            info = await namespace.info("s")
            assert (info.segments, info.records, info.first_sequence) == (601, 6_002, 0)
            async with namespace.cursor("s", "c", start=last.position):
                pass
            assert (await namespace.cursor_lag("s", "c")).records == 1
            with pytest.raises(PageLost):
                await read_all(namespace, "s", EARLIEST)

    simulate(scenario)
