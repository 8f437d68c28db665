"""`ledgerstream context`: saves the addresses of clusters under names, and selects one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from ledger.cli.output import ClusterOption, OutputOption, UsageError, examples, remark, usage

if TYPE_CHECKING:
    from ledger.cli.contexts import Contexts

app = App(
    name="context",
    help="Save the addresses of clusters, and select one.",
    help_epilogue=examples("ledgerstream context list"),
)

_OUTPUT = OutputOption()
_Flag = Annotated[bool, Parameter(negative="")]


@app.command(
    help_epilogue=examples(
        "ledgerstream context add prod zk://zk1:2181,zk2:2181/ledgers --use",
        "ledgerstream context add local sqlite:///var/lib/ledgerstream/cluster.db",
    )
)
@usage()
def add(
    name: str,
    uri: str,
    /,
    *,
    use: _Flag = False,
    replace: _Flag = False,
    credentials: str | None = None,
    output: OutputOption = _OUTPUT,
) -> None:
    """Save the address of a cluster under a name. The first one is selected, too.

    Parameters
    ----------
    name
        A name for the cluster, like prod.
    uri
        Its address, like zk://host:2181/ledgers. Nothing connects to it now.
    use
        Select it.
    replace
        Replace an address that is saved under this name.
    credentials
        A file with who you are to the bookies of this cluster, and how connections to them are
        encrypted. Its path is saved, not its content.
    """
    from ledger.cli.contexts import read_contexts, write_contexts
    from ledger.credentials import read_client_settings
    from ledger.metastore.address import ClusterAddress

    if not name.strip() or not name.isprintable() or name.startswith("-"):
        raise UsageError(f"context name {name!r}: use printable characters, with no '-' in front")
    ClusterAddress.parse(uri)
    if credentials is not None:
        read_client_settings(credentials)
        credentials = os.path.abspath(credentials)
    contexts = read_contexts()
    if name in contexts.clusters and not replace:
        raise UsageError(
            f"context {name!r} already exists, with {contexts.clusters[name]}; --replace "
            f"replaces it"
        )
    contexts = contexts.with_cluster(name, uri, credentials)
    if use:
        contexts = contexts.using(name)
    write_contexts(contexts)
    is_current = contexts.current == name
    output.report(
        {"context": name, "cluster": uri, "current": is_current},
        f"context {name} is saved" + (" and selected" if is_current else ""),
    )


@app.command(name="use", help_epilogue=examples("ledgerstream context use prod"))
@usage()
def use_context(name: str, /, *, output: OutputOption = _OUTPUT) -> None:
    """Select the cluster for all commands that name none.

    Parameters
    ----------
    name
        A saved context.
    """
    from ledger.cli.contexts import read_contexts, write_contexts

    contexts = read_contexts().using(name)
    write_contexts(contexts)
    output.report(_row(contexts, name), f"context {name} is selected: {contexts.address(name)}")


@app.command(name="list", help_epilogue=examples("ledgerstream context list"))
def list_contexts(*, output: OutputOption = _OUTPUT) -> None:
    """List the saved contexts."""
    from ledger.cli.contexts import read_contexts

    contexts = read_contexts()
    output.show_list(
        [_row(contexts, name) for name in sorted(contexts.clusters)],
        title="contexts",
        none="no contexts; `ledgerstream context add NAME URI` saves one",
    )


@app.command(help_epilogue=examples("ledgerstream context remove prod"))
@usage()
def remove(name: str, /, *, output: OutputOption = _OUTPUT) -> None:
    """Remove a saved context. The cluster itself is not changed.

    Parameters
    ----------
    name
        A saved context.
    """
    from ledger.cli.contexts import read_contexts, write_contexts

    contexts = read_contexts()
    write_contexts(contexts.without(name))
    output.report({"context": name, "removed": True}, f"context {name} is removed")
    if contexts.current == name and not output.json:
        remark("no context is selected now")


@app.command(help_epilogue=examples("ledgerstream context show", "ledgerstream context show prod"))
@usage()
def show(name: str | None = None, /, *, output: OutputOption = _OUTPUT) -> None:
    """Show a saved context, or which cluster commands use now and what says so.

    Parameters
    ----------
    name
        A saved context; without it, the cluster in use.
    """
    from ledger.cli.contexts import read_contexts

    if name is None:
        address, source = ClusterOption().address_and_source()
        output.show({"cluster": address, "from": source}, title="the cluster in use")
    else:
        contexts = read_contexts()
        contexts.address(name)
        output.show(_row(contexts, name), title=f"context {name}")


def _row(contexts: Contexts, name: str) -> dict[str, object]:
    row: dict[str, object] = {
        "context": name,
        "current": contexts.current == name,
        "cluster": contexts.address(name),
    }
    return row | {"credentials": contexts.credentials.get(name)} if contexts.credentials else row
