"""Creates ledgers: chooses their bookies as their placement requires, and stores their metadata.

A ledger with a key of its own is claimed at its bookies before a writer gets it: an explicit LAC of
-1 makes its key known there. Where the id is taken under another key, the ledger is deleted again,
and another id is tried (`ledger.core.ledger_claims`).

If it is asked to weight bookies by their free space, it asks them for it in the background, a few
at a time, at most once a day.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

import trio

from ledger.connection.authorization import unauthorized
from ledger.connection.claims import claim_request
from ledger.connection.pool import BookiePool, BookieSpace, ask_space
from ledger.core.entry import DigestType
from ledger.core.ledger_claims import CLAIM_TRIES_MAX, LedgerClaim, next_beyond
from ledger.core.metadata import OWN_KEY_BYTES, OWN_KEY_TAG, Fragment, LedgerMetadata
from ledger.core.permissions import Role
from ledger.core.placement.policies import PLACEMENT_TAG, PlacementPolicy
from ledger.core.placement.topology import Location
from ledger.errors import (
    LedgerError,
    LedgerExists,
    MetadataUnavailable,
    NoSuchNode,
    NotEnoughBookies,
    RetryableError,
    Status,
    Unauthorized,
)
from ledger.metastore.bookies import BookieRegistry
from ledger.metastore.clients import ClientRegistration
from ledger.metastore.ledgers import CLIENT_TAG, LedgerStore, client_path
from ledger.metastore.locations import LOCATIONS_TRUSTED_S
from ledger.options import ClientOptions
from ledger.wire.messages import ReadRequest

_log = logging.getLogger(__name__)

_TRIES_MAX = 100
CLAIM_S_MAX = 2.0
"""How long bookies may take to answer the claim of a ledger; one that does not is no reason to wait
longer, because a ledger may be written without it."""
REFUSALS_MAX = 8
"""Ids that are tried although the bookie that refuses them does not know them: it may know
that such a ledger was deleted, or it does not want this client."""
_CLAIM_OTHERS_S = 0.1
"""After enough of them have answered, the others have this long, or as long as those took."""
_DISCARD_S = 2.0
"""How long a creation that fails may take to delete its ledger; the janitor finds it otherwise."""
SPACE_ASKED_S = 24 * 3600.0
"""How often bookies are asked for their free space."""
_ASKED_AT_ONCE = 16


class LedgerCreator:
    """Creates the ledgers of one client.

    Args:
        pool: asks bookies for their free space.
        ledgers: where metadata is stored.
        bookies: the bookies to choose from.
        registration: that of the client, which ledgers name.
        options: `location`, `weight_by_free_space`, and the read timeout.
        rng: chooses bookies; draws keys and tokens.
        now_ms: returns the wall clock in milliseconds, for times of creation.
        start: runs a function in the background of the client.
    """

    def __init__(
        self,
        pool: BookiePool,
        ledgers: LedgerStore,
        bookies: BookieRegistry,
        registration: ClientRegistration,
        *,
        options: ClientOptions,
        rng: random.Random,
        now_ms: Callable[[], int],
        start: Callable[[Callable[[], Awaitable[object]]], None],
    ) -> None:
        self._pool = pool
        self._ledgers = ledgers
        self._bookies = bookies
        self.registration = registration
        self._options = options
        self._rng = rng
        self._now_ms = now_ms
        self._start = start
        self._location = Location.parse(options.location) if options.location else None
        self._ask_at = -math.inf

    async def create(
        self,
        *,
        sizes: tuple[int, int, int],
        digest_type: DigestType,
        password: bytes | None,
        custom: Mapping[str, bytes],
        prefer: Sequence[str],
        placement: PlacementPolicy,
        saves_requests: bool = False,
    ) -> LedgerMetadata:
        """Stores a new ledger and returns its metadata. `sizes` are ensemble size, write quorum and
        ack quorum; the other arguments and the errors are those of `LedgerClient.create_ledger`."""
        tags = dict(custom)
        if not placement.is_default:
            tags[PLACEMENT_TAG] = placement.encode()
        if saves_requests:
            client_id = await self.registration.last_id()
            bookies = await self._choose(sizes, prefer, placement, LOCATIONS_TRUSTED_S)
            tags[CLIENT_TAG] = client_id.encode()
            try:
                return await self._store_new(
                    sizes, bookies, digest_type, password, tags, while_exists=client_path(client_id)
                )
            except (NoSuchNode, MetadataUnavailable):
                pass  # the session was lost, or an answer; the janitor finds what was made
        tags[CLIENT_TAG] = (await self.registration.register()).encode()
        bookies = await self._choose(sizes, prefer, placement, 0.0)
        return await self._store_new(sizes, bookies, digest_type, password, tags)

    async def _store_new(
        self,
        sizes: tuple[int, int, int],
        bookies: tuple[str, ...],
        digest_type: DigestType,
        password: bytes | None,
        tags: dict[str, bytes],
        *,
        while_exists: str | None = None,
    ) -> LedgerMetadata:
        """Stores a new ledger under an id that is free at its bookies. `while_exists` is that of
        `LedgerStore.create`."""
        ensemble_size, write_quorum, ack_quorum = sizes
        taken, beyond = 0, -1
        for _ in range(_TRIES_MAX):
            ledger_id = await self._ledgers.next_ledger_id(beyond=beyond)
            key = password
            if key is None:
                tags[OWN_KEY_TAG], key = self._new_key(ledger_id, tags)
            metadata = LedgerMetadata(
                ledger_id=ledger_id,
                ensemble_size=ensemble_size,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                fragments=(Fragment(0, bookies),),
                digest_type=digest_type,
                password=key,
                created_ms=self._now_ms(),
                custom=tags,
                c_token=self._rng.getrandbits(62) + 1,
            )
            try:
                await self._ledgers.create(metadata, while_exists=while_exists)
            except LedgerExists:
                continue  # another client chose this id by hand
            try:
                refused_by = await self._claim(metadata) if password is None else None
            except (LedgerError, trio.Cancelled, BaseExceptionGroup):
                with trio.move_on_after(_DISCARD_S, shield=True):
                    await self._discard(ledger_id)
                raise
            if refused_by is None:
                return metadata
            taken += 1
            beyond = next_beyond(ledger_id, taken)
            await self._discard(ledger_id)
            await self._check_taken(metadata, refused_by, taken)
        raise LedgerExists(f"{_TRIES_MAX} ledger ids in a row were taken already")

    def _new_key(self, ledger_id: int, custom: Mapping[str, bytes]) -> tuple[bytes, bytes]:
        """Returns the value of `OWN_KEY_TAG` and the password of a ledger with a key of its own.
        Raises Unauthorized if the key of its namespace is not here."""
        if self._ledgers.keys:
            return self._ledgers.keys.new_key(ledger_id, custom)
        return b"1", self._rng.randbytes(OWN_KEY_BYTES)

    async def _check_taken(self, metadata: LedgerMetadata, bookie: str, tries: int) -> None:
        """Returns if another id may be tried after a bookie refused the claim of this one.

        Raises Unauthorized if the bookie refuses this client, and not this key for this id;
        LedgerExists after too many tries.
        """
        ledger_id = metadata.ledger_id
        status: Status | None = None
        with suppress(RetryableError):
            request = ReadRequest(ledger_id, 0)
            status = (await self._pool.call(bookie, request, timeout_s=CLAIM_S_MAX)).status
        is_known = status is not Status.NO_SUCH_LEDGER
        if status is Status.UNAUTHORIZED or (not is_known and tries >= REFUSALS_MAX):
            said = (
                f"bookie {bookie} refuses the keys of new ledgers ({tries} in a row), and does not "
                "have their ids under other keys: this client lacks the cluster_secret_file of the "
                "bookies, or the right to write"
            )
            raise unauthorized(self._pool, metadata, Role.WRITE, said)
        _log.warning(
            "id of a new ledger is taken under a foreign key ledger=%d bookie=%s in_a_row=%d: "
            "another one is tried. Cure: see docs/operations.md, keys of ledgers",
            ledger_id, bookie, tries,
        )  # fmt: skip
        if tries >= CLAIM_TRIES_MAX:
            raise LedgerExists(
                f"{tries} ledger ids in a row were taken at bookies under foreign keys. Cure: find "
                "the client that does it, and give the cluster a secret (cluster_secret_file)"
            )

    async def _claim(self, metadata: LedgerMetadata) -> str | None:
        """Makes the ledger's key known to its bookies; returns one that refuses it, if any.

        Raises Unauthorized if too many of them do not let this client in: the ledger would have a
        key that they do not know, and nobody else could continue behind it.
        """
        refused_by: str | None = None
        refusals: dict[str, Unauthorized] = {}
        claim = LedgerClaim(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        request = claim_request(metadata)
        begun_s = trio.current_time()
        with trio.move_on_after(CLAIM_S_MAX) as scope:

            async def ask(bookie: str) -> None:
                nonlocal refused_by
                try:
                    answer = await self._pool.call(bookie, request, timeout_s=CLAIM_S_MAX)
                except LedgerError as error:
                    claim.answered(None)
                    if isinstance(error, Unauthorized):
                        refusals[bookie] = error
                else:
                    claim.answered(answer.status)
                    if claim.is_taken:
                        refused_by = bookie
                if claim.is_decided:
                    scope.cancel()
                elif claim.is_enough:
                    now_s = trio.current_time()
                    others_s = max(_CLAIM_OTHERS_S, now_s - begun_s)
                    scope.deadline = min(scope.deadline, now_s + others_s)

            async with trio.open_nursery() as nursery:
                for bookie in metadata.last_fragment.bookies:
                    nursery.start_soon(ask, bookie)
        if refused_by is None and claim.is_refused(len(refusals)):
            raise next(iter(refusals.values()))
        return refused_by

    async def _discard(self, ledger_id: int) -> None:
        """Deletes a ledger that was given to no writer. Never raises: if it stays, the janitor
        finds it."""
        try:
            await self._ledgers.delete(ledger_id)
        except LedgerError as error:
            _log.info("not deleted now ledger=%d cause=%s", ledger_id, error)

    async def _choose(
        self,
        sizes: tuple[int, int, int],
        prefer: Sequence[str],
        placement: PlacementPolicy,
        age_s: float,
    ) -> tuple[str, ...]:
        candidates, near = await self._bookies.candidates(age_s_max=age_s), self._location
        self._ask_space_when_due()
        try:
            return placement.choose(*sizes, candidates, (), self._rng, prefer=prefer, near=near)
        except NotEnoughBookies:
            if age_s:
                return await self._choose(sizes, prefer, placement, 0.0)
            known = await self._bookies.all()
            return placement.choose_degraded(
                *sizes, candidates, known, (), self._rng, prefer=prefer, near=near
            )

    def _ask_space_when_due(self) -> None:
        now_s = trio.current_time()
        if self._options.weight_by_free_space and now_s >= self._ask_at:
            self._ask_at = now_s + SPACE_ASKED_S
            self._start(self._ask_space)

    async def _ask_space(self) -> None:
        """Asks every bookie that accepts entries; one that does not answer counts as the median."""
        found: dict[str, int] = {}
        bookies = list(self._bookies.known_topology.places)
        timeout_s = self._options.read_timeout_s
        for first in range(0, len(bookies), _ASKED_AT_ONCE):
            some = bookies[first : first + _ASKED_AT_ONCE]
            space = await ask_space(self._pool, some, timeout_s=timeout_s)
            for bookie, one in space.items():
                if isinstance(one, BookieSpace):
                    found[bookie] = one.free_bytes
        self._bookies.free_bytes = found
