"""Users of a cluster of `standalone --secure`, with the files that their programs are given."""

from __future__ import annotations

import random
from pathlib import Path

import trio

from ledger.core.authentication import scram
from ledger.core.permissions import Grant, Role
from ledger.metastore import open_store
from ledger.metastore.permissions import Permissions
from ledger.metastore.users import UserStore
from ledger.metastore.users import new_user as user_with_password
from tests.system.cluster import StandaloneCluster


def credentials_file(cluster: StandaloneCluster, path: Path, user: str, password: str) -> Path:
    """Writes the credentials of a user; it may be one that does not exist. Returns the path."""
    path.touch(0o600)
    authority = cluster.directory / "security" / "ca.pem"
    lines = f'user = "{user}"\npassword = "{password}"\n', f'tls_ca_file = "{authority}"\n'
    path.write_text("".join([*lines, 'tls = "start_tls"\n']))
    return path


def new_user(cluster: StandaloneCluster, directory: Path, user: str, *grants: str) -> Path:
    """Creates a user with roles, each like "demo:read"; returns the path of its credentials.

    Bookies follow within a second.
    """
    password = f"password of {user}"
    salts = dict.fromkeys(scram.HASHES, random.Random(user).randbytes(scram.SALT_BYTES))
    made = user_with_password(user, password, salts=salts, now_ms=1, digest_md5=False)
    roles = [Grant(user, Role(role), namespace) for namespace, role in map(_parts, grants)]

    async def create() -> None:
        async with open_store(cluster.uri) as store:
            await UserStore(store).create(made)
            await Permissions(store).grant(roles)

    trio.run(create)
    return credentials_file(cluster, directory / f"{user}.toml", user, password)


def _parts(grant: str) -> tuple[str, str]:
    namespace, _, role = grant.partition(":")
    return namespace, role
