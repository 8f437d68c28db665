"""Documents with pages, and pages: golden bytes of both, and of what earlier releases wrote."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace

import pytest

from ledger.errors import MetadataCorrupt
from stream.core.metadata.format import decode_stream, encode_stream
from stream.core.metadata.page_format import decode_page, paged
from stream.core.metadata.pages import page_name
from stream.core.metadata.segments import Run, Segment
from stream.core.metadata.streams import StreamMetadata
from stream.core.position import Position
from stream.core.segment_merging import MergePlan, merged

COLUMNS = (
    b'["number","ledger_id","first_sequence","created_ms","state","last_entry","records",'
    b'"nbytes","first_time_ms","last_time_ms","sealed_ms","event_min_ms","event_max_ms",'
    b'"dropped_ms"]'
)
NEWEST = (
    b'[5,50,12,5000,"sealed",1,3,30,5000,5005,5006,7,9,-1],'
    b'[6,60,15,6000,"open",-1,0,0,-1,-1,-1,-1,-1,-1]]'
)
BEGIN = (
    b'{"created_ms":17,"deleted_ms":-1,"epoch":1,"garbage":[],"is_deleted":false,'
    b'"is_purged":false,"kind":"stream","name":"s","next_segment":7,"next_sequence":15,'
)
WITHOUT_PAGES = (
    BEGIN + b'"prepared":null,"producers":{},"producers_made":0,"segment_columns":' + COLUMNS
    + b',"segments":[[1,10,0,1000,"sealed",1,3,30,1000,1005,1006,7,9,7000],'
    b'[2,20,3,2000,"sealed",1,3,30,2000,2005,2006,7,9,-1],'
    b'[3,30,6,3000,"sealed",1,3,30,3000,3005,3006,7,9,-1],'
    b'[4,40,9,4000,"sealed",1,3,30,4000,4005,4006,7,9,-1],' + NEWEST
    + b',"truncated_to":"1:2:0","version":1}'
)  # fmt: skip
WITH_PAGES = (
    BEGIN + b'"pages":{"columns":["digest","number","last_number","count","first_sequence",'
    b'"next_sequence","last_entry","records","nbytes","created_ms","newest_ms","last_time_ms",'
    b'"event_max_ms","ledger_min","ledger_max","merged_min","merged_max","ledger_first",'
    b'"ledger_last","ledgers","base_entry"],"first":0,"folder":"n/s~17","levels":['
    b'[["d52702dca1907fbb",1,2,2,0,6,1,6,60,1000,2005,2005,9,10,20,-1,-1,10,20,2,0],'
    b'["1157d89bea25c7dc",3,4,2,6,12,1,6,60,3000,4005,4005,9,30,40,-1,-1,30,40,2,0]]],'
    b'"marks":[[1,7000]],"replaced":[]},'
    b'"prepared":null,"producers":{},"producers_made":0,"segment_columns":' + COLUMNS
    + b',"segments":[' + NEWEST + b',"truncated_to":"1:2:0","version":2}'
)  # fmt: skip
PAGE = bytes.fromhex(
    "7801554fdb0e82300cfd15d3e73e0c0c1af91542c8d82a59dc866e0325c67fb79318f1a539b7f66c4f50a39d"
    "9c8f5037e027d75300044b7aa0d019cdf86c424c5da4db445e110b2a904ca43b177352b2493e8585492035069d65"
    "df2f893258b79371b4c9ff6824c95dab4533dfe99cf17f543e326d112ec66ba82126ae77bbab1cf25b2c2f59a805"
    "778ff7fc87a6c042a0e02178e01ef75f2c4495d5031ef1d462536229d82e37b90fe6516575cd71ef4c219ad1435d"
    "bcdec1a45cb6"
)
MERGED_PAGE = (
    b'{"columns":["number","ledger_id","first_sequence","created_ms","last_entry","records",'
    b'"nbytes","first_time_ms","last_time_ms","sealed_ms","event_min_ms","event_max_ms",'
    b'"made_on","base_entry","base_bytes"],"kind":"stream page","level":0,"rows":['
    b"[3,70,6,3000,1,3,30,3000,3005,3006,7,9,30,4,60],"
    b'[4,70,9,4000,1,3,30,4000,4005,4006,7,9,40,6,90]],"version":1}'
)
RUN = Run(
    "d52702dca1907fbb", 1, 2, 2, 0, 6, 1, 6, 60, 1000, 2005, 2005, 9, 10, 20, -1, -1, 10, 20, 2, 0
)


def test_the_bytes_of_streams_without_pages_are_those_of_earlier_releases() -> None:
    stream = decode_stream("s", WITHOUT_PAGES)
    assert (len(stream.segments), stream.pages.folder) == (6, "")
    assert encode_stream(stream) == WITHOUT_PAGES
    assert paged(stream, "n/s~17")[1] == (), "it is short: earlier releases can read it"


def test_a_document_with_pages_and_a_page_have_these_bytes() -> None:
    plain = decode_stream("s", WITHOUT_PAGES)
    stream, pages = paged(plain, "n/s~17", 2, 2)
    assert zlib.decompress(encode_stream(stream)) == WITH_PAGES
    assert decode_stream("s", zlib.compress(WITH_PAGES)) == stream
    assert zlib.decompress(pages[0].data) == zlib.decompress(PAGE)
    assert page_name(RUN) == "0/1-d52702dca1907fbb"
    dropped = replace(plain.segments[0], dropped_ms=-1)  # a page does not say so
    assert decode_page(RUN, PAGE) == (dropped, plain.segments[1])
    loaded = replace(stream.pages, loaded={RUN.digest: decode_page(RUN, PAGE)})
    assert replace(stream, pages=loaded).dropped() == plain.dropped()


def test_a_page_with_merged_segments_has_three_columns_more() -> None:
    stream, pages = paged(decode_stream("s", WITHOUT_PAGES), "n/s~17", 2, 2)
    loaded = {page.run.digest: decode_page(page.run, page.data) for page in pages}
    known = replace(stream, pages=replace(stream.pages, loaded=loaded))
    segments = tuple(known.pages.stored_since(1, lambda span: span.number <= 4))
    after = merged(known, MergePlan(segments, 4), 70, 9000)
    assert zlib.decompress(after.pages.made[1].data) == MERGED_PAGE
    run = after.pages.levels[0][1]
    assert (run.ledger_first, run.ledger_last, run.ledgers, run.is_one_ledger) == (70, 70, 0, True)
    assert (run.ledger_min, run.ledger_max, run.merged_min, run.merged_max) == (30, 40, 70, 70)
    assert run.base_entry == 4
    found = decode_page(run, zlib.compress(MERGED_PAGE, 1))
    assert [one.base_entry for one in found if isinstance(one, Segment)] == [4, 6]
    document = json.loads(zlib.decompress(encode_stream(paged(after, "", 64, 16)[0])))
    assert document["pages"]["replaced"] == [
        [9000, 1, 2, *json.loads(WITH_PAGES)["pages"]["levels"][0][0]],
        [9000, 3, 4, *json.loads(WITH_PAGES)["pages"]["levels"][0][1]],
    ]


def test_an_earlier_release_refuses_pages_by_name() -> None:
    """That release compared the version with 1, whatever the fields; so does this one if there are
    no pages."""
    document = json.loads(WITH_PAGES)
    del document["pages"]
    with pytest.raises(MetadataCorrupt, match="stream 's' has version 2, this release reads 1"):
        decode_stream("s", json.dumps(document).encode())
    with pytest.raises(MetadataCorrupt, match="version 3, this release reads 2"):
        decode_stream("s", WITH_PAGES.replace(b'"version":2', b'"version":3'))
    with pytest.raises(MetadataCorrupt, match="version 1"):
        decode_stream("s", WITH_PAGES.replace(b'"version":2', b'"version":1'))


def test_the_earliest_documents_are_converted() -> None:
    """Of a release that knew no trash: rows without the last columns."""
    columns = json.loads(COLUMNS)[:-3]
    rows = [[n, n, n, 5, "sealed", 0, 1, 10, 5, 5, 5] for n in range(1, 301)]
    document = json.loads(WITHOUT_PAGES) | {
        "segment_columns": columns, "segments": rows, "next_segment": 301, "next_sequence": 301,
        "truncated_to": str(Position(7, 1, 0)),
    }  # fmt: skip
    for name in ("deleted_ms", "is_purged", "producers", "producers_made"):
        del document[name]
    old: StreamMetadata = decode_stream("s", json.dumps(document).encode())
    stream, pages = paged(old, "n/s~17")
    assert (len(stream.segments), len(pages), stream.pages.marks) == (108, 3, ())
    again = decode_stream("s", encode_stream(stream))
    loaded = {page.run.digest: decode_page(page.run, page.data) for page in pages}
    known = replace(again, pages=replace(again.pages, loaded=loaded))
    assert tuple(known.listed(0, 400)) == old.segments
    assert known.dropped() == old.dropped()
    assert {one.dropped_ms for one in known.truncated(Position(8, 0, 0), 9).dropped()} == {9}
