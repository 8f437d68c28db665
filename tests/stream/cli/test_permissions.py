"""The command `ledgerstream permission` on a cluster in this process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bookie.testing.in_process import InProcessCluster
from ledger.cli.output import ClusterOption, OutputOption, UsageError
from stream import Namespace, NoSuchNamespace
from stream.cli import namespaces, permissions

JSON = OutputOption(json=True)


@pytest.fixture
async def cluster(ledgerstream_cluster: InProcessCluster) -> ClusterOption:
    option = ClusterOption(cluster=ledgerstream_cluster.uri)
    async with Namespace.connect(option.uri, "demo", create=True):
        pass
    return option


async def test_roles_are_granted_listed_explained_and_revoked(
    cluster: ClusterOption, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed() -> Any:
        return json.loads(capsys.readouterr().out)

    await permissions.list_all(cluster=cluster)
    assert "nothing is granted" in capsys.readouterr().err
    await permissions.grant("alice", "demo", role=("write",), cluster=cluster, output=JSON)
    assert printed() == {"user": "alice", "grants": ["write on demo"]}
    await permissions.grant("alice", "team-*", role=("read",), cluster=cluster)
    assert "alice has: write on demo, read on team-*" in capsys.readouterr().err
    await permissions.grant("ops", role=("operate", "ledger"), cluster=cluster)
    await permissions.list_all(cluster=cluster, output=JSON)
    assert printed()[:3] == [
        {"user": "alice", "namespace": "demo", "role": "write"},
        {"user": "alice", "namespace": "team-*", "role": "read"},
        {"user": "ops", "namespace": None, "role": "ledger"},
    ]
    await permissions.explain("alice", "demo", cluster=cluster, output=JSON)
    shown = printed()
    assert [(one["role"], one["allowed"]) for one in shown["roles"]] == [
        ("read", True), ("write", True), ("manage", False),
    ]  # fmt: skip
    assert shown["roles"][2]["reason"] == (
        "no grant gives it; there are: write on demo, read on team-*"
    )
    await permissions.explain("ops", cluster=cluster)
    out = capsys.readouterr().out
    assert "granted: operate on the cluster" in out
    assert "admin" in out
    await permissions.revoke("alice", "demo", cluster=cluster, output=JSON)
    assert printed() == {
        "user": "alice", "revoked": ["write on demo"], "grants": ["read on team-*"],
    }  # fmt: skip
    await permissions.revoke("ops", role=("ledger",), cluster=cluster, output=JSON)
    assert printed()["revoked"] == ["ledger on the cluster"]
    await permissions.revoke("ops", all_=True, cluster=cluster, output=JSON)
    assert printed() == {"user": "ops", "revoked": ["operate on the cluster"], "grants": []}
    await permissions.revoke("ops", all_=True, cluster=cluster)
    assert "ops had none of these; left: nothing" in capsys.readouterr().err


async def test_a_namespace_must_exist_unless_it_is_a_pattern(cluster: ClusterOption) -> None:
    with pytest.raises(NoSuchNamespace, match=r"no namespace 'demos'.*demo"):
        await permissions.grant("alice", "demos", role=("read",), cluster=cluster)
    with pytest.raises(NoSuchNamespace):
        await permissions.explain("alice", "other", cluster=cluster)
    await permissions.grant("alice", "other-*", role=("read",), cluster=cluster)
    await permissions.revoke("alice", "other-*", cluster=cluster)


async def test_wrong_usage_is_explained_before_anything_is_changed(cluster: ClusterOption) -> None:
    with pytest.raises(UsageError, match="role read is on a namespace"):
        await permissions.grant("alice", role=("read",), cluster=cluster)
    with pytest.raises(UsageError, match="admin is on the whole cluster"):
        await permissions.grant("alice", "demo", role=("admin",), cluster=cluster)
    with pytest.raises(UsageError, match="1 to 128 characters"):
        await permissions.grant("", "demo", role=("read",), cluster=cluster)
    with pytest.raises(UsageError, match="a pattern has no answer"):
        await permissions.explain("alice", "team-*", cluster=cluster)
    for arguments in ((), ("demo",)):
        with pytest.raises(UsageError, match="name a namespace, roles, or --all"):
            await permissions.revoke("alice", *arguments, all_=bool(arguments), cluster=cluster)


async def test_a_namespace_that_is_created_again_begins_without_grants(
    cluster: ClusterOption, capsys: pytest.CaptureFixture[str]
) -> None:
    await permissions.grant("alice", "demo", role=("manage",), cluster=cluster)
    await permissions.grant("alice", "de*", role=("read",), cluster=cluster)
    await namespaces.delete("demo", cluster=cluster)
    await namespaces.create("demo", cluster=cluster)
    capsys.readouterr()
    await permissions.list_all("alice", cluster=cluster, output=JSON)
    assert json.loads(capsys.readouterr().out) == [
        {"user": "alice", "namespace": "de*", "role": "read"}
    ]
