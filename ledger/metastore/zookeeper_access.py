"""Reads the file with the credentials of a cluster's ZooKeeper.

What is not given is taken from the environment, so that every command and every process of a
cluster can be given it in one way. Importing it must not need kazoo.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ledger.credentials import read_private
from ledger.metastore.zookeeper.access import ACL_OPEN, ZooKeeperAccess, parse_credentials

ACL_VARIABLE: Final = "LEDGERSTREAM_ZOOKEEPER_ACL"
CREDENTIALS_VARIABLE: Final = "LEDGERSTREAM_ZOOKEEPER_CREDENTIALS_FILE"


def load_access(acl: str, file: str, environment: Mapping[str, str]) -> ZooKeeperAccess:
    """Returns the access with `acl` and the credentials in `file`; what is empty is taken from
    `environment`. Raises InvalidArgument if the file cannot be read, can be read by others, or
    holds no credentials."""
    path = file or environment.get(CREDENTIALS_VARIABLE, "")
    credentials = ""
    if path:
        credentials = parse_credentials(read_private(path, "password for ZooKeeper"), path)
    acl = acl or environment.get(ACL_VARIABLE, "") or ACL_OPEN
    return ZooKeeperAccess(credentials=credentials, acl=acl)
