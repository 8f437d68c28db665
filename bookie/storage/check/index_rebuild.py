"""Rebuilds the index of a ledger directory from its entry logs, with the bookie stopped.

The new index is built beside the old one and replaces it when it is whole and durable; the old one
is kept. What only the old index knew (keys, fences) is copied as far as it can still be read.
Whether logs have been lost cannot be determined, so what the new index lacks is "unknown", not
"absent": every ledger in it is in limbo and fenced, and it records that it may lack ledgers
(`IntegrityState`), which the next start resolves.

Sectors of a file that the disk cannot read are read as zeros and noted. A reader must not believe
bytes that no checksum protects: then zeros are detected like any other damage, and what is before
and after them is not lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol

import trio

from bookie.core.entry_log import entry_ends
from bookie.core.integrity import FINDINGS_MAX, check_entries, ranges_of
from bookie.core.integrity_state import IntegrityStage, IntegrityState
from bookie.core.ledger_state import LedgerState
from bookie.core.marks import decode_marks
from bookie.storage.check.bookie import MARK_FILE
from bookie.storage.disk.disk import Disk, File
from bookie.storage.entry_log.entry_logs import EntryLogs
from bookie.storage.entry_log.scan import LogRecord, LogScanner
from bookie.storage.index.index import Index, PlacedRun
from bookie.storage.index.key_value import KeyValue
from bookie.storage.integrity_state import write_integrity_state
from ledger.errors import BookieIoError
from ledger.wire.v2 import lac_of_entry

BLOCK_BYTES: Final = 4096
"""The size of a read where a larger read failed: a disk's sector, and a page of the system. Each
one that cannot be read may cost seconds of the disk's own retries."""


class SalvageReader:
    """Reads past the bad sectors of one file; the caller that opened it closes it."""

    def __init__(self, file: File) -> None:
        self._file = file
        self.unreadable: dict[int, str] = {}
        """By offset: blocks that gave zeros, and why. No more than the file has."""

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self._file.size

    async def read(self, offset: int, size: int, *, drops_cache: bool = False) -> bytes:
        """Returns `size` bytes, or fewer at the end of the file. Never raises OSError."""
        try:
            return await self._file.read(offset, size, drops_cache=drops_cache)
        except OSError:
            end = min(offset + size, self.size)
        pieces: list[bytes] = []
        while offset < end:
            stop = min(end, (offset // BLOCK_BYTES + 1) * BLOCK_BYTES)
            pieces.append(await self._block(offset, stop))
            offset = stop
        return b"".join(pieces)

    async def _block(self, begin: int, end: int) -> bytes:
        if begin // BLOCK_BYTES * BLOCK_BYTES not in self.unreadable:
            try:
                return (await self._file.read(begin, end - begin)).ljust(end - begin, b"\0")
            except OSError as error:
                self.unreadable[begin // BLOCK_BYTES * BLOCK_BYTES] = str(error)
        return bytes(end - begin)

    def __str__(self) -> str:
        """Returns a description of what could not be read."""
        first = min(self.unreadable, default=0)
        return (
            f"{len(self.unreadable)} blocks of {BLOCK_BYTES} bytes cannot be read, the first at "
            f"{first}: {self.unreadable.get(first, '')}"
        )


INDEX = "index"
_NEW = "index.new"
_OLD = "index.old-"
_STEP = 100
_REASON_CHARS_MAX = 500
_KEPT = (
    "It is kept until an operator removes it. Cure: see 'A damaged or lost index' in "
    "docs/operations.md"
)
REASON = "the index was rebuilt from the entry logs"


class IndexStores(Protocol):
    """The stores below a ledger directory, which are directories themselves."""

    def open(self, path: str, *, is_read_only: bool) -> KeyValue:
        """Creates the store if it does not exist, unless `is_read_only`. Raises BookieIoError."""
        ...

    async def names(self, directory: str) -> list[str]: ...

    async def remove(self, path: str) -> None:
        """Removes a store with everything in it; no error if it does not exist."""
        ...

    async def rename(self, old: str, new: str) -> None:
        """Renames a store durably."""
        ...


@dataclass(slots=True)
class Rebuilt:
    """What was found in one directory."""

    directory: str
    entry_logs: int = 0
    entry_log_bytes: int = 0
    runs: int = 0
    entries: int = 0
    """Entries that are in several logs are counted each time."""
    ledgers: int = 0
    states_taken_over: int = 0
    """States of ledgers that the old index still had, with their keys."""
    old_index: str = ""
    """Where the old index is kept; "" if there was none."""
    old_index_unread: str = ""
    """Why nothing, or not all, of the old index was copied."""
    left_out: list[str] = field(default_factory=list)
    """Damage: what was left out, and from where; the first thousand."""
    left_out_count: int = 0
    """The number of all of them."""


class IndexRebuild:
    """A rebuild; `run` once. A crash at any point leaves the old index, or the new one whole, or
    none; then the bookie does not start, and the rebuild is run again."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        stores: IndexStores,
        *,
        on_bytes: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._stores = stores
        self._on_bytes = on_bytes
        self._logs = EntryLogs(disk, directory, log_bytes_max=1)
        self._done = Rebuilt(directory)
        self._left_out_first = ""
        """The first piece left out of the log that is being read."""

    async def run(self) -> Rebuilt:
        """Runs the rebuild. What cannot be read of an entry log is left out. Raises BookieIoError
        if the mark file is damaged, and OSError if it or the directory cannot be read, or the new
        index cannot be written: then nothing was changed."""
        directory, stores = self._directory, self._stores
        checkpoint_no = await self._marked_checkpoint()
        new_path = f"{directory}/{_NEW}"
        await stores.remove(new_path)
        pairs = stores.open(new_path, is_read_only=False)
        try:
            index = Index(pairs)
            await self._take_over(index)
            for log_id in await self._logs.start():
                await self._take_log(index, log_id)
            self._done.ledgers = sum(1 for _ in pairs.items(b"L", b"M"))
            # Last: the number says that the index is whole.
            write_integrity_state(pairs, IntegrityState(IntegrityStage.LEDGERS_UNKNOWN, REASON))
            index.checkpoint_no = checkpoint_no
            await index.flush()
        finally:
            pairs.close()
        await self._swap(new_path)
        return self._done

    async def _marked_checkpoint(self) -> int:
        path = f"{self._directory}/{MARK_FILE}"
        try:
            return decode_marks(await self._disk.read_file(path)).checkpoint_no
        except FileNotFoundError:
            return 0
        except ValueError as error:
            raise BookieIoError(
                f"{path}: {error}. Cure: if the journal is whole from its first file on, remove "
                "this file, then rebuild the index; else set this bookie's directories aside "
                "and replicate"
            ) from error

    async def _swap(self, new_path: str) -> None:
        names = await self._stores.names(self._directory)
        path = f"{self._directory}/{INDEX}"
        if INDEX in names:
            numbers = [int(name[len(_OLD) :]) for name in names if name[len(_OLD) :].isdecimal()]
            self._done.old_index = f"{self._directory}/{_OLD}{max(numbers, default=0) + 1}"
            await self._stores.rename(path, self._done.old_index)
        await self._stores.rename(new_path, path)

    # --- from the old index

    async def _take_over(self, index: Index) -> None:
        """Copies states and tombstones. Keys never change, fences never end, and a LAC stays true,
        so each record that can be read is valid, however old the index is."""
        if INDEX not in await self._stores.names(self._directory):
            return
        try:
            old = self._stores.open(f"{self._directory}/{INDEX}", is_read_only=True)
        except BookieIoError as error:
            self._done.old_index_unread = str(error)
            return
        taken = Index(old)
        try:
            after = -1
            while ledger_ids := taken.ledger_ids(after, _STEP):
                states = [state for at in ledger_ids if (state := taken.state(at)) is not None]
                for state in states:
                    _set_limbo(state)
                for _ in index.put_states(states):
                    await trio.lowlevel.checkpoint()
                self._done.states_taken_over += len(states)
                after = ledger_ids[-1]
            for deleted_ms, ledger_id in taken.tombstones():
                index.put_tombstone(ledger_id, taken.tombstone(ledger_id) or b"", deleted_ms)
                await trio.lowlevel.checkpoint()
        except BookieIoError as error:
            self._done.old_index_unread = str(error)
        finally:
            old.close()

    # --- from entry logs

    async def _take_log(self, index: Index, log_id: int) -> None:
        """Adds a log, in the order of ids and of offsets: later runs are newer, and cover earlier
        ones."""
        self._done.entry_logs += 1
        left_out_before = self._done.left_out_count
        self._left_out_first = ""
        path = self._logs.path(log_id)
        ledgers: dict[int, int] = {}
        lacs: dict[int, int] = {}
        try:
            file = await self._disk.open(path)
        except OSError as error:
            self._leave_out(f"{path}: it cannot be opened: {error}")
        else:
            try:
                await self._scan_log(index, log_id, SalvageReader(file), ledgers, lacs)
            finally:
                file.close()
        for _ in index.put_log_ledgers(log_id, ledgers):
            await trio.lowlevel.checkpoint()
        if left_out := self._done.left_out_count - left_out_before:
            # Its ledgers are not all known, so it must not be removed with those that are.
            index.keep_log(log_id, _kept_because(left_out, self._left_out_first))
        await self._put_states(index, lacs)

    async def _scan_log(
        self,
        index: Index,
        log_id: int,
        file: SalvageReader,
        ledgers: dict[int, int],
        lacs: dict[int, int],
    ) -> None:
        """Adds bytes and the highest LAC of each ledger in the log."""
        path = self._logs.path(log_id)
        scan = LogScanner(file, log_id, on_read=self._count_read)
        while (record := await scan.next()) is not None:
            for run, lac in await self._whole_runs(scan, file, record, path):
                for _ in index.put_runs([run]):
                    pass
                self._done.runs += 1
                self._done.entries += len(run.lengths)
                ledger_id = run.ledger_id
                ledgers[ledger_id] = ledgers.get(ledger_id, 0) + sum(run.lengths)
                lacs[ledger_id] = max(lacs.get(ledger_id, -1), lac)
            await trio.lowlevel.checkpoint()
        if file.unreadable:
            self._leave_out(f"{path}: {file}")
        if file.size > scan.position:
            self._leave_out(
                f"{path}: {file.size - scan.position} bytes, no whole record {scan.end_reason}:"
                " a write cut short, or damage"
            )

    async def _put_states(self, index: Index, lacs: dict[int, int]) -> None:
        every = iter(lacs.items())
        while step := list(islice(every, _STEP)):
            states = []
            for ledger_id, lac in step:
                state = index.state(ledger_id) or LedgerState(ledger_id, b"")
                state.advance_lac(lac)
                _set_limbo(state)
                states.append(state)
            for _ in index.put_states(states):
                await trio.lowlevel.checkpoint()

    async def _whole_runs(
        self, scan: LogScanner, file: SalvageReader, record: LogRecord, path: str
    ) -> list[tuple[PlacedRun, int]]:
        """Returns what is proven of a record, and the LAC in each part: all of it, or if its
        checksum is wrong the entries whose own digest is right."""
        run = record.run
        try:
            body = await scan.body(record)
            proven = list(range(len(run.lengths)))
        except BookieIoError as error:
            body = await file.read(run.offset, record.header.body_bytes)
            proven = _proven(run, body)
            self._leave_out(
                f"{path}: {error}; ledger {run.ledger_id} entries {run.first}..{run.last}: "
                f"{len(run.lengths) - len(proven)} of them left out"
            )
        begins = [0, *entry_ends(run.lengths)]
        self._done.entry_log_bytes += len(body)
        found = []
        for first, last in ranges_of(proven):
            lac = lac_of_entry(body, begins[last])
            found.append((run.part(run.first + first, run.first + last), lac))
        return found

    def _leave_out(self, what: str) -> None:
        self._left_out_first = self._left_out_first or what
        self._done.left_out_count += 1
        if len(self._done.left_out) < FINDINGS_MAX:
            self._done.left_out.append(what)

    async def _count_read(self, nbytes: int) -> None:
        self._on_bytes(nbytes)
        await trio.lowlevel.checkpoint()


def _proven(run: PlacedRun, body: bytes) -> list[int]:
    """Returns the places in the run of the entries whose own digest is right."""
    if len(body) < sum(run.lengths):
        return []
    checked = check_entries(body, run.lengths, run.ledger_id, run.first)
    doubtful = dict.fromkeys((*checked.strangers, *checked.unverified))
    return [at for at in range(len(run.lengths)) if run.first + at not in doubtful]


def _kept_because(left_out: int, first: str) -> str:
    return (
        f"when the index was rebuilt {left_out} pieces of it were left out: "
        f"{first[:_REASON_CHARS_MAX]}. {_KEPT}"
    )


def _set_limbo(state: LedgerState) -> None:
    """Makes absent entries unknown from now on; the ledger's writer must not continue here
    either."""
    state.is_limbo = True
    state.fence()
