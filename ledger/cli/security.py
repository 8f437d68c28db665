"""`ledgerstream security`: makes what a secure cluster needs, and lists what is left open."""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Sequence
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
    remark,
    usage,
)

if TYPE_CHECKING:
    from ledger.security_setup import SecurityDirectory

app = App(
    name="security",
    help="Make certificates and a first user; list what is open.",
    help_epilogue=examples(
        "ledgerstream security init --dir security --host bookie1.example.com",
        "ledgerstream security check",
    ),
)

_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()


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
    from ledger.metastore import open_store
    from ledger.metastore.address import ClusterAddress
    from ledger.security_setup import (
        SecurityDirectory,
        create_first_users,
        make_security_directory,
    )

    layout = SecurityDirectory(directory, admin)
    rng = random.SystemRandom()
    with usage():
        address = None if running is None else ClusterAddress.parse(running)
        made = make_security_directory(
            layout, {one: (one,) for one in dict.fromkeys(host)}, rng=rng, now_ms=wall_ms()
        )
    created: list[str] = []
    if address is not None:
        async with open_store(address) as store:
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
    settings = {host: layout.bookie_settings(host) for host in hosts}
    credentials = str(layout.credentials_file(layout.admin).absolute())
    if output.json:
        paths = [str(path) for path in made]
        done = {"made": paths, "users_created": created, "bookies": settings}
        output.report({**done, "credentials": credentials}, "")
        return
    for host, values in settings.items():
        output.say(f"# settings of the bookie at {host}")
        for name, value in values.items():
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
