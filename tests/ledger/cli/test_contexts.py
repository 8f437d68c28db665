"""Saved addresses of clusters, and which of the four places names the cluster of a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ledger.cli import context_commands, output
from ledger.cli.contexts import Contexts, contexts_file, read_contexts, write_contexts
from ledger.cli.output import ClusterOption, OutputOption, UsageError
from ledger.credentials import Credentials, Secret
from ledger.errors import InvalidArgument, MetadataUnavailable
from ledger.options import ClientOptions

PROD = "zk://zk1:2181,zk2:2181/ledgers"
LOCAL = "sqlite:///var/lib/cluster.db"
JSON = OutputOption(json=True)


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for variable in ("LEDGERSTREAM_CLUSTER", "LEDGERSTREAM_CONTEXT"):
        monkeypatch.delenv(variable, raising=False)


def test_contexts_are_added_selected_and_removed(capsys: pytest.CaptureFixture[str]) -> None:
    context_commands.add("prod", PROD, output=JSON)
    context_commands.add("local", LOCAL, output=JSON)
    assert read_contexts() == Contexts({"prod": PROD, "local": LOCAL}, "prod")
    context_commands.use_context("local", output=JSON)
    assert ClusterOption().uri == LOCAL
    context_commands.add("prod", PROD, use=True, replace=True, output=JSON)
    capsys.readouterr()
    context_commands.list_contexts(output=JSON)
    assert json.loads(capsys.readouterr().out) == [
        {"context": "local", "current": False, "cluster": LOCAL},
        {"context": "prod", "current": True, "cluster": PROD},
    ]
    context_commands.show(output=JSON)
    assert json.loads(capsys.readouterr().out) == {"cluster": PROD, "from": "context 'prod'"}
    context_commands.remove("prod", output=JSON)
    assert read_contexts() == Contexts({"local": LOCAL}, None)
    with pytest.raises(
        UsageError, match=r"which cluster\? Give --cluster URI, set LEDGERSTREAM_CL"
    ):
        ClusterOption().uri  # noqa: B018 - it raises


def test_the_option_precedes_the_variables_and_those_the_selected_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_contexts(Contexts({"prod": PROD, "local": LOCAL}, "local"))
    assert ClusterOption().address_and_source() == (LOCAL, "context 'local'")
    monkeypatch.setenv("LEDGERSTREAM_CONTEXT", "prod")
    assert ClusterOption().address_and_source() == (
        PROD,
        "context 'prod' of LEDGERSTREAM_CONTEXT",
    )
    monkeypatch.setenv("LEDGERSTREAM_CLUSTER", "sqlite:///a.db")
    assert ClusterOption().address_and_source() == ("sqlite:///a.db", "LEDGERSTREAM_CLUSTER")
    option = ClusterOption(cluster="sqlite:///b.db")
    assert option.address_and_source() == ("sqlite:///b.db", "--cluster")


def test_errors_say_where_the_address_is_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGERSTREAM_CLUSTER", "localhost:2181")
    with pytest.raises(
        UsageError,
        match=r"did you mean zk://localhost:2181/ledgers\? \(the address is from LEDGERSTREAM_CL",
    ):
        ClusterOption().uri  # noqa: B018 - it raises
    monkeypatch.delenv("LEDGERSTREAM_CLUSTER")
    write_contexts(Contexts({"prod": PROD}, "prod"))
    assert ClusterOption().uri == PROD
    text = output._text_of(MetadataUnavailable("ZooKeeper was not reached"))
    assert text == "ZooKeeper was not reached (the address is from context 'prod')"


def test_wrong_names_and_addresses_are_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    context_commands.add("prod", PROD, output=JSON)
    with pytest.raises(UsageError, match=r"no context 'prd'; did you mean 'prod'\?"):
        context_commands.use_context("prd")
    with pytest.raises(UsageError, match="no context 'x'; `ledgerstream context list` shows all"):
        context_commands.remove("x")
    with pytest.raises(UsageError, match=r"'prod' already exists, with zk://zk1.*--replace"):
        context_commands.add("prod", LOCAL)
    with pytest.raises(UsageError, match="unknown scheme 'kafka'"):
        context_commands.add("other", "kafka://x")
    for name in ("", "-x", "a\nb"):
        with pytest.raises(UsageError, match="context name"):
            context_commands.add(name, LOCAL)
    monkeypatch.setenv("LEDGERSTREAM_CONTEXT", "prot")
    with pytest.raises(UsageError, match=r"no context 'prot'; did you mean 'prod'\?"):
        ClusterOption().uri  # noqa: B018 - it raises
    assert read_contexts() == Contexts({"prod": PROD}, "prod")


def test_only_the_owner_can_read_the_file() -> None:
    write_contexts(Contexts({"prod": PROD}, "prod"))
    assert contexts_file().stat().st_mode & 0o777 == 0o600
    assert list(contexts_file().parent.iterdir()) == [contexts_file()]


@pytest.mark.parametrize(
    "text", ["", "[]", '{"clusters": {"a": 1}, "current": null}', "\xff", "{}"]
)
def test_a_damaged_file_is_named_with_the_cure(text: str) -> None:
    contexts_file().parent.mkdir(parents=True)
    contexts_file().write_text(text, encoding="latin-1")
    with pytest.raises(InvalidArgument, match=r"contexts\.json has no contexts.*Cure: delete it"):
        read_contexts()
    assert ClusterOption(cluster=LOCAL).uri == LOCAL


def test_the_option_precedes_the_variables_and_those_the_file_of_the_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ann.toml"
    file.write_text('user = "ann"\npassword = "x"\n')
    file.chmod(0o600)
    assert ClusterOption().options == ClientOptions()
    context_commands.add("prod", PROD, credentials=str(file), output=JSON)
    context_commands.add("local", LOCAL, output=JSON)
    assert ClusterOption().options == ClientOptions(credentials_file=str(file))
    assert ClusterOption(cluster=LOCAL).options == ClientOptions()
    monkeypatch.setenv("LEDGERSTREAM_CONTEXT", "local")
    assert ClusterOption().options == ClientOptions()
    monkeypatch.setenv("LEDGERSTREAM_TOKEN", "a.b.c")
    assert ClusterOption().options.credentials == Credentials(token=Secret("a.b.c"))
    monkeypatch.setenv("LEDGERSTREAM_USER", "bob")
    with pytest.raises(UsageError, match="a token names its user itself"):
        ClusterOption().options  # noqa: B018 - it raises
    monkeypatch.delenv("LEDGERSTREAM_TOKEN")
    monkeypatch.setenv("LEDGERSTREAM_PASSWORD", "y")
    bob = Credentials(user="bob", password=Secret("y"))
    assert ClusterOption().options.credentials == bob
    others = [tmp_path / "variable.toml", tmp_path / "option.toml"]
    for other in others:
        other.write_bytes(file.read_bytes())
        other.chmod(0o600)
    monkeypatch.setenv("LEDGERSTREAM_CREDENTIALS", str(others[0]))
    assert ClusterOption().options.credentials_file == str(others[0])
    assert ClusterOption(credentials=str(others[1])).options.credentials_file == str(others[1])
    context_commands.remove("prod", output=JSON)
    assert read_contexts().credentials == {}


def test_a_file_of_credentials_says_how_connections_are_encrypted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ann.toml"
    file.write_text(
        'user = "ann"\npassword = "x"\ntls = "direct"\ntls_ca_file = "ca.pem"\n'
        'tls_certificate_file = "/etc/ann.pem"\nmetadata_tls = true\n'
    )
    file.chmod(0o600)
    expected = ClientOptions(
        credentials_file=str(file),
        tls="direct",
        tls_ca_file=str(tmp_path / "ca.pem"),
        tls_certificate_file="/etc/ann.pem",
        metadata_tls=True,
    )
    assert ClusterOption(credentials=str(file)).options == expected
    context_commands.add("prod", PROD, credentials=str(file), output=JSON)
    assert ClusterOption().options == expected
    monkeypatch.setenv("LEDGERSTREAM_CLIENT_TLS", "start_tls")
    monkeypatch.setenv("LEDGERSTREAM_CLIENT_TLS_CA_FILE", "other.pem")
    both = ClusterOption().options
    assert (both.tls, both.tls_ca_file, both.metadata_tls) == ("start_tls", "other.pem", True)
    context_commands.remove("prod", output=JSON)
    assert ClusterOption().options == ClientOptions(tls="start_tls", tls_ca_file="other.pem")
    monkeypatch.setenv("LEDGERSTREAM_CLIENT_TLS", "on")
    with pytest.raises(UsageError, match="tls is one of off, start_tls, direct, not 'on'"):
        ClusterOption().options  # noqa: B018 - it raises


def test_a_file_with_tls_alone_names_no_user(tmp_path: Path) -> None:
    file = tmp_path / "tls.toml"
    file.write_text('tls = "start_tls"\n')
    file.chmod(0o600)
    assert ClusterOption(credentials=str(file)).options == ClientOptions(tls="start_tls")


def test_a_file_of_credentials_is_checked_when_it_is_saved(tmp_path: Path) -> None:
    file = tmp_path / "ann.toml"
    file.write_text('user = "ann"\npassword = "x"\n')
    file.chmod(0o644)
    with pytest.raises(UsageError, match="others can read or change the secret in it"):
        context_commands.add("prod", PROD, credentials=str(file), output=JSON)
    assert read_contexts() == Contexts()
