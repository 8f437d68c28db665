"""The authority, the certificates and the first users of a small cluster."""

from __future__ import annotations

import random
import ssl
import time
from pathlib import Path

import pytest

from ledger.credentials import read_credentials
from ledger.errors import InvalidArgument
from ledger.metastore.memory import MemoryStore, MemoryTree
from ledger.metastore.permissions import Permissions
from ledger.metastore.users import UserStore
from ledger.options import ClientOptions
from ledger.runtime.certificates import TlsContext, TlsFiles, client_tls, server_context
from ledger.security_setup import (
    SecurityDirectory,
    create_first_users,
    make_security_directory,
    make_security_directory_at_once,
)

NOW_MS = 1_700_000_000_000
YEAR_MS = 365 * 86_400_000


def make(directory: Path, *hosts: str, seed: int = 7, now_ms: int = NOW_MS) -> list[str]:
    made = make_security_directory(
        SecurityDirectory(directory),
        {host: (host,) for host in hosts},
        rng=random.Random(seed),
        now_ms=now_ms,
    )
    return sorted(path.name for path in made)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_everything_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    made = make(tmp_path / "d", "b1.example.com")
    assert made == sorted(path.name for path in (tmp_path / "d").iterdir())
    assert made == [
        "admin.key", "admin.password", "admin.pem", "admin.toml",
        "b1.example.com.key", "b1.example.com.pem",
        "bookies.password", "bookies.toml", "bookies.zookeeper", "ca.key", "ca.pem",
        "clients.zookeeper", "cluster.secret",
    ]  # fmt: skip
    everything = [tmp_path / "d", *(tmp_path / "d").iterdir()]
    assert [path for path in everything if path.stat().st_mode & 0o077] == []


def test_a_second_run_adds_hosts_and_overwrites_nothing(tmp_path: Path) -> None:
    make(tmp_path, "one")
    before = contents(tmp_path)
    assert make(tmp_path, "one", "two", seed=8) == ["two.key", "two.pem"]
    assert {name: contents(tmp_path)[name] for name in before} == before


def handshake(tmp_path: Path, name: str, host: str) -> tuple[object, object]:
    """Returns the certificates that each side sees, of a client of the directory and a server."""
    files = TlsFiles(
        certificate=f"{tmp_path}/{name}.pem",
        key=f"{tmp_path}/{name}.key",
        authorities=f"{tmp_path}/ca.pem",
    )
    server = TlsContext(files, lambda: server_context("required"), is_server=True).current()
    options = ClientOptions.from_file(
        tmp_path / "admin.toml",
        tls_certificate_file=f"{tmp_path}/admin.pem",
        tls_key_file=f"{tmp_path}/admin.key",
    )
    client = client_tls(options).current()
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for side in sides * 3:
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return sides[0].getpeercert(), sides[1].getpeercert()


@pytest.mark.parametrize("host", ["b1.example.com", "10.0.0.7", "::1"])
def test_certificates_hold_for_their_host_in_both_directions(tmp_path: Path, host: str) -> None:
    make(tmp_path, host, now_ms=time.time_ns() // 1_000_000)
    of_server, of_client = handshake(tmp_path, host, host)
    assert of_server
    assert isinstance(of_client, dict)
    assert of_client["subject"] == ((("commonName", "admin"),),)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"match|valid for"):
        handshake(tmp_path, host, "other.example.com")


@pytest.mark.parametrize(
    ("hosts", "why"),
    [
        (["http://b1"], "is no host"),
        (["../b1"], "is no host"),
        (["b1:3181"], "'b1:3181' is no host.*without port"),
        ([""], "is no host"),
        (["ca"], "is a file of this directory already"),
        (["admin"], "is a file of this directory already"),
    ],
)
def test_odd_hosts_are_refused_before_anything_is_made(
    tmp_path: Path, hosts: list[str], why: str
) -> None:
    with pytest.raises(InvalidArgument, match=why):
        make(tmp_path / "d", "good", *hosts)
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("ca.key", "ca.pem exists without ca.key"),
        ("ca.pem", "ca.key exists without ca.pem"),
        ("one.key", "one.pem exists without one.key.*Cure: put one.key back"),
    ],
)
def test_half_of_a_pair_is_an_error(tmp_path: Path, name: str, why: str) -> None:
    make(tmp_path, "one")
    (tmp_path / name).unlink()
    before = contents(tmp_path)
    with pytest.raises(InvalidArgument, match=why):
        make(tmp_path, "one", "two")
    assert contents(tmp_path) == before


def test_a_key_of_the_authority_that_others_can_read_is_refused(tmp_path: Path) -> None:
    make(tmp_path, "one")
    (tmp_path / "ca.key").chmod(0o644)
    with pytest.raises(InvalidArgument, match=r"ca\.key has mode 0644: others can read"):
        make(tmp_path, "two")


def test_a_directory_that_a_killed_process_left_half_made_is_made_again(tmp_path: Path) -> None:
    layout = SecurityDirectory(tmp_path / "security")
    (tmp_path / "security.new").mkdir()
    (tmp_path / "security.new" / "ca.key").write_text("half")

    def at_once() -> None:
        make_security_directory_at_once(
            layout, {"bookie": ("127.0.0.1",)}, rng=random.Random(7), now_ms=NOW_MS
        )

    at_once()
    before = contents(layout.path)
    assert len(before) == 13
    assert not (tmp_path / "security.new").exists()
    at_once()
    assert contents(layout.path) == before


async def test_first_users_may_do_everything_and_are_not_replaced(tmp_path: Path) -> None:
    make(tmp_path, "one")
    layout = SecurityDirectory(tmp_path)
    async with MemoryStore(MemoryTree(), lambda: NOW_MS) as store:

        async def create() -> list[str]:
            return await create_first_users(store, layout, rng=random.Random(7), now_ms=NOW_MS)

        assert await create() == ["bookies", "admin"]
        grants = [str(one) for one in await Permissions(store).read()]
        assert len(grants) == 2
        await Permissions(store).revoke(await Permissions(store).read())
        before = await UserStore(store).list()
        assert await create() == []
        assert await UserStore(store).list() == before
        assert not (await Permissions(store).read()).grants  # not given back behind one's back


def test_the_credentials_of_both_users_can_be_used_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "d", "one")
    monkeypatch.chdir(tmp_path)
    passwords = set()
    for user in ("admin", "bookies"):
        found = read_credentials(f"d/{user}.toml")
        assert found.user == user
        assert found.password is not None
        assert len(found.password.reveal()) == 48
        passwords.add(found.password.reveal())
        options = ClientOptions.from_file(f"d/{user}.toml")
        assert (options.tls, options.tls_ca_file) == ("start_tls", f"{tmp_path}/d/ca.pem")
    assert len(passwords) == 2
