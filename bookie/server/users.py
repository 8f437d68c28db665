"""The users of the cluster, as one bookie knows them.

They are read when they are needed, and kept for a moment, or until the bookie hears of a change;
without the metadata store, what was known last holds.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Final

import trio

from ledger.core.authentication.names import DIGEST_MD5
from ledger.errors import MetadataCorrupt, MetadataUnavailable
from ledger.metastore.users import User, UserStore
from ledger.runtime.logs import OF_PEER

_log = logging.getLogger(__name__)

USERS_CACHED_MAX: Final = 10_000
USER_FRESH_S: Final = 2.0
"""A user is read again after this time: a deleted one is refused then."""
LOOKUPS_MAX: Final = 8
"""Users that are read from the metadata at the same time: peers that are not authenticated yet must
not be a load on it."""


@dataclass(frozen=True, slots=True)
class ReadUser:
    """A user as it was read, None if there was none."""

    user: User | None
    generation: int
    """That of all users when the read began."""
    read_at: float


class Users:
    """The users of the cluster, as this bookie knows them."""

    def __init__(self, store: UserStore, now: Callable[[], float] = trio.current_time) -> None:
        self.generation = 0
        """Changes with each change of a user that the bookie has heard of."""
        self._store = store
        self._now = now
        self._known: OrderedDict[str, ReadUser] = OrderedDict()
        self._lookups = trio.CapacityLimiter(LOOKUPS_MAX)

    async def read(self, name: str) -> ReadUser:
        """Returns a user; while the metadata store is out of reach, what was known last. Raises
        MetadataUnavailable if nothing is known."""
        known = self._known.get(name)
        if (
            known is not None
            and known.generation == self.generation
            and self._now() - known.read_at <= USER_FRESH_S
        ):
            return known
        try:
            return await self.read_again(name)
        except MetadataUnavailable:
            known = self._known.get(name)
            if known is None:
                raise
            return known
        except MetadataCorrupt as error:
            _log.error("user refused user=%s cause=%s", name, error, extra=OF_PEER)
            return self._keep(name, None, self.generation)

    async def read_again(self, name: str) -> ReadUser:
        """Returns a user as it is in the metadata now. Raises MetadataUnavailable,
        MetadataCorrupt."""
        async with self._lookups:
            generation = self.generation
            return self._keep(name, await self._store.read(name), generation)

    def _keep(self, name: str, user: User | None, generation: int) -> ReadUser:
        known = self._known[name] = ReadUser(user, generation, self._now())
        self._known.move_to_end(name)
        while len(self._known) > USERS_CACHED_MAX:
            self._known.popitem(last=False)
        return known

    def watch(self) -> AsyncGenerator[object, None]:
        """See `UserStore.watch`."""
        return self._store.watch()


def secrets_of(user: User) -> dict[str, object]:
    """Returns what recognises the password of a user, by mechanism."""
    found: dict[str, object] = dict(user.verifiers)
    if user.digest_md5 is not None:
        found[DIGEST_MD5] = user.digest_md5
    return found
