"""`ledgerstream namespace`: sets of streams and the policy they follow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

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
from stream.cli.settings import PolicyOptions

if TYPE_CHECKING:
    from ledger.client import LedgerClient
    from stream.core.metadata.namespaces import NamespaceMetadata
    from stream.namespace import Namespace

app = App(
    name="namespace",
    help="Create, list, show, set.",
    help_epilogue=examples("ledgerstream namespace list"),
)

_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()
_NOTHING = PolicyOptions()
_Flag = Annotated[bool, Parameter(negative="")]


def _show(policy: NamespaceMetadata, output: OutputOption) -> None:
    from stream.cli.settings import policy_facts

    facts = policy_facts(policy, is_for_people=not output.json)
    output.show(facts, title=f"namespace {policy.name}")


@app.command(
    help_epilogue=examples(
        "ledgerstream namespace create demo --retention-ms 7d",
        'ledgerstream namespace create demo --placement "rack1-*,rack2-*"',
        "ledgerstream namespace create demo --placement rack --placement-enforce",
    )
)
async def create(
    name: str,
    /,
    *,
    policy: PolicyOptions = _NOTHING,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Create a namespace. Settings that are left out get their defaults.

    Times are milliseconds, or like 90s, 12h, 7d; sizes are bytes, or like 500MB, 10GiB.
    """
    from ledger.client import LedgerClient
    from stream.namespace import create_namespace

    async with LedgerClient.connect(cluster.uri, options=cluster.options) as client:
        with usage():
            created = await create_namespace(client, name, **policy.given())
        await _warn_of_too_few_bookies(client, created)
        _show(created, output)


@app.command(name="list", help_epilogue=examples("ledgerstream namespace list"))
async def list_all(*, cluster: ClusterOption = _CLUSTER, output: OutputOption = _OUTPUT) -> None:
    """List all namespaces."""
    from ledger.client import LedgerClient
    from stream.namespace import Namespace, list_namespaces

    async with LedgerClient.connect(cluster.uri, options=cluster.options) as client:
        listed = [
            {"namespace": name, "streams": len(await Namespace(client, name).list_streams())}
            for name in await list_namespaces(client)
        ]
    output.show_list(listed, title="namespaces", none="no namespaces")


@app.command(help_epilogue=examples("ledgerstream namespace show demo"))
async def show(
    name: str, /, *, cluster: ClusterOption = _CLUSTER, output: OutputOption = _OUTPUT
) -> None:
    """Show a namespace's policy."""
    from stream.cli.connecting import connect

    async with connect(cluster, name) as namespace:
        _show(await namespace.policy(), output)


@app.command(
    name="set",
    help_epilogue=examples("ledgerstream namespace set demo --retention-bytes 10GiB --dry-run"),
)
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

    Times are milliseconds, or like 90s, 12h, 7d; sizes are bytes, or like 500MB, 10GiB. Settings
    that are left out keep their values.

    Parameters
    ----------
    dry_run
        Change nothing; list what would be dropped or deleted now, and why.
    yes
        Continue although the new policy drops or deletes data now. Without it that is an error.
    """
    from stream.cli.connecting import connect

    given = policy.given()
    if not given:
        raise UsageError("nothing to set; `ledgerstream namespace set --help` lists it all")
    async with connect(cluster, name) as namespace:
        if dry_run:
            present = await namespace.policy()
            with usage():
                wanted = await namespace.set_policy(dry_run=True, **given)
            await _show_consequences(namespace, present, wanted, output)
            return
        with usage():
            changed = await namespace.set_policy(allow_drop=yes, **given)
        await _warn_of_too_few_bookies(namespace.client, changed)
        _show(changed, output)


async def _warn_of_too_few_bookies(client: LedgerClient, policy: NamespaceMetadata) -> None:
    """Says so if the next segment could not be created now."""
    from ledger.errors import NotEnoughBookies

    up = len(await client.bookies.available())
    if up < policy.ensemble_size:
        remark(
            f"warning: namespace {policy.name} has ensemble_size {policy.ensemble_size}, and "
            f"{up} bookies are up: appends may fail until there are more; start bookies, or lower "
            f"it (ledgerstream namespace set {policy.name} --ensemble-size {max(up, 1)} "
            f"--write-quorum ... --ack-quorum ...)"
        )
        return
    if policy.placement_enforce:
        sizes = policy.ensemble_size, policy.write_quorum, policy.ack_quorum
        try:
            policy.bookie_placement.choose(
                *sizes, await client.bookies.candidates(), (), client.rng
            )
        except NotEnoughBookies as error:
            remark(f"warning: namespace {policy.name}: {error}: appends may fail until then")


async def _show_consequences(
    namespace: Namespace,
    present: NamespaceMetadata,
    wanted: NamespaceMetadata,
    output: OutputOption,
) -> None:
    from stream.cli.retention import consequence_facts
    from stream.cli.settings import policy_facts
    from stream.retention.policies import consequences

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


@app.command(help_epilogue=examples("ledgerstream namespace delete demo"))
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
    from ledger.client import LedgerClient
    from stream.cli.connecting import explained_namespace
    from stream.errors import NoSuchNamespace
    from stream.namespace import delete_namespace

    async with LedgerClient.connect(cluster.uri, options=cluster.options) as client:
        try:
            await delete_namespace(client, name, purge=purge)
        except NoSuchNamespace as error:
            raise await explained_namespace(client, name, error) from None
    output.report({"namespace": name, "deleted": True}, f"namespace {name} is gone")
