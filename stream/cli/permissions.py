"""`ledgerstream permission`: who may do what, on namespaces and on the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from ledger.cli.output import (
    ClusterOption,
    OutputOption,
    UsageError,
    examples,
    print_json,
    remark,
    usage,
)

if TYPE_CHECKING:
    from ledger.client import LedgerClient
    from ledger.core.permissions import Grant

app = App(
    name="permission",
    help="Who may do what: grant, revoke, list, explain.",
    help_epilogue=examples("ledgerstream permission list"),
)

_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()
RoleName = Literal["read", "write", "manage", "ledger", "operate", "admin"]


def _grants(user: str, namespace: str | None, roles: Sequence[RoleName]) -> list[Grant]:
    """Returns the grants that a command names. Raises UsageError."""
    from ledger.core.permissions import Grant, Role

    with usage():
        return [Grant(user, Role(role), namespace or "") for role in dict.fromkeys(roles)]


async def _check_exists(client: LedgerClient, namespace: str) -> None:
    """Raises NoSuchNamespace for a namespace that does not exist; a pattern needs none yet."""
    from stream.cli.connecting import explained_namespace
    from stream.errors import NoSuchNamespace
    from stream.store.streams import StreamStore

    if "*" in namespace:
        return
    try:
        await StreamStore(client.store).read_namespace(namespace)
    except NoSuchNamespace as error:
        raise await explained_namespace(client, namespace, error) from None


@app.command(
    help_epilogue=examples(
        "ledgerstream permission grant alice demo --role write",
        "ledgerstream permission grant alice 'team-*' --role read",
        "ledgerstream permission grant ops --role operate",
    )
)
async def grant(
    user: str,
    namespace: str | None = None,
    /,
    *,
    role: Annotated[tuple[RoleName, ...], Parameter(negative="", consume_multiple=False)],
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Give a user roles on a namespace, or on the cluster. Bookies follow within seconds.

    On a namespace: read; write, which includes read; manage, which includes write. On the cluster:
    ledger (ledgers that belong to no namespace), operate (look after bookies), admin (everything).

    Parameters
    ----------
    user
        Name of the user; "anonymous" is a connection that did not authenticate.
    namespace
        The namespace, or a pattern like team-*, for the roles read, write and manage.
    role
        The role; may be given several times.
    """
    from ledger.client import LedgerClient
    from ledger.metastore.permissions import Permissions

    grants = _grants(user, namespace, role)
    async with LedgerClient.connect(cluster.uri, options=cluster.options) as client:
        if namespace is not None:
            await _check_exists(client, namespace)
        table = await Permissions(client.store).grant(grants)
    has = [str(one) for one in table.of_user(user)]
    output.report({"user": user, "grants": has}, f"{user} has: {', '.join(has)}")


@app.command(
    help_epilogue=examples(
        "ledgerstream permission revoke alice demo --role write",
        "ledgerstream permission revoke alice --all",
    )
)
async def revoke(
    user: str,
    namespace: str | None = None,
    /,
    *,
    role: Annotated[tuple[RoleName, ...], Parameter(negative="", consume_multiple=False)] = (),
    all_: Annotated[bool, Parameter(name="--all", negative="")] = False,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Take roles from a user. Bookies follow within seconds, also for connections that exist.

    Parameters
    ----------
    user
        Name of the user.
    namespace
        The namespace or pattern, as it was granted. Without --role: all roles on it.
    role
        The role; may be given several times.
    all_
        Take everything that was granted to the user.
    """
    from ledger.client import LedgerClient
    from ledger.metastore.permissions import Permissions

    if all_ is bool(namespace or role):
        raise UsageError("name a namespace, roles, or --all")
    wanted = _grants(user, namespace, role)
    async with LedgerClient.connect(cluster.uri, options=cluster.options) as client:
        permissions = Permissions(client.store)
        if not wanted:
            own = (await permissions.read()).of_user(user)
            wanted = [one for one in own if all_ or one.namespace == namespace]
        revoked = await permissions.revoke(wanted)
        left = [str(one) for one in (await permissions.read()).of_user(user)]
    gone = [str(one) for one in revoked]
    text = f"revoked from {user}: {', '.join(gone)}" if gone else f"{user} had none of these"
    output.report(
        {"user": user, "revoked": gone, "grants": left},
        f"{text}; left: {', '.join(left) or 'nothing'}",
    )


@app.command(name="list", help_epilogue=examples("ledgerstream permission list alice"))
async def list_all(
    user: str | None = None,
    /,
    *,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """List what is granted: to all users, or to one.

    Parameters
    ----------
    user
        Name of the user.
    """
    from ledger.client import LedgerClient
    from ledger.metastore.permissions import Permissions

    async with LedgerClient.connect(cluster.uri, options=cluster.options) as client:
        table = await Permissions(client.store).read()
    rows = [
        {"user": one.user, "namespace": one.namespace or None, "role": one.role.value}
        for one in table
        if user is None or one.user == user
    ]
    output.show_list(rows, title="permissions", none="nothing is granted")


@app.command(
    help_epilogue=examples(
        "ledgerstream permission explain alice demo", "ledgerstream permission explain ops"
    )
)
async def explain(
    user: str,
    namespace: str | None = None,
    /,
    *,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Explain which roles a user has, and why, or why not.

    Parameters
    ----------
    user
        Name of the user.
    namespace
        The namespace; without it the roles on the cluster are explained.
    """
    from ledger.client import LedgerClient
    from ledger.core.permissions import CLUSTER_ROLES, NAMESPACE_ROLES, check_user
    from ledger.metastore.permissions import Permissions

    with usage():
        check_user(user)
    if namespace is not None and "*" in namespace:
        raise UsageError("name one namespace: a pattern has no answer of its own")
    async with LedgerClient.connect(cluster.uri, options=cluster.options) as client:
        if namespace is not None:
            await _check_exists(client, namespace)
        table = await Permissions(client.store).read()
    roles = CLUSTER_ROLES if namespace is None else NAMESPACE_ROLES
    rows: list[dict[str, Any]] = []
    for role in roles:
        verdict = table.explain(user, role, namespace)
        is_allowed: object = verdict.is_allowed
        if not output.json:
            is_allowed = "yes" if verdict.is_allowed else "no"
        rows.append({"role": role.value, "allowed": is_allowed, "reason": verdict.reason})
    if output.json:
        print_json({"user": user, "namespace": namespace, "roles": rows})
        return
    output.show_list(rows, title=f"{user} on {namespace or 'the cluster'}", none="")
    remark("bookies with permissions = false allow everything")
