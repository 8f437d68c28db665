"""The ledger states in memory: bounded, loaded on demand, one object per ledger.

Must never let two LedgerState objects of one ledger be alive: a fence on one of them would not
stop adds that are checked against the other.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict

from bookie.core.caches import WriteCache
from bookie.core.capacity import DirectoryCapacity
from bookie.core.ledger_state import NEW_UNKNOWN, LedgerState
from bookie.storage.index.index import Index
from ledger.wire.v2 import lac_of_entry


class LedgerStates:
    """The states in memory. The add path may read `held` directly; everything else goes through
    here.

    When there are more than `states_max`, the least recently used are evicted, but none with
    watchers, with changes not yet in the index, or with entries in the write cache. So the true
    bound is `states_max` plus what the write cache holds, and a quarter more.
    """

    _EVICT_STEPS = 32
    _MORE_AFTER_NONE_EVICTED = 8
    """If none of the states examined could be evicted, this many more are held before as many are
    examined again: four steps for each, while a checkpoint is awaited."""

    def __init__(
        self,
        index: Index,
        cache: WriteCache,
        states_max: int,
        capacity: DirectoryCapacity | None = None,
    ) -> None:
        """`capacity`: notified when there are too many changes."""
        # Ordered: finding the first key of a dict takes a step per key that was there before it.
        self.held: OrderedDict[int, LedgerState] = OrderedDict()
        self._index = index
        self._cache = cache
        self._states_max = states_max
        self._capacity = capacity or DirectoryCapacity()
        self._looked_at = states_max
        """With no more than these in `held` there is nothing to evict."""
        # A connection may still use an evicted state: the next caller must get the same object.
        self._alive: weakref.WeakValueDictionary[int, LedgerState] = weakref.WeakValueDictionary()
        self._dirty: dict[int, LedgerState] = {}
        self._saving: dict[int, LedgerState] = {}

    def get(self, ledger_id: int) -> LedgerState | None:
        """Returns the state, or None if the ledger was never seen. A deleted ledger has one, too,
        as long as its tombstone is kept. Raises BookieIoError if the index record is damaged."""
        state = self.held.get(ledger_id)
        if state is None:
            state = self._alive.get(ledger_id)
            if state is None:
                state = self._load(ledger_id)
                if state is None:
                    return None
            self.held[ledger_id] = state
        else:
            self.held.move_to_end(ledger_id)
        self._evict()
        return state

    def create(self, ledger_id: int, master_key: bytes) -> LedgerState:
        """Creates the state of a ledger for which `get` has just returned None; the next checkpoint
        stores it."""
        # `get` has read the index: reading it twice made a new ledger cost a third more.
        is_known = ledger_id in self.held or ledger_id in self._alive
        assert not is_known, f"ledger {ledger_id} has a state already"
        state = LedgerState(ledger_id, bytes(master_key))
        state.new_from = 0
        self.held[ledger_id] = state
        self.changed(state)
        self._evict()
        return state

    def look_up(self, state: LedgerState) -> None:
        """Looks up what adds must know of the ledger, once while its state is in memory: where its
        entries here end, and where it was closed. Raises IndexUnreadable."""
        if state.new_from == NEW_UNKNOWN:
            ledger_id = state.ledger_id
            end = self._index.end(ledger_id)
            last = max(self._cache.last_entry_id(ledger_id), self._index.last_entry_id(ledger_id))
            if end is not None:
                state.end = end
            state.new_from = last + 1

    def begin_replay(self, state: LedgerState) -> None:
        """Has `new_from` count the entries in the cache only. A journal may hold many entries that
        are in the index, too, and what it holds is put again."""
        if state.new_from == NEW_UNKNOWN:
            state.new_from = self._cache.last_entry_id(state.ledger_id) + 1

    def end_replay(self) -> None:
        """Forgets what `begin_replay` counted."""
        for state in self.held.values():
            state.forget_new()

    def changed(self, state: LedgerState) -> None:
        """Has the next checkpoint store `state`, because it must outlive the process."""
        self._dirty[state.ledger_id] = state
        if len(self._dirty) >= self._states_max:
            self._report()

    def take_changed(self) -> dict[int, LedgerState]:
        """Returns what the checkpoint that begins now must store; call `saved` when it is
        durable."""
        assert not self._saving, "the states taken before are not saved yet"
        self._saving, self._dirty = self._dirty, {}
        self._report()
        return self._saving

    def changed_ids(self, first: int) -> list[int]:
        """Returns the ledgers from `first` on that the next checkpoint stores, ascending."""
        changed = {**self._saving, **self._dirty}
        return sorted(each for each in changed if each >= first)

    @property
    def has_changes(self) -> bool:
        return bool(self._dirty)

    @property
    def changes(self) -> int:
        """The number of states that the next checkpoint must store, whatever else is in memory."""
        return len(self._dirty)

    @property
    def changes_filled(self) -> float:
        """The share of the allowed changes that are in memory; 1 makes a checkpoint due."""
        return len(self._dirty) / self._states_max

    def _report(self) -> None:
        # Fences and explicit LACs of ever new ledgers fill no cache. With as many changes as states
        # may be in memory a checkpoint is due; with twice as many, nothing that could change
        # another state may be accepted.
        count, states_max = len(self._dirty), self._states_max
        self._capacity.report_states(count >= states_max, count >= 2 * states_max)

    def saved(self) -> None:
        """Records that what `take_changed` returned is durable in the index."""
        self._saving = {}
        self._looked_at = self._states_max
        self._evict()

    def deleted(self, state: LedgerState) -> None:
        """Records that the ledger is gone from the index; its state must not be stored again."""
        assert not self._saving, "a checkpoint is in progress"
        state.delete()
        self._dirty.pop(state.ledger_id, None)
        self._report()

    def drop_deleted(self, ledger_id: int) -> None:
        """Evicts a deleted ledger whose tombstone is in the index: its state is rarely needed
        again."""
        state = self.held.get(ledger_id)
        if state is not None and state.is_deleted and not state.is_watched:
            self._release(self.held.pop(ledger_id))

    def forget(self, ledger_id: int) -> None:
        """Forgets a ledger whose tombstone was dropped, as if it had never been seen."""
        self.held.pop(ledger_id, None)
        self._alive.pop(ledger_id, None)

    def _load(self, ledger_id: int) -> LedgerState | None:
        if self._index.is_above_all(ledger_id):
            return None
        state = self._index.state(ledger_id)
        if state is None:
            master_key = self._index.tombstone(ledger_id)
            if master_key is None:
                return None
            state = LedgerState(ledger_id, master_key)
            state.delete()
            return state
        last = self._cache.last_entry_id(ledger_id)
        entry = self._cache.get(ledger_id, last) if last >= 0 else None
        if entry is not None:
            state.lac = max(state.lac, lac_of_entry(entry))
        return state

    def _evict(self) -> None:
        held, states_max = self.held, self._states_max
        if len(held) <= self._looked_at:
            return
        before = len(held)
        # All but the newest, which was requested just now.
        for _ in range(min(self._EVICT_STEPS, before - 1)):
            if len(held) <= states_max:
                break
            ledger_id, state = held.popitem(last=False)
            if (
                state.is_watched
                or ledger_id in self._dirty
                or ledger_id in self._saving
                or self._cache.holds(ledger_id)
            ):
                held[ledger_id] = state
            else:
                self._release(state)
        is_fruitless = len(held) == before
        more = min(self._MORE_AFTER_NONE_EVICTED, states_max // 4)
        self._looked_at = before + more if is_fruitless else states_max

    def _release(self, state: LedgerState) -> None:
        """Releases a `state` that is no longer in `held`. Only now a weak reference is made: if
        nothing else uses the state, both are freed at once, and the garbage collector never sees
        them."""
        self._alive[state.ledger_id] = state
