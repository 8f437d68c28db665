"""A bookie process: a second one on its settings, and the signals it gets."""

from __future__ import annotations

import os
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


def test_another_program_on_the_http_port_is_told_as_such(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = settings(tmp_path, http_port=taken.getsockname()[1])
        process = begin(config)
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "cannot listen for HTTP" in said
    assert not (tmp_path / "ledgers").exists()
