"""Decides whether a key may make a ledger known to a bookie that has a secret of the cluster.

The key of a ledger of ours is derived from the secret and the ledger's namespace: it is recognized
without any request if other ledgers of that namespace were proven lately. Any other key, as of
Apache's clients and of ledgers that are older than the secret, is accepted only if the metadata of
the ledger has it. So no client without a key can use the id of a ledger that does not exist.
Without a secret the first key that arrives is the ledger's, as with Apache BookKeeper.

The connection that a foreign key arrived on waits for the metadata; others do not.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable

import trio

from bookie.core.ledger_state import LedgerState
from ledger.core.ledger_keys import NO_KEYS, LedgerKeys, ProvenNamespaces, master_key_of
from ledger.errors import BookieIoError, LedgerError, NoSuchLedger, Status
from ledger.metastore.ledgers import LedgerStore
from ledger.runtime.logs import OF_PEER
from ledger.wire.messages import (
    AddRequest,
    BatchReadRequest,
    ReadRequest,
    RequestBody,
    WriteLacRequest,
)
from ledger.wire.v2 import MASTER_KEY_BYTES

_log = logging.getLogger(__name__)

LOOKUPS_MAX = 16
"""Metadata of ledgers that is read at the same time, because foreign keys arrived."""
LOOKUP_S_MAX = 5.0
"""A request whose key is in doubt for longer is refused with "too many requests"."""
PROVEN_MAX = 10_000
"""Foreign keys that are remembered until their ledgers are known."""

_KEYED = AddRequest | WriteLacRequest | ReadRequest | BatchReadRequest

Contact = tuple[int, bytes]
"""A ledger, and the key that a request has for it."""


class KeyCheck:
    """The check of one bookie; without `keys` it is off, and accepts everything.

    Args:
        keys: the secrets of the cluster.
        ledgers: where the metadata of ledgers with foreign keys is read.
        state: returns what the bookie knows of a ledger; None: nothing.
    """

    def __init__(
        self,
        keys: LedgerKeys = NO_KEYS,
        ledgers: LedgerStore | None = None,
        state: Callable[[int], LedgerState | None] = lambda _ledger_id: None,
    ) -> None:
        self.is_on = keys.has_secret and ledgers is not None
        self.lookups = 0
        """How often metadata was read because of a key that was not recognized."""
        self.refused = 0
        """Keys that proved to be no ledger's, and those whose proof failed."""
        self._keys = keys
        self._ledgers = ledgers
        self._state = state
        self._proven: OrderedDict[Contact, None] = OrderedDict()
        self._namespaces = ProvenNamespaces()
        self._limiter = trio.CapacityLimiter(LOOKUPS_MAX)

    def may_begin(self, ledger_id: int, key: bytes) -> Status:
        """Returns OK if a ledger that is unknown here may get this key, else the status that
        refuses the request."""
        if not self.is_on or self._namespaces.recognizes(ledger_id, key):
            return Status.OK
        # A proof may have been forgotten meanwhile: that is doubt, not a refusal.
        is_proven = (ledger_id, bytes(key)) in self._proven
        return Status.OK if is_proven else Status.TOO_MANY_REQUESTS

    def unproven(self, body: RequestBody) -> Contact | None:
        """Returns the contact that `prove` must decide before this request can be carried out."""
        if not self.is_on:
            return None
        if not isinstance(body, _KEYED):
            return None
        if isinstance(body, ReadRequest | BatchReadRequest) and not body.is_fencing:
            return None
        key, ledger_id = body.master_key, body.ledger_id
        if key is None or len(key) != MASTER_KEY_BYTES or ledger_id < 0:
            return None
        contact = ledger_id, bytes(key)
        try:
            if contact in self._proven or self._state(ledger_id) is not None:
                return None
        except BookieIoError:
            return None  # the request is refused for it
        return None if self._namespaces.recognizes(ledger_id, key) else contact

    async def prove(self, contact: Contact) -> Status:
        """Returns whether the metadata of the ledger has this key: OK, or the status that refuses
        the request. Never raises.

        Only a proof is remembered, because it holds forever; a refusal holds for the request that
        asked, because the ledger may be created next.
        """
        ledger_id, key = contact
        status = Status.TOO_MANY_REQUESTS
        with trio.move_on_after(LOOKUP_S_MAX):
            async with self._limiter:
                status = await self._look_up(ledger_id, key)
        if status is Status.OK:
            self._proven[contact] = None
            if len(self._proven) > PROVEN_MAX:
                self._proven.popitem(last=False)
        else:
            self.refused += 1
        return status

    async def _look_up(self, ledger_id: int, key: bytes) -> Status:
        assert self._ledgers is not None, "the check is off"
        self.lookups += 1
        try:
            metadata, _ = await self._ledgers.read(ledger_id)
        except NoSuchLedger:
            return Status.UNAUTHORIZED
        except LedgerError as error:
            _log.warning(
                "key of a ledger in doubt ledger=%d cause=%s", ledger_id, error, extra=OF_PEER
            )
            return Status.TOO_MANY_REQUESTS
        if metadata.is_key_missing:
            _log.warning(
                "ledger has a key of another secret ledger=%d: give all bookies and clients the "
                "same cluster_secret_file",
                ledger_id,
                extra=OF_PEER,
            )
        if key != master_key_of(metadata):
            return Status.UNAUTHORIZED
        namespace_key = self._keys.key_of(metadata)
        if namespace_key is not None:
            self._namespaces.add(namespace_key)
        return Status.OK
