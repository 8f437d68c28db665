"""Creates ledgers: chooses their bookies as their placement requires, and stores their metadata.

If it is asked to weight bookies by their free space, it asks them for it in the background, a few
at a time, at most once a day.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence

import trio

from ledger.connection.pool import BookiePool, BookieSpace, ask_space
from ledger.core.entry import DigestType
from ledger.core.metadata import OWN_KEY_BYTES, OWN_KEY_TAG, Fragment, LedgerMetadata
from ledger.core.placement.policies import PLACEMENT_TAG, PlacementPolicy
from ledger.core.placement.topology import Location
from ledger.errors import LedgerExists, NotEnoughBookies
from ledger.metastore.bookies import BookieRegistry
from ledger.metastore.ledgers import LedgerStore
from ledger.options import ClientOptions

_TRIES_MAX = 100
SPACE_ASKED_S = 24 * 3600.0
"""How often bookies are asked for their free space."""
_ASKED_AT_ONCE = 16


class LedgerCreator:
    """Creates the ledgers of one client.

    Args:
        pool: asks bookies for their free space.
        ledgers: where metadata is stored.
        bookies: the bookies to choose from.
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
        *,
        options: ClientOptions,
        rng: random.Random,
        now_ms: Callable[[], int],
        start: Callable[[Callable[[], Awaitable[object]]], None],
    ) -> None:
        self._pool = pool
        self._ledgers = ledgers
        self._bookies = bookies
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
    ) -> LedgerMetadata:
        """Stores a new ledger and returns its metadata. `sizes` are ensemble size, write quorum and
        ack quorum; the other arguments and the errors are those of `LedgerClient.create_ledger`."""
        tags = dict(custom)
        if password is None:
            tags[OWN_KEY_TAG] = b"1"
        if not placement.is_default:
            tags[PLACEMENT_TAG] = placement.encode()
        bookies = await self._choose(sizes, prefer, placement)
        ensemble_size, write_quorum, ack_quorum = sizes
        for _ in range(_TRIES_MAX):
            metadata = LedgerMetadata(
                ledger_id=await self._ledgers.next_ledger_id(),
                ensemble_size=ensemble_size,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                fragments=(Fragment(0, bookies),),
                digest_type=digest_type,
                password=self._rng.randbytes(OWN_KEY_BYTES) if password is None else password,
                created_ms=self._now_ms(),
                custom=tags,
                c_token=self._rng.getrandbits(62) + 1,
            )
            try:
                await self._ledgers.create(metadata)
            except LedgerExists:
                continue  # another client chose this id by hand
            return metadata
        raise LedgerExists(f"{_TRIES_MAX} ledger ids in a row were taken already")

    async def _choose(
        self, sizes: tuple[int, int, int], prefer: Sequence[str], placement: PlacementPolicy
    ) -> tuple[str, ...]:
        candidates, near = await self._bookies.candidates(), self._location
        self._ask_space_when_due()
        try:
            return placement.choose(*sizes, candidates, (), self._rng, prefer=prefer, near=near)
        except NotEnoughBookies:
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
