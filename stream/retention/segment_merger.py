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

import trio

from ledger.client import LedgerClient
from ledger.errors import (
    LedgerError,
    MetadataConflict,
    MetadataUnavailable,
    NodeExists,
    NoSuchNode,
    OperationTimeout,
    Unauthorized,
)
from ledger.metastore.ledgers import client_path
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.segments import Run
from stream.core.metadata.streams import StreamMetadata
from stream.core.segment_merging import MergePlan, MergeScope, is_current
from stream.errors import NoSuchNamespace, NoSuchStream
from stream.retention.segment_merging import COPY_S, MergeProgress, merge_segments, plan_merge
from stream.store.streams import StreamStore

_log = logging.getLogger(__name__)

MERGES_AT_ONCE = 4
"""Merges of one stream before it is the turn of the others."""
LOOKS_AT_ONCE = 16
"""The same of looks at a long stream."""
_PAUSE_MS = 600_000
"""How long a stream is left alone of which a merge failed."""
_AVOIDED_MS = 86_400_000
"""How long a ledger is left alone that could not be copied."""
_AVOIDED_MAX = 1000
"""Such ledgers of a stream; with more, it is left alone as a whole until one may be read again."""
_INTERVAL_S_MIN = 1.0
_NBYTES_MIN = 1 << 16
_RELEASE_S = 1.0


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
    """Merges in each of these namespaces, one at a time, again after `interval_s`."""
    while True:
        await trio.sleep(max(interval_s, _INTERVAL_S_MIN))
        for namespace, merger in list(mergers.items()):
            try:
                report = await merger.merge()
            except LedgerError as error:
                _log.warning("namespace=%s: merging failed: %s", namespace, error)
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

    def is_of(self, policy: NamespaceMetadata, stream: StreamMetadata) -> bool:
        return (self.policy, self.created_ms) == (policy, stream.created_ms)

    def forget_some(self, now_ms: int) -> None:
        """Looks again for ledgers that were left alone for long enough."""
        left = {one: until_ms for one, until_ms in self.avoid.items() if now_ms < until_ms}
        if len(left) < len(self.avoid):
            self.since, self.settled, self.avoid = 0, None, left


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
        self._nbytes_max = self._bounded(bytes_per_s * copy_s)
        self._token = b"%032x" % client.rng.getrandbits(128)
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
        due, self._due = list(self._due), {}
        found = [name for name in self._rotated(due) if await self._has_plan(name)]
        report = MergeReport()
        if not found:
            return report
        async with self._claim() as is_ours:
            for name in found if is_ours else ():
                one = await self._merge_stream(name, until_s)
                report = MergeReport(
                    report.segments + one.segments,
                    report.ledgers + one.ledgers,
                    report.failures + one.failures,
                )
        return report

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
                await merge_segments(
                    self._client, policy, stream, plan, bytes_per_s=self._bytes_per_s,
                    copy_s=self._copy_s, progress=progress,
                )  # fmt: skip
            except MetadataUnavailable:
                raise
            except (MetadataConflict, NoSuchStream, NoSuchNamespace) as error:
                self._pause(name, f"not merged now: {error}")
                break
            except LedgerError as error:
                failures = await self._failed(name, plan, progress, error)
                return MergeReport(segments, ledgers, failures)
            segments, ledgers = segments + len(plan.segments), ledgers + plan.ledgers
        return MergeReport(segments, ledgers)

    async def _failed(
        self, name: str, plan: MergePlan | None, progress: MergeProgress, error: LedgerError
    ) -> int:
        """Notes what has to be left alone after this error; returns 0 if it is no failure: the
        segments were purged or merged while they were copied, or bookies demand a role that the
        client has not needed for anything else."""
        if plan is not None and not await self._is_current(name, plan):
            self._pause(name, f"not merged now: {error}")
            return 0
        if isinstance(error, OperationTimeout):
            self._nbytes_max = max(_NBYTES_MIN, self._nbytes_max // 2)
        elif progress.reading >= 0 and (seen := self._seen.get(name)) is not None:
            seen.avoid[progress.reading] = self._client.now_ms() + _AVOIDED_MS
        self._pause(name, f"segments are not merged: {error}", level=logging.WARNING)
        return int(not isinstance(error, Unauthorized))

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
