"""Forked processes in programs of their own: what may not leave them, and who reaps them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks processes on Linux alone")

_BEGIN = """
import os, signal, sys
import trio
import bookie.standalone.forks as forks

async def ended(process, module):
    process.start("a child", [module], 2, {})
    return await process.wait()

"""


def run(directory: Path, program: str, child: str = "def main(): pass") -> str:
    """Runs a program whose children run the module `child`; returns what it prints."""
    (directory / "child.py").write_text(textwrap.dedent(child))
    done = subprocess.run(
        [sys.executable, "-c", _BEGIN + textwrap.dedent(program)],
        env={"PYTHONPATH": f"{Path.cwd()}:{directory}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("child", "code"),
    [
        ("def main(): pass", 0),
        ("import sys\ndef main(): sys.exit(7)", 7),
        ("import sys\ndef main(): sys.exit('a reason')", 1),
        ("def main(): raise KeyboardInterrupt", 1),
        ("import sys\ndef main(): sys.stdout.close(); sys.stderr.close(); 1 / 0", 1),
        ("import os, signal\ndef main(): os.kill(os.getpid(), signal.SIGKILL)", -9),
    ],
)
def test_exit_codes(tmp_path: Path, child: str, code: int) -> None:
    program = """
        with forks.forked_processes(2, ()) as processes:
            first, other = processes
            print(trio.run(ended, first, "child"))
            os.kill(other.pid, 0)
            print(os.waitpid(other.pid, os.WNOHANG))
    """
    assert run(tmp_path, program, child).splitlines() == [str(code), "(0, 0)"], "nor the other"


def test_an_interrupt_while_a_process_ends_does_not_make_it_the_supervisor(tmp_path: Path) -> None:
    program = """
        def remark(text):
            raise KeyboardInterrupt

        forks.remark = remark
        with forks.forked_processes(2, ()) as processes:
            first, second = processes
            print(trio.run(ended, second, "child"))
            print(os.waitpid(first.pid, os.WNOHANG))
    """
    assert run(tmp_path, program, "def main(): 1 / 0").splitlines() == ["1", "(0, 0)"]


def test_a_starter_that_ignores_the_end_of_children(tmp_path: Path) -> None:
    program = """
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        with forks.forked_processes(2, ()) as processes:
            first, _ = processes
            print(trio.run(ended, first, "child"))
            first.terminate()
    """
    assert run(tmp_path, program) == "0\n"


@pytest.mark.parametrize(
    "lack", ["del os.pidfd_open", "os.pidfd_open = lambda pid: os.open('/', 1)"]
)
def test_without_descriptors_of_processes_none_is_forked(tmp_path: Path, lack: str) -> None:
    program = f"""
        {lack}
        with forks.forked_processes(2, ()) as processes:
            print(list(processes))
    """
    assert run(tmp_path, program) == "[]\n"


def test_what_cannot_be_forked_is_left_out(tmp_path: Path) -> None:
    program = """
        import resource
        with forks.forked_processes(0, ()):
            pass
        limit = len(os.listdir("/proc/self/fd")) + 8
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        with forks.forked_processes(100, ()) as processes:
            print(0 < len(list(processes)) < 100)
    """
    assert run(tmp_path, program) == "True\n"
