"""The exit codes of docs/command.md are those of the code, and commands have them.

That wrong usage is 2, and other errors of users are 1, is checked in test_user_errors.py.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess

import pytest

from bookie.cli.decommission import EXIT_HELD
from bookie.cli.rebalance import EXIT_PART
from ledger.cli import output
from ledger.cli.placement import EXIT_FAIL
from stream.cli.health import Health
from stream.cli.verify import EXIT_CODES
from tests.system.cluster import COMMAND, StandaloneCluster, environment
from tests.system.command.user_errors import user_errors
from tests.tidy.checkout import ROOT

ROWS = re.compile(r"^\| (\d+) \| (.+) \| ([^|]+) \|$", re.M)
ROWS_OF_TABLE = [
    (int(code), commands)
    for code, _, commands in ROWS.findall(
        (ROOT / "docs" / "command.md").read_text().partition("## Exit codes")[2]
    )
]
VERIFYING = "`stream verify`, `canary`"
MOVING = "`bookie decommission --watch`, `bookie replace --watch`, `bookie rebalance`"


def test_the_table_has_every_exit_code() -> None:
    general = {0, output.EXIT_ERROR, output.EXIT_USAGE, 130, output._EXIT_OUTPUT_CLOSED}
    rows = [(code, "all") for code in general]
    rows += [(code, VERIFYING) for code in set(EXIT_CODES.values()) - {0}]
    rows += [(code, "`status`") for code in {one.exit_code for one in Health} - {0}]
    rows += [(code, MOVING) for code in {EXIT_HELD, EXIT_PART}]
    rows += [(EXIT_FAIL, "`ledger check`")]
    assert sorted(ROWS_OF_TABLE) == sorted(rows)


def test_the_verdicts_of_verifying_have_other_codes_than_that_of_the_cluster() -> None:
    """What is worse has a higher code in `status` alone: monitoring compares them."""
    assert EXIT_CODES == {"WHOLE": 0, "DAMAGE": 3, "DOUBT": 4, "REDUCED": 5}
    codes = [one.exit_code for one in Health]
    assert codes == sorted(codes)


def test_errors_of_users_have_no_other_codes() -> None:
    codes = {int(error.answer[1 : error.answer.index("]")]) for error in user_errors()}
    assert codes == {output.EXIT_ERROR, output.EXIT_USAGE}


@pytest.mark.parametrize("more", [(), ("--json",), ("--names",)], ids=" ".join)
def test_a_closed_reader_of_stdout_is_141(shared: StandaloneCluster, more: tuple[str, ...]) -> None:
    shared.run("stream", "create", f"codes/closed{''.join(more)}")
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [*COMMAND, "stream", "list", "codes", *more],
            stdout=writer,
            stderr=subprocess.PIPE,
            env=environment(LEDGERSTREAM_CLUSTER=shared.uri),
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (output._EXIT_OUTPUT_CLOSED, b"")


def test_an_interrupted_command_is_130(shared: StandaloneCluster) -> None:
    shared.run("append", "codes/interrupted", stdin=b"a\n")
    with shared.begin("tail", "codes/interrupted", "--from", "earliest") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"a\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stdout.read() == b""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_append_reports_what_is_durable(
    shared: StandaloneCluster, number: signal.Signals
) -> None:
    stream = f"codes/stopped-{number.name.lower()}"
    process = subprocess.Popen(
        [*COMMAND, "append", stream, "-", "--acks"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(LEDGERSTREAM_CLUSTER=shared.uri),
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
        while process.stdout.readline().split()[-1:] != [b"2"]:
            assert process.poll() is None
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert f"ledgerstream: stopped by {number.name}\n" in said.decode()
    assert "durable before the interruption: 2 records" in said.decode()
    assert shared.run("read", stream) == b"one\ntwo\n"
