"""The lines that commands add to an audit log: one for each change, and none for reading."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from ledger.cli.output import UsageError
from ledger.errors import NodeExists
from ledger.runtime.audit_file import AuditFile
from stream.cli import audit
from stream.cli.audit import CHANGES, run_audited
from stream.cli.command import AUDIT_VARIABLE, build_app, main
from tests.clusters import make_cluster
from tests.stream.cli.test_command import ALL, APP

READS = {
    "autorecovery list", "autorecovery run", "autorecovery status", "bookie check",
    "bookie inspect entry-log", "bookie inspect index", "bookie inspect journal",
    "bookie inspect ledger", "bookie list", "bookie run", "bookie show", "canary", "completion",
    "context add", "context list", "context remove", "context show", "context use", "cursor list",
    "cursor show", "group list", "group show", "help", "janitor", "ledger check", "ledger list",
    "ledger read", "ledger show", "metadata export", "metadata restores", "namespace list",
    "namespace show", "permission explain", "permission list", "read", "retention explain",
    "sink list", "sink show", "standalone", "status", "stream list", "stream lost-ledgers",
    "security check", "security zookeeper-id", "stream show", "stream trash", "stream verify",
    "tail", "user list", "version",
}  # fmt: skip
"""Commands that change nothing of a cluster, or what is on this machine alone."""


def test_each_command_is_one_that_changes_something_or_one_that_does_not() -> None:
    leaves = {" ".join(path) for path in ALL if not _is_group(path)}
    assert not CHANGES.keys() & READS
    assert CHANGES.keys() | READS == leaves


def _is_group(path: tuple[str, ...]) -> bool:
    app = APP
    for name in path:
        app = app[name]
    return any(not name.startswith("-") for name in app)


@pytest.mark.parametrize("action", CHANGES)
def test_the_arguments_that_are_recorded_exist_and_are_no_secrets(action: str) -> None:
    app = APP
    for name in action.split():
        app = app[name]
    assert app.default_command is not None
    known = inspect.signature(app.default_command).parameters
    for name in CHANGES[action]:
        assert name in known
        assert "password" not in name


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    uri = f"sqlite://{tmp_path}/cluster.db"
    trio.run(make_cluster, uri)
    return uri


def run(path: Path, *arguments: str) -> object:
    return run_audited(build_app(arguments), arguments, str(path))


def lines(path: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in path.read_bytes().splitlines()]
    for line in found:
        assert line.pop("time").endswith("Z")
        assert line.pop("host")
        assert line.pop("user") == audit._system_user()
    return found


def test_a_change_is_recorded_with_who_what_and_outcome(
    cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, password = tmp_path / "audit.jsonl", tmp_path / "password"
    password.write_text("sw0rdfish\n")
    password.chmod(0o600)
    at = ("--cluster", cluster)
    create = ("user", "create", "ann", "--password-file", str(password), *at)
    run(path, *create)
    with pytest.raises(NodeExists):
        run(path, *create)
    run(path, "user", "list", *at)
    with pytest.raises(UsageError):
        run(path, "stream", "delete", "no-slash", *at)
    created = {"cluster": cluster, "arguments": {"name": "ann"}}
    assert lines(path) == [
        {"action": "user create", "outcome": "ok", **created},
        {"action": "user create", "outcome": "failed", **created, "cause": "NodeExists"},
        {
            "action": "stream delete", "outcome": "failed", "cluster": cluster,
            "arguments": {"stream": "no-slash"}, "cause": "UsageError",
        },
    ]  # fmt: skip
    assert path.stat().st_mode & 0o777 == 0o600
    assert "sw0rdfish" not in path.read_text()


def test_policies_roles_and_credentials_are_recorded_and_a_password_of_a_ledger_is_not(
    tmp_path: Path, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.jsonl"
    monkeypatch.setenv("LEDGERSTREAM_USER", "ann")
    monkeypatch.setenv("LEDGERSTREAM_PASSWORD", "sw0rdfish")
    monkeypatch.setenv("LEDGERSTREAM_CLUSTER", cluster)
    policy = ("--ensemble-size", "1", "--write-quorum", "1", "--ack-quorum", "1")
    run(path, "namespace", "create", "demo", *policy)
    run(path, "namespace", "set", "demo", "--retention-ms", "7d", "--dry-run")
    run(path, "permission", "grant", "bob", "demo", "--role", "read")
    run(path, "autorecovery", "disable")
    run(path, "autorecovery", "delay")
    with pytest.raises(Exception, match="bookie"):
        run(path, "ledger", "create", "--password", "h4ddock", "--ensemble", "3")
    who = {"cluster": cluster, "credentials_user": "ann"}
    found = lines(path)
    assert found[:3] == [
        {
            "action": "namespace create", "outcome": "ok", **who,
            "arguments": {
                "name": "demo",
                "policy": {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1},
            },
        },
        {
            "action": "permission grant", "outcome": "ok", **who,
            "arguments": {"user": "bob", "namespace": "demo", "role": ["read"]},
        },
        {"action": "autorecovery disable", "outcome": "ok", **who},
    ]  # fmt: skip
    assert [one["action"] for one in found[3:]] == ["ledger create"]
    assert found[3]["arguments"]["ensemble"] == 3
    assert not any(secret in path.read_text() for secret in ("sw0rdfish", "h4ddock"))


def test_without_a_place_for_the_line_nothing_is_changed(cluster: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"audit file .* cannot be opened.* nothing was changed"):
        run(tmp_path / "missing" / "audit", "namespace", "create", "demo", "--cluster", cluster)
    run(tmp_path / "audit", "namespace", "create", "demo", "--cluster", cluster)  # still free


def test_a_line_that_cannot_be_written_is_said_and_the_command_succeeds(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def full(self: AuditFile, written: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(AuditFile, "write", full)
    run(tmp_path / "audit", "autorecovery", "disable", "--cluster", cluster)
    assert "no line in the audit file" in capsys.readouterr().err


def test_the_first_users_are_recorded_of_the_cluster_that_they_are_in(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEDGERSTREAM_CLUSTER", "sqlite:///of/another.db")
    path, made = tmp_path / "audit", str(tmp_path / "made")
    run(path, "security", "init", "--dir", made)
    run(path, "security", "init", "--dir", made, "--cluster", cluster)
    assert [one.get("cluster") for one in lines(path)] == [None, cluster]


def test_an_interrupted_command_says_so(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ledger.metastore.underreplication import UnderreplicationStore

    async def stopped(self: UnderreplicationStore, is_enabled: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(UnderreplicationStore, "set_enabled", stopped)
    path = tmp_path / "audit"
    with pytest.raises(KeyboardInterrupt):
        run(path, "autorecovery", "disable", "--cluster", cluster)
    assert [one["outcome"] for one in lines(path)] == ["interrupted"]


def test_the_variable_names_the_file_and_help_and_wrong_usage_write_nothing(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit"
    monkeypatch.setenv(AUDIT_VARIABLE, str(path))
    for arguments in (["user", "delete", "--help"], ["user", "delete"], ["no-such"]):
        monkeypatch.setattr(sys, "argv", ["ledgerstream", *arguments])
        main()
    assert not path.exists()
    monkeypatch.setattr(
        sys, "argv", ["ledgerstream", "autorecovery", "enable", "--cluster", cluster]
    )
    main()
    assert [one["action"] for one in lines(path)] == ["autorecovery enable"]
