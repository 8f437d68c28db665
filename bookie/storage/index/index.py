"""Where entries are stored, and the states of ledgers: records in a sorted key-value store
(KeyValue).

The keys are described in docs/formats.md, "Index".
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple

from bookie.core.entry_log import decode_lengths, encode_lengths
from bookie.core.ledger_state import LedgerState, decode_ledger_state, encode_ledger_state
from bookie.storage.index.key_value import INDEX_CURE, IndexUnreadable, KeyValue

ENTRY_ID_MAX = 2**63 - 1
_LAST = ENTRY_ID_MAX - 1

_RUN_KEY = struct.Struct(">cqq")
_RUN_PLACE = struct.Struct(">qq")
_LEDGER_ID_MAX = 2**63 - 1
_STATE_KEY = struct.Struct(">cq")
_TOMBSTONE = struct.Struct(">q")
_END = struct.Struct(">q").pack
_LOG_LEDGER = struct.Struct(">qq")


class PlacedRun(NamedTuple):
    """Entries `first`, `first + 1`, ... of a ledger, one after the other in an entry log."""

    ledger_id: int
    first: int
    log_id: int
    offset: int
    """The offset of the first entry's bytes in the log."""
    lengths: array[int]

    @property
    def last(self) -> int:
        return self.first + len(self.lengths) - 1

    def part(self, first: int, last: int) -> PlacedRun:
        """Returns the run without the entries before `first` and after `last`."""
        assert self.first <= first <= last <= self.last
        begin = first - self.first
        offset = self.offset + sum(self.lengths[:begin])
        lengths = self.lengths[begin : last - self.first + 1]
        return PlacedRun(self.ledger_id, first, self.log_id, offset, lengths)


def run_key(ledger_id: int, first: int) -> bytes:
    """Returns the key of the run that begins with entry `first`."""
    return _RUN_KEY.pack(b"E", ledger_id, first)


def ledger_of_run_key(key: bytes) -> int:
    ledger_id: int = _RUN_KEY.unpack(key)[1]
    return ledger_id


def run_pair(run: PlacedRun) -> tuple[bytes, bytes]:
    """Returns key and value of a run's record."""
    value = _RUN_PLACE.pack(run.log_id, run.offset) + encode_lengths(run.lengths)
    return run_key(run.ledger_id, run.first), value


def decode_run(key: bytes, value: bytes) -> PlacedRun:
    """Raises IndexUnreadable for a record that is not valid."""
    try:
        _, ledger_id, first = _RUN_KEY.unpack(key)
        log_id, offset = _RUN_PLACE.unpack_from(value)
        lengths = decode_lengths(value[_RUN_PLACE.size :])
        if not lengths:
            raise ValueError("a run without entries")
    except (struct.error, ValueError) as error:
        raise IndexUnreadable(
            f"index: bad run record under {key.hex()}: {error}. {INDEX_CURE}"
        ) from error
    return PlacedRun(ledger_id, first, log_id, offset, lengths)


class Index:
    """Runs, ledger states, ledgers per entry log and tombstones in one KeyValue.

    Runs of a ledger never overlap: a newer run trims or splits what it covers, in its own
    batch. All writes come from one task at a time (checkpoint or garbage collection).
    """

    BATCH_PAIRS_MAX = 100
    """Small, because no other task runs while a batch is made and applied."""
    LOOKUPS_MAX = 10
    """Per step; each may be a read of the disk."""
    LEDGERS_PACKED_MAX = 2000
    """Per step: a third of a millisecond."""

    def __init__(self, pairs: KeyValue) -> None:
        self._pairs = pairs
        self._log_ids: dict[int, None] | None = None
        self._highest_ledger_id: int | None = None
        """No ledger above it has a state or a tombstone. None: not searched for yet."""

    def find(self, ledger_id: int, entry_id: int) -> PlacedRun | None:
        """Returns the run that holds the entry. Raises IndexUnreadable."""
        found = self._pairs.floor(run_key(ledger_id, entry_id), run_key(ledger_id, 0))
        if found is None:
            return None
        run = decode_run(*found)
        return run if entry_id <= run.last else None

    def last_entry_id(self, ledger_id: int) -> int:
        """Returns the highest entry id stored, or -1."""
        found = self._pairs.floor(run_key(ledger_id, ENTRY_ID_MAX), run_key(ledger_id, 0))
        return -1 if found is None else decode_run(*found).last

    def runs(self, ledger_id: int, first: int = 0, last: int = ENTRY_ID_MAX) -> Iterator[PlacedRun]:
        """Yields runs that hold any of the entries, in order. The index may not change
        meanwhile."""
        before = self._pairs.floor(run_key(ledger_id, first), run_key(ledger_id, 0))
        begin = run_key(ledger_id, first)
        if before is not None and before[0] != begin:
            run = decode_run(*before)
            if run.last >= first:
                yield run
        # The end is not included; no entry has the highest id there is.
        for key, value in self._pairs.items(begin, run_key(ledger_id, min(last, _LAST) + 1)):
            yield decode_run(key, value)

    def put_runs(
        self, runs: Sequence[PlacedRun], first_seen: Container[int] = ()
    ) -> Iterator[int | None]:
        """Writes runs in steps of one batch or some look-ups each; a step yields the ledger whose
        older entries it overwrote.

        The runs must not overlap each other. `first_seen`: ledgers of which no run was ever put
        before, so none is searched for. Durable after `flush`.
        """
        puts: list[tuple[bytes, bytes]] = []
        ledger_id = last_before = -1
        lookups = 0
        for run in runs:
            if run.ledger_id != ledger_id:
                ledger_id = run.ledger_id
                last_before = -1
                if ledger_id not in first_seen:
                    if lookups == self.LOOKUPS_MAX:
                        lookups = 0
                        yield None
                    lookups += 1
                    last_before = self.last_entry_id(ledger_id)
            if run.first <= last_before:
                # Older entries may be covered: what the batch so far wrote must be visible.
                self._pairs.write(puts)
                puts = []
                yield run.ledger_id if self._overwrite(run) else None
                continue
            puts.append(run_pair(run))
            if len(puts) >= self.BATCH_PAIRS_MAX:
                self._pairs.write(puts)
                puts = []
                yield None
        if puts:
            self._pairs.write(puts)
            yield None

    def _overwrite(self, run: PlacedRun) -> bool:
        """Writes a run and cuts the older ones it covers. Returns False if there were none."""
        puts: list[tuple[bytes, bytes]] = []
        deletes: list[bytes] = []
        for old in self.runs(run.ledger_id, run.first, run.last):
            if old.first < run.first:
                puts.append(run_pair(old.part(old.first, run.first - 1)))
            else:
                deletes.append(run_key(old.ledger_id, old.first))
            if old.last > run.last:
                puts.append(run_pair(old.part(run.last + 1, old.last)))
        is_overwriting = bool(puts or deletes)
        puts.append(run_pair(run))
        key = run_key(run.ledger_id, run.first)
        self._pairs.write(puts, [old_key for old_key in deletes if old_key != key])
        return is_overwriting

    def is_above_all(self, ledger_id: int) -> bool:
        """Returns whether the ledger is certainly unknown. Most new ledgers are above all others,
        since their ids are counted up: a look-up for each costs a third of all that it costs a
        bookie."""
        highest = self._highest_ledger_id
        if highest is None:
            highest = self._highest_ledger_id = self._find_highest()
        return ledger_id > highest

    def _find_highest(self) -> int:
        highest = -1
        try:
            for kind in (b"L", b"T"):
                lowest = _STATE_KEY.pack(kind, 0)
                found = self._pairs.floor(_STATE_KEY.pack(kind, ENTRY_ID_MAX), lowest)
                if found is not None:
                    highest = max(highest, _STATE_KEY.unpack(found[0])[1])
        except (IndexUnreadable, struct.error):
            return ENTRY_ID_MAX  # each is searched for then
        return highest

    def _has_ledger(self, ledger_id: int) -> None:
        """Must be called before the ledger's state or tombstone is written."""
        if self._highest_ledger_id is not None and ledger_id > self._highest_ledger_id:
            self._highest_ledger_id = ledger_id

    def state(self, ledger_id: int) -> LedgerState | None:
        """Returns the state, or None. Raises IndexUnreadable."""
        data = self._pairs.get(_STATE_KEY.pack(b"L", ledger_id))
        if data is None:
            return None
        try:
            return decode_ledger_state(ledger_id, data)
        except ValueError as error:
            raise IndexUnreadable(f"index: {error}. {INDEX_CURE}") from error

    def has_state(self, ledger_id: int) -> bool:
        return self._pairs.get(_STATE_KEY.pack(b"L", ledger_id)) is not None

    def put_states(self, states: Iterable[LedgerState]) -> Iterator[None]:
        """Writes states in steps of one batch each."""
        every = iter(states)
        while batch := list(islice(every, self.BATCH_PAIRS_MAX)):
            self._has_ledger(max(s.ledger_id for s in batch))
            self._pairs.write(
                [(_STATE_KEY.pack(b"L", s.ledger_id), encode_ledger_state(s)) for s in batch]
            )
            yield

    def end(self, ledger_id: int) -> int | None:
        """Returns one past the last entry of a ledger that is known to be closed, or None."""
        value = self._pairs.get(_STATE_KEY.pack(b"N", ledger_id))
        return None if value is None else int.from_bytes(value, "big")

    def put_ends(self, ends: Mapping[int, int]) -> None:
        """Writes the ends of closed ledgers: no more than belong in one batch."""
        self._pairs.write([(_STATE_KEY.pack(b"N", n), _END(end)) for n, end in ends.items()])

    def ledger_ids(self, after: int, count_max: int) -> list[int]:
        """Returns up to `count_max` ledgers with a state, in order, beginning after ledger
        `after`."""
        if after == _LEDGER_ID_MAX:
            return []
        pairs = self._pairs.items(_STATE_KEY.pack(b"L", after + 1), b"M")
        return [_STATE_KEY.unpack(key)[1] for key, _ in islice(pairs, count_max)]

    def every_ledger_id(self, first: int) -> Iterator[int]:
        """Yields the ledgers with a state from `first` on, in order. Raises BookieIoError."""
        while ledger_ids := self.ledger_ids(first - 1, self.BATCH_PAIRS_MAX):
            for ledger_id in ledger_ids:
                if ledger_id < first:
                    return  # negative ids, which only broken clients send, are at the end
                yield ledger_id
            first = ledger_ids[-1] + 1

    def delete_ledger(self, ledger_id: int, master_key: bytes, now_ms: int) -> Iterator[None]:
        """Removes runs and state and leaves a tombstone, in steps of one batch each.

        Tombstone first and state last: after an interruption it is simply repeated.
        """
        self.put_tombstone(ledger_id, master_key, now_ms)
        yield
        yield from self.delete_runs(ledger_id)
        self._pairs.write([], [_STATE_KEY.pack(kind, ledger_id) for kind in (b"N", b"L")])

    def delete_runs(self, ledger_id: int) -> Iterator[None]:
        """Removes the runs of a ledger and keeps its state, in steps of one batch each. After an
        interruption it is simply repeated."""
        first, end = run_key(ledger_id, 0), run_key(ledger_id, ENTRY_ID_MAX)
        while True:
            keys = [key for key, _ in islice(self._pairs.items(first, end), self.BATCH_PAIRS_MAX)]
            if not keys:
                break
            self._pairs.write([], keys)
            first = keys[-1]  # a store steps over deleted pairs one by one
            yield

    def has_runs(self, ledger_id: int) -> bool:
        """Returns whether the ledger has a state and any entry in a log."""
        if not self.has_state(ledger_id):
            return False
        runs = self._pairs.items(run_key(ledger_id, 0), run_key(ledger_id, ENTRY_ID_MAX))
        return next(iter(runs), None) is not None

    def put_tombstone(self, ledger_id: int, master_key: bytes, now_ms: int) -> None:
        self._has_ledger(ledger_id)
        value = _TOMBSTONE.pack(now_ms) + master_key
        self._pairs.write([(_STATE_KEY.pack(b"T", ledger_id), value)])

    def tombstone(self, ledger_id: int) -> bytes | None:
        """Returns the master key of a deleted ledger, or None."""
        value = self._pairs.get(_STATE_KEY.pack(b"T", ledger_id))
        return None if value is None else value[_TOMBSTONE.size :]

    def tombstones(self) -> list[tuple[int, int]]:
        """Returns pairs (time of deletion in ms, ledger id), oldest first."""
        return sorted(
            (_TOMBSTONE.unpack_from(value)[0], _STATE_KEY.unpack(key)[1])
            for key, value in self._pairs.items(b"T", b"U")
        )

    def forget_tombstones(self, ledger_ids: Sequence[int]) -> None:
        for i in range(0, len(ledger_ids), self.BATCH_PAIRS_MAX):
            batch = ledger_ids[i : i + self.BATCH_PAIRS_MAX]
            self._pairs.write([], [_STATE_KEY.pack(b"T", ledger_id) for ledger_id in batch])

    def log_ids(self) -> list[int]:
        """Returns the entry logs that runs may point into, in order."""
        if self._log_ids is None:
            # Once: the records hold all ledgers of all logs, and statistics need the ids.
            ids = [_STATE_KEY.unpack(key)[1] for key, _ in self._pairs.items(b"G", b"H")]
            self._log_ids = dict.fromkeys(ids)
        return sorted(self._log_ids)

    def log_ledgers(self, log_id: int) -> dict[int, int]:
        """Returns the bytes that were written into an entry log, per ledger (live or not)."""
        return dict(_LOG_LEDGER.iter_unpack(self._log_record(log_id)))

    def log_ledger_ids(self, log_id: int) -> Iterator[int]:
        """Yields the ledgers of `log_ledgers`, one by one: there may be millions."""
        for ledger_id, _ in _LOG_LEDGER.iter_unpack(self._log_record(log_id)):
            yield ledger_id

    def _log_record(self, log_id: int) -> bytes:
        value = self._pairs.get(_STATE_KEY.pack(b"G", log_id)) or b""
        if len(value) % _LOG_LEDGER.size:
            raise IndexUnreadable(
                f"index: bad record of entry log {log_id:x}: {len(value)} bytes. {INDEX_CURE}"
            )
        return value

    def put_log_ledgers(self, log_id: int, ledgers: Mapping[int, int]) -> Iterator[None]:
        """Writes the record of a log in steps, the last of which writes; `ledgers` must not change
        meanwhile. Must be done before the first run that points into the log is put."""
        pieces: list[bytes] = []
        every = iter(ledgers.items())
        while step := list(islice(every, self.LEDGERS_PACKED_MAX)):
            numbers = list(chain.from_iterable(step))
            pieces.append(struct.pack(f">{len(numbers)}q", *numbers))
            yield
        self._pairs.write([(_STATE_KEY.pack(b"G", log_id), b"".join(pieces))])
        if self._log_ids is not None:
            self._log_ids[log_id] = None
        yield

    def delete_log(self, log_id: int) -> None:
        if self._log_ids is not None:
            self._log_ids.pop(log_id, None)
        self._pairs.write([], [_STATE_KEY.pack(kind, log_id) for kind in (b"G", b"D", b"U")])

    def set_log_aside(self, log_id: int, reason: str) -> None:
        """Records that a log is damaged, so that it is not tried again and again."""
        self._pairs.write([(_STATE_KEY.pack(b"D", log_id), reason.encode())])

    def keep_log(self, log_id: int, reason: str) -> None:
        """Sets a log aside whose ledgers are not all known: `G` may lack some of them, so nothing
        in the index proves that the log is not needed."""
        value = reason.encode()
        self._pairs.write([(_STATE_KEY.pack(kind, log_id), value) for kind in (b"D", b"U")])

    def is_log_kept(self, log_id: int) -> bool:
        """Returns whether only an operator may remove the log."""
        return self._pairs.get(_STATE_KEY.pack(b"U", log_id)) is not None

    def count_logs_kept(self) -> int:
        """Returns the number of such logs."""
        return sum(1 for _ in self._pairs.items(_STATE_KEY.pack(b"U", 0), b"V"))

    def take_log_back(self, log_id: int) -> None:
        """Ends the setting aside of a log."""
        self._pairs.write([], [_STATE_KEY.pack(b"D", log_id)])

    def logs_set_aside(self) -> dict[int, str]:
        """Returns damaged logs, and what is wrong with each."""
        return {
            _STATE_KEY.unpack(key)[1]: reason.decode(errors="replace")
            for key, reason in self._pairs.items(_STATE_KEY.pack(b"D", 0), b"E")
        }

    @property
    def checkpoint_no(self) -> int:
        """The number of the last checkpoint that is whole in the index; 0 if none."""
        value = self._pairs.get(b"C")
        return 0 if value is None else int.from_bytes(value, "big")

    @checkpoint_no.setter
    def checkpoint_no(self, number: int) -> None:
        self._pairs.write([(b"C", number.to_bytes(8, "big"))])

    async def flush(self) -> None:
        """Makes all earlier writes durable. Raises BookieIoError."""
        await self._pairs.flush()

    def close(self) -> None:
        self._pairs.close()
