"""Every command says that there is no cluster at a mistyped address, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import trio

COMMANDS = (
    """
bookie list|bookie show|bookie show b1|bookie gc b1
append demo/clicks
read demo/clicks|read demo/cl* demo/x|tail demo/clicks
namespace list|namespace create demo|namespace show demo|namespace set demo --trash-ms 7d
namespace delete demo
stream create demo/clicks|stream list|stream list demo|stream show demo/clicks
stream grow demo/clicks --partitions 3|stream truncate demo/clicks 1:0:0
stream delete demo/clicks|stream trash demo|stream undelete demo/clicks
stream untruncate demo/clicks|stream purge demo/clicks --yes|stream verify demo/clicks
cursor list demo/clicks|cursor show demo/clicks c|cursor set demo/clicks c earliest
cursor delete demo/clicks c
group list demo/clicks|group show demo/clicks g|group delete demo/clicks g
sink list|sink show s|sink forget s
retention explain demo|retention explain demo/clicks
ledger list|ledger show 1|ledger read 1|ledger recover 1|ledger delete 1
ledger create|ledger append 1
canary demo/canary
janitor --once|janitor
""".replace("\n", "|")
    .strip("|")
    .split("|")
)

_SCRIPT = """
import json, os, sys, tempfile
import ledgerstream_entry

os.environ["LEDGERSTREAM_CLUSTER"] = sys.argv[1]
found = {}
for command in json.loads(sys.argv[2]):
    sys.argv = ["ledgerstream", *command.split()]
    code, kept, files = None, [os.dup(1), os.dup(2)], [tempfile.TemporaryFile() for _ in range(2)]
    for number, file in enumerate(files, 1):
        os.dup2(file.fileno(), number)
    try:
        ledgerstream_entry.main()
    except SystemExit as exit:
        code = exit.code
    sys.stdout.flush()
    sys.stderr.flush()
    for number, descriptor in enumerate(kept, 1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    for file in files:
        file.seek(0)
    found[command] = [code, *(file.read().decode() for file in files)]
print(json.dumps(found))
"""


async def outcomes(uri: str, commands: list[str]) -> dict[str, list[object]]:
    """Returns exit code, stdout and stderr of each command, all run in one process."""
    done = await trio.run_process(
        [sys.executable, "-c", _SCRIPT, uri, json.dumps(commands)],
        capture_stdout=True,
    )
    found: dict[str, list[object]] = json.loads(done.stdout)
    return found


async def test_a_mistyped_address_is_reported_by_every_command(tmp_path: Path) -> None:
    uri = f"sqlite://{tmp_path}/mistyped.db"
    found = await outcomes(uri, COMMANDS)
    expected = f"ledgerstream: there is no cluster at {uri}: {tmp_path}/mistyped.db does not exist."
    wrong = {
        command: outcome
        for command, outcome in found.items()
        if outcome[:2] != [1, ""]
        or not str(outcome[2]).startswith(expected)
        or str(outcome[2]).count("\n") != 1
        or "Cure: " not in str(outcome[2])
    }
    assert wrong == {}
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["cluster.db ", "elsewhere/cluster.db", ""])
async def test_odd_addresses_leave_nothing_behind(tmp_path: Path, name: str) -> None:
    commands = ["stream list", "append demo/clicks", "janitor --once", "namespace create demo"]
    found = await outcomes(f"sqlite://{tmp_path}/{name}".rstrip("/"), commands)
    assert {outcome[0] for outcome in found.values()} == {1}
    assert all("there is no cluster at " in str(outcome[2]) for outcome in found.values()), found
    assert os.listdir(tmp_path) == []
