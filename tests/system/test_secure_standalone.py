"""`ledgerstream standalone --secure`: encrypted, authenticated and permitted from the start."""

from __future__ import annotations

import json
import ssl
import tomllib
from http.client import HTTPSConnection
from pathlib import Path

import pytest

from tests.system.cluster import StandaloneCluster, wait_for
from tests.system.shown_secrets import SecretSearch

pytestmark = pytest.mark.system


def admin_of(cluster: StandaloneCluster) -> tuple[str, str]:
    return "--credentials", str(cluster.directory / "security" / "admin.toml")


def test_the_admin_appends_reads_and_sees_a_healthy_cluster(secure: StandaloneCluster) -> None:
    admin = admin_of(secure)
    wait_for(lambda: f"export LEDGERSTREAM_CREDENTIALS={admin[1]}\n" in secure.said.read_text())
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
    assert len(files) == 15
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


def test_a_check_from_outside_finds_nothing_open(secure: StandaloneCluster, tmp_path: Path) -> None:
    admin = admin_of(secure)
    assert json.loads(secure.run("security", "check", "--json", *admin)) == []
    soon = secure.try_run("security", "check", "--json", "--expiry-days", "4000", *admin)
    assert soon.returncode == 1
    assert {one["open"] for one in json.loads(soon.stdout)} == {
        "its certificate expires in 3649 days"
    }
    outsider = secure.try_run("security", "check", "--json")  # it trusts no such authority
    assert outsider.returncode == 1
    found = json.loads(outsider.stdout)
    assert {one["where"].partition(" 127")[0] for one in found} == {
        "bookie", "HTTP of bookie", "settings of bookie",
    }  # fmt: skip
    assert not [one for one in found if "served" in one["open"] or "answers cl" in one["open"]]


def test_a_check_lists_what_an_ordinary_cluster_leaves_open(shared: StandaloneCluster) -> None:
    checked = shared.try_run("security", "check", "--json")
    assert checked.returncode == 1
    found = {one["open"] for one in json.loads(checked.stdout)}
    assert "requests in clear are served to clients that prove nothing" in found
    assert "it answers clients that prove nothing" in found
    assert "every client may do everything" in found
    assert "no client is authenticated" in found


def test_init_makes_files_prints_settings_and_creates_the_users(
    shared: StandaloneCluster, tmp_path: Path
) -> None:
    directory = tmp_path / "security"
    init = ("security", "init", "--dir", str(directory), "--host", "b1.example.com", "--admin")
    printed = shared.run(*init, "root")
    settings = tomllib.loads(printed.decode())
    assert settings["tls_required"] is True
    assert settings["permissions"] is True
    assert Path(settings["tls_certificate_file"]) == directory / "b1.example.com.pem"
    assert Path(settings["credentials_file"]).exists()
    before = {path: path.read_bytes() for path in directory.iterdir()}
    done = json.loads(shared.run(*init, "root", "--cluster", shared.uri, "--json"))
    assert (done["made"], done["users_created"]) == ([], ["bookies", "root"])
    assert {path: path.read_bytes() for path in directory.iterdir()} == before
    explained = json.loads(shared.run("permission", "explain", "root", "--json"))
    assert [role["allowed"] for role in explained["roles"]] == [True, True, True]
    for path, data in before.items():  # no secret is printed
        if path.suffix in (".password", ".key"):
            assert data.strip() not in printed
    refused = shared.try_run("security", "init", "--dir", str(directory), "--host", "http://b1")
    assert refused.returncode == 2
    assert b"is no host" in refused.stderr


def search_of(cluster: StandaloneCluster, directory: Path) -> SecretSearch:
    return SecretSearch(cluster, directory, cluster.directory.parent / "audit.log")


def test_no_secret_is_in_what_was_shown(secure: StandaloneCluster, tmp_path: Path) -> None:
    """By all tests above: this one comes last."""
    search = search_of(secure, tmp_path)
    search.passive()
    search.secrets.check()
    assert search.secrets.searched_bytes > 100_000


@pytest.mark.slow
def test_no_secret_is_shown_by_any_command(secure: StandaloneCluster, tmp_path: Path) -> None:
    search = search_of(secure, tmp_path)
    search.active()
    search.secrets.check()
    assert search.secrets.searched_bytes > 150_000
