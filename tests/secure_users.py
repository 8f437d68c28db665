"""Users of a cluster of `standalone --secure`, with the files that their programs are given."""

from __future__ import annotations

from pathlib import Path

from tests.system.cluster import StandaloneCluster


def credentials_file(cluster: StandaloneCluster, path: Path, user: str, password: str) -> Path:
    """Writes the credentials of a user, who need not exist. Returns the path."""
    path.touch(0o600)
    authority = cluster.directory / "security" / "ca.pem"
    lines = f'user = "{user}"\npassword = "{password}"\n', f'tls_ca_file = "{authority}"\n'
    path.write_text("".join([*lines, 'tls = "start_tls"\n']))
    return path


def new_user(
    cluster: StandaloneCluster, directory: Path, user: str, *, grants: tuple[str, ...] = ()
) -> Path:
    """Creates a user with roles, each like "demo:read"; returns the path of its credentials."""
    password = directory / f"{user}.password"
    password.touch(0o600)
    password.write_text(f"password of {user}\n")
    cluster.run("user", "create", user, "--password-file", str(password))
    for grant in grants:
        namespace, _, role = grant.partition(":")
        cluster.run("permission", "grant", user, namespace, "--role", role)
    return credentials_file(cluster, directory / f"{user}.toml", user, f"password of {user}")
