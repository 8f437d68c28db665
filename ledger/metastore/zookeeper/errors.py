"""Translates ZooKeeper's errors to those of the metadata store.

Pure. It must never report that a change did not happen if it may have happened: such an error is in
`LOST`, and callers get MetadataUnavailable.
"""

from __future__ import annotations

from kazoo import exceptions as zk

from ledger.errors import (
    InvalidArgument,
    LedgerError,
    MetadataUnavailable,
    NodeExists,
    NoSuchNode,
    Unauthorized,
)
from ledger.metastore.paths import parent_of

LOST = (
    zk.ConnectionLoss,
    zk.SessionExpiredError,  # and ConnectionClosedError, which kazoo derives from it
    zk.OperationTimeoutError,
    zk.RequestTimeoutError,
    zk.SessionMovedError,
)
"""The response will never arrive; the request may have been carried out."""

_REFUSED_USER = (
    zk.NoAuthError,
    zk.AuthFailedError,
    zk.InvalidACLError,
    zk.SessionClosedRequireSaslError,
)
_REFUSED_REQUEST = (zk.BadArgumentsError, zk.MarshallingError)


class OutcomeUnknown(MetadataUnavailable):
    """The connection broke before the response arrived: the change may have happened."""


def translate(error: BaseException, path: str) -> LedgerError:
    """Returns the error to raise for one of ZooKeeper's about `path`.

    A wrong version and existing children need a look at the node: see `Transactions.explain`.
    """
    name = type(error).__name__
    if isinstance(error, LedgerError):
        return error
    if isinstance(error, zk.NoNodeError):
        return NoSuchNode(f"no metadata node {path}")
    if isinstance(error, zk.NodeExistsError):
        return NodeExists(f"metadata node {path} already exists")
    if isinstance(error, zk.NoChildrenForEphemeralsError):
        return InvalidArgument(f"{parent_of(path)} is ephemeral and cannot have children")
    if isinstance(error, _REFUSED_USER):
        return Unauthorized(
            f"ZooKeeper refuses access to {path} ({name}): its ACL admits other users than this"
            " client. Cure: give the user of the cluster's bookies, by zookeeper_credentials_file"
            " or LEDGERSTREAM_ZOOKEEPER_CREDENTIALS_FILE"
        )
    if isinstance(error, _REFUSED_REQUEST):
        return InvalidArgument(
            f"ZooKeeper refuses {path} ({name}): a character of its name, or"
            " the size of the request, is not allowed there"
        )
    return MetadataUnavailable(f"ZooKeeper answered {name} {error} about {path}".rstrip())
