"""Standard streams work as far as they can, whatever the caller of a command left of them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import pytest

from tests.tidy.checkout import ROOT

_BEGIN = """
import os, sys
from ledger.cli.standard_streams import announce, open_standard_streams
open_standard_streams()
"""


def run(code: str, redirection: str = "", stdout: int = subprocess.PIPE) -> tuple[int, bytes]:
    """Runs Python code with redirections of the shell; returns its exit code and stderr."""
    done = subprocess.run(
        ["bash", "-c", f'"$@" {redirection}', "bash", sys.executable, "-c", _BEGIN + code],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("redirection", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_no_file_gets_the_number_of_a_closed_stream(redirection: str) -> None:
    code = "sys.exit(10 + os.open(os.devnull, os.O_RDONLY))"
    assert run(code, redirection)[0] > 12


@pytest.mark.parametrize("redirection", [">&-", ">/dev/full"])
def test_a_server_runs_though_nothing_can_read_that_it_is_ready(redirection: str) -> None:
    code = "announce('ready'); announce('again'); sys.stderr.write('serves')"
    assert run(code, redirection) == (0, b"serves")


def test_output_to_a_pipe_that_does_not_block_is_complete() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    size = 4 << 20  # more than a pipe holds
    with subprocess.Popen(
        [sys.executable, "-c", f"{_BEGIN}sys.stdout.write('x' * {size}); sys.stdout.flush()"],
        stdout=write,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        os.close(write)
        with open(read, "rb") as pipe:
            assert pipe.read() == b"x" * size
        assert process.wait(60) == 0


def test_stderr_that_cannot_be_written_is_no_error() -> None:
    code = "sys.stderr.write('x' * 100_000 + '\\n'); sys.stderr.flush(); os._exit(7)"
    for redirection in ("2>&-", "2>/dev/full"):
        assert run(code, redirection) == (7, b"")


def test_bytes_that_are_no_text_and_letters_the_encoding_lacks_are_escaped() -> None:
    code = "sys.stderr.write(os.fsdecode(b'a\\xff') + '\\N{SNOWMAN}')"
    assert run(code, "")[1].startswith(rb"a\xff")
    assert run(code, "", stdout=subprocess.DEVNULL)[1].endswith("☃".encode())


def test_an_interrupted_write_is_not_repeated() -> None:
    """A signal that comes while a line is written must not make the next flush write it again."""
    code = """
import signal
def interrupt(*_): raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
out = sys.stdout.buffer
for number in range(20_000):
    out.write(b"%d\\n" % number)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-6 * (1 + number % 37))
        while True:
            out.flush()
    except KeyboardInterrupt:
        out.flush()
"""
    with tempfile.TemporaryFile() as output:
        code_of_process, errors = run(code, stdout=output.fileno())
        assert (code_of_process, errors) == (0, b"")
        output.seek(0)
        assert output.read().split() == [b"%d" % number for number in range(20_000)]
