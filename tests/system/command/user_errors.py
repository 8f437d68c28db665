"""The errors of users in tests/golden/user_errors.txt: what is typed, and what is answered.

Each is a line "$ ARGUMENTS", with variables in front ("NAME=value", "NAME=" removes it), then the
exit code in brackets and the one line on stderr. {directory}, {cluster}, {uri} and {bookie} stand
for what differs from run to run.

To add one, write its first line, and run `python -m tests.system.command.user_errors`: it writes
the answers of the present code into the file, to be read before they are committed.
"""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.system.cluster import (
    PATIENCE_S,
    StandaloneCluster,
    _warm_interpreter,
    environment,
)
from tests.tidy.checkout import ROOT

FILE = ROOT / "tests" / "golden" / "user_errors.txt"
_MARK = "$ "


@dataclass(frozen=True)
class UserError:
    """What is typed, and the golden answer."""

    line: str
    answer: str


@dataclass(frozen=True)
class Surroundings:
    """The cluster and the files that the user errors are about."""

    cluster: StandaloneCluster
    directory: Path
    names: dict[str, str]

    @classmethod
    def prepare(cls, cluster: StandaloneCluster, directory: Path) -> Surroundings:
        """Makes streams and files. `directory` is an empty one."""
        cluster.run("append", "demo/clicks", stdin=b"a\nb\n")
        cluster.run("stream", "create", "demo/views", "--partitions", "3")
        cluster.run("cursor", "set", "demo/clicks", "billing", "earliest")
        cluster.run("namespace", "create", "bare", "--trash-ms", "0")
        cluster.run("stream", "create", "bare/plain")
        for name, text in _FILES.items():
            (directory / name).write_text(text.replace("{directory}", str(directory)))
        (directory / "folder").mkdir()
        bookie = json.loads(cluster.run("bookie", "list", "--json"))[0]["bookie"]
        names = {
            "{uri}": cluster.uri,
            "{cluster}": str(cluster.directory),
            "{directory}": str(directory),
            "{bookie}": bookie,
        }
        return cls(cluster, directory, names)

    def answer_to(self, line: str) -> str:
        """Runs what is typed and returns the answer as it is in the file."""
        for name, value in self.names.items():
            line = line.replace(name, value)
        words = shlex.split(line)
        variables = environment(
            LEDGERSTREAM_CLUSTER=self.cluster.uri, XDG_CONFIG_HOME=str(self.directory)
        )
        while words and "=" in words[0] and words[0].partition("=")[0].isupper():
            name, _, value = words.pop(0).partition("=")
            variables[name] = value
            if not value:
                del variables[name]
        done = _warm_interpreter().run(
            words, stdin=b"", environment=variables, timeout_s=2 * PATIENCE_S
        )
        said = (done.stdout + done.stderr).decode().rstrip("\n")
        for name, value in self.names.items():
            said = said.replace(value, name)
        return f"[{done.returncode}] {said}"


_FILES = {
    "typo.toml": 'journal_dirs = ["{directory}/j"]\n',
    "apache.toml": "bookiePort = 3181\n",
    "missing.toml": (
        'journal_directories = ["{directory}/j"]\nledger_directories = ["{directory}/l"]\n'
    ),
    "units.toml": 'write_cache_bytes = "64 megs"\n',
    "type.toml": "port = true\n",
    "broken.toml": "port =\n",
    "receipt.json": "{}\n",
}


def read_user_errors(text: str) -> Iterator[UserError | str]:
    """Yields user errors, and the other lines as they are."""
    lines = iter(text.splitlines())
    for line in lines:
        if not line.startswith(_MARK):
            yield line
            continue
        answer = []
        for following in lines:
            if not following:
                break
            answer.append(following)
        yield UserError(line.removeprefix(_MARK), "\n".join(answer))


def user_errors() -> list[UserError]:
    found = read_user_errors(FILE.read_text(encoding="utf-8"))
    return [one for one in found if isinstance(one, UserError)]


def main() -> None:
    """Writes the answers of the present code into the file."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "files"
        directory.mkdir()
        cluster = StandaloneCluster(Path(folder) / "cluster", None, ())
        cluster.start()
        try:
            surroundings = Surroundings.prepare(cluster, directory)
            lines = []
            for one in read_user_errors(FILE.read_text(encoding="utf-8")):
                if isinstance(one, UserError):
                    lines += [f"{_MARK}{one.line}", surroundings.answer_to(one.line), ""]
                else:
                    lines.append(one)
        finally:
            cluster.stop()
    FILE.write_text("\n".join(lines).rstrip("\n") + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
