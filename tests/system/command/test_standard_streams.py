"""Commands whose standard streams are closed, full, or not UTF-8 report it in one line."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from pathlib import Path

import pytest

from tests.system.cluster import COMMAND, PATIENCE_S, StandaloneCluster, environment

pytestmark = pytest.mark.system

STREAM = "streams/any"
READ, LIST, BOOKIES = ("read", STREAM), ("stream", "list"), ("bookie", "list")


@pytest.fixture(scope="module")
def filled(shared: StandaloneCluster) -> StandaloneCluster:
    shared.run("append", STREAM, stdin="grüß\nb\n".encode())
    return shared


def redirected(
    cluster: StandaloneCluster,
    redirection: str,
    *arguments: str | bytes,
    pass_fds: tuple[int, ...] = (),
    variables: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Runs a command with redirections of the shell, like `>&-`."""
    return subprocess.run(
        ["bash", "-c", f'"$@" {redirection}', "bash", *COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        pass_fds=pass_fds,
        env=environment(LEDGERSTREAM_CLUSTER=cluster.uri, **(variables or {})),
        timeout=PATIENCE_S,
        check=False,
    )


CLOSED, FULL = b"it is closed", b"No space left on device"


@pytest.mark.parametrize(
    ("arguments", "redirection", "cause"),
    [
        (READ, ">&-", CLOSED), (READ, ">/dev/full", FULL), (READ, "1</dev/null", CLOSED),
        ((*READ, "--json"), ">&-", CLOSED), ((*READ, "--json"), ">/dev/full", FULL),
        (LIST, ">&-", CLOSED), (LIST, ">/dev/full", FULL), ((*LIST, "--json"), ">/dev/full", FULL),
        (BOOKIES, ">&-", CLOSED), (BOOKIES, ">/dev/full", FULL),
        (("--help",), ">&-", CLOSED), (("--help",), ">/dev/full", FULL),
        (("--version",), ">&-", CLOSED), (("--version",), ">/dev/full", FULL),
        (("append", "--help"), ">/dev/full", FULL),
    ],
)  # fmt: skip
def test_an_output_that_cannot_be_written_is_named(
    arguments: tuple[str, ...], redirection: str, cause: bytes, filled: StandaloneCluster
) -> None:
    done = redirected(filled, redirection, *arguments)
    assert done.stderr == b"ledgerstream: standard output: " + cause + b"\n"
    assert (done.returncode, done.stdout) == (1, b"")


@pytest.mark.parametrize("arguments", [READ, LIST, (*LIST, "--json"), ("--help",), ("--version",)])
def test_a_reader_that_has_gone_ends_a_command_like_sigpipe(
    arguments: tuple[str, ...], filled: StandaloneCluster
) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = redirected(filled, f">&{write}", *arguments, pass_fds=(write,))
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("command", [("append", "streams/none"), ("ledger", "append", "999999")])
def test_an_input_that_is_closed_is_named_before_anything_is_made(
    command: tuple[str, ...], filled: StandaloneCluster
) -> None:
    for redirection in ("<&-", "0>/dev/null"):
        done = redirected(filled, redirection, *command)
        assert done.stderr == b"ledgerstream: standard input: it is closed\n"
        assert done.returncode == 1
    assert b"streams/none" not in filled.run("stream", "list")


def test_a_closed_or_full_stderr_changes_nothing_else(filled: StandaloneCluster) -> None:
    for redirection in ("2>&-", "2>/dev/full", "<&- 2>&-"):
        assert redirected(filled, redirection, *READ).stdout == "grüß\nb\n".encode()
        assert redirected(filled, redirection, *READ).returncode == 0
        assert redirected(filled, redirection, "read", "streams/none").returncode == 1
        assert redirected(filled, redirection, "read", STREAM, "--cout").returncode == 2


@pytest.mark.parametrize(
    "variables", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}]
)
def test_json_is_utf_8_and_tables_are_printed_whatever_the_locale_is(
    variables: dict[str, str], filled: StandaloneCluster
) -> None:
    done = redirected(filled, "", *READ, "--json", "--count", "1", variables=variables)
    assert "grüß".encode() in done.stdout
    assert json.loads(done.stdout)["value"] == "grüß"
    listed = redirected(filled, "", *LIST, variables=variables)
    assert (listed.returncode, listed.stderr) == (0, b"")
    assert STREAM.encode() in listed.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "shown"),
    [
        (("read", b"streams/\xff"), 2, rb"stream name '\xff'"),
        (("read", STREAM, "--from", b"cursor:\xff"), 2, rb"cursor name '\xff'"),
        (("append", STREAM, b"/none/\xff"), 1, rb"/none/\xff: No such file"),
        (("append", STREAM, "--header", b"\xff=x"), 2, rb"'\xff=x': the name is not UTF-8"),
        (("stream", "list", "--cluster", b"sqlite:////none/\xff.db"), 1, rb"/none/\xff.db"),
        ((b"\xff",), 2, rb"\xff"),
        (("read", STREAM, b"--\xff"), 2, rb"--\xff"),
    ],
)
def test_bytes_that_are_not_utf_8_are_shown_as_such_in_errors(
    arguments: tuple[str | bytes, ...], code: int, shown: bytes, filled: StandaloneCluster
) -> None:
    done = redirected(filled, "", *arguments)
    assert shown in done.stderr
    assert b"Traceback" not in done.stderr
    assert (done.returncode, done.stdout) == (code, b"")


def test_a_file_of_receipts_may_have_any_bytes(filled: StandaloneCluster, tmp_path: Path) -> None:
    (tmp_path / "receipts").write_bytes(b"\xff\n")
    done = filled.try_run("stream", "verify", STREAM, "--receipt-file", str(tmp_path / "receipts"))
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
    assert b"this is not a receipt" in done.stderr


def test_a_cluster_may_have_any_bytes_in_its_path(
    filled: StandaloneCluster, tmp_path: Path
) -> None:
    path = os.fsencode(tmp_path) + b"/\xff.db"
    with sqlite3.connect(filled.directory / "cluster.db") as found, sqlite3.connect(path) as copy:
        found.backup(copy)
    found.close()
    copy.close()
    done = redirected(filled, "", *LIST, "--json", "--cluster", b"sqlite:///" + path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert STREAM.encode() in done.stdout


def test_a_file_that_is_no_backup_may_have_any_bytes(
    filled: StandaloneCluster, tmp_path: Path
) -> None:
    (tmp_path / "backup").write_bytes(b"\xff\x00\n")
    done = filled.try_run("metadata", "import", str(tmp_path / "backup"))
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
    assert b"line 1 is not JSON" in done.stderr
