"""The file with the credentials for ZooKeeper, and the variables that name it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.errors import InvalidArgument
from ledger.metastore.zookeeper.access import ZooKeeperAccess, user_id
from ledger.metastore.zookeeper_access import load_access


def _file(directory: Path, data: bytes) -> str:
    path = directory / "secret"
    path.write_bytes(data)
    path.chmod(0o600)
    return str(path)


def test_access_to_zookeeper_comes_from_options_or_the_environment(tmp_path: Path) -> None:
    path = _file(tmp_path, b"bookies:a password: with a colon\n")
    variables = {
        "LEDGERSTREAM_ZOOKEEPER_CREDENTIALS_FILE": path,
        "LEDGERSTREAM_ZOOKEEPER_ACL": "creator",
    }
    assert (load_access("", "", {}).acl, load_access("", "", {}).credentials) == ("open", "")
    for access in (load_access("creator", path, {}), load_access("", "", variables)):
        assert access.acl == "creator"
        assert access.credentials == "bookies:a password: with a colon"
        assert "password" not in repr(access)
    with pytest.raises(InvalidArgument, match="zookeeper_credentials_file"):
        load_access("creator", "", {})
    with pytest.raises(InvalidArgument, match="must be"):
        load_access("everybody", path, {})


@pytest.mark.parametrize("data", [b"", b"user", b"user:", b":secret", b"\xff:secret", b"a:b\nc:d"])
def test_credentials_of_another_form_are_refused_unquoted(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(InvalidArgument, match="user:password") as caught:
        load_access("open", _file(tmp_path, data), {})
    assert "secret" not in str(caught.value).replace(str(tmp_path / "secret"), "")


def test_two_users_share_nodes_if_both_sides_name_them() -> None:
    owners, clients = "bookies:of the owners", "clients:of the clients"
    acl = f"{user_id(owners)},{user_id(clients)}"
    assert user_id("bookies:bookies") == "bookies:VYLKOaa66kJz/xTdJVJDE7vYKcs="
    for credentials in (owners, clients):
        access = ZooKeeperAccess(credentials=credentials, acl=acl)
        assert access.is_owner == (credentials == owners)
        assert access.ids == (user_id(owners), user_id(clients))
        assert access.acl_of("/ledgerstream/users/ann", "/ledgers") == ((user_id(owners), 31),)
        assert access.acl_of("/x/cookies/b", "/x") == ((user_id(owners), 31), (user_id(clients), 1))
    for credentials in ("", "bookies:another password"):
        with pytest.raises(InvalidArgument, match="Cure") as refused:
            ZooKeeperAccess(credentials=credentials, acl=acl)
        assert "another password" not in str(refused.value)
    for wrong in (
        f"{acl},{acl}",
        user_id(owners),
        f"{user_id(owners)},{user_id(owners)}",
        "a:b,c:d",
    ):
        with pytest.raises(InvalidArgument, match="zookeeper_acl"):
            ZooKeeperAccess(credentials=owners, acl=wrong)
