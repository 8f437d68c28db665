"""As whom a session acts in ZooKeeper, and who may use the nodes that it makes.

Pure. The user and password of the scheme `digest` come from a file; they must never be shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ledger.errors import InvalidArgument

ACL_OPEN: Final = "open"
ACL_CREATOR: Final = "creator"
ACLS: Final = (ACL_OPEN, ACL_CREATOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperAccess:
    """The access of one session. Raises InvalidArgument if the two contradict each other.

    `credentials` are "user:password" for the scheme `digest`, or "" for nobody. With `acl`
    "creator" only their user may use the nodes that the session makes (CREATOR_ALL, as Apache's
    `zkEnableSecurity` has it), with "open" every client.
    """

    credentials: str = field(default="", repr=False)
    acl: str = ACL_OPEN

    def __post_init__(self) -> None:
        if self.acl not in ACLS:
            raise InvalidArgument(f"zookeeper_acl is {self.acl!r}, must be one of {ACLS}")
        if self.acl == ACL_CREATOR and not self.credentials:
            raise InvalidArgument(
                'zookeeper_acl = "creator" needs a user, or every client is the creator. Cure: set '
                "zookeeper_credentials_file"
            )


OPEN_ACCESS: Final = ZooKeeperAccess()


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
