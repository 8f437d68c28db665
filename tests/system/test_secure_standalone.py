"""`ledgerstream standalone --secure`: encrypted, authenticated and permitted from the start."""

from __future__ import annotations

import json
import ssl
import tomllib
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path

import pytest

from tests.system.cluster import StandaloneCluster

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    directory = tmp_path_factory.mktemp("secure") / "cluster"
    cluster = StandaloneCluster(directory, 4, ("--secure",))
    cluster.start()
    yield cluster
    cluster.stop()


def admin_of(cluster: StandaloneCluster) -> tuple[str, str]:
    return "--credentials", str(cluster.directory / "security" / "admin.toml")


def test_the_admin_appends_reads_and_sees_a_healthy_cluster(secure: StandaloneCluster) -> None:
    admin = admin_of(secure)
    assert f"export LEDGERSTREAM_CREDENTIALS={admin[1]}\n" in secure.said.read_text()
    lines = b"".join(b"%d\n" % n for n in range(100))
    secure.run("append", "demo/numbers", *admin, stdin=lines)
    assert secure.run("read", "demo/numbers", "--from", "earliest", *admin) == lines
    status = json.loads(secure.run("status", "--json", *admin))
    assert status["verdict"] == "healthy"
    shown = json.loads(secure.run("bookie", "show", "--json", *admin))
    assert len(shown) == 4


def test_a_client_without_credentials_or_tls_reads_nothing(
    secure: StandaloneCluster, tmp_path: Path
) -> None:
    secure.run("append", "demo/secret", *admin_of(secure), stdin=b"secret\n")
    in_clear = secure.try_run("read", "demo/secret", "--from", "earliest")
    assert (in_clear.returncode, in_clear.stdout) == (1, b"")
    assert b"unauthorized" in in_clear.stderr
    anonymous = tmp_path / "anonymous.toml"
    anonymous.write_text(f'tls = "start_tls"\ntls_ca_file = "{secure.directory}/security/ca.pem"\n')
    anonymous.chmod(0o600)
    refused = secure.try_run(
        "read", "demo/secret", "--from", "earliest", "--credentials", str(anonymous)
    )
    assert (refused.returncode, refused.stdout) == (1, b"")
    assert b"unauthorized" in refused.stderr.lower()


def test_http_is_encrypted_and_shows_nothing_without_credentials(
    secure: StandaloneCluster,
) -> None:
    port = tomllib.loads(secure.settings_of(1).read_text())["http_port"]
    context = ssl.create_default_context(cafile=secure.directory / "security" / "ca.pem")
    connection = HTTPSConnection("localhost", port, context=context)
    connection.request("GET", "/metrics")
    assert connection.getresponse().status == 401
    connection.close()


def test_bookies_heal_each_other_with_credentials_of_their_own(secure: StandaloneCluster) -> None:
    admin = admin_of(secure)
    for number in range(4):  # of four bookies each is in some of the ensembles
        secure.run("append", f"demo/healed-{number}", *admin, stdin=b"a\nb\n")
    emptied = f"127.0.0.1:{secure.ports()[3]}"
    secure.run("bookie", "decommission", emptied, "--watch", *admin)
    for number in range(4):
        read = secure.run("read", f"demo/healed-{number}", "--from", "earliest", *admin)
        assert read == b"a\nb\n"
    assert "unauthorized" not in secure.logs().lower()


def test_all_files_of_it_are_its_owners_alone(secure: StandaloneCluster) -> None:
    files = [secure.directory / "security", *(secure.directory / "security").iterdir()]
    assert len(files) == 12
    assert [path for path in files if path.stat().st_mode & 0o077] == []


def test_a_restart_keeps_passwords_and_does_not_bring_back_a_deleted_user(
    tmp_path: Path,
) -> None:
    cluster = StandaloneCluster(tmp_path / "cluster", 1, ("--secure",))
    try:
        cluster.start()
        cluster.run("user", "delete", "admin")
        cluster.end()
        files = {path: path.read_bytes() for path in (cluster.directory / "security").iterdir()}
        again = StandaloneCluster(cluster.directory, None, ())
        again.start()
        cluster = again
        users = json.loads(cluster.run("user", "list", "--json"))
        assert [user["user"] for user in users] == ["bookies"]
        assert {path: path.read_bytes() for path in files} == files
    finally:
        cluster.stop()
