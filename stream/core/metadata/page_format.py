"""The bytes of pages and of the rows in them, and the pages that a stream makes as it grows.

A page is deflated JSON, named by its digest: it is written once, and what was read is what was
written, or damage. Strict when it is decoded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from itertools import groupby, repeat, starmap
from operator import attrgetter
from typing import Any, Final

from ledger.errors import MetadataCorrupt
from stream.core.metadata.documents import deflated, load_document, whole_number
from stream.core.metadata.pages import NewPage, Pages, Replaced
from stream.core.metadata.segments import Run, Segment, SegmentState, Span, summed
from stream.core.metadata.streams import StreamMetadata

SEGMENTS_PER_PAGE: Final = 64
"""A document that has twice as many segments gives half of them to a page."""
RUNS_PER_PAGE: Final = 32
"""Pages of one level that go to one of the next when there are a quarter more: the document, which
everybody reads, keeps few, and a million segments need three levels."""
LEVELS_MAX: Final = 32
_REPLACED_MAX: Final = 256
"""Rows of `replaced` that are read: a merge adds some while there are fewer than 64."""
_DIGEST_CHARS: Final = 16

# Segments are rows, not objects: field names would be most of the bytes.
_MERGED_COLUMNS: Final = ["made_on", "base_entry", "base_bytes"]  # only in pages
_ALL_COLUMNS: Final = [field.name for field in fields(Segment)]
SEGMENT_COLUMNS: Final = [name for name in _ALL_COLUMNS if name not in _MERGED_COLUMNS]
_DEFAULTS: Final = {
    field.name: field.default.value if isinstance(field.default, SegmentState) else field.default
    for field in fields(Segment)
    if field.default is not MISSING
}
_COLUMNS_OF: Final = attrgetter(*SEGMENT_COLUMNS)
_STATE: Final = SEGMENT_COLUMNS.index("state")
_STATES: Final = {state.value: state for state in SegmentState}
_PAGE_COLUMNS: Final = [name for name in SEGMENT_COLUMNS if name not in ("state", "dropped_ms")]
_PAGE_COLUMNS_OF: Final = attrgetter(*_PAGE_COLUMNS)
_MERGED_PAGE_COLUMNS: Final = [*_PAGE_COLUMNS, *_MERGED_COLUMNS]
_MERGED_PAGE_COLUMNS_OF: Final = attrgetter(*_MERGED_PAGE_COLUMNS)
RUN_COLUMNS: Final = [field.name for field in fields(Run) if field.name != "dropped_ms"]
_RUN_COLUMNS_OF: Final = attrgetter(*RUN_COLUMNS)
_NUMBER_END: Final = 1 << 63


def paged(
    stream: StreamMetadata,
    folder: str,
    segments_per_page: int = SEGMENTS_PER_PAGE,
    runs_per_page: int = RUNS_PER_PAGE,
) -> tuple[StreamMetadata, tuple[NewPage, ...]]:
    """Returns the stream with few segments and few pages in its document, and the pages to be
    stored first; `folder` is where they are if the stream has none yet.

    Equal streams make equal pages.
    """
    if len(stream.segments) < 2 * segments_per_page:
        return stream, stream.pages.made
    segments, pages, made = stream.segments, stream.pages, list(stream.pages.made)
    pages = replace(pages, folder=pages.folder or folder)
    while len(segments) >= 2 * segments_per_page:
        some, segments = segments[:segments_per_page], segments[segments_per_page:]
        page = _page(0, some)
        for number, dropped_ms in _marks(some):
            pages = pages.marked(number, dropped_ms)
        pages, made, level = pages.with_run(0, page.run), [*made, page], 0
        while len(pages.levels[level]) >= runs_per_page + max(1, runs_per_page // 4):
            page = _page(level + 1, pages.levels[level][:runs_per_page])
            pages, made, level = pages.with_run(level + 1, page.run), [*made, page], level + 1
    return replace(stream, segments=segments, pages=pages), tuple(made)


def _marks(segments: Sequence[Segment]) -> Iterator[tuple[int, int]]:
    """Yields the marks that say when these segments were truncated."""
    last: Segment | None = None
    for segment in segments:
        if segment.dropped_ms < 0:
            break
        if last is not None and last.dropped_ms != segment.dropped_ms:
            yield last.number, last.dropped_ms
        last = segment
    if last is not None:
        yield last.number, last.dropped_ms


def rewritten(pages: Pages, moved: Mapping[int, Segment], now_ms: int) -> Pages:
    """Returns the pages with these segments, by number, in place of those with the same number, and
    no others between them. Raises PagesNeeded.

    What changes is made as pages beside the earlier ones, up to the document; those are `replaced`.
    """
    first, last = min(moved), max(moved)
    made: list[NewPage] = []
    old: list[Replaced] = []

    def rewrite(level: int, run: Run) -> Run:
        if run.last_number < first or run.number > last:
            return run
        spans = tuple(
            rewrite(level - 1, span) if isinstance(span, Run) else moved.get(span.number, span)
            for span in pages.stored(run)
        )
        made.append(_page(level, spans))
        return made[-1].run

    levels: list[tuple[Run, ...]] = []
    for level, found in enumerate(pages.levels):
        levels.append(tuple(rewrite(level, run) for run in found))
        old += [
            Replaced(now_ms, max(first, run.number), min(last, run.last_number), run)
            for run, fresh in zip(found, levels[-1], strict=True)
            if fresh is not run
        ]
    return replace(
        pages, levels=tuple(levels), replaced=(*pages.replaced, *old), made=(*pages.made, *made)
    )


def _page(level: int, spans: tuple[Span, ...]) -> NewPage:
    is_merged = any(isinstance(span, Segment) and span.is_merged for span in spans)
    row_of = _MERGED_PAGE_COLUMNS_OF if is_merged else _PAGE_COLUMNS_OF
    columns = RUN_COLUMNS if level else _MERGED_PAGE_COLUMNS if is_merged else _PAGE_COLUMNS
    rows = [_run_row(span) if isinstance(span, Run) else list(row_of(span)) for span in spans]
    document = {
        "kind": "stream page", "version": 1, "level": level, "columns": columns, "rows": rows,
    }  # fmt: skip
    data = deflated(json.dumps(document, separators=(",", ":"), sort_keys=True).encode())
    return NewPage(summed(_digest(data), spans), data)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_DIGEST_CHARS]


def decode_page(run: Run, data: bytes) -> tuple[Span, ...]:
    """Returns what a page has. Raises MetadataCorrupt unless it is the page of this run."""
    what = f"page of segments {run.number} to {run.last_number}"
    if _digest(data) != run.digest:
        raise MetadataCorrupt(
            f"{what}: {len(data)} bytes have digest {_digest(data)}, not {run.digest}"
        )
    document: Mapping[str, Any] = load_document(
        "stream page", what, ("level", "columns", "rows"), data
    )
    try:
        level, columns, rows = (document[name] for name in ("level", "columns", "rows"))
        spans: tuple[Span, ...]
        if whole_number(level) >= LEVELS_MAX or not isinstance(rows, list) or not rows:
            raise ValueError(f"level {level}, {rows!r:.40} rows")
        if level:
            spans = runs(columns, rows)
        else:
            spans = found = segments(columns, rows, "sealed")
            check_ledgers(found)
        if summed(run.digest, spans) != replace(run, dropped_ms=-1):
            raise ValueError("it has other segments than its stream says")
    except (ValueError, TypeError, KeyError) as error:
        raise MetadataCorrupt(f"{what}: {error}") from None
    return spans


def check_ledgers(neighbours: Sequence[Segment]) -> None:
    """Raises ValueError unless segments on one ledger are neighbours there, too, and were merged:
    the ledger is deleted with the last one. Only the first may have others before it."""
    seen: set[int] = set()
    if len({one.ledger_id for one in neighbours}) == len(neighbours) and not any(
        one.is_merged or one.base_entry or one.base_bytes for one in neighbours
    ):
        return
    for ledger_id, group in groupby(neighbours, key=attrgetter("ledger_id")):
        found = list(group)
        first, last = found[0], found[-1]
        entry, nbytes = first.base_entry, first.base_bytes
        is_begun = first is neighbours[0] and first.is_merged and min(entry, nbytes) >= 0
        is_legal = ledger_id not in seen and (is_begun or entry == nbytes == 0)
        for segment in found:
            is_legal &= (segment.base_entry, segment.base_bytes) == (entry, nbytes)
            is_legal &= segment.is_merged or first is last
            entry, nbytes = entry + segment.last_entry + 1, nbytes + segment.nbytes
        if not is_legal:
            raise ValueError(
                f"segments {first.number} to {last.number} on ledger {ledger_id} do not follow "
                f"each other there, or it has others"
            )
        seen.add(ledger_id)


def pages_document(pages: Pages) -> dict[str, Any]:
    """Returns the part of a stream's document that names its pages."""
    return {
        "folder": pages.folder,
        "first": pages.first,
        "marks": [list(mark) for mark in pages.marks],
        "columns": RUN_COLUMNS,
        "levels": [[_run_row(run) for run in level] for level in pages.levels],
        "replaced": [[*one[:3], *_run_row(one.run)] for one in pages.replaced],
    }


def read_pages(document: Mapping[str, Any]) -> Pages:
    """Returns the pages that a stream's document names. Raises ValueError, TypeError, KeyError."""
    if document.keys() != {"folder", "first", "marks", "columns", "levels", "replaced"}:
        raise ValueError(f"pages have the fields {sorted(document)}")
    namespace, slash, name = document["folder"].partition("/")
    if not (namespace and slash and name) or "/" in name or {namespace, name} & {".", ".."}:
        raise ValueError(f"pages are in folder {document['folder']!r}")
    if len(document["levels"]) > LEVELS_MAX:
        raise ValueError(f"pages have {len(document['levels'])} levels")
    if len(document["replaced"]) > _REPLACED_MAX:
        raise ValueError(f"{len(document['replaced'])} pages are replaced, limit {_REPLACED_MAX}")
    return Pages(
        folder=document["folder"],
        levels=tuple(runs(document["columns"], rows) for rows in document["levels"]),
        first=whole_number(document["first"]),
        marks=tuple((whole_number(a), whole_number(b)) for a, b in document["marks"]),
        replaced=tuple(_replaced(document["columns"], row) for row in document["replaced"]),
    )


def _replaced(columns: list[str], row: list[Any]) -> Replaced:
    replaced_ms, first, last = map(whole_number, row[:3])
    (run,) = runs(columns, [row[3:]])
    if not run.number <= first <= last <= run.last_number:
        raise ValueError(
            f"segments {first} to {last} are replaced in a page of {run.number} to "
            f"{run.last_number}"
        )
    return Replaced(replaced_ms, first, last, run)


def segments(columns: list[str], rows: list[list[Any]], state: str = "") -> tuple[Segment, ...]:
    """Decodes segments from plain columns, checked by column: a long stream has thousands.

    `state` is that of rows without one: those of pages, which may be merged. Raises ValueError,
    TypeError, KeyError.
    """
    known = _ALL_COLUMNS if state else SEGMENT_COLUMNS
    if unknown := [column for column in columns if column not in known]:
        raise ValueError(f"segments have unknown columns {unknown}")
    if len(rows) == 0:
        return ()
    found = _by_column("a segment", columns, rows)
    states = [_STATES[name] for name in found.pop("state", repeat(state, len(rows)))]
    for values in found.values():
        _check_numbers(values)
    found["state"] = states
    for name in _ALL_COLUMNS:
        if name not in found:  # which an earlier release did not write
            found[name] = [_DEFAULTS[name]] * len(rows)
    return tuple(starmap(Segment, zip(*map(found.__getitem__, _ALL_COLUMNS), strict=True)))


def _by_column(what: str, columns: list[str], rows: list[list[Any]]) -> dict[str, Sequence[Any]]:
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"{what} has {len(row)} columns, not {len(columns)}")
    return dict(zip(columns, zip(*rows, strict=True), strict=True))


def _check_numbers(values: Sequence[Any]) -> None:
    """Raises ValueError unless these are whole numbers of 64 bits, or -1."""
    if set(map(type, values)) != {int} or min(values) < -1 or max(values) >= _NUMBER_END:
        bad = next(v for v in values if type(v) is not int or not -1 <= v < _NUMBER_END)
        raise ValueError(f"{bad!r} is not a whole number of 64 bits")


def segment_row(segment: Segment) -> list[int | str]:
    """Returns a segment as a row of SEGMENT_COLUMNS."""
    row = list(_COLUMNS_OF(segment))
    row[_STATE] = segment.state.value
    return row


def runs(columns: list[str], rows: list[list[Any]]) -> tuple[Run, ...]:
    """Decodes runs. Raises ValueError, TypeError."""
    if columns != RUN_COLUMNS:
        raise ValueError(f"pages have the columns {columns}")
    if len(rows) == 0:
        return ()
    found = _by_column("a page", columns, rows)
    for digest in found.pop("digest"):
        if len(digest) != _DIGEST_CHARS or not digest.isalnum():
            raise ValueError(f"a page has the digest {digest!r}")
    for values in found.values():
        _check_numbers(values)
    return tuple(starmap(Run, rows))


def _run_row(run: Run) -> list[int | str]:
    return list(_RUN_COLUMNS_OF(run))
