"""Settings of the keys of ledgers and of access to ZooKeeper: a section of a bookie's settings."""

from __future__ import annotations

from dataclasses import dataclass

from ledger.errors import InvalidArgument
from ledger.metastore.zookeeper.access import ACL_OPEN, check_acl
from ledger.runtime.config import setting


@dataclass(frozen=True, kw_only=True)
class KeySettings:
    """Settings of the keys of ledgers and of access to ZooKeeper."""

    cluster_secret_file: str = setting(
        "",
        unit="path",
        apache="",
        reason="A file with the secret of the cluster (docs/operations.md, Keys of ledgers), from"
        " which keys of namespaces and of their ledgers are derived: a bookie recognizes them at"
        " first sight, and takes others only if the metadata has them. Empty: the first key that it"
        " hears is the ledger's.",
    )
    derived_keys_required: bool = setting(
        False,
        unit="",
        apache="",
        reason="With `permissions`: ledgers of namespaces are served only if their key is derived"
        " from the secret of the cluster, so that nobody without the key of a namespace can pass"
        " ledgers off as its own. Ledgers from before the secret are refused.",
    )
    zookeeper_credentials_file: str = setting(
        "",
        unit="path",
        apache="",
        reason="A file with user and password for ZooKeeper (`user:password`, scheme digest),"
        " readable by its owner alone; the same for all bookies.",
    )
    zookeeper_acl: str = setting(
        "open",
        unit="",
        apache="zkEnableSecurity",
        reason="Who may use the nodes that this bookie makes: `creator`, only the user of the"
        " credentials; `open`, every client that reaches ZooKeeper; the ids of two users, as in"
        " `bookies:HASH,clients:HASH`, the first everything, the second what clients need. It is"
        " the same for bookies and clients, and nodes that exist keep their ACL.",
    )

    def check_keys(self, *, has_permissions: bool) -> None:
        """Raises InvalidArgument if these settings contradict each other."""
        check_acl(self.zookeeper_acl)
        if self.zookeeper_acl != ACL_OPEN and not self.zookeeper_credentials_file:
            raise InvalidArgument(
                f"zookeeper_acl is {self.zookeeper_acl!r}, which needs zookeeper_credentials_file"
            )
        if self.derived_keys_required and not (self.cluster_secret_file and has_permissions):
            raise InvalidArgument(
                "derived_keys_required is set, which needs cluster_secret_file and permissions = "
                "true"
            )

    def check_secret(self, has_secret: bool) -> None:
        """Raises InvalidArgument if the file has no secret, but only keys of namespaces, which are
        for clients: a bookie must recognize the keys of all ledgers."""
        if self.cluster_secret_file and not has_secret:
            raise InvalidArgument(
                f"{self.cluster_secret_file} has keys of namespaces and no secret. Cure: give "
                "bookies and auto-recovery the file with the secret of the cluster"
            )
