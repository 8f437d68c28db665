"""Commands that print keys of namespaces and ids of users, and close the nodes of ZooKeeper."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ledger.cli import security
from ledger.cli.output import ClusterOption, OutputOption, UsageError
from ledger.cli.security_check import _open_metadata
from ledger.core.ledger_keys import ClusterSecret
from ledger.core.permissions import STREAM_TAG
from ledger.metastore import open_store
from ledger.metastore.cluster_secret import load_keys
from ledger.metastore.node_kinds import NODE_KINDS
from ledger.metastore.zookeeper.access import OPEN_ACCESS, user_id
from ledger.options import ClientOptions
from tests.zookeeper import RunningZooKeeper

SECRET = b"0123456789abcdef" * 4
OWNER, CLIENT = "bookies:of the owners", "clients:of the clients"
ACL = f"{user_id(OWNER)},{user_id(CLIENT)}"
PLAIN, JSON = OutputOption(), OutputOption(json=True)


def private(path: Path, data: str | bytes) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    path.chmod(0o600)
    return path


async def test_the_keys_that_are_printed_are_the_file_of_a_client(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = private(tmp_path / "secret", SECRET)
    await security.namespace_key("demo", without_namespace=True, secret=secret, output=PLAIN)
    printed = capsys.readouterr().out
    assert SECRET.decode() not in printed
    keys = load_keys(str(private(tmp_path / "keys", printed)), {})
    assert not keys.has_secret
    whole = ClusterSecret(SECRET)
    for namespace in ("demo", ""):
        custom = {STREAM_TAG: f"{namespace}/s".encode()} if namespace else {}
        assert keys.new_key(7, custom)[1] == whole.namespace_key(namespace).password(7)
    await security.namespace_key("demo", secret=secret, output=JSON)
    assert json.loads(capsys.readouterr().out)["lines"] == printed.splitlines()[:1]


@pytest.mark.parametrize("names", [(), ("team-*",), ("a/b",)])
async def test_keys_are_those_of_single_namespaces(tmp_path: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        await security.namespace_key(*names, secret=private(tmp_path / "secret", SECRET))


async def test_keys_of_namespaces_make_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ClusterSecret(SECRET).namespace_key("demo").line()
    keys = private(tmp_path / "keys", line)
    monkeypatch.setenv("LEDGERSTREAM_CLUSTER_SECRET_FILE", str(keys))
    with pytest.raises(UsageError, match="--secret"):
        await security.namespace_key("demo")


async def test_the_id_of_a_user_has_no_password_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await security.zookeeper_id(private(tmp_path / "file", f"{OWNER}\n"), output=PLAIN)
    assert capsys.readouterr().out == f"{ACL.split(',')[0]}\n"


@pytest.mark.zookeeper
async def test_a_cluster_in_zookeeper_is_closed_and_the_check_sees_it(
    tmp_path: Path,
    shared_zookeeper: RunningZooKeeper,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    uri = f"zk://{shared_zookeeper.address}/to-be-closed/ledgers"
    async with open_store(uri, may_create=True, access=OPEN_ACCESS) as store:
        await store.create("/ledgers/INSTANCEID", b"1")
        await store.create("/ledgerstream/permissions", b"{}")
    options = ClientOptions(metadata_tls=True)
    (found,) = await _open_metadata(uri, options)
    assert "id of the cluster" in found.what
    assert "permissions" in found.what
    cluster = ClusterOption(cluster=uri)
    with pytest.raises(UsageError, match="owners"):
        await security.zookeeper_acl(cluster=cluster)
    monkeypatch.setenv("LEDGERSTREAM_ZOOKEEPER_ACL", ACL)
    file = private(tmp_path / "owners", OWNER)
    monkeypatch.setenv("LEDGERSTREAM_ZOOKEEPER_CREDENTIALS_FILE", str(file))
    await security.zookeeper_acl(dry_run=True, cluster=cluster, output=PLAIN)
    assert capsys.readouterr().err == "4 of 4 nodes would be changed\n"
    await security.zookeeper_acl(cluster=cluster, output=JSON)
    done = json.loads(capsys.readouterr().out)
    assert done["changed"]["permissions"] == 1
    assert set(done["changed"]) <= {kind.name for kind in NODE_KINDS}
    assert await _open_metadata(uri, options) == []


async def test_other_metadata_has_no_acls(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no ACLs"):
        await security.zookeeper_acl(cluster=ClusterOption(cluster=f"sqlite://{tmp_path}/c.db"))
