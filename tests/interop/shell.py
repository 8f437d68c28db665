"""Runs commands of Apache's `bookkeeper shell` in a shared process, and returns their output."""

from __future__ import annotations

import re
from pathlib import Path

import trio

from tests.interop.apache_bookie import bookie_settings
from tests.interop.java_client import CLIENT_SETTINGS, JavaVm
from tests.interop.timeouts import PATIENCE_S


class Shell:
    """The shell. Commands run one at a time, as on the machine of the bookie with this `port`.
    `more` are further settings, by Apache's names."""

    def __init__(
        self, vm: JavaVm, uri: str, directory: Path, port: int = 3181, **more: object
    ) -> None:
        self.version = vm.version
        self._vm = vm
        settings = {**bookie_settings(directory, uri, port), **CLIENT_SETTINGS, **more}
        self._settings = {name: str(value) for name, value in settings.items()}

    async def run(self, *arguments: object) -> str:
        """Returns the output of a command. Raises AssertionError unless its exit code is 0."""
        with trio.fail_after(PATIENCE_S):
            answer = await self._vm.call(
                "shell", settings=self._settings, arguments=[str(a) for a in arguments]
            )
        output: str = answer["output"]
        assert answer["code"] == 0, f"{arguments}: {output}"
        return output


def numbers(output: str, *names: str) -> list[int]:
    """Returns values printed as `name=<number>` or `name: <number>`; releases use other names."""
    found = re.findall(rf"\b(?:{'|'.join(names)})(?:=|: )(-?\d+)", output)
    return [int(number) for number in found]


def marked_count(output: str) -> int:
    """Returns the number of ledgers that listunderreplicated counted."""
    found = re.search(r"ledger count(?:: | \{count=)(\d+)\b", output)
    assert found is not None, output
    return int(found[1])
