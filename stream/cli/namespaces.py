"""`ledgerstream namespace`: sets of streams and the policy they follow."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter

from ledger.cli.output import ClusterOption, OutputOption, print_json, remark
from ledger.client import LedgerClient
from ledger.errors import InvalidArgument
from stream.cli.retention import consequence_facts
from stream.cli.settings import PolicyOptions, policy_facts
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.namespace import Namespace, create_namespace, delete_namespace, list_namespaces
from stream.retention.policies import consequences

app = App(name="namespace", help="Create, list, show, set.")

_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()
_NOTHING = PolicyOptions()
_Flag = Annotated[bool, Parameter(negative="")]


def _show(policy: NamespaceMetadata, output: OutputOption) -> None:
    facts = policy_facts(policy, is_for_people=not output.json)
    output.show(facts, title=f"namespace {policy.name}")


@app.command
async def create(
    name: str,
    /,
    *,
    policy: PolicyOptions = _NOTHING,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Create a namespace."""
    async with LedgerClient.connect(cluster.uri) as client:
        _show(await create_namespace(client, name, **policy.given()), output)


@app.command(name="list")
async def list_all(*, cluster: ClusterOption = _CLUSTER, output: OutputOption = _OUTPUT) -> None:
    """List all namespaces."""
    async with LedgerClient.connect(cluster.uri) as client:
        listed = [
            {"namespace": name, "streams": len(await Namespace(client, name).list_streams())}
            for name in await list_namespaces(client)
        ]
    output.show_list(listed, title="namespaces", none="no namespaces")


@app.command
async def show(
    name: str, /, *, cluster: ClusterOption = _CLUSTER, output: OutputOption = _OUTPUT
) -> None:
    """Show a namespace's policy."""
    async with Namespace.connect(cluster.uri, name) as namespace:
        _show(await namespace.policy(), output)


@app.command(name="set")
async def set_policy(
    name: str,
    /,
    *,
    policy: PolicyOptions = _NOTHING,
    dry_run: _Flag = False,
    yes: _Flag = False,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Change a namespace's policy; running writers and the janitor follow it.

    Parameters
    ----------
    dry_run
        Change nothing; list what would be dropped or deleted now, and why.
    yes
        Continue although the new policy drops or deletes data now. Without it that is an error.
    """
    given = policy.given()
    if not given:
        raise InvalidArgument("nothing to set; `ledgerstream namespace set --help` lists it all")
    async with Namespace.connect(cluster.uri, name) as namespace:
        if dry_run:
            present = await namespace.policy()
            wanted = await namespace.set_policy(dry_run=True, **given)
            await _show_consequences(namespace, present, wanted, output)
            return
        _show(await namespace.set_policy(allow_drop=yes, **given), output)


async def _show_consequences(
    namespace: Namespace,
    present: NamespaceMetadata,
    wanted: NamespaceMetadata,
    output: OutputOption,
) -> None:
    found = await consequences(namespace.client, present, wanted)
    losses = [change for change in found if change.is_loss]
    rows = [consequence_facts(change, is_for_people=not output.json) for change in losses]
    before, after = (policy_facts(p, is_for_people=not output.json) for p in (present, wanted))
    changed: list[dict[str, Any]] = [
        {"setting": setting, "from": before[setting], "to": value}
        for setting, value in after.items()
        if value != before[setting]
    ]
    if output.json:
        print_json({"namespace": wanted.name, "changed": changed, "consequences": rows})
        return
    output.show_list(changed, title=f"namespace {wanted.name}", none="no setting would change")
    output.show_list(
        rows, title="lost at the next sweep", none="nothing would be dropped or deleted now"
    )
    remark("a dry run: nothing was changed" + ("; it would need --yes" if rows else ""))


@app.command
async def delete(
    name: str,
    /,
    *,
    purge: _Flag = False,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Delete a namespace that has no streams left.

    Parameters
    ----------
    purge
        Delete what is in its trash for good first. Without it that is an error.
    """
    async with LedgerClient.connect(cluster.uri) as client:
        await delete_namespace(client, name, purge=purge)
    output.report({"namespace": name, "deleted": True}, f"namespace {name} is gone")
