"""The permissions of the cluster: the table of all grants, one node of JSON.

Bookies watch the node and follow it, so that a change needs one watch of each bookie. A table that
is damaged is never overwritten: it counts as no change, and at the start of a bookie as no grant.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import Any, Final

from ledger.core.permissions import Grant, PermissionTable, Role
from ledger.errors import (
    InvalidArgument,
    MetadataCorrupt,
    NoSuchNode,
)
from ledger.metastore.base import MetadataStore, update_node
from ledger.metastore.paths import NODE_BYTES_MAX

PATH: Final = "/ledgerstream/permissions"
FORMAT_VERSION: Final = 1
_CLUSTER: Final = "cluster"
"""Key of a user's roles on the cluster, beside those of roles on namespaces."""


class Permissions:
    """The grants in one metadata store. All methods raise MetadataUnavailable."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read(self) -> PermissionTable:
        """Returns all grants. Raises MetadataCorrupt."""
        try:
            return decode_permissions((await self._store.get(PATH)).data)
        except NoSuchNode:
            return PermissionTable()

    async def grant(self, grants: Iterable[Grant]) -> PermissionTable:
        """Adds grants, all or none, and returns the table. Raises InvalidArgument for more than a
        cluster may have, MetadataCorrupt, MetadataConflict."""
        wanted = tuple(grants)
        return await self._update(lambda table: table.granted(wanted))

    async def revoke(self, grants: Iterable[Grant]) -> tuple[Grant, ...]:
        """Removes grants, and returns those that there were. Raises MetadataCorrupt,
        MetadataConflict."""
        unwanted = tuple(grants)
        removed: tuple[Grant, ...] = ()

        def without(table: PermissionTable) -> PermissionTable:
            nonlocal removed
            removed = tuple(one for one in unwanted if one in table.grants)
            return table.revoked(unwanted)

        await self._update(without)
        return removed

    async def forget_namespace(self, namespace: str) -> tuple[Grant, ...]:
        """Removes the grants on exactly this namespace, which was deleted: otherwise one that is
        created by this name later would begin with them. Returns them. Raises what `revoke`
        raises."""
        return await self._revoke_all(lambda one: one.namespace == namespace)

    async def forget_user(self, user: str) -> tuple[Grant, ...]:
        """Removes the grants to a user that is being deleted: otherwise one that is created by this
        name later would begin with them. Returns them. Raises what `revoke` raises."""
        return await self._revoke_all(lambda one: one.user == user)

    async def _revoke_all(self, is_unwanted: Callable[[Grant], bool]) -> tuple[Grant, ...]:
        of_it = [one for one in await self.read() if is_unwanted(one)]
        return await self.revoke(of_it) if of_it else ()

    async def watch(self) -> AsyncGenerator[PermissionTable | MetadataCorrupt, None]:
        """Yields the table now and after each change; an error instead of one that is damaged.
        Close it: `async with aclosing(permissions.watch()) as tables`."""
        async with aclosing(self._store.watch(PATH)) as nodes:
            async for node in nodes:
                try:
                    yield PermissionTable() if node is None else decode_permissions(node.data)
                except MetadataCorrupt as error:
                    yield error

    async def _update(
        self, change: Callable[[PermissionTable], PermissionTable]
    ) -> PermissionTable:
        return await update_node(
            self._store,
            PATH,
            change,
            none=PermissionTable(),
            decode=decode_permissions,
            encode=encode_permissions,
        )


def encode_permissions(table: PermissionTable) -> bytes:
    """Returns the stored form. Raises InvalidArgument for a table that does not fit into a
    node."""
    users: dict[str, dict[str, list[str]]] = {}
    for one in table:
        key, value = (
            (one.role.value, one.namespace)
            if one.role.is_of_namespace
            else (_CLUSTER, one.role.value)
        )
        users.setdefault(one.user, {}).setdefault(key, []).append(value)
    document = {"version": FORMAT_VERSION, "users": users}
    data = json.dumps(document, separators=(",", ":")).encode()
    if len(data) > NODE_BYTES_MAX:
        raise InvalidArgument(
            f"{PATH} would have {len(table.grants)} grants in {len(data)} bytes, at most"
            f" {NODE_BYTES_MAX}. Cure: grant a role on a pattern of namespaces instead of each"
        )
    return data


def decode_permissions(data: bytes) -> PermissionTable:
    """Raises MetadataCorrupt for anything that this release does not understand in full: what was
    left out could be what refuses or allows."""
    try:
        document = json.loads(data)
        if not isinstance(document, dict):
            raise TypeError("it is not a JSON object")
        if document.get("version") != FORMAT_VERSION:
            raise ValueError(
                f"version {document.get('version')!r}; this release reads {FORMAT_VERSION}"
            )
        users = document["users"]
        if not isinstance(users, dict):
            raise TypeError("users is not an object")
        grants = [one for user, roles in users.items() for one in _grants_of(user, roles)]
        return PermissionTable(frozenset(grants))
    except (KeyError, TypeError, ValueError, InvalidArgument, RecursionError) as error:
        raise MetadataCorrupt(
            f"{PATH} cannot be read: {error}. Cure: restore it from a backup of the metadata, or"
            " delete the node and grant the roles again"
        ) from None


def _grants_of(user: str, roles: Any) -> list[Grant]:
    if not isinstance(roles, dict):
        raise TypeError(f"the roles of user {user!r} are not an object")
    grants: list[Grant] = []
    for key, values in roles.items():
        if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
            raise TypeError(f"{key!r} of user {user!r} is not a list of names")
        if key == _CLUSTER:
            grants += [Grant(user, Role(one)) for one in values]
        else:
            grants += [Grant(user, Role(key), one) for one in values]
    return grants
