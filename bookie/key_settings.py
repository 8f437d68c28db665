"""Settings of the keys of ledgers and of access to ZooKeeper: a section of a bookie's settings."""

from __future__ import annotations

from dataclasses import dataclass

from ledger.errors import InvalidArgument
from ledger.metastore.zookeeper.access import ACL_CREATOR, ACLS
from ledger.runtime.config import setting


@dataclass(frozen=True, kw_only=True)
class KeySettings:
    """Settings of the keys of ledgers and of access to ZooKeeper."""

    cluster_secret_file: str = setting(
        "",
        unit="path",
        apache="",
        reason="A file with the secret of the cluster (docs/operations.md, Keys of ledgers), from"
        " which keys of ledgers of streams and sinks are derived: a bookie recognizes them at first"
        " sight, and takes others only if the metadata has them. Empty: the first key that it hears"
        " is the ledger's.",
    )
    zookeeper_credentials_file: str = setting(
        "",
        unit="path",
        apache="",
        reason="A file with user and password for ZooKeeper (`user:password`, scheme digest),"
        " readable by its owner alone; the same for all bookies and clients.",
    )
    zookeeper_acl: str = setting(
        "open",
        unit="",
        apache="zkEnableSecurity",
        reason="`creator`: only the user of the credentials may use the nodes that this bookie"
        " makes; `open`: every client that reaches ZooKeeper. Nodes that exist keep their ACL.",
    )

    def check(self) -> None:
        """Raises InvalidArgument if these settings contradict each other."""
        if self.zookeeper_acl not in ACLS:
            raise InvalidArgument(f"zookeeper_acl is {self.zookeeper_acl!r}, must be one of {ACLS}")
        if self.zookeeper_acl == ACL_CREATOR and not self.zookeeper_credentials_file:
            raise InvalidArgument(
                'zookeeper_acl is "creator", which needs zookeeper_credentials_file'
            )
