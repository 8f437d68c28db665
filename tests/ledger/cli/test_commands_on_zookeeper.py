"""Commands on a real ZooKeeper that is reached over TLS, and as a user of ZooKeeper's own."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ledger.cli import security, users
from ledger.cli.output import ClusterOption, OutputOption, UsageError
from ledger.errors import Unauthorized
from ledger.metastore import open_store
from ledger.metastore.bookies import BookieRegistry
from ledger.metastore.layout import Layout
from ledger.metastore.permissions import Permissions
from ledger.metastore.users import UserStore
from ledger.metastore.zookeeper.access import ZooKeeperAccess
from ledger.runtime.certificates import client_tls
from stream.cli import permissions
from tests.certificates import Authority
from tests.ledger.cli.test_users import password_file
from tests.ledger.metastore.zookeeper.test_tls import ending_tls, tls_of
from tests.zookeeper import RunningZooKeeper

pytestmark = pytest.mark.zookeeper
JSON = OutputOption(json=True)


@asynccontextmanager
async def guarded_cluster(
    server: RunningZooKeeper, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ClusterOption]:
    """A cluster whose nodes are for one user of ZooKeeper, behind what ends TLS."""
    authority = Authority(directory)
    secret = directory / "zookeeper.secret"
    secret.write_text("operators:h4ddock\n")
    secret.chmod(0o600)
    monkeypatch.setenv("LEDGERSTREAM_ZOOKEEPER_CREDENTIALS_FILE", str(secret))
    monkeypatch.setenv("LEDGERSTREAM_ZOOKEEPER_ACL", "creator")
    monkeypatch.setenv("LEDGERSTREAM_CLIENT_METADATA_TLS", "true")
    monkeypatch.setenv("LEDGERSTREAM_CLIENT_TLS_CA_FILE", str(authority.file))
    async with ending_tls(authority, server.address, "127.0.0.1") as proxy:
        uri = proxy.replace("/encrypted/", "/commands/")
        async with open_store(uri, may_create=True, tls=tls_of(authority)) as store:
            await BookieRegistry(store).init_cluster(random.Random(1), Layout.HIERARCHICAL)
        yield ClusterOption(cluster=uri)


async def test_users_and_permissions_are_managed_over_tls_as_a_user_of_zookeeper(
    shared_zookeeper: RunningZooKeeper,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with guarded_cluster(shared_zookeeper, tmp_path, monkeypatch) as cluster:
        file = password_file(tmp_path, "sw0rdfish")
        await users.create("ann", password_file=file, cluster=cluster, output=JSON)
        await users.passwd("ann", password_file=file, cluster=cluster, output=JSON)
        await permissions.grant("ann", role=("operate",), cluster=cluster, output=JSON)
        await security.init(directory=tmp_path / "security", running=cluster.uri, output=JSON)
        capsys.readouterr()
        await users.list_users(cluster=cluster, output=JSON)
        listed = json.loads(capsys.readouterr().out)
        assert [row["user"] for row in listed] == ["admin", "ann", "bookies"]
        await users.delete("ann", cluster=cluster, output=JSON)

        stranger = ZooKeeperAccess(credentials="stranger:x", acl="creator")
        tls = client_tls(cluster.options)
        opened = open_store(cluster.uri, may_create=True, tls=tls, access=stranger)
        async with opened as store:
            for attempt in (UserStore(store).read("admin"), Permissions(store).read()):
                with pytest.raises(Unauthorized, match="zookeeper_credentials_file"):
                    await attempt
        monkeypatch.setenv("LEDGERSTREAM_CLIENT_METADATA_TLS", "yes")
        with pytest.raises(UsageError, match="must be true or false"):
            await users.list_users(cluster=cluster, output=JSON)
