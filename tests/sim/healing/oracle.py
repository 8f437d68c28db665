"""The oracle of auto-recovery: sees each change of the metadata at the moment it is made.

What a change promises of entries is asked of the bookies at once, by a client that no fault meets:
who is named by metadata must have the copy already, also after a power loss.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import trio

from bookie.testing.cluster import BOOKIE_PORT, SimCluster
from ledger.autorecovery.missing_entries import lacking_ranges
from ledger.autorecovery.published import AUDIT_PATH, AuditReport
from ledger.autorecovery.published import _decode as decode_report
from ledger.autorecovery.service import AutoRecovery
from ledger.client import LedgerClient
from ledger.core.availability import Range, expected_ranges, fixed_part
from ledger.core.metadata import LedgerMetadata, LedgerState
from ledger.core.metadata_format import decode
from ledger.core.quorum import write_set
from ledger.errors import LedgerError
from ledger.metastore.base import ANY_VERSION, Change, Check, Create, Delete
from ledger.metastore.decommissions import PATH as DECOMMISSIONS
from ledger.metastore.ledgers import CLIENT_TAG, client_path
from tests.sim.healing.healers import Healers
from tests.sim.model import Violation

_LEDGER = re.compile(r"/ledgers(?:/[0-9]+)+/L[0-9]+\Z")
_MARK = re.compile(r"/ledgers/underreplication/ledgers/.*/urL([0-9]+)\Z")
_REPLICA = re.compile(rb'replica: "([^"]+)"')
_NEWS = (
    "/ledgers/available/",
    "/ledgers/cookies/",
    "/ledgers/underreplication/ledgers/",
    DECOMMISSIONS,
)
_SAMPLE_S = 0.5
_NOTICED_S = 6.0
"""So long after a change of the bookies an auditor must know of it, unless there is an outage."""
_ASK_AGAIN_S = 0.5


@dataclass(frozen=True, slots=True)
class _Promise:
    """The change `why` was right only if `bookie` holds what the metadata says."""

    ledger_id: int
    bookie: str
    why: str
    first_entry_id: int | None = None
    """Of the fragment that is meant; None: all of them."""


class Oracle:
    """Raises Violation for the first change that auto-recovery must not have made."""

    def __init__(
        self, cluster: SimCluster, healers: Healers, fail: Callable[[BaseException], None]
    ) -> None:
        self.cluster = cluster
        self.healers = healers
        self.fail = fail
        self.ledgers: dict[int, LedgerMetadata] = {}
        self.deleted: dict[int, None] = {}
        self.recovered: set[int] = set()
        self.emptied: dict[str, None] = {}
        self.counts: dict[str, int] = {}
        self.news = 0
        """Changes by others of which auto-recovery must take notice."""
        self._outages = 0
        self._disturbed_s = 0.0
        self._lost_s: dict[str, float] = {}
        self._below_since_s: dict[int, float] = {}
        self._audit_begun_s: dict[str, float] = {}
        self._send, self._receive = trio.open_memory_channel[_Promise](10_000)
        self.unchecked = 0
        """Promises that are not confirmed yet."""
        apply = cluster.metadata.tree.apply
        tree = cluster.metadata.tree

        def observed(changes: Sequence[Change], session: object, now_ms: int) -> None:
            before = {c.path: tree.get(c.path) for c in changes if not isinstance(c, Check)}
            apply(changes, session, now_ms)  # type: ignore[arg-type]
            try:
                for change in changes:
                    if not isinstance(change, Check):
                        old = before[change.path]
                        self._happened(change, None if old is None else old.data, session)
            except Violation as error:
                self.fail(error)

        tree.apply = observed  # type: ignore[method-assign]

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def violated(self, text: str) -> None:
        error = Violation(text)
        self.fail(error)
        raise error

    @contextmanager
    def disturbing(self) -> Iterator[None]:
        """Metadata is out of order for somebody during the block."""
        self._outages += 1
        try:
            yield
        finally:
            self._outages -= 1
            self._disturbed_s = self.cluster.simulation.now_s

    def _disturbed_until_s(self) -> float:
        return self.cluster.simulation.now_s if self._outages else self._disturbed_s

    # Changes.

    def _happened(self, change: Change, old: bytes | None, session: object) -> None:
        path = change.path
        node = self.cluster.metadata.node_of(session)
        is_healer = node in self.healers.names
        self.news += not is_healer and path.startswith(_NEWS)
        if _LEDGER.match(path):
            ledger_id = int("".join(filter(str.isdigit, path)))
            self._ledger_changed(ledger_id, change, is_healer=is_healer)
        elif (match := _MARK.match(path)) is not None and isinstance(change, Delete):
            if is_healer and change.version == ANY_VERSION:
                self.violated(f"{path} was deleted although it may have changed")
            self._unmarked(int(match[1]), old or b"")
        elif path.startswith("/ledgers/cookies/") and isinstance(change, Delete) and is_healer:
            bookie = path.rpartition("/")[2]
            if self.cluster.metadata.tree.get(f"{DECOMMISSIONS}/{bookie}") is None:
                self.violated(f"the cookie of {bookie} was deleted; nobody wants it to leave")
        elif path == AUDIT_PATH:
            stored = self.cluster.metadata.tree.get(path)
            report = None if stored is None else decode_report(stored.data, AuditReport)
            if report is not None and report.ended_ms:
                self._audited(report)
        elif path.startswith(f"{DECOMMISSIONS}/") and not isinstance(change, Create | Delete):
            stored = self.cluster.metadata.tree.get(path)
            if stored is not None and b'"emptied"' in stored.data:
                self._bookie_emptied(path.rpartition("/")[2])

    def _ledger_changed(self, ledger_id: int, change: Change, *, is_healer: bool) -> None:
        before = self.ledgers.get(ledger_id)
        stored = self.cluster.metadata.tree.get(change.path)
        if stored is None:
            self.ledgers.pop(ledger_id, None)
            self.deleted[ledger_id] = None
            return
        after = self.ledgers[ledger_id] = decode(ledger_id, stored.data, stored.created_ms)
        for bookie in self.emptied:
            if any(bookie in fragment.bookies for fragment in after.fragments):
                self.violated(f"ledger {ledger_id} names {bookie}, which was emptied: {after}")
        if before is None or not is_healer:
            return
        if before.state is LedgerState.OPEN and after.state is not LedgerState.OPEN:
            self._fenced(ledger_id, before)
        if before.state is after.state and len(before.fragments) == len(after.fragments):
            self._moved(before, after)

    def _fenced(self, ledger_id: int, before: LedgerMetadata) -> None:
        client = before.custom.get(CLIENT_TAG)
        if client is not None and self.cluster.metadata.tree.get(client_path(client.decode())):
            self.violated(f"auto-recovery fenced the writer of ledger {ledger_id}, which is alive")
        self.recovered.add(ledger_id)
        self.count("ledgers recovered by auto-recovery")

    def _moved(self, before: LedgerMetadata, after: LedgerMetadata) -> None:
        ledger_id, last = after.ledger_id, len(after.fragments) - 1
        for number, (old, new) in enumerate(zip(before.fragments, after.fragments, strict=True)):
            if old.bookies == new.bookies:
                continue
            if number == last and not after.is_closed:
                self.violated(
                    f"auto-recovery changed the last fragment of ledger {ledger_id}, which is "
                    f"{after.state.name}: {old} to {new}"
                )
            if len(set(new.bookies)) < len(new.bookies):
                self.violated(f"ledger {ledger_id}: one bookie counts as two copies in {new}")
            for bookie in new.bookies:
                if bookie not in old.bookies:
                    self.count("copies moved")
                    self._promise(
                        ledger_id, bookie, f"a copy was moved to {bookie}", new.first_entry_id
                    )

    def _unmarked(self, ledger_id: int, data: bytes) -> None:
        metadata = self.ledgers.get(ledger_id)
        if metadata is None or not metadata.is_closed:
            return
        for replica in _REPLICA.findall(data):
            bookie = replica.decode()
            if next(expected_ranges(metadata, bookie), None) is None:
                continue
            now_s = self.cluster.simulation.now_s
            lost_s = self._lost_s.get(bookie, now_s)
            if max(lost_s, self._disturbed_until_s()) < now_s - _NOTICED_S:
                self.violated(
                    f"the mark of ledger {ledger_id} was deleted although it names {bookie}, "
                    f"whose disk was lost {now_s - lost_s:.0f} s before"
                )
            self._promise(ledger_id, bookie, f"its mark, which named {bookie}, was deleted")

    def _bookie_emptied(self, bookie: str) -> None:
        for ledger_id, metadata in self.ledgers.items():
            if any(bookie in fragment.bookies for fragment in metadata.fragments):
                self.violated(f"{bookie} counts as emptied; ledger {ledger_id} names it")
        if self.cluster.metadata.tree.get(f"/ledgers/cookies/{bookie}") is not None:
            self.violated(f"{bookie} counts as emptied, and its cookie is there")
        self.count("bookies emptied")
        if bookie not in self.emptied:
            self.emptied[bookie] = None
            self.cluster.retire(bookie.partition(":")[0])

    # What was promised of entries.

    def _promise(
        self, ledger_id: int, bookie: str, why: str, first_entry_id: int | None = None
    ) -> None:
        self.unchecked += 1
        self._send.send_nowait(_Promise(ledger_id, bookie, why, first_entry_id))

    async def check_promises(self, client: LedgerClient) -> None:
        """Asks bookies for what was promised of them, until cancelled."""
        async with trio.open_nursery() as nursery:
            async for promise in self._receive:
                nursery.start_soon(self._check, client, promise)

    async def _check(self, client: LedgerClient, promise: _Promise) -> None:
        bookie, name = promise.bookie, promise.bookie.partition(":")[0]
        while True:
            metadata = self._present(promise)
            if metadata is None or name in self.cluster.lost_bookies:
                break
            try:
                lacking = await _lacking(client, metadata, bookie)
            except LedgerError:
                await trio.sleep(_ASK_AGAIN_S)
                continue
            if self._present(promise) != metadata:
                continue
            if lacking:
                self.violated(
                    f"ledger {promise.ledger_id}: {promise.why}, and it lacks entries {lacking}: "
                    f"{metadata}"
                )
            self.count("promises checked")
            break
        self.unchecked -= 1

    def _present(self, promise: _Promise) -> LedgerMetadata | None:
        metadata = self.ledgers.get(promise.ledger_id)
        if metadata is None:
            return None
        fixed = fixed_part(metadata)
        if promise.first_entry_id is not None:
            kept = tuple(
                one
                if one.first_entry_id == promise.first_entry_id
                else replace(one, bookies=("none",) * len(one.bookies))
                for one in fixed.fragments
            )
            fixed = replace(fixed, fragments=kept)
        return fixed if next(expected_ranges(fixed, promise.bookie), None) is not None else None

    # What is reported.

    def watch(self, service: AutoRecovery, auditor: str) -> None:
        """Notes when an audit of the service begins; the next report of this auditor is of it."""
        begin = service.auditor._begin

        async def begun(*args: Any, **settings: Any) -> Any:
            self._audit_begun_s[auditor] = self.cluster.simulation.now_s
            return await begin(*args, **settings)

        service.auditor._begin = begun  # type: ignore[method-assign]

    async def sample(self) -> None:
        """Follows which ledgers have fewer live copies than their ack quorum, until cancelled."""
        while True:
            now_s = self.cluster.simulation.now_s
            for name in self.cluster.lost_bookies:
                self._lost_s.setdefault(f"{name}:{BOOKIE_PORT}", now_s)
            self._below_since_s = {i: self._below_since_s.get(i, now_s) for i in self._below()}
            await trio.sleep(_SAMPLE_S)

    def _below(self) -> list[int]:
        """Returns the ledgers that have fewer live copies than their ack quorum."""
        tree = self.cluster.metadata.tree
        live = {
            *tree.children("/ledgers/available"),
            *tree.children("/ledgers/available/readonly"),
        }
        return [i for i, m in self.ledgers.items() if live_copies(m, live) < m.ack_quorum]

    def _audited(self, report: AuditReport) -> None:
        begun_s = self._audit_begun_s.get(report.auditor)
        if begun_s is None or self._disturbed_until_s() > begun_s - _NOTICED_S:
            return
        since_s = self._below_since_s
        below = [i for i in self._below() if since_s.get(i, begun_s) < begun_s - _NOTICED_S]
        reported = report.ledgers_below_ack_quorum + report.ledgers_without_copy
        if reported < len(below):
            self.violated(
                f"an audit reports {reported} ledgers below their ack quorum; {len(below)} were "
                f"all the time: {below}: {report}"
            )
        self.count("audits checked")
        self.count("audits with ledgers in danger" if below else "audits without danger")


def live_copies(metadata: LedgerMetadata, live: set[str]) -> int:
    """Returns how many live bookies should have the entry of which there are fewest copies."""
    size, quorum, least = metadata.ensemble_size, metadata.write_quorum, metadata.write_quorum
    begins = [fragment.first_entry_id for fragment in metadata.fragments]
    end = metadata.last_entry_id + 1 if metadata.is_closed else begins[-1] + size
    for fragment, after in zip(metadata.fragments, [*begins[1:], end], strict=True):
        for entry_id in range(fragment.first_entry_id, min(after, end))[:size]:
            members = write_set(entry_id, size, quorum)
            least = min(least, sum(fragment.bookies[i] in live for i in members))
    return least


async def _lacking(client: LedgerClient, metadata: LedgerMetadata, bookie: str) -> list[Range]:
    return list(islice(await lacking_ranges(client, metadata, bookie), 5))
