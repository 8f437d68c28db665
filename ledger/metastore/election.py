"""The election of the auditor, in one order with Apache's candidates.

Every candidate makes an ephemeral numbered node `auditorelection/V_<number>` that holds its bookie
id as protobuf text. The lowest vote is the auditor, and each other candidate watches only the vote
before its own. Votes of others are never read to decide who is elected, so that damaged ones cannot
stop an election.

A vote of ours has one more line, a comment with a random number, which protobuf's text format
skips: by it a vote is found whose create had an unknown outcome. Such a vote must never be left
behind, because nobody would act for it once it is the lowest.
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager

import trio

from ledger.errors import (
    LedgerError,
    MetadataConflict,
    MetadataCorrupt,
    NodeExists,
    NoSuchNode,
    RetryableError,
)
from ledger.metastore.base import ANY_VERSION, Check, MetadataStore, Put
from ledger.metastore.paths import check_bookie_id, name_of
from ledger.proto.data_formats_pb2 import AuditorVoteFormat
from ledger.runtime.background import open_background

log = logging.getLogger(__name__)

RETRY_INTERVAL_S = 0.5
LEAVE_TIMEOUT_S = 2.0
_READS_MAX = 20
_VOTE = re.compile(r"V_(-?[0-9]{1,19})")
"""ZooKeeper's numbers become negative after 2^31-1. Other names are no votes."""


def votes_in_order(names: Iterable[str]) -> list[str]:
    """Returns the names that are votes, the auditor's first."""
    numbers = {name: int(found[1]) for name in names if (found := _VOTE.fullmatch(name))}
    return sorted(numbers, key=lambda name: (numbers[name], name))


def encode_vote(bookie_id: str, token: str = "") -> bytes:
    """Returns the data of a vote; without `token`, Apache's bytes."""
    from google.protobuf import text_format  # slow to import, and clients need none

    text: str = text_format.MessageToString(AuditorVoteFormat(bookieId=bookie_id), as_utf8=False)
    return f"{text}# {token}\n".encode() if token else text.encode()


def decode_vote(path: str, data: bytes) -> str:
    """Returns the bookie id in the data of the vote at `path`. Raises MetadataCorrupt."""
    from google.protobuf import text_format

    try:
        vote = text_format.Parse(data.decode(), AuditorVoteFormat())
        if not vote.bookieId:
            raise ValueError("it names no bookieId")
    except (text_format.ParseError, ValueError) as error:
        raise MetadataCorrupt(
            f"the vote {path} cannot be read: {str(error)[:200]}. Its process may be the auditor"
            " all the same. Cure: stop the process that made it; the next candidate is elected"
        ) from error
    return str(vote.bookieId)


class Term:
    """The time in which this process is the auditor."""

    def __init__(self, vote: str) -> None:
        self.vote = vote
        """The path of the vote by which it was elected."""
        self._over = trio.Event()

    @property
    def is_over(self) -> bool:
        """Whether the vote was seen to be gone: another process may be the auditor."""
        return self._over.is_set()

    async def wait_over(self) -> None:
        """Returns when `is_over`."""
        await self._over.wait()

    def end(self) -> None:
        self._over.set()


class AuditorElection:
    """The election below `root`, in which any number of processes take part.

    A process takes part through one object. `rng` distinguishes its votes; who only asks who is
    the auditor needs none.
    """

    def __init__(self, store: MetadataStore, root: str, rng: random.Random | None = None) -> None:
        self._store = store
        self._rng = rng
        self._candidates: dict[str, _Candidate] = {}
        self.path = f"{root}/underreplication/auditorelection"

    @asynccontextmanager
    async def elected(self, bookie_id: str) -> AsyncIterator[Term]:
        """Waits until this process is the auditor; the block is its term, and its end removes the
        vote. Outages of the metadata store are waited out.

        A process learns by a watch that its vote is gone, so for a moment two may believe that they
        are the auditor: while the store cannot be reached by the one whose session has ended there,
        while it was paused, or until the watch has fired. In that time it cannot change the
        metadata through its old session; what an auditor does must be safe when done by two. The
        vote of a process that died is gone after its session timeout, then the next is elected.

        Raises InvalidArgument for a wrong `bookie_id`, Unauthorized.
        """
        candidate = self._candidates.get(bookie_id)
        if candidate is None:
            assert self._rng is not None, "votes of this process need a source of chance"
            token = f"{self._rng.getrandbits(64):016x}"
            candidate = _Candidate(self._store, self.path, check_bookie_id(bookie_id), token)
            self._candidates[bookie_id] = candidate
        assert not candidate.is_standing, f"{bookie_id} is a candidate in this election already"
        candidate.is_standing = True
        try:
            term = Term(await candidate.win())
            log.info("auditor_elected bookie=%s vote=%s", bookie_id, term.vote)
            async with open_background() as nursery:
                nursery.start_soon(candidate.watch, term)
                yield term
        finally:
            await candidate.leave()

    async def auditor(self) -> str | None:
        """Returns the bookie id of the process with the lowest vote, as Apache's tools show it;
        None if there is no vote. Raises MetadataCorrupt if its vote is damaged."""
        for _ in range(_READS_MAX):
            votes = votes_in_order(await self._store.children(self.path))
            if not votes:
                return None
            path = f"{self.path}/{votes[0]}"
            try:
                return decode_vote(path, (await self._store.get(path)).data)
            except NoSuchNode:
                continue
        raise MetadataConflict(f"{self.path}: the lowest vote was gone {_READS_MAX} times")

    async def place_of(self, bookie_id: str) -> tuple[int | None, int]:
        """Returns the place of this process among the candidates, from 0 on, and how many there
        are. The place is None, and one candidate more is counted, while it has no vote."""
        votes = votes_in_order(await self._store.children(self.path))
        candidate = self._candidates.get(bookie_id)
        vote = None if candidate is None or candidate.vote is None else name_of(candidate.vote)
        return (votes.index(vote), len(votes)) if vote in votes else (None, len(votes) + 1)


class _Candidate:
    """One process in the election. It stands from `win` to `leave`, any number of times."""

    def __init__(self, store: MetadataStore, path: str, bookie_id: str, token: str) -> None:
        self._store = store
        self._path = path
        self._bookie_id = bookie_id
        self._data = encode_vote(bookie_id, token)
        self._vote: str | None = None
        self.is_standing = False
        self._is_in_doubt = False
        """Whether there may be votes of this candidate besides `_vote`, now or later. It stays true
        after a create with an unknown outcome, which may be carried out after any search."""

    @property
    def vote(self) -> str | None:
        """The path of its vote, if it has one."""
        return self._vote

    async def win(self) -> str:
        """Returns the vote by which this candidate was elected."""
        reported = ""
        while True:
            try:
                if self._vote is None:
                    self._vote = await self._cast()
                if await self._is_elected(self._vote):
                    return self._vote
            except (RetryableError, NodeExists) as error:
                if str(error) != reported:
                    reported = str(error)
                    log.warning("auditor_election_waits bookie=%s cause=%s", self._bookie_id, error)
                await trio.sleep(RETRY_INTERVAL_S)

    async def watch(self, term: Term) -> None:
        """Ends the term when its vote is gone. A store that does not answer ends no term."""
        while True:
            try:
                await self._wait_gone(term.vote)
                break
            except RetryableError:
                await trio.sleep(RETRY_INTERVAL_S)
        log.warning("auditor_term_over bookie=%s vote=%s", self._bookie_id, term.vote)
        term.end()

    async def leave(self) -> None:
        """Removes the vote, without waiting for a store that does not answer: there the vote ends
        with the session."""
        was_in_doubt, vote = self._is_in_doubt, self._vote
        self._is_in_doubt, self._vote = True, None
        with trio.move_on_after(LEAVE_TIMEOUT_S) as scope:
            scope.shield = True
            try:
                if was_in_doubt:
                    for path in await self._own_votes():
                        await self._delete(path)
                elif vote is not None:
                    await self._delete(vote)
                self._is_in_doubt = was_in_doubt
            except LedgerError as error:
                log.info("auditor_vote_left bookie=%s cause=%s", self._bookie_id, error)
        self.is_standing = False

    async def _is_elected(self, vote: str) -> bool:
        """Whether this vote is the lowest; if not, waits until it may be."""
        votes = votes_in_order(await self._store.children(self._path))
        name = name_of(vote)
        if name not in votes:
            self._vote = None  # it ended with its session
            return False
        place = votes.index(name)
        if place > 0:
            await self._wait_any_gone(vote, f"{self._path}/{votes[place - 1]}")
            return False
        try:
            # The check keeps a slow process from naming itself after another one was elected.
            named = Put(self._path, encode_vote(self._bookie_id))
            await self._store.transaction([Check(vote, ANY_VERSION), named])
        except NoSuchNode:
            return False
        return True

    async def _cast(self) -> str:
        was_in_doubt = self._is_in_doubt
        self._is_in_doubt = True
        if was_in_doubt and (found := await self._own_votes()):
            return await self._keep_first(found)
        vote = await self._store.create_numbered(f"{self._path}/V_", self._data)
        if was_in_doubt:  # an earlier attempt may have been carried out after we looked
            return await self._keep_first(await self._own_votes())
        self._is_in_doubt = False
        return vote

    async def _keep_first(self, votes: list[str]) -> str:
        for path in votes[1:]:
            await self._delete(path)
        if not votes:
            raise MetadataConflict(f"{self._path}: the vote of {self._bookie_id} is gone already")
        return votes[0]

    async def _own_votes(self) -> list[str]:
        """Returns the paths of this candidate's votes in order: a read of each vote."""
        own = []
        for name in votes_in_order(await self._store.children(self._path)):
            path = f"{self._path}/{name}"
            try:
                node = await self._store.get(path)
            except NoSuchNode:
                continue
            if node.data == self._data:
                own.append(path)
        return own

    async def _delete(self, path: str) -> None:
        try:
            await self._store.delete(path)
        except NoSuchNode:
            pass

    async def _wait_any_gone(self, *paths: str) -> None:
        """Returns when one of the nodes is gone, or a while after a watch has failed."""
        is_any_gone = trio.Event()

        async def wait(path: str) -> None:
            try:
                await self._wait_gone(path)
            except RetryableError:
                await trio.sleep(RETRY_INTERVAL_S)
            is_any_gone.set()

        async with open_background() as nursery:
            for path in paths:
                nursery.start_soon(wait, path)
            await is_any_gone.wait()

    async def _wait_gone(self, path: str) -> None:
        async with aclosing(self._store.watch(path)) as nodes:
            async for node in nodes:
                if node is None:
                    return
