"""`ledgerstream security`: makes what a secure cluster needs, and lists what is left open."""

from __future__ import annotations

import json
import os
import random
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from ledger.cli.output import (
    CREDENTIALS_VARIABLE,
    EXIT_ERROR,
    AtLeastZero,
    ClusterOption,
    OutputOption,
    examples,
    print_json,
    remark,
    usage,
)

if TYPE_CHECKING:
    from ledger.security_setup import SecurityDirectory

app = App(
    name="security",
    help="Make certificates, keys and a first user; list what is open.",
    help_epilogue=examples(
        "ledgerstream security init --dir security --host bookie1.example.com",
        "ledgerstream security namespace-key demo --secret security/cluster.secret",
        "ledgerstream security check",
    ),
)

_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()
_UNKNOWN_SHOWN = 20


@app.command(
    help_epilogue=examples(
        "ledgerstream security init --dir security --host bookie1.example.com --host 10.0.0.7",
        "ledgerstream security init --dir security --cluster zk://zk1:2181/ledgers",
    )
)
async def init(
    *,
    directory: Annotated[Path, Parameter(name="--dir")],
    host: Annotated[tuple[str, ...], Parameter(negative="", consume_multiple=False)] = (),
    admin: str = "admin",
    running: Annotated[str | None, Parameter(name="--cluster")] = None,
    output: OutputOption = _OUTPUT,
) -> None:
    """Make an authority, certificates and a first user, and print the settings for them.

    For tests and small clusters. What exists is used, and nothing is overwritten: run it again to
    add a host. Keep the key of the authority (ca.key) off the machines of the bookies.

    Parameters
    ----------
    directory
        Where the files are made; its owner alone can read them.
    host
        Name or address of a bookie, as in its id; may be given several times.
    admin
        Name of the first user, who may do everything.
    running
        Address of a running cluster: creates the users there, too.
    """
    from ledger.client import wall_ms
    from ledger.metastore.address import ClusterAddress
    from ledger.security_setup import (
        SecurityDirectory,
        create_first_users,
        make_security_directory,
    )

    layout = SecurityDirectory(directory, admin)
    rng = random.SystemRandom()
    with usage():
        if running is not None:
            ClusterAddress.parse(running)
        made = make_security_directory(
            layout, {one: (one,) for one in dict.fromkeys(host)}, rng=rng, now_ms=wall_ms()
        )
    created: list[str] = []
    if running is not None:
        from ledger.metastore import open_metadata

        async with open_metadata(running, ClusterOption(cluster=running).options) as store:
            created = await create_first_users(store, layout, rng=rng, now_ms=wall_ms())
    _report(layout, tuple(dict.fromkeys(host)), made, created, running, output)


def _report(
    layout: SecurityDirectory,
    hosts: Sequence[str],
    made: Sequence[Path],
    created: Sequence[str],
    cluster: str | None,
    output: OutputOption,
) -> None:
    """Prints the settings of the bookies as TOML, or all as JSON, and what to do next."""
    from ledger.metastore.zookeeper_access import ACL_VARIABLE
    from ledger.metastore.zookeeper_access import CREDENTIALS_VARIABLE as CREDENTIALS_FILE_VARIABLE
    from ledger.security_setup import ZOOKEEPER_CLIENTS

    settings = {host: layout.bookie_settings(host) for host in hosts}
    zookeeper = layout.zookeeper_settings()
    credentials = str(layout.credentials_file(layout.admin).absolute())
    if output.json:
        paths = [str(path) for path in made]
        done = {"made": paths, "users_created": created, "bookies": settings}
        output.report({**done, "zookeeper": zookeeper, "credentials": credentials}, "")
        return
    for host, values in settings.items():
        output.say(f"# settings of the bookie at {host}")
        for name, value in values.items():
            output.say(f"{name} = {json.dumps(value)}")
    output.say("# settings of each bookie if the metadata is in ZooKeeper")
    for name, value in zookeeper.items():
        output.say(f"{name} = {json.dumps(value)}")
    remark(f"{len(made)} files are made in {layout.path}")
    if cluster is None:
        remark("the users are created once the cluster runs:")
        again = ["--dir", str(layout.path), "--admin", layout.admin, "--cluster"]
        remark(f"  ledgerstream security init {shlex.join(again)} URI")
    else:
        remark(f"users created: {', '.join(created) or 'none, they exist'}")
    remark("for clients, with ca.pem and the files of the user:")
    remark(f"  export {CREDENTIALS_VARIABLE}={shlex.quote(credentials)}")
    remark(f"  export {ACL_VARIABLE}={shlex.quote(str(zookeeper['zookeeper_acl']))}")
    clients = layout.zookeeper_file(ZOOKEEPER_CLIENTS).absolute()
    remark(f"  export {CREDENTIALS_FILE_VARIABLE}={shlex.quote(str(clients))}")


@app.command(
    help_epilogue=examples(
        "ledgerstream security check", "ledgerstream security check --credentials admin.toml --json"
    )
)
async def check(
    *,
    expiry_days: AtLeastZero = 30,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> int:
    """List what a running cluster leaves open, seen from here. Changes nothing.

    Exit code 0 only if nothing is open. Tries each bookie without credentials, in clear and
    encrypted; with credentials it reads the settings of bookies, which needs the role operate.

    Parameters
    ----------
    expiry_days
        A certificate that expires within this time is reported.
    """
    from ledger.cli.security_check import find_open

    uri, options = cluster.uri, cluster.options
    found = await find_open(uri, options, expiry_days=expiry_days)
    output.show_list(
        [{"where": one.where, "open": one.what, "cure": one.cure} for one in found],
        title="open",
        none="nothing is open",
    )
    return EXIT_ERROR if found else 0


@app.command(
    help_epilogue=examples(
        "ledgerstream security namespace-key demo --secret cluster.secret >> ann.keys",
    )
)
async def namespace_key(
    *namespaces: str,
    without_namespace: Annotated[bool, Parameter(negative="")] = False,
    secret: Path | None = None,
    output: OutputOption = _OUTPUT,
) -> None:
    """Print the keys of namespaces, a line each, for the cluster_secret_file of a client.

    A client that has them, and not the secret, can use ledgers of these namespaces and of no
    others. They are secrets, too: write them into a file of mode 0600.

    Parameters
    ----------
    namespaces
        Names of namespaces.
    without_namespace
        Also the key of ledgers that belong to no namespace.
    secret
        The file with the secret of the cluster. Default: LEDGERSTREAM_CLUSTER_SECRET_FILE.
    """
    from ledger.core.ledger_keys import NO_NAMESPACE
    from ledger.core.permissions import check_namespace
    from ledger.errors import InvalidArgument
    from ledger.metastore.cluster_secret import load_keys

    with usage():
        wanted = [check_namespace(one) for one in namespaces]
        wanted += [NO_NAMESPACE] if without_namespace else []
        if not wanted:
            raise InvalidArgument("name a namespace, or give --without-namespace")
        keys = load_keys("" if secret is None else str(secret), os.environ)
        if not keys.has_secret:
            raise InvalidArgument("the secret of the cluster is missing. Cure: give it by --secret")
        lines = [key.line() for key in keys.namespace_keys(wanted)]
    _print(output, {"lines": lines}, lines)


@app.command(help_epilogue=examples("ledgerstream security zookeeper-id bookies.zookeeper"))
async def zookeeper_id(file: Path, *, output: OutputOption = _OUTPUT) -> None:
    """Print the id of a user of ZooKeeper, for the setting zookeeper_acl. It is no secret.

    Parameters
    ----------
    file
        The file with its credentials, user:password.
    """
    from ledger.credentials import read_private
    from ledger.metastore.zookeeper.access import parse_credentials, user_id

    with usage():
        found = user_id(parse_credentials(read_private(file, "password for ZooKeeper"), str(file)))
    _print(output, {"id": found}, [found])


@app.command(
    help_epilogue=examples(
        "ledgerstream security zookeeper-acl --dry-run", "ledgerstream security zookeeper-acl"
    )
)
async def zookeeper_acl(
    *,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Give the nodes of a cluster in ZooKeeper the ACLs that new ones get. May be repeated.

    As the owners' user: LEDGERSTREAM_ZOOKEEPER_ACL has the ids of both users, and
    LEDGERSTREAM_ZOOKEEPER_CREDENTIALS_FILE names the credentials of the first.

    Parameters
    ----------
    dry_run
        Only count the nodes that would be changed.
    """
    from ledger.errors import InvalidArgument
    from ledger.metastore import open_metadata
    from ledger.metastore.address import ClusterAddress

    with usage():
        address = ClusterAddress.parse(cluster.uri)
        if address.zookeeper is None:
            raise InvalidArgument(f"{address.uri} is not in ZooKeeper: other metadata has no ACLs")
    async with open_metadata(address, cluster.options) as store:
        from ledger.metastore.zookeeper.acl_change import apply_acls
        from ledger.metastore.zookeeper.store import ZooKeeperStore

        assert isinstance(store, ZooKeeperStore)
        with usage():
            report = await apply_acls(store, is_dry_run=dry_run)
    for path in report.unknown[:_UNKNOWN_SHOWN]:
        remark(f"{path} is of another program and stays as it is")
    if len(report.unknown) > _UNKNOWN_SHOWN:
        remark(f"and {len(report.unknown) - _UNKNOWN_SHOWN} more of other programs")
    changed = report.changed.total()
    verb = "would be changed" if dry_run else "were changed"
    output.report(
        {"nodes": report.nodes, "changed": dict(report.changed), "unknown": len(report.unknown)},
        f"{changed} of {report.nodes} nodes {verb}",
    )


def _print(output: OutputOption, document: Mapping[str, object], lines: Sequence[str]) -> None:
    """Prints a result to standard output, where a remark would not go."""
    if output.json:
        print_json(document)
        return
    for line in lines:
        output.say(line)
