"""Decides when segments of a namespace are merged: which streams are looked at, how often and how
much, and what is left alone after a failure.

Sweeps note which streams have changed; nothing is read or written while none has. Merges run beside
sweeps, which never wait for them. How one is made: segment_merging.py.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakKeyDictionary

import trio

from ledger.client import LedgerClient
from ledger.errors import (
    FinalError,
    LedgerError,
    MetadataConflict,
    MetadataUnavailable,
    NodeExists,
    NoSuchNode,
    NotEnoughBookies,
    OperationTimeout,
    Unauthorized,
)
from ledger.metastore.ledgers import client_path
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.segments import Run
from stream.core.metadata.streams import StreamMetadata
from stream.core.segment_merging import MergePlan, MergeScope, is_current
from stream.errors import NoSuchNamespace, NoSuchStream
from stream.retention.segment_merging import (
    COPY_S,
    MergeProgress,
    MergeRefused,
    merge_segments,
    plan_merge,
)
from stream.store.streams import StreamStore

_log = logging.getLogger(__name__)

MERGES_AT_ONCE = 4
"""Merges of one stream before it is the turn of the others."""
LOOKS_AT_ONCE = 16
"""The same of looks at a long stream."""
_PAUSE_MS = 600_000
"""How long a stream is left alone of which a merge failed; all, if there are too few bookies."""
_AVOIDED_MS = 86_400_000
"""How long a ledger is left alone that could not be copied; all, if this client may not merge."""
_AVOIDED_MAX = 1000
"""Such ledgers of a stream; with more, it is left alone as a whole until one may be read again."""
_INTERVAL_S_MIN = 1.0
_NBYTES_MIN = 1 << 16
_RELEASE_S = 1.0
_COPY_S_MIN = 5.0
"""A merge gets as much time, however little is left: opening many ledgers takes some."""

_tokens: WeakKeyDictionary[LedgerClient, bytes] = WeakKeyDictionary()
"""What each client writes into its claims. One that could not be released stays until the client's
session ends: another merger of the same client may take it."""


@dataclass(frozen=True, slots=True)
class MergeReport:
    """What merging did: segments whose entries were copied, the ledgers that they were on, and how
    many streams failed."""

    segments: int = 0
    ledgers: int = 0
    failures: int = 0


class Merges(Protocol):
    """What merges segments when it is called: a Janitor."""

    async def merge(self) -> MergeReport: ...


async def merge_for_ever(mergers: Mapping[str, Merges], interval_s: float) -> None:
    """Merges in each of these namespaces, one at a time, again after `interval_s`. A bug ends the
    merging of a namespace, and nothing else."""
    broken = set[str]()
    while True:
        await trio.sleep(max(interval_s, _INTERVAL_S_MIN))
        for namespace, merger in list(mergers.items()):
            if namespace in broken:
                continue
            try:
                report = await merger.merge()
            except LedgerError as error:
                _log.warning("namespace=%s: merging failed: %s", namespace, error)
            except Exception:  # noqa: BLE001 (retention must continue)
                broken.add(namespace)
                _log.exception(
                    "namespace=%s: nothing more is merged until the next start: this is a bug",
                    namespace,
                )
            else:
                if report.segments:
                    _log.info("namespace=%s: %s", namespace, report)


def claim_path(namespace: str) -> str:
    """Returns the path of the ephemeral node of the janitor that merges in this namespace."""
    return client_path(f"merger-{namespace}")


@dataclass(slots=True)
class _Seen:
    """What is known of a stream that was looked at under this policy: nothing is to be merged
    before segment `since`, and with `settled`, nothing at all while these are its pages."""

    policy: NamespaceMetadata
    created_ms: int
    since: int = 0
    settled: tuple[tuple[Run, ...], ...] | None = None
    paused_until_ms: int = 0
    avoid: dict[int, int] = field(default_factory=dict)
    """Ledgers that could not be copied, and until when they are left alone."""
    failed: int = -1
    """The ledger that could not be read last."""

    def is_of(self, policy: NamespaceMetadata, stream: StreamMetadata) -> bool:
        return (self.policy, self.created_ms) == (policy, stream.created_ms)

    def forget_some(self, now_ms: int) -> None:
        """Looks again for ledgers that were left alone for long enough."""
        left = {one: until_ms for one, until_ms in self.avoid.items() if now_ms < until_ms}
        if len(left) < len(self.avoid):
            self.avoid = left
            self.look_again()

    def look_again(self) -> None:
        self.since, self.settled = 0, None


class SegmentMerger:
    """Merges the segments of a namespace, unless another client is doing so.

    Args:
        bytes_per_s: payload that is copied per second; 0: nothing is merged.
        copy_s: how long a merge may take, about; what takes longer is merged in smaller parts.
    """

    def __init__(
        self, client: LedgerClient, namespace: str, bytes_per_s: float, copy_s: float = COPY_S
    ) -> None:
        self._client = client
        self._store = StreamStore(client.store)
        self._namespace = namespace
        self._bytes_per_s = bytes_per_s
        self._copy_s = copy_s
        self._nbytes_max = self._nbytes_most = self._bounded(bytes_per_s * copy_s)
        self._token = _tokens.setdefault(client, b"%032x" % client.rng.getrandbits(128))
        self._paused_until_ms = 0
        self._warned = set[object]()
        """What kept the namespace, or a stream, from being merged, and was said."""
        self._seen: dict[str, _Seen] = {}
        self._due: dict[str, None] = {}

    def note(self, policy: NamespaceMetadata, streams: Sequence[StreamMetadata]) -> None:
        """Notes which streams are there, and which of them have to be looked at."""
        if not self._bytes_per_s:
            return
        now_ms = self._client.now_ms()
        living = {stream.name: stream for stream in streams if not stream.is_deleted}
        self._seen = {name: seen for name, seen in self._seen.items() if name in living}
        for name, stream in living.items():
            seen = self._seen.get(name)
            if seen is None or not seen.is_of(policy, stream):
                seen = self._seen[name] = _Seen(policy, stream.created_ms)
            seen.forget_some(now_ms)
            is_settled = seen.settled == stream.pages.levels or len(seen.avoid) >= _AVOIDED_MAX
            if stream.pages and not is_settled and now_ms >= seen.paused_until_ms:
                self._due[name] = None

    async def merge(self, limit_s: float | None = None) -> MergeReport:
        """Merges what is due in the streams that were noted. After `limit_s` no other merge begins,
        and none begins that would end later. Raises MetadataUnavailable."""
        until_s = math.inf if limit_s is None else trio.current_time() + limit_s
        if self._is_paused():
            return MergeReport()
        due, self._due = list(self._due), {}
        found = [  # half of the time is left for merges
            name
            for name in self._rotated(due)
            if until_s - trio.current_time() > (limit_s or 0) / 2 and await self._has_plan(name)
        ]
        report = MergeReport()
        if not found:
            return report
        async with self._claim() as is_ours:
            for name in found if is_ours else ():
                if self._is_paused():
                    break
                one = await self._merge_stream(name, until_s)
                report = MergeReport(
                    report.segments + one.segments,
                    report.ledgers + one.ledgers,
                    report.failures + one.failures,
                )
        return report

    def _is_paused(self) -> bool:
        return self._client.now_ms() < self._paused_until_ms

    def _rotated(self, names: list[str]) -> list[str]:
        """Begins at a random one: a janitor that always ends early still reaches every stream."""
        first = self._client.rng.randrange(len(names)) if names else 0
        return names[first:] + names[:first]

    async def _has_plan(self, name: str) -> bool:
        try:
            return (await self._look(name, self._nbytes_max))[2] is not None
        except MetadataUnavailable:
            raise
        except LedgerError as error:
            _log.info("stream=%s: not looked at: %s", name, error)
            return False

    async def _look(
        self, name: str, nbytes_max: int
    ) -> tuple[NamespaceMetadata, StreamMetadata, MergePlan | None]:
        """Returns policy and stream as they are now, and what is merged next."""
        policy, _ = await self._store.read_namespace(self._namespace)
        stream = await self._store.read_living_stream(self._namespace, name)
        seen = self._seen.get(name)
        if seen is None or not seen.is_of(policy, stream):
            seen = self._seen[name] = _Seen(policy, stream.created_ms)
        since = seen.since
        plan: MergePlan | None = None
        for _ in range(LOOKS_AT_ONCE):
            scope = MergeScope(since, nbytes_max, seen.avoid.keys())
            outlook = await plan_merge(self._client, policy, stream, scope)
            since, plan = outlook.since, outlook.plan
            if nbytes_max == self._nbytes_max:  # else there may be more for a later look
                seen.settled = stream.pages.levels if outlook.is_settled else None
                seen.since = since
            if plan is not None or outlook.is_settled or since <= scope.since:
                break
        return policy, stream, plan

    async def _merge_stream(self, name: str, until_s: float) -> MergeReport:
        """Merges a few times in a stream. Raises MetadataUnavailable."""
        segments = ledgers = 0
        for _ in range(MERGES_AT_ONCE):
            left_s = min(until_s - trio.current_time(), self._copy_s)
            progress = MergeProgress()
            plan: MergePlan | None = None
            try:
                if left_s <= 0:
                    break
                nbytes_max = min(self._nbytes_max, self._bounded(self._bytes_per_s * left_s))
                policy, stream, plan = await self._look(name, nbytes_max)
                if plan is None:
                    break
                begun_s, copy_s = trio.current_time(), min(self._copy_s, max(left_s, _COPY_S_MIN))
                await merge_segments(
                    self._client, policy, stream, plan, bytes_per_s=self._bytes_per_s,
                    copy_s=copy_s, progress=progress,
                )  # fmt: skip
            except MetadataUnavailable as error:
                self._pause(name, f"not merged now: {error}")
                raise
            except (MetadataConflict, NoSuchStream, NoSuchNamespace) as error:
                self._pause(name, f"not merged now: {error}")
                break
            except LedgerError as error:
                if self._is_skipped(name, plan, progress, error):
                    continue
                is_limited = left_s < self._copy_s
                failures = await self._failed(name, plan, progress, error, is_limited=is_limited)
                return MergeReport(segments, ledgers, failures)
            segments, ledgers = segments + len(plan.segments), ledgers + plan.ledgers
            self._note_merged(name, plan, (trio.current_time() - begun_s) / copy_s)
        return MergeReport(segments, ledgers)

    def _note_merged(self, name: str, plan: MergePlan, took: float) -> None:
        """Undoes what `_failed` did once twice as much would be in time, too; `took` is the share
        of the time for a merge."""
        self._warned -= {name, MergeRefused, NotEnoughBookies, Unauthorized}
        if (seen := self._seen.get(name)) is not None:
            seen.failed = -1
        is_short = 2 * took <= 1 and 2 * plan.nbytes > self._nbytes_max
        if is_short and self._nbytes_max < self._nbytes_most:
            self._nbytes_max = min(self._nbytes_most, 2 * self._nbytes_max)
            for each in self._seen.values():
                each.look_again()

    def _is_skipped(
        self, name: str, plan: MergePlan | None, progress: MergeProgress, error: LedgerError
    ) -> bool:
        """Whether the plan is refused, and what is behind it is merged first: its ledgers have more
        copies, say, than the policy asks for, and there are no bookies for as many."""
        seen, is_stricter = self._seen.get(name), progress.stricter >= 0
        if not (is_stricter and isinstance(error, MergeRefused) and plan and seen):
            return False
        seen.since = progress.stricter + 1
        seen.avoid[plan.segments[0].ledger_id] = self._client.now_ms() + _AVOIDED_MS
        self._log_once(name, f"stream={name}: left as it is: {error}")
        return True

    async def _failed(
        self,
        name: str,
        plan: MergePlan | None,
        progress: MergeProgress,
        error: LedgerError,
        *,
        is_limited: bool,
    ) -> int:
        """Notes what has to be left alone after this error; returns 0 if it is no failure: the
        segments were purged or merged while they were copied, bookies demand a role that the
        client has not needed for anything else, or they are too few, or there was less time than
        a merge may take."""
        is_hurried = is_limited and progress.is_given_up
        if is_hurried or (plan is not None and not await self._is_current(name, plan)):
            self._pause(name, f"not merged now: {error}")
            return 0
        now_ms = self._client.now_ms()
        if progress.reading < 0 and isinstance(error, Unauthorized | NotEnoughBookies):
            pause_ms = _AVOIDED_MS if isinstance(error, Unauthorized) else _PAUSE_MS
            self._paused_until_ms = now_ms + pause_ms
            self._log_once(type(error), f"namespace={self._namespace}: nothing is merged: {error}")
            return 0
        if progress.is_given_up and plan is not None:
            self._nbytes_max = max(_NBYTES_MIN, min(self._nbytes_max, plan.nbytes) // 2)
        elif progress.reading >= 0 and (seen := self._seen.get(name)) is not None:
            # A bookie that is restarted does not make its ledgers unreadable.
            if isinstance(error, FinalError | OperationTimeout) or seen.failed == progress.reading:
                seen.avoid[progress.reading] = now_ms + _AVOIDED_MS
            seen.failed = progress.reading
        self._pause(name, f"segments are not merged: {error}", level=logging.WARNING)
        return 1

    async def _is_current(self, name: str, plan: MergePlan) -> bool:
        try:
            stream = await self._store.read_living_stream(self._namespace, name)
            return await self._store.pages.resolve(stream, lambda known: is_current(known, plan))
        except NoSuchStream:
            return False
        except MetadataUnavailable:
            raise
        except LedgerError:
            return True  # what cannot be read is no reason to think so

    def _log_once(self, what: object, words: str) -> None:
        _log.log(logging.INFO if what in self._warned else logging.WARNING, "%s", words)
        self._warned.add(what)

    def _pause(self, name: str, words: str, *, level: int = logging.INFO) -> None:
        _log.log(level, "stream=%s: %s", name, words)
        if (seen := self._seen.get(name)) is not None:
            seen.paused_until_ms = self._client.now_ms() + _PAUSE_MS

    @staticmethod
    def _bounded(nbytes: float) -> int:
        return int(min(max(nbytes, _NBYTES_MIN), 1 << 62))

    @asynccontextmanager
    async def _claim(self) -> AsyncIterator[bool]:
        """Enters with whether no other client merges in the namespace: two would copy the same."""
        store, path = self._client.store, claim_path(self._namespace)
        try:
            await store.create(path, self._token, is_ephemeral=True)
        except NodeExists:
            if not await self._is_claimed():
                yield False
                return
        try:
            yield True
        finally:
            with trio.move_on_after(_RELEASE_S) as scope:
                scope.shield = True
                try:
                    if await self._is_claimed():
                        await store.delete(path)
                except LedgerError as error:
                    _log.info("namespace=%s: merging is claimed: %s", self._namespace, error)

    async def _is_claimed(self) -> bool:
        """Whether this merger has the claim: after a loss of its session another one may."""
        try:
            return (await self._client.store.get(claim_path(self._namespace))).data == self._token
        except NoSuchNode:
            return False
