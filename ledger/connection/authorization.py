"""Explains why bookies refuse a client: who it is for them, which role it needs, and the cure."""

from __future__ import annotations

from ledger.connection.pool import BookiePool
from ledger.core.metadata import LedgerMetadata
from ledger.core.permissions import Role, namespace_of_ledger
from ledger.errors import LedgerError, Unauthorized


def unauthorized(
    pool: BookiePool, metadata: LedgerMetadata, role: Role, error: LedgerError | str
) -> Unauthorized:
    """Returns `error`, of requests that bookies of this ledger refused, with what the client lacks.

    `role` is what the requests need on the ledger's namespace. If a bookie does not accept the
    client's credentials, the text of the error says so already.
    """
    bookies = {bookie for fragment in metadata.fragments for bookie in fragment.bookies}
    if pool.is_refused_by(bookies):
        return Unauthorized(str(error))
    namespace = namespace_of_ledger(metadata.custom)
    needed, on = (Role.LEDGER, "") if namespace is None else (role, f" {namespace}")
    what = f"the role {needed.value}"
    if namespace is not None:
        what += f" on namespace {namespace!r}"
    user = pool.user
    if not user:
        return Unauthorized(
            f"{error}. This client has not authenticated, and the cluster requires authentication, "
            f"or {what}. Cure: credentials of a user (credentials=, LEDGERSTREAM_CREDENTIALS)"
        )
    who, name = (f"User {user!r}", user) if user != "?" else ("Its user", "USER")
    explain = "" if namespace is None else f"; `permission explain {name}{on}` shows what it has"
    return Unauthorized(
        f"{error}. {who} needs {what}. Cure: `ledgerstream permission grant {name}{on} "
        f"--role {needed.value}`{explain}"
    )
