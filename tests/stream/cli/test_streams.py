"""`stream show` of streams with few and with many segments."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from ledger.cli.output import OutputOption, UsageError
from stream.cli.arguments import StreamName
from stream.cli.streams import _merging_of, _show_segments, _shown
from stream.core.metadata.streams import Segment, SegmentState, StreamMetadata
from tests.stream.core.merge_world import POLICY, grown_world

NAME = StreamName("demo", "clicks")
TABLE = OutputOption()


def stream_of(sealed: int) -> StreamMetadata:
    segments = tuple(
        Segment(
            number=number,
            ledger_id=number,
            first_sequence=(number - 1) * 10,
            created_ms=1_700_000_000_000,
            state=SegmentState.SEALED if number <= sealed else SegmentState.OPEN,
            last_entry=4 if number <= sealed else -1,
            records=10 if number <= sealed else 0,
            nbytes=1024 if number <= sealed else 0,
        )
        for number in range(1, sealed + 2)
    )
    return StreamMetadata(
        name="clicks",
        created_ms=0,
        segments=segments,
        next_segment=sealed + 2,
        next_sequence=sealed * 10,
    )


def shown(
    capsys: pytest.CaptureFixture[str], sealed: int, page: int | None
) -> tuple[list[list[str]], str]:
    stream = stream_of(sealed)
    found = _shown(NAME, stream, page=page, is_json=False)
    _show_segments(NAME, stream, found, TABLE, page=page)
    output = capsys.readouterr()
    return [line.split("\t") for line in output.out.splitlines()], output.err


def test_few_segments_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    rows, remarks = shown(capsys, 19, None)
    assert [row[0] for row in rows] == [str(number) for number in range(1, 21)]
    assert remarks == ""


def test_many_segments_are_summed_up(capsys: pytest.CaptureFixture[str]) -> None:
    rows, remarks = shown(capsys, 1077, None)
    assert [row[:7] for row in rows] == [
        ["sealed", "1077", "1077", "10770", "1.05 MiB", "1", "1077"],
        ["open", "1", "1", "0", "0 B", "1078", "1078"],
    ]
    assert remarks == (
        "`ledgerstream stream show demo/clicks --segments` lists all 1078 segments\n"
    )


def test_segments_are_listed_by_pages(capsys: pytest.CaptureFixture[str]) -> None:
    rows, remarks = shown(capsys, 1077, 1)
    assert [row[0] for row in rows] == [str(number) for number in range(1, 101)]
    assert remarks == "page 1 of 11; --page 2 shows more\n"
    rows, remarks = shown(capsys, 1077, 11)
    assert [row[0] for row in rows] == [str(number) for number in range(1001, 1079)]
    assert remarks == "page 11 of 11\n"
    with pytest.raises(
        UsageError, match="--page 12: the last page of segments of demo/clicks is 11"
    ):
        shown(capsys, 1077, 12)


def test_merging_is_explained_as_of_a_default_janitor_without_reading_the_whole_stream() -> None:
    world, reads = grown_world(1024, nbytes=1 << 30), 0

    class Store:
        async def get(self, path: str) -> object:
            nonlocal reads
            reads += 1
            return world.nodes.nodes[path.partition("s~1/")[2]]

    client: Any = SimpleNamespace(store=Store(), now_ms=lambda: 10**9)
    said = trio.run(_merging_of, client, replace(POLICY, roll_bytes=1 << 40), world.head)
    assert "(1/8 of 4.69 GiB); segments from 258 on were not looked at" in said
    assert 5 <= reads <= 8, "of 15 pages"
