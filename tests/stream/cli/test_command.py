"""The command as a whole: help, examples, completion, and errors of the parser."""

from __future__ import annotations

import inspect
import io
import re
import shlex
import subprocess
from collections.abc import Iterator

import pytest
from cyclopts import App
from rich.console import Console

from ledger.cli.output import EXIT_USAGE
from stream.cli.command import COMMANDS, build_app, main
from tests.tidy.checkout import ROOT

APP = build_app([name for _, name, _, _ in COMMANDS])
PARSES_ITSELF = ("bench",)


def commands(app: App, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yields the words of every command, groups of commands among them."""
    yield path
    for name in app:
        if not name.startswith("-"):
            yield from commands(app[name], (*path, name))


ALL = [path for path in commands(APP) if path not in [(name,) for name in PARSES_ITSELF]]
IDS = [" ".join(path) or "ledgerstream" for path in ALL]


def test_every_app_of_the_packages_is_a_command() -> None:
    named = re.compile(r'^app = App\(\s*name="([a-z]+)"', re.M)
    sources = [file.read_text() for file in ROOT.glob("*/cli/*.py")]
    names = {name for source in sources for name in named.findall(source)}
    assert {"bookie", "metadata", "stream"} <= names
    assert names <= {path[0] for path in ALL if path}


def rendered(path: tuple[str, ...], width: int = 400) -> str:
    """Returns the help as a user sees it, without the frames, in one line."""
    file = io.StringIO()
    APP.help_print(list(path), console=Console(file=file, width=width, color_system=None))
    return file.getvalue()


def examples_of(path: tuple[str, ...]) -> list[str]:
    _, found, below = rendered(path).partition("\nExamples:\n")
    assert found, "the help has no examples"
    return [line.strip() for line in below.splitlines() if line.strip()]


@pytest.mark.parametrize("path", ALL, ids=IDS)
def test_every_help_has_examples_that_parse(path: tuple[str, ...]) -> None:
    own = 0
    for line in examples_of(path):
        words = shlex.split(line.partition(" > ")[0])
        assert words[0] == "ledgerstream"
        APP.parse_args(words[1:], print_error=False, exit_on_error=False)
        own += tuple(words[1 : len(path) + 1]) == path
    assert own, "none of the examples is of this command"


def texts_of(path: tuple[str, ...]) -> Iterator[str]:
    """Yields what the docstrings of a command say, line by line of meaning."""
    command, _, _ = APP.parse_commands(list(path))
    app = APP
    for name in command:
        app = app[name]
    target = app.default_command
    if target is None:
        yield str(app.help)
        return
    description, _, parameters = inspect.cleandoc(target.__doc__ or "").partition("Parameters\n---")
    yield " ".join(description.split())
    for entry in re.split(r"\n(?=\S)", parameters.lstrip("-").strip()):
        _, _, about = entry.partition("\n")
        yield " ".join(about.split())
    for parameter in inspect.signature(target).parameters.values():
        if parameter.name in ("policy", "merge", "cluster", "output"):
            source = inspect.getsource(type(parameter.default))
            yield from (
                " ".join(m.split()) for m in re.findall(r'(?<!:)\n    """(.+?)"""', source, re.S)
            )


@pytest.mark.parametrize("path", ALL, ids=IDS)
def test_help_shows_every_character_of_the_docstrings(path: tuple[str, ...]) -> None:
    help_text = "".join(re.sub(r"[╭╮╰╯│─]", " ", rendered(path)).split())
    for text in texts_of(path):
        assert "".join(text.split()) in help_text


def test_the_stars_of_patterns_are_in_the_help() -> None:
    assert '"rack1-*,rack2-*"' in rendered(("namespace", "set"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("strem list", 'Unknown command "strem". Did you mean "stream"? Available commands: '),
        ("stream lst", 'Unknown command "lst". Did you mean "list"? Available commands: '),
        ("help stram", 'Unknown command "stram". Did you mean "stream"? Available commands: '),
        ("stream list --jsn", "Unknown option: --jsn. Did you mean --json?; see `ledgerstream"),
        ("stream show", "parameter STREAM requires an argument; see `ledgerstream stream show --"),
        ("stream show a/b c d", "too many arguments: 'c' 'd'; see `ledgerstream stream show --he"),
        ("stream list --wide=perhaps", "Invalid value for --wide"),
        ("namespace create x --compression gzip", 'Choose from: "none", "zstd", "lz4"; see'),
        ("completion tcsh", 'Choose from: "bash", "zsh", "fish"; see `ledgerstream completion -'),
    ],
)
def test_errors_of_the_parser_are_one_line_and_wrong_usage(
    line: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.argv", ["ledgerstream", *shlex.split(line)])
    assert main() == EXIT_USAGE
    output = capsys.readouterr()
    assert output.out == ""
    [said] = output.err.splitlines()
    assert said.startswith("ledgerstream: ")
    assert message in said


def test_help_and_version_are_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {}
    for line in ("help stream list", "stream list --help", "version", "--version"):
        monkeypatch.setattr("sys.argv", ["ledgerstream", *line.split()])
        assert main() is None
        said[line] = capsys.readouterr().out
    assert said["help stream list"] == said["stream list --help"]
    assert "Usage: ledgerstream stream list" in said["help stream list"]
    assert said["version"] == said["--version"] != ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_every_command(
    shell: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["ledgerstream", "completion", shell])
    assert main() is None
    script = capsys.readouterr().out
    for path in ALL:
        for word in path:
            assert word in script
    assert "--retention-ms" in script


def test_bash_completes_commands_and_options(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["ledgerstream", "completion", "bash"])
    main()
    script = capsys.readouterr().out

    def completed(*words: str) -> list[str]:
        quoted = " ".join(map(shlex.quote, words))
        ask = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _ledgerstream"
        line = f"{ask}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        done = subprocess.run(
            ["bash", "--norc", "-c", f"{script}\n{line}"],
            capture_output=True,
            text=True,
            check=True,
        )
        return [word.strip() for word in done.stdout.splitlines()]

    assert completed("ledgerstream", "str") == ["stream"]
    assert set(completed("ledgerstream", "stream", "tr")) == {"trash", "truncate"}
    assert "--names" in completed("ledgerstream", "stream", "list", "--n")
