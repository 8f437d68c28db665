"""Whether the peer of a connection may do what it requests: permissions, enforced at the bookie.

The table of all grants is followed by one watch per bookie. The owner of a ledger is read once from
its metadata, while the connection that asks for it waits, and again if its key is not the one that
is stored here; a decision is kept per connection and ledger until the table changes, so that
nothing is looked up per entry. What cannot be found out is refused, with a status by which the
client tries again. A refused request must leave no trace in the storage, and a peer without any
right must not cause a read of the metadata.
"""

from __future__ import annotations

import enum
import logging
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from typing import Final

import trio

from bookie.core.ledger_owner import Fit, LedgerOwner
from bookie.core.ledger_state import LedgerState
from bookie.core.operations import operation_of
from bookie.server.internal_errors import REQUEST_ERRORS
from bookie.storage.bookie_storage import BookieStorage
from ledger.core.authentication.names import ANONYMOUS
from ledger.core.permissions import (
    NO_RIGHTS,
    PermissionTable,
    Rights,
    Role,
)
from ledger.errors import BookieIoError, InvalidArgument, LedgerError, MetadataCorrupt, NoSuchLedger
from ledger.metastore.ledgers import LedgerStore
from ledger.metastore.permissions import Permissions
from ledger.runtime.logs import OF_PEER
from ledger.wire import v2, v3
from ledger.wire.connection import ReceiveBuffer, is_version_3
from ledger.wire.messages import (
    AuthRequest,
    GetBookieInfoRequest,
    RequestBody,
    StartTlsRequest,
)

_log = logging.getLogger(__name__)

OWNERS_MAX: Final = 100_000
"""Ledgers whose owners are remembered in a bookie: about 25 MB."""
DECISIONS_MAX: Final = 20_000
"""Ledgers per connection and role whose decision is remembered."""
LOOKUPS_MAX: Final = 16
"""Reads of ledger metadata for permissions, of all connections, at the same time."""
AHEAD_MAX: Final = 256
"""Requests that are looked at for further ledgers while one has to be found out."""
LOOKUP_S_MAX: Final = 5.0
"""How long a request waits for the metadata of its ledger; then it is refused for now."""
UNKNOWN_S: Final = 1.0
"""How long a connection remembers that the metadata of a ledger is missing or cannot be read."""
_UNKNOWN_MAX: Final = 1000
_RETRY_S: Final = 1.0


class Access(enum.Enum):
    """The answer to the question whether a request may be carried out."""

    ALLOWED = enum.auto()
    REFUSED = enum.auto()
    UNRESOLVED = enum.auto()
    """The owner of the ledger must be read first: `ConnectionAccess.resolve`."""
    UNAVAILABLE = enum.auto()
    """The metadata did not say now: the client may try again."""


class AccessControl:
    """The permissions that one bookie enforces. `run` follows their changes.

    Args:
        permissions: the table of all grants.
        ledgers: where the metadata of ledgers is read.
        derived_keys_required: whether a ledger of a namespace must have a key that is derived from
            the secret of the cluster.
    """

    def __init__(
        self, permissions: Permissions, ledgers: LedgerStore, *, derived_keys_required: bool = False
    ) -> None:
        self.generation = 0
        """Changes with the table."""
        self.lookups = 0
        """Reads of ledger metadata that were begun."""
        self._permissions = permissions
        self._ledgers = ledgers
        self._derived_keys_required = derived_keys_required
        self._table: PermissionTable | None = None
        self._owners: OrderedDict[int, LedgerOwner] = OrderedDict()
        self._slots = trio.Semaphore(LOOKUPS_MAX)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follows the table until cancelled; `task_status` is set when it was read for the first
        time. Until the metadata can be read again, the last table holds."""
        while True:
            try:
                async with aclosing(self._permissions.watch()) as tables:
                    async for table in tables:
                        is_first = self._table is None
                        self._follow(table)
                        if is_first:
                            task_status.started()
            except LedgerError as error:
                _log.warning("permissions are not followed cause=%s", error)
            await trio.sleep(_RETRY_S)

    def _follow(self, table: PermissionTable | MetadataCorrupt) -> None:
        if isinstance(table, MetadataCorrupt):
            held = "the last one holds" if self._table is not None else "nobody has any right"
            _log.error("permissions are damaged, so %s cause=%s", held, table)
            if self._table is not None:
                return
            table = PermissionTable()
        if table != self._table:
            self._table = table
            self.generation += 1
            _log.info("permissions followed grants=%d", len(table.grants))

    def rights_of(self, user: str) -> Rights:
        """Returns what a user may do now; nothing before the table was read."""
        return NO_RIGHTS if self._table is None else self._table.rights_of(user)

    @property
    def is_known(self) -> bool:
        """Whether the table was read: before that nobody has any right."""
        return self._table is not None

    def has_role(self, user: str, role: Role) -> bool:
        """Returns whether a user has a role on the cluster."""
        return self.rights_of(user).allows(role)

    def owner_of(self, ledger_id: int) -> LedgerOwner | None:
        """Returns the owner of a ledger, as it was read; None if it was not, or long ago."""
        owner = self._owners.get(ledger_id)
        if owner is not None:
            self._owners.move_to_end(ledger_id)
        return owner

    async def resolve(self, ledger_id: int) -> Access:
        """Reads the owner of a ledger. Returns UNRESOLVED once it was read, so that the caller
        decides; REFUSED if there is no such ledger, or its key must be derived and is not;
        UNAVAILABLE if the metadata does not say in time."""
        known = self._owners.get(ledger_id)
        with trio.move_on_after(LOOKUP_S_MAX):
            async with self._slots:
                if self._owners.get(ledger_id) is not known:
                    return Access.UNRESOLVED  # another connection has read it meanwhile
                self.lookups += 1
                try:
                    metadata, _ = await self._ledgers.read(ledger_id)
                except (NoSuchLedger, InvalidArgument):
                    return Access.REFUSED
                except MetadataCorrupt as error:
                    _log.warning(
                        "owner unknown ledger=%d cause=%s", ledger_id, error, extra=OF_PEER
                    )
                    return Access.REFUSED
                except LedgerError as error:
                    _log.info("owner unknown ledger=%d cause=%s", ledger_id, error, extra=OF_PEER)
                    return Access.UNAVAILABLE
                owner = LedgerOwner.of(metadata)
                is_derived = metadata.has_derived_key or owner.namespace is None
                if self._derived_keys_required and not is_derived:
                    _log.warning(
                        "refused ledger=%d namespace=%r cause=its key is not derived from the "
                        "secret of the cluster, and derived_keys_required is set",
                        ledger_id, owner.namespace, extra=OF_PEER,
                    )  # fmt: skip
                    return Access.REFUSED
                self._owners[ledger_id] = owner
                if len(self._owners) > OWNERS_MAX:
                    self._owners.popitem(last=False)
                return Access.UNRESOLVED
        return Access.UNAVAILABLE


class AdmittedLedgers:
    """The ledgers to which the hot loop may take adds of one connection: those that were looked at
    before, and no more than DECISIONS_MAX."""

    def __init__(self, storage: BookieStorage) -> None:
        self._storage = storage
        self._shards = storage.shards
        self.states: Sequence[dict[int, LedgerState]] = [{} for _ in storage.directories]
        """Those of each directory."""
        self._count = 0

    def admit(self, ledger_id: int) -> None:
        """Lets the hot loop take adds to a ledger, which the storage knows."""
        if self._count >= DECISIONS_MAX:
            self.forget()
        state = self._storage.state(ledger_id)
        assert state is not None, f"ledger {ledger_id} was known a moment ago"
        shard = self._shards[self._storage.shard_of(ledger_id)]
        self.states[shard.directory_no][ledger_id] = state
        self._count += 1

    def state(self, ledger_id: int) -> LedgerState | None:
        """Returns what is here of a ledger. None, too, if that cannot be read: then the request is
        refused for that reason."""
        try:
            return self._storage.state(ledger_id)
        except BookieIoError:
            return None

    def forget(self) -> None:
        """Has all ledgers looked at again."""
        for states in self.states:
            states.clear()
        self._count = 0


def bodies_ahead(buffer: ReceiveBuffer, *, is_v2: bool) -> Iterator[RequestBody]:
    """Yields the bodies of up to AHEAD_MAX requests that were received and not looked at yet, up to
    the first one that is incomplete or wrong."""
    at = buffer.start
    with suppress(LedgerError, *REQUEST_ERRORS):
        for _ in range(AHEAD_MAX):
            end = at + 4 + int.from_bytes(buffer.view[at : at + 4], "big")
            if end > buffer.end:
                return
            frame = buffer.view[at + 4 : end]
            codec = v3 if is_version_3(frame[0]) and not is_v2 else v2
            yield codec.decode_request(frame).body
            at = end


class ConnectionAccess:
    """What the peer of one connection may do."""

    def __init__(self, control: AccessControl, admitted: AdmittedLedgers) -> None:
        """`admitted` is emptied whenever the decisions are forgotten."""
        self._control = control
        self._admitted = admitted
        self._user = ANONYMOUS
        self._generation = -1
        self._rights = NO_RIGHTS
        # By their states: one that was deleted, and could begin again by another key, is decided
        # again. Those that leave memory need not be kept in it by this.
        self._allowed: dict[Role, weakref.WeakValueDictionary[int, LedgerState]] = {
            role: weakref.WeakValueDictionary() for role in (Role.READ, Role.WRITE)
        }
        self._unknown: OrderedDict[int, tuple[float, Access]] = OrderedDict()

    def refresh(self, user: str) -> None:
        """Forgets the decisions if they were made for another user, or by an older table. To be
        called once per chunk."""
        control = self._control
        if self._generation == control.generation and self._user == user:
            return
        self._generation, self._user = control.generation, user
        self._rights = control.rights_of(user)
        self._admitted.forget()
        for allowed in self._allowed.values():
            allowed.clear()

    def check(self, user: str, body: RequestBody) -> Access:
        """Returns whether a user may do this now."""
        self.refresh(user)
        needs = operation_of(body).needs
        if needs is None:
            return Access.ALLOWED
        if isinstance(body, AuthRequest | StartTlsRequest | GetBookieInfoRequest):
            return Access.ALLOWED if self._rights.allows(needs) else Access.REFUSED
        return self._check_ledger(needs, body.ledger_id, getattr(body, "master_key", None))

    def check_add(self, user: str, ledger_id: int, key: bytes) -> bool:
        """Returns whether a user may add to a ledger with this key, as far as is known now."""
        self.refresh(user)
        return self._check_ledger(Role.WRITE, ledger_id, key) is Access.ALLOWED

    def _check_ledger(self, role: Role, ledger_id: int, key: bytes | None) -> Access:
        allowed = self._allowed[role]
        state = allowed.get(ledger_id)
        if state is not None and not state.is_deleted:
            return Access.ALLOWED
        rights, control = self._rights, self._control
        if rights.is_admin:
            return Access.ALLOWED
        if ledger_id < 0 or not rights.may_allow_ledger(role):
            return Access.REFUSED
        state = self._admitted.state(ledger_id)
        owner = control.owner_of(ledger_id)
        fit = Fit.DIFFERS
        if owner is not None:
            fit = owner.fit(None if state is None else state.master_key, key)
        if owner is None or fit is not Fit.FITS:
            until, why = self._unknown.get(ledger_id, (0.0, Access.UNRESOLVED))
            if trio.current_time() >= until:
                return Access.UNRESOLVED
            if owner is None or fit is Fit.DIFFERS:
                return why
            is_allowed_if_right = rights.allows_ledger(role, owner.namespace)
            return Access.UNAVAILABLE if is_allowed_if_right else why
        if not rights.allows_ledger(role, owner.namespace):
            return Access.REFUSED
        if state is None:
            return Access.ALLOWED  # for this key; the next request may have another
        if len(allowed) >= DECISIONS_MAX:
            allowed.clear()
        allowed[ledger_id] = state
        return Access.ALLOWED

    async def resolve(self, user: str, ledger_id: int, ahead: Iterable[RequestBody]) -> None:
        """Finds out the owner of a ledger, and at the same time those of the ledgers of requests
        behind it, if they must be found out, too: of LOOKUPS_MAX together."""
        wanted = {ledger_id: None}
        for body in ahead:
            if self.check(user, body) is Access.UNRESOLVED:
                wanted[getattr(body, "ledger_id", ledger_id)] = None
                if len(wanted) >= LOOKUPS_MAX:
                    break
        async with trio.open_nursery() as nursery:
            for one in wanted:
                nursery.start_soon(self._resolve, one)

    async def _resolve(self, ledger_id: int) -> None:
        """Finds out one owner. Remembers for a moment that it was read, or cannot be: not for
        longer, and for this connection alone, because the ledger may be created next, or its
        metadata be put right."""
        found = await self._control.resolve(ledger_id)
        why = Access.REFUSED if found is Access.UNRESOLVED else found
        owner, state = self._control.owner_of(ledger_id), self._admitted.state(ledger_id)
        if found is Access.UNRESOLVED and owner is not None and state is not None:
            fit = owner.fit(state.master_key, None)
            if fit is not Fit.FITS:
                _log.warning(
                    "ledger=%d is refused, because its metadata %s. Cure: if it was changed by "
                    "force, put it right; else give this bookie the cluster_secret_file",
                    ledger_id,
                    "does not say which key it has"
                    if fit is Fit.DOUBTFUL
                    else f"has another key than its entries, and namespace {owner.namespace!r}",
                )
        self._unknown[ledger_id] = trio.current_time() + UNKNOWN_S, why
        self._unknown.move_to_end(ledger_id)
        if len(self._unknown) > _UNKNOWN_MAX:
            self._unknown.popitem(last=False)
