"""Which ledgers lack copies, and who is copying them: Apache's tree below `underreplication`.

A *mark* is the node of a ledger that lacks copies, with the bookies whose copies are missing. A
replication worker locks the ledger by an ephemeral node, makes the copies, and deletes the mark by
its version: a ledger that was marked again meanwhile stays marked. Names and bytes are those of
Apache's `ZkLedgerUnderreplicationManager`, so that its auditor and workers act on the same marks.

The four folders above a mark are the id of its ledger in hexadecimal, and are deleted with it; so
all marked ledgers are found without a look into the last folder.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial

import trio

from ledger.errors import (
    InvalidArgument,
    MetadataConflict,
    MetadataCorrupt,
    MetadataUnavailable,
    NodeExists,
    NoSuchNode,
)
from ledger.metastore.base import ANY_VERSION, Check, Create, Delete, MetadataStore
from ledger.metastore.paths import parent_of
from ledger.metastore.underreplication_nodes import (
    CHECKS,
    LAYOUT_TYPE,
    LAYOUT_VERSION,
    PeriodicCheck,
    decode_delay_s,
    encode_layout,
    encode_lock,
    encode_mark,
    parsed,
)
from ledger.proto.data_formats_pb2 import (
    LedgerRereplicationLayoutFormat,
    LockDataFormat,
    UnderreplicatedLedgerFormat,
)

_TRIES_MAX = 100
_FOLDER = re.compile(r"[0-9a-f]{4}\Z")
_LOCK = re.compile(r"urL([0-9]{10,19})\Z")
_UNLOCK_S = 2.0
"""How long a process that stops waits for a lock to be deleted."""
_UNLOCK_S_MAX = 30.0
_UNLOCK_RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class Mark:
    """A ledger that lacks copies. `replicas` are the bookies whose copies are missing, as far as
    that was known; `created_ms` is when that was last noted, wall clock."""

    ledger_id: int
    replicas: tuple[str, ...]
    created_ms: int
    version: int


class UnderreplicationStore:
    """The marks of the cluster below `root`. Any number may share one store.

    Args:
        now_ms: wall clock in milliseconds, for the time of a mark.
    """

    def __init__(self, store: MetadataStore, root: str, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms
        self._base = f"{root}/underreplication"
        self._ledgers = f"{self._base}/ledgers"
        self._locks = f"{self._base}/locks"
        self._disable = f"{self._base}/disable"
        self._delay = f"{self._base}/lostBookieRecoveryDelay"
        self._has_layout = False

    # Marks.

    async def mark(
        self, ledger_id: int, replicas: Collection[str], *, while_exists: str | None = None
    ) -> bool:
        """Notes that the copies of `replicas` are missing; returns whether the mark is new. What
        was noted before stays; a worker that copies the ledger now cannot unmark it by what it
        knew before.

        Raises NoSuchNode if the mark would be new and there is no node `while_exists`;
        MetadataCorrupt for a mark that cannot be read, or a tree of another layout.
        """
        await self._check_layout()
        wanted = tuple(dict.fromkeys(replicas))
        made = Create(self._path(ledger_id), encode_mark(wanted, self._now_ms()))
        checks = [Check(while_exists, ANY_VERSION)] if while_exists is not None else []
        try:
            # Most ledgers have no mark: one request, with the folder that is this ledger's alone.
            await self._store.transaction([*checks, Create(parent_of(made.path), b""), made])
        except NodeExists:
            await self._mark_again(ledger_id, wanted, made)
            return False
        return True

    async def _mark_again(self, ledger_id: int, wanted: Sequence[str], made: Create) -> None:
        for _ in range(_TRIES_MAX):
            present = await self.read(ledger_id)
            try:
                if present is None:
                    await self._store.create(made.path, made.data)
                    return
                added = [one for one in wanted if one not in present.replicas]
                # The worker that holds the lock may have asked a bookie before it missed these.
                if added or await self.lock_owner(ledger_id) is not None:
                    data = encode_mark((*present.replicas, *added), self._now_ms())
                    await self._store.put(made.path, data, present.version)
            except (NodeExists, NoSuchNode, MetadataConflict):
                continue
            return
        raise MetadataConflict(
            f"ledger {ledger_id}: others changed its mark first {_TRIES_MAX} times"
        )

    async def read(self, ledger_id: int) -> Mark | None:
        """Returns the mark of a ledger; None if it has none. Raises MetadataCorrupt."""
        path = self._path(ledger_id)
        try:
            node = await self._store.get(path)
        except NoSuchNode:
            return None
        message = parsed(node.data, UnderreplicatedLedgerFormat(), path)
        created_ms = message.ctime if message.HasField("ctime") else node.created_ms
        return Mark(ledger_id, tuple(message.replica), created_ms, node.version)

    async def unmark(
        self,
        mark: Mark,
        *,
        are_more_marked: bool = False,
        while_unchanged: Check | None = None,
        unlocks: bool = False,
    ) -> bool:
        """Deletes a mark that did not change since it was read; returns whether it is gone.

        Args:
            are_more_marked: the folders above are in use, as far as is known, and are not tried.
            while_unchanged: the metadata of the ledger when it lacked nothing. If it changed, the
                mark stays, unless the ledger was deleted: by the end of one that was closed
                meanwhile, a bookie that the mark names may lack entries.
            unlocks: deletes the lock of the ledger with the mark; `lock` finds it gone.
        """
        path = self._path(mark.ledger_id)
        folder = parent_of(path)
        checks = [while_unchanged] if while_unchanged is not None else []
        lock = [Delete(self._lock_path(mark.ledger_id))] if unlocks else []
        try:
            removed = Delete(path, mark.version), Delete(folder), *lock
            await self._store.transaction([*checks, *removed])
            if not are_more_marked:
                await self._prune(folder)
        except MetadataConflict:
            return False
        except NoSuchNode:
            again = partial(self.unmark, mark, are_more_marked=are_more_marked)
            if unlocks:  # perhaps the lock is what is gone, with its session
                return await again(while_unchanged=while_unchanged)
            if while_unchanged is not None and not await self._exists(while_unchanged.path):
                return await again()
            await self._prune(path)
        except InvalidArgument:  # there is something else in the folder
            await self._store.transaction([*checks, Delete(path, mark.version)])
        return True

    async def _exists(self, path: str) -> bool:
        try:
            await self._store.get(path)
        except NoSuchNode:
            return False
        return True

    async def prune(self, ledger_id: int) -> None:
        """Deletes the empty folders of a mark that an interrupted deletion left to `list`."""
        await self._prune(self._path(ledger_id))

    async def prune_empty(self) -> None:
        """Deletes folders without a mark, which `watch_any` finds, once `list` found nothing."""
        await self._prune_below(self._ledgers, 4)

    async def _prune_below(self, path: str, levels: int) -> None:
        for name in await self._folders(path):
            if levels > 1:
                await self._prune_below(f"{path}/{name}", levels - 1)
            try:
                await self._store.delete(f"{path}/{name}")
            except (InvalidArgument, NoSuchNode, MetadataConflict):
                pass  # it is in use again

    async def list(self) -> builtins.list[int]:
        """Returns the marked ledgers, ascending. A mark may be gone or made meanwhile."""
        found = []
        for first in await self._folders(self._ledgers):
            for second in await self._folders(f"{self._ledgers}/{first}"):
                above = f"{self._ledgers}/{first}/{second}"
                for third in await self._folders(above):
                    for fourth in await self._folders(f"{above}/{third}"):
                        found.append(int(first + second + third + fourth, 16))
        return sorted(found)

    async def watch_any(self) -> AsyncGenerator[bool, None]:
        """Yields whether any ledger is marked, at once and after changes, until closed."""
        async with aclosing(self._store.watch_children(self._ledgers)) as changes:
            async for names in changes:
                yield bool(names)

    async def _folders(self, path: str) -> builtins.list[str]:
        return [name for name in await self._store.children(path) if _FOLDER.match(name)]

    async def _prune(self, path: str) -> None:
        """Deletes the empty folders above a mark. They may be in use again, which is no error."""
        while (path := parent_of(path)) != self._ledgers:
            try:
                await self._store.delete(path)
            except (InvalidArgument, NoSuchNode, MetadataConflict):
                return

    # Locks.

    @asynccontextmanager
    async def lock(self, ledger_id: int, owner: str) -> AsyncIterator[bool]:
        """Locks a ledger for the block; the value is False if another worker holds the lock.

        The lock is a courtesy: it ends with the session, and who changes a ledger compares the
        version of its metadata. `owner` is unique to the process; its own lock, left by a call
        with an unknown outcome, is taken again.
        """
        path, data = self._lock_path(ledger_id), encode_lock(owner)
        try:
            await self._store.create(path, data, is_ephemeral=True)
            is_locked = True
        except NodeExists:
            is_locked = await self._is_own(path, data)
        try:
            yield is_locked
        finally:
            if is_locked:
                with trio.move_on_after(_UNLOCK_S) as scope:
                    scope.shield = True
                    await self._unlock(path, data)
                if scope.cancelled_caught:
                    with trio.move_on_after(_UNLOCK_S_MAX):  # later the session has ended, too
                        await self._unlock(path, data)

    async def _unlock(self, path: str, data: bytes) -> None:
        """Unlocks in spite of lost requests: a lock that is left holds until its session ends."""
        while True:
            try:
                # After the end of a session the lock may be another worker's.
                if await self._is_own(path, data):
                    await self._store.delete(path)
            except NoSuchNode:
                return
            except MetadataUnavailable:
                await trio.sleep(_UNLOCK_RETRY_S)
            else:
                return

    async def _is_own(self, path: str, data: bytes) -> bool:
        try:
            return (await self._store.get(path)).data == data
        except NoSuchNode:
            return False

    async def lock_owner(self, ledger_id: int) -> str | None:
        """Returns who holds the lock of a ledger, "unknown" if it is unreadable; None if nobody."""
        path = self._lock_path(ledger_id)
        try:
            node = await self._store.get(path)
            message = parsed(node.data, LockDataFormat(), path)
        except NoSuchNode:
            return None
        except MetadataCorrupt:
            return "unknown"
        return str(message.bookieId) or "unknown"

    async def locked_ids(self) -> builtins.list[int]:
        """Returns the ledgers that are being copied."""
        names = await self._store.children(self._locks)
        return [int(match[1]) for name in names if (match := _LOCK.match(name))]

    async def locked(self) -> dict[int, str]:
        """Returns the ledgers that are being copied, and by whom."""
        found = {}
        for ledger_id in await self.locked_ids():
            if (owner := await self.lock_owner(ledger_id)) is not None:
                found[ledger_id] = owner
        return found

    # Settings of the cluster.

    async def is_enabled(self) -> bool:
        """Whether auto-recovery may work; an operator disables it for the whole cluster."""
        return not await self._exists(self._disable)

    async def set_enabled(self, enabled: bool) -> None:
        """Permits auto-recovery, or stops it in the whole cluster until it is permitted again."""
        await self._check_layout()
        try:
            if enabled:
                await self._store.delete(self._disable)
            else:
                await self._store.create(self._disable, b"")
        except (NodeExists, NoSuchNode):
            pass

    async def watch_enabled(self) -> AsyncGenerator[bool, None]:
        """Yields `is_enabled` at once and after changes. Close it with `aclosing`."""
        async with aclosing(self._store.watch(self._disable)) as nodes:
            async for node in nodes:
                yield node is None

    async def lost_bookie_recovery_delay_s(self) -> int | None:
        """Returns how long a single lost bookie is waited for, in seconds; None if that was never
        set for the cluster. Raises MetadataCorrupt."""
        try:
            return decode_delay_s((await self._store.get(self._delay)).data, self._delay)
        except NoSuchNode:
            return None

    async def set_lost_bookie_recovery_delay_s(self, seconds: int) -> None:
        """Sets it for the cluster. Any set, also to the same value, has the auditor look now."""
        if not 0 <= seconds < 10**9:
            raise InvalidArgument(f"a delay of {seconds} s is not in 0..999999999")
        await self._check_layout()
        data = str(seconds).encode()
        try:
            await self._store.create(self._delay, data)
        except NodeExists:
            await self._store.put(self._delay, data)

    async def trigger_audit(self, default_s: int) -> int:
        """Has the auditor look now, by setting the delay to what it is; `default_s` if it was never
        set. Returns the delay in seconds. Raises MetadataCorrupt."""
        seconds = await self.lost_bookie_recovery_delay_s()
        seconds = default_s if seconds is None else seconds
        await self.set_lost_bookie_recovery_delay_s(seconds)
        return seconds

    async def watch_delay(self) -> AsyncGenerator[int | None, None]:
        """Yields the delay in seconds at once and whenever it is set, also to the same value; None
        while it is not set or cannot be read. Close it with `aclosing`."""
        async with aclosing(self._store.watch(self._delay)) as nodes:
            async for node in nodes:
                try:
                    yield None if node is None else decode_delay_s(node.data, self._delay)
                except MetadataCorrupt:
                    yield None

    async def last_check_ms(self, check: PeriodicCheck) -> int:
        """Returns when a check of all ledgers was last completed, wall clock; -1 for never."""
        path, (kind, field) = f"{self._base}/{check.value}", CHECKS[check]
        try:
            node = await self._store.get(path)
            return int(getattr(kind.FromString(node.data), field))
        except NoSuchNode:
            return -1
        except Exception as error:  # DecodeError, which is slow to import
            raise MetadataCorrupt(f"{path}: {error}") from error

    async def set_last_check(self, check: PeriodicCheck) -> None:
        """Records that a check of all ledgers was completed now."""
        await self._check_layout()
        path, (kind, field) = f"{self._base}/{check.value}", CHECKS[check]
        data: bytes = kind(**{field: self._now_ms()}).SerializeToString()
        try:
            await self._store.create(path, data)
        except NodeExists:
            await self._store.put(path, data)

    # Paths.

    async def _check_layout(self) -> None:
        """Creates the LAYOUT node, or checks that it is the known one. Raises MetadataCorrupt."""
        if self._has_layout:
            return
        path = f"{self._base}/LAYOUT"
        try:
            await self._store.create(path, encode_layout())
        except NodeExists:
            node = await self._store.get(path)
            found = parsed(node.data, LedgerRereplicationLayoutFormat(), path)
            if (found.type, found.version) != (LAYOUT_TYPE, LAYOUT_VERSION):
                raise MetadataCorrupt(
                    f"{path} names the layout {found.type!r} version {found.version}; known is "
                    f"{LAYOUT_TYPE} version {LAYOUT_VERSION}"
                ) from None
        self._has_layout = True

    def _path(self, ledger_id: int) -> str:
        if not 0 <= ledger_id < 2**63:
            raise InvalidArgument(f"ledger id {ledger_id} is not in 0..{2**63 - 1}")
        digits = f"{ledger_id:016x}"
        folders = "/".join(digits[at : at + 4] for at in range(0, 16, 4))
        return f"{self._ledgers}/{folders}/urL{ledger_id:010d}"

    def _lock_path(self, ledger_id: int) -> str:
        return f"{self._locks}/urL{ledger_id:010d}"
