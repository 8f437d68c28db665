"""`ledgerstream namespace`: sets of streams and the policy they follow."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from cyclopts import App, Parameter

from ledger.cli.output import ClusterOption, OutputOption, print_json, remark, time_of
from ledger.client import LedgerClient
from ledger.errors import InvalidArgument
from stream.core.policy import NamespaceMetadata
from stream.namespace import Namespace, create_namespace, delete_namespace, list_namespaces

app = App(name="namespace", help="Create, list, show, set.")

_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()
_FOR_EVER = "ever"


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions:
    """Settings of a namespace. Those left out keep their value, or get the default."""

    ensemble_size: int | None = None
    """Bookies a segment is spread over."""
    write_quorum: int | None = None
    """Copies of each entry."""
    ack_quorum: int | None = None
    """Copies that must be synced before an append is confirmed."""
    digest_type: Literal["CRC32C", "CRC32", "HMAC", "DUMMY"] | None = None
    """Checksum of entries."""
    roll_ms: int | None = None
    """Age at which a segment is sealed and the next begun."""
    roll_bytes: int | None = None
    """Size at which a segment is sealed and the next begun."""
    retention_ms: int | Literal["ever"] | None = None
    """Drop sealed segments whose newest record is older; "ever" keeps all."""
    retention_bytes: int | Literal["ever"] | None = None
    """Drop the oldest sealed segments beyond so many bytes; "ever" keeps all."""
    compression: Literal["none", "zstd", "lz4"] | None = None
    """Of the records in an entry."""
    batch_bytes: int | None = None
    """A batch of records of this size is sent at once."""
    linger_ms: int | None = None
    """How long a smaller batch may wait for more."""

    def given(self) -> dict[str, Any]:
        chosen = {name: value for name, value in asdict(self).items() if value is not None}
        return {name: None if value == _FOR_EVER else value for name, value in chosen.items()}


_NOTHING = PolicyOptions()


def _facts(policy: NamespaceMetadata) -> dict[str, Any]:
    facts = asdict(policy)
    facts["created"] = time_of(facts.pop("created_ms"))
    return facts


def _show(policy: NamespaceMetadata, output: OutputOption) -> None:
    output.show(_facts(policy), title=f"namespace {policy.name}")


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
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Change a namespace's policy, for segments made from now on."""
    given = policy.given()
    if not given:
        raise InvalidArgument("nothing to set; `ledgerstream namespace set --help` lists it all")
    async with Namespace.connect(cluster.uri, name) as namespace:
        _show(await namespace.set_policy(**given), output)


@app.command
async def delete(
    name: str,
    /,
    *,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Delete a namespace that has no streams left."""
    async with LedgerClient.connect(cluster.uri) as client:
        await delete_namespace(client, name)
    if output.json:
        print_json({"namespace": name, "deleted": True})
    else:
        remark(f"namespace {name} is gone")
