"""Prints files of a bookie: journals, entry logs, index, one ledger. Changes nothing.

Journals and entry logs may belong to a running bookie: the file that it is writing is shown in
part. An index is shown as it was flushed last.
"""

from __future__ import annotations

import os
import struct
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bookie.storage.disk.disk import Disk
    from bookie.storage.index.index import Index, PlacedRun
    from bookie.storage.index.key_value import KeyValue

Line = dict[str, Any]
_ADD_IDS = struct.Struct(">qqq").unpack_from


async def journal_lines(disk: Disk, path: str) -> AsyncIterator[Line]:
    """Yields a line for the file, for each group and frame, and for each `problem`. Raises
    InvalidArgument if its name is not one of a journal file; OSError."""
    from bookie.core.journal import BLOCK_BYTES, JournalCorrupt, decode_file_header, file_id_of
    from bookie.core.journal_frames import iterate_frames
    from bookie.core.journal_scan import FileScanner
    from ledger.errors import InvalidArgument

    name = os.path.basename(path)
    file_id = file_id_of(name)
    if file_id is None:
        raise InvalidArgument(
            f"{path} is no journal file: they have names like 0000000000000001.journal"
        )
    file = await disk.open(path)
    try:
        head = await file.read(0, BLOCK_BYTES)
        header = decode_file_header(head)
        if header is not None:
            found: Line = {"id": header.file_id, "first": header.first_sequence}
        elif any(head):
            found = {"problem": "no file header of this version: damaged, or of another program"}
        else:  # left by a crash before anything was written; then there is no group
            found = {"id": None, "first": None}
        yield {"kind": "file", "path": path} | found
        scanner = FileScanner(name, file_id, file.size, last_sequence=None)
        try:
            while (wanted := scanner.wanted) is not None:
                for group in scanner.feed(await file.read(*wanted)):
                    yield {
                        "kind": "group",
                        "offset": group.offset,
                        "end": group.end,
                        "sequence": group.sequence,
                        "frames": group.frames,
                    }
                    for frame in iterate_frames(group.payload):
                        yield _frame_line(frame)
        except JournalCorrupt as error:
            yield {"kind": "damage", "offset": error.offset, "problem": str(error)}
    finally:
        file.close()


def _frame_line(frame: memoryview) -> Line:
    from bookie.core.journal_frames import ExplicitLacFrame, FenceFrame, decode_frame
    from ledger.wire.v2 import ADD_ENTRY_AT

    own = decode_frame(frame)
    match own:
        case FenceFrame():
            return {"kind": "fence", "ledger": own.ledger_id}
        case ExplicitLacFrame():
            return {"kind": "explicit lac", "ledger": own.ledger_id, "lac": own.lac}
    ledger_id, entry_id, lac = _ADD_IDS(frame, ADD_ENTRY_AT)
    line = {"kind": "add", "ledger": ledger_id, "entry": entry_id, "lac": lac}
    return {**line, "bytes": len(frame) - ADD_ENTRY_AT}


async def entry_log_lines(disk: Disk, path: str) -> AsyncIterator[Line]:
    """Yields a line for each record and for the end, with a `problem` if there is one. Raises
    InvalidArgument for another name, OSError."""
    from bookie.core.integrity import check_entries
    from bookie.storage.entry_log.entry_logs import STRAY_SUFFIX, log_id_of, stray_id_of
    from bookie.storage.entry_log.scan import LogScanner
    from ledger.errors import BookieIoError, InvalidArgument

    name = os.path.basename(path)
    log_id = stray_id_of(name) if name.endswith(STRAY_SUFFIX) else log_id_of(name)
    if log_id is None:
        raise InvalidArgument(f"{path} is no entry log: their names are 0000000000000001.log")
    file = await disk.open(path)
    try:

        async def no_limit(_: int) -> None:
            pass

        scan = LogScanner(file, log_id, on_read=no_limit)
        at = scan.position
        while (record := await scan.next()) is not None:
            run = record.run
            line = _run_line(run) | {"kind": "record", "offset": at}
            try:
                body = await scan.body(record)
                checked = check_entries(body, run.lengths, run.ledger_id, run.first)
                line["digests_right"] = checked.digests_right
                line["problem"] = f"foreign entries {checked.strangers}" * bool(checked.strangers)
            except BookieIoError as error:
                line["problem"] = str(error)
            yield line
            at = scan.position
        problem = ""
        if rest := max(file.size - at, 0):
            problem = (
                f"{rest} bytes, no whole record {scan.end_reason}: a write cut short, or damage"
            )
        yield {"kind": "end", "offset": at, "size": file.size, "problem": problem}
    finally:
        file.close()


def _run_line(run: PlacedRun) -> Line:
    return {
        "kind": "run",
        "ledger": run.ledger_id,
        "first": run.first,
        "last": run.last,
        "log": f"{run.log_id:016x}",
        "offset": run.offset,
        "bytes": sum(run.lengths),
    }


def index_lines(pairs: KeyValue) -> Iterator[Line]:
    """Yields lines for the index as a whole, its entry logs and ledgers. Raises BookieIoError."""
    from bookie.storage.index.index import Index
    from bookie.storage.integrity_state import read_integrity_state

    index = Index(pairs)
    state = read_integrity_state(pairs)
    yield {
        "kind": "index",
        "checkpoint": index.checkpoint_no,
        "doubt": None if state is None else f"{state.stage.name.lower()}: {state.reason}",
        "tombstones": len(index.tombstones()),
    }
    aside = index.logs_set_aside()
    for log_id in index.log_ids():
        ledgers = index.log_ledgers(log_id)
        line = {"kind": "entry log", "log": f"{log_id:016x}", "ledgers": len(ledgers)}
        yield {**line, "bytes": sum(ledgers.values()), "set_aside": aside.get(log_id, "")}
    after = -1
    while ids := index.ledger_ids(after, 500):
        for ledger_id in ids:
            yield _ledger_line(index, ledger_id)
        after = ids[-1]


def ledger_lines(pairs: KeyValue, ledger_id: int) -> Iterator[Line]:
    """Yields the state and the runs of a ledger, if it is known. Raises BookieIoError."""
    from bookie.storage.index.index import Index

    index = Index(pairs)
    if index.tombstone(ledger_id) is not None:
        yield {"kind": "tombstone", "ledger": ledger_id}
    if index.has_state(ledger_id):
        yield _ledger_line(index, ledger_id)
    at = 0
    while runs := list(islice(index.runs(ledger_id, at), 500)):
        for run in runs:
            yield _run_line(run)
        at = runs[-1].last + 1


def _ledger_line(index: Index, ledger_id: int) -> Line:
    state = index.state(ledger_id)
    assert state is not None
    return {
        "kind": "ledger",
        "ledger": ledger_id,
        "last": index.last_entry_id(ledger_id),
        "lac": state.lac,
        "explicit_lac": state.explicit_lac_id,
        "fenced": state.is_fenced,
        "limbo": state.is_limbo,
        "has_key": bool(state.master_key),
    }
