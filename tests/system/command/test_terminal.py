"""Tables on a terminal of 80 columns, and with styles switched off."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import termios
from fcntl import ioctl

import pytest

from tests.system.cluster import COMMAND, StandaloneCluster, environment

STYLE = re.compile(r"\x1b\[[0-9;]*m")


def on_terminal(cluster: StandaloneCluster, *arguments: str, **variables: str) -> list[str]:
    """Returns the lines that a command prints on a terminal of 80 columns."""
    terminal, its_end = os.openpty()
    ioctl(its_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    all_variables = environment(LEDGERSTREAM_CLUSTER=cluster.uri, TERM="xterm", **variables)
    del all_variables["COLUMNS"]
    with subprocess.Popen([*COMMAND, *arguments], stdout=its_end, env=all_variables) as process:
        os.close(its_end)
        output = b""
        try:
            while chunk := os.read(terminal, 65536):
                output += chunk
        except OSError:
            pass  # EIO: the command has ended
        finally:
            os.close(terminal)
        assert process.wait(60) == 0
    return output.decode().splitlines()


@pytest.mark.parametrize(
    "arguments", ["stream list wide", "stream show wide/lines", "bookie list", "status"]
)
def test_tables_fit_80_columns(shared: StandaloneCluster, arguments: str) -> None:
    shared.run("append", "wide/lines", stdin=b"a\nb\n")
    lines = on_terminal(shared, *arguments.split())
    assert any(STYLE.search(line) for line in lines)
    assert max(len(STYLE.sub("", line)) for line in lines) <= 80
    assert not re.search("[╭│┃━]", "".join(lines))
    plain = on_terminal(shared, *arguments.split(), NO_COLOR="1")
    assert not any("\x1b" in line for line in plain)
