"""`ledgerstream user`: passwords come from a file, standard input or a terminal."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ledger.cli import users
from ledger.cli.output import ClusterOption, OutputOption, UsageError
from ledger.core.authentication.names import SCRAM_SHA_256
from ledger.core.authentication.scram import matches
from ledger.core.permissions import Grant, PermissionTable, Role
from ledger.errors import NodeExists, NoSuchNode
from ledger.metastore import open_store
from ledger.metastore.permissions import PATH, Permissions
from ledger.metastore.users import UserStore, path_of
from tests.clusters import make_cluster

JSON = OutputOption(json=True)


@pytest.fixture
async def cluster(tmp_path: Path) -> ClusterOption:
    uri = f"sqlite://{tmp_path}/cluster.db"
    await make_cluster(uri)
    return ClusterOption(cluster=uri)


def password_file(directory: Path, password: str) -> str:
    path = directory / "password"
    path.write_text(f"{password}\n")
    path.chmod(0o600)
    return str(path)


async def has_password(cluster: ClusterOption, name: str, password: str) -> bool:
    async with open_store(cluster.uri) as store:
        user = await UserStore(store).read(name)
    assert user is not None
    return matches(SCRAM_SHA_256, password, user.verifiers[SCRAM_SHA_256])


async def test_users_are_created_listed_changed_and_deleted(
    cluster: ClusterOption, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = password_file(tmp_path, "sw0rdfish")
    await users.create("ann", password_file=file, cluster=cluster, output=JSON)
    await users.create(
        "bob", password_file=file, digest_md5=True, cluster=cluster, output=OutputOption()
    )
    assert await has_password(cluster, "ann", "sw0rdfish")
    printed = capsys.readouterr()
    assert printed.err == "user bob is created\n"
    await users.list_users(cluster=cluster, output=JSON)
    listed = json.loads(capsys.readouterr().out)
    assert [(row["user"], row["mechanisms"]) for row in listed] == [
        ("ann", ["SCRAM-SHA-256", "SCRAM-SHA-512"]),
        ("bob", ["SCRAM-SHA-256", "SCRAM-SHA-512", "DIGEST-MD5"]),
    ]
    with pytest.raises(NodeExists, match="user ann exists already"):
        await users.create("ann", password_file=file, cluster=cluster, output=JSON)
    other = password_file(tmp_path, "haddock")
    await users.passwd("ann", password_file=other, cluster=cluster, output=JSON)
    assert await has_password(cluster, "ann", "haddock")
    await users.delete("ann", cluster=cluster, output=JSON)
    with pytest.raises(NoSuchNode, match="there is no user ann"):
        await users.passwd("ann", password_file=other, cluster=cluster, output=JSON)
    assert "sw0rdfish" not in printed.out + printed.err + str(listed)


async def test_a_deleted_user_leaves_no_rights_to_the_next_one_of_its_name(
    cluster: ClusterOption, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = password_file(tmp_path, "sw0rdfish")
    bob = Grant("bob", Role.READ, "demo")
    async with open_store(cluster.uri) as store:
        await Permissions(store).grant([Grant("ann", Role.WRITE, "demo"), bob])
        with pytest.raises(NoSuchNode, match="there is no user bob"):
            await users.delete("bob", cluster=cluster, output=JSON)
        await users.create("ann", password_file=file, cluster=cluster, output=JSON)
        capsys.readouterr()
        await users.delete("ann", cluster=cluster, output=JSON)
        printed = json.loads(capsys.readouterr().out)
        assert printed == {"user": "ann", "deleted": True, "revoked": ["write on demo"]}
        assert await Permissions(store).read() == PermissionTable(frozenset([bob]))
        await users.create("ann", password_file=file, cluster=cluster, output=JSON)
        await store.put(path_of("ann"), b"damage")
        await store.put(PATH, b"damage")
        await users.delete("ann", cluster=cluster, output=JSON)
        assert await store.children("/ledgerstream/users") == []


async def test_a_password_comes_from_standard_input(
    cluster: ClusterOption, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin = SimpleNamespace(buffer=io.BytesIO(b"from a pipe\nmore"), isatty=lambda: False)
    monkeypatch.setattr(sys, "stdin", stdin)
    await users.create("ann", password_file="-", cluster=cluster, output=JSON)
    assert await has_password(cluster, "ann", "from a pipe")
    with pytest.raises(UsageError, match="no terminal to ask for the password; give --password-f"):
        await users.create("bob", cluster=cluster, output=JSON)


async def test_a_terminal_is_asked_twice(
    cluster: ClusterOption, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = ["one", "other", "same", "same"]
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("getpass.getpass", lambda prompt: typed.pop(0))
    with pytest.raises(UsageError, match="the two passwords differ"):
        await users.create("ann", cluster=cluster, output=JSON)
    await users.create("ann", cluster=cluster, output=JSON)
    assert await has_password(cluster, "ann", "same")


async def test_wrong_names_and_passwords_are_wrong_usage(
    cluster: ClusterOption, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="user name 'a/b'"):
        await users.create("a/b", cluster=cluster, output=JSON)
    with pytest.raises(UsageError, match="user name '-a'"):
        await users.delete("-a", cluster=cluster, output=JSON)
    file = password_file(tmp_path, "a\a")
    with pytest.raises(UsageError, match="character 2 of the password"):
        await users.create("ann", password_file=file, cluster=cluster, output=JSON)
    os.chmod(file, 0o644)
    with pytest.raises(UsageError, match="others can read"):
        await users.create("ann", password_file=file, cluster=cluster, output=JSON)
