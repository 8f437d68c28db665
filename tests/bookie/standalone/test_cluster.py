"""The files that a standalone cluster writes: every path is read unchanged, or is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from bookie.config import load_bookie_config
from bookie.standalone.cluster import StandaloneLayout
from bookie.standalone.zookeeper_server import ZooKeeperServer, find_java, property_value
from ledger.errors import InvalidArgument
from ledger.metastore import ClusterAddress, open_store

ODD_NAMES = [
    'with "quotes"',
    "it's",
    "back\\slash",
    "a\\tb\\u0041",
    "trailing\\",
    "two  blanks ",
    "#comment",
    "50%20off",
    "what?mode=ro",
    "a=b;c&d",
    "[table]",
    "${HOME}$(x)`y`",
    "Zürich-東京-🎉",
    "no\u00a0break\u2028line",
]


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_every_path_is_read_unchanged_from_the_settings(tmp_path: Path, name: str) -> None:
    directory = tmp_path / name
    layout = StandaloneLayout.open(directory, 2)
    assert StandaloneLayout.open(directory, None) == layout
    config = load_bookie_config(layout.bookie_config(1), {}, {})
    assert config.metadata_uri == layout.metadata
    assert config.journal_directories == (f"{directory}/bookie-1/journal",)
    assert config.ledger_directories == (f"{directory}/bookie-1/ledgers",)
    assert (config.port, config.http_port) == (layout.ports[0], layout.http_ports[0])
    assert ClusterAddress.parse(layout.metadata).sqlite_path == f"{directory}/cluster.db"
    async with open_store(layout.metadata, may_create=True) as store:
        await store.create("/here", b"")
    assert (directory / "cluster.db").exists()
    assert sorted(os.listdir(tmp_path)) == [name]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (b"not\xffutf8", r"'.*/not\\xffutf8' is not UTF-8"),
        (b"line\nbreak", r"contains \\n"),
        (b"a,b", "contains ,"),
        (b"bell\x07\x7f", r"contains \\x07 \\x7f"),
        (b"tab\there", r"contains \\t"),
    ],
)
def test_a_path_that_cannot_be_is_refused_before_anything_is_created(
    tmp_path: Path, name: bytes, said: str
) -> None:
    directory = tmp_path / os.fsdecode(name)
    with pytest.raises(InvalidArgument, match=said) as reported:
        StandaloneLayout.open(directory, None)
    assert "\n" not in str(reported.value)
    str(reported.value).encode()
    assert not list(tmp_path.iterdir())


def test_the_address_of_a_store_is_checked_too(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"contains \\n"):
        StandaloneLayout.open(tmp_path / "x", None, "sqlite:///tmp/a\nb.db")
    layout = StandaloneLayout.open(tmp_path / "y", None, 'sqlite:///tmp/a,"b".db')
    assert load_bookie_config(layout.bookie_config(1), {}, {}).metadata_uri == layout.metadata
    assert os.listdir(tmp_path) == ["y"]


_PRINT = """
import java.io.*; import java.util.*; import java.nio.charset.StandardCharsets;
public class Print { public static void main(String[] a) throws Exception {
  Properties p = new Properties(); p.load(new FileInputStream(a[0]));
  System.out.write(p.getProperty("k").getBytes(StandardCharsets.UTF_8)); System.out.flush(); } }
"""


@pytest.mark.skipif(shutil.which("java") is None, reason="needs Java")
def test_java_reads_the_values_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "Print.java").write_text(_PRINT)
    for name in ("x".join(ODD_NAMES), " blank"):
        (tmp_path / "p.cfg").write_text(f"k={property_value(name)}\n", encoding="ascii")
        command = [find_java(), str(tmp_path / "Print.java"), str(tmp_path / "p.cfg")]
        read = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
        assert read.decode() == name


def test_what_a_cluster_writes_is_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        layout = StandaloneLayout.open(tmp_path / "cluster", 1)
        config = layout.bookie_config(1)
    finally:
        os.umask(before)
    paths = [layout.directory, layout.directory / "standalone.toml", config.parent, config]
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o700, 0o600, 0o700, 0o600]


@pytest.mark.skipif(shutil.which("java") is None, reason="needs Java")
def test_the_zookeeper_server_offers_no_more_than_is_needed(tmp_path: Path) -> None:
    ZooKeeperServer(tmp_path / "zookeeper", 1).command()
    lines = (tmp_path / "zookeeper" / "zoo.cfg").read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines)
    assert settings["clientPortAddress"] == "127.0.0.1"
    assert settings["4lw.commands.whitelist"] == "conf,srvr"
    assert settings["admin.enableServer"] == "false"
    assert settings["maxClientCnxns"] == settings["maxCnxns"] == "1000"
    assert (tmp_path / "zookeeper").stat().st_mode & 0o777 == 0o700


def test_a_secure_directory_is_secure_permanently(tmp_path: Path) -> None:
    layout = StandaloneLayout.open(tmp_path / "c", 1, is_secure=True)
    assert StandaloneLayout.open(tmp_path / "c", None) == layout
    assert layout.is_secure
    config = load_bookie_config(layout.bookie_config(1), {}, {})
    assert (config.tls_required, config.http_tls, config.permissions) == (True, True, True)
    own = config.client_options()
    assert (own.tls, own.tls_ca_file) == ("start_tls", f"{tmp_path}/c/security/ca.pem")
    assert own.credentials_file == f"{tmp_path}/c/security/bookies.toml"


def test_an_existing_cluster_is_not_made_secure(tmp_path: Path) -> None:
    StandaloneLayout.open(tmp_path / "c", 1)
    with pytest.raises(InvalidArgument, match="was created without --secure"):
        StandaloneLayout.open(tmp_path / "c", 1, is_secure=True)
    assert not (tmp_path / "c" / "security").exists()


@pytest.mark.parametrize("metadata", ["zookeeper", "zk://zk1:2181/ledgers", "sqlite:///x/c.db"])
def test_a_secure_cluster_keeps_its_metadata_to_itself(tmp_path: Path, metadata: str) -> None:
    with pytest.raises(InvalidArgument, match=r"--secure keeps the metadata.*leave out --metadata"):
        StandaloneLayout.open(tmp_path / "c", 1, metadata, is_secure=True)
    assert not (tmp_path / "c").exists()
