"""A bookie process: a second one on its settings, and the signals it gets."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tomli_w

from tests.tidy.checkout import ROOT

PATIENCE_S = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def settings(directory: Path, **more: object) -> Path:
    path = directory / "bookie.toml"
    values = {
        "metadata_uri": f"sqlite://{directory}/cluster.db",
        "port": free_port(),
        "http_port": free_port(),
        "journal_directories": [f"{directory}/journal"],
        "ledger_directories": [f"{directory}/ledgers"],
        **more,
    }
    path.write_text(tomli_w.dumps(values), encoding="utf-8")
    return path


def begin(config: Path, **variables: str) -> subprocess.Popen[str]:
    code = "import sys; from pathlib import Path; from bookie.process import run_bookie_process\n"
    code += "sys.exit(run_bookie_process(Path(sys.argv[1]), is_child=False))"
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("LEDGERSTREAM_")}
    paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code, str(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**inherited, "PYTHONPATH": os.pathsep.join(paths), **variables},
        start_new_session=True,
    )


@contextmanager
def running(config: Path, **variables: str) -> Iterator[subprocess.Popen[str]]:
    process = begin(config, **variables)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready ")
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for_text(path: Path, text: str) -> str:
    deadline_s = time.monotonic() + PATIENCE_S
    while text not in (found := path.read_text() if path.exists() else ""):
        assert time.monotonic() < deadline_s, f"no {text!r} in {found!r}"
        time.sleep(0.01)  # another process writes the file
    return found


@pytest.mark.parametrize("http", ["on", "off"])
def test_a_second_bookie_on_the_same_settings_names_the_first(tmp_path: Path, http: str) -> None:
    config = settings(tmp_path, **({} if http == "on" else {"http_port": 0}))
    with running(config) as first:
        second = begin(config)
        _, said = second.communicate(timeout=PATIENCE_S)
        assert second.returncode == 1
        assert f"this bookie is already running (pid {first.pid})" in said
        assert "HTTP" not in said
        assert first.poll() is None


def test_another_program_on_the_http_port_is_not_taken_for_the_bookie(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = settings(tmp_path, http_port=taken.getsockname()[1])
        process = begin(config)
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "cannot listen for HTTP" in said
    assert not (tmp_path / "ledgers").exists()


def test_sighup_reopens_the_log_file_and_stops_nothing(tmp_path: Path) -> None:
    log, old = tmp_path / "bookie.log", tmp_path / "bookie.log.1"
    with running(settings(tmp_path), LEDGERSTREAM_LOG_FILE=str(log)) as process:
        wait_for_text(log, "serving bookie=")
        log.rename(old)
        process.send_signal(signal.SIGHUP)
        assert "serving" not in wait_for_text(log, "log file reopened signal=SIGHUP")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    assert "bookie stops signal=SIGTERM" in log.read_text()
    assert "serving bookie=" in old.read_text()
    assert [path.stat().st_mode & 0o777 for path in (log, old)] == [0o600, 0o600]


def test_sighup_without_a_log_file_is_a_line(tmp_path: Path) -> None:
    with running(settings(tmp_path)) as process:
        process.send_signal(signal.SIGHUP)
        assert process.stderr is not None
        while "no log file to reopen signal=SIGHUP" not in (line := process.stderr.readline()):
            assert line, "the bookie ended"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0


def test_log_lines_are_json_on_request_and_of_the_level_asked_for(tmp_path: Path) -> None:
    variables = {"LEDGERSTREAM_LOG_FORMAT": "json", "LEDGERSTREAM_LOG_LEVEL": "info"}
    config = settings(tmp_path)
    with running(config, **variables) as process:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE_S)
    lines = [json.loads(line) for line in said.splitlines()]
    assert [one["signal"] for one in lines if one["event"] == "bookie stops"] == ["SIGTERM"]
    assert any(one["event"] == "serving" and one["bookie"] in one["address"] for one in lines)
    with running(config, LEDGERSTREAM_LOG_LEVEL="error") as process:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE_S)
    assert said == ""
