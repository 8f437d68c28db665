"""As whom a session acts in ZooKeeper, and who may use the nodes that it makes.

Pure. The user and password of the scheme `digest` come from a file; they must never be shown. The
id of a user, by which ACLs name it, has a hash of both and is public.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass, field
from typing import Final

from ledger.errors import InvalidArgument
from ledger.metastore.node_kinds import ALL, Right, rights_of_clients

ACL_OPEN: Final = "open"
ACL_CREATOR: Final = "creator"
_ID = re.compile(r"[^\s:,]+:[A-Za-z0-9+/]{27}=")


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperAccess:
    """The access of one session. Raises InvalidArgument if the two contradict each other.

    `credentials` are "user:password" for the scheme `digest`, or "" for nobody. `acl` says who may
    use the nodes that the session makes: "open": every client; "creator": their user alone
    (CREATOR_ALL, as Apache's `zkEnableSecurity` has it); two ids of users, with a comma between
    them: the first, that of the owners, may do everything, and the second what clients may by
    `ledger.metastore.node_kinds`.
    """

    credentials: str = field(default="", repr=False)
    acl: str = ACL_OPEN

    def __post_init__(self) -> None:
        check_acl(self.acl)
        if self.acl != ACL_OPEN and not self.credentials:
            raise InvalidArgument(
                f"zookeeper_acl = {self.acl!r} needs a user, because ZooKeeper would refuse what "
                "this session has made itself. Cure: set zookeeper_credentials_file"
            )
        if self.ids and user_id(self.credentials) not in self.ids:
            raise InvalidArgument(
                f"zookeeper_acl names {' and '.join(self.ids)}, and the credentials are of "
                f"{user_id(self.credentials)}. Cure: give both sides the same zookeeper_acl, and "
                "each the credentials of one of the two users"
            )

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the owners' and of the clients' user, if `acl` has them."""
        return tuple(self.acl.split(",")) if are_users_named(self.acl) else ()

    @property
    def is_owner(self) -> bool:
        """Whether the session is an owner of nodes that two users share."""
        return bool(self.ids) and user_id(self.credentials) == self.ids[0]

    def acl_of(self, path: str, root: str) -> tuple[tuple[str, Right], ...] | None:
        """Returns the ids that may use a node, with their rights; None if `acl` does not name ids.

        `path` and `root`, the ledgers root, are those of a `MetadataStore`. Raises InvalidArgument
        for a node of an unknown kind.
        """
        if not self.ids:
            return None
        owners, clients = self.ids
        rights = rights_of_clients(path, root)
        return ((owners, ALL), (clients, rights)) if rights else ((owners, ALL),)


def are_users_named(acl: str) -> bool:
    """Returns whether this value of `ZooKeeperAccess.acl` is the ids of two users."""
    return acl not in (ACL_OPEN, ACL_CREATOR)


def check_acl(acl: str) -> None:
    """Raises InvalidArgument for a value that `ZooKeeperAccess.acl` cannot have."""
    if not are_users_named(acl):
        return
    owners, _, clients = acl.partition(",")
    if not (_ID.fullmatch(owners) and _ID.fullmatch(clients)):
        raise InvalidArgument(
            f"zookeeper_acl is {acl!r}, must be {ACL_OPEN!r}, {ACL_CREATOR!r}, or the ids of the "
            "owners' and of the clients' user, as in 'bookies:HASH,clients:HASH'. Cure: "
            "`ledgerstream security zookeeper-id FILE` prints the id of the user in a file"
        )
    if owners == clients:
        raise InvalidArgument(f"zookeeper_acl names {owners} as owners and as clients")


def user_id(credentials: str) -> str:
    """Returns the id of the user with these credentials in the scheme `digest`: its name, and the
    SHA-1 of name and password as base64. A password that can be guessed can be found by it."""
    user = credentials.partition(":")[0]
    return f"{user}:{base64.b64encode(hashlib.sha1(credentials.encode()).digest()).decode()}"


def parse_credentials(data: bytes, source: str) -> str:
    """Returns the credentials in a file: one line, "user:password".

    Raises InvalidArgument, which names `source` and never quotes it.
    """
    try:
        text = data.decode().strip()
    except UnicodeDecodeError:
        text = ""
    user, colon, password = text.partition(":")
    if not user or not colon or not password or not text.isprintable():
        raise InvalidArgument(
            f"{source} has no credentials for ZooKeeper. Cure: write one line, user:password"
        )
    return text


OPEN_ACCESS: Final = ZooKeeperAccess()
