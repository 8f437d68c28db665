"""The command `ledgerstream`, assembled from the sub-commands of all packages.

Sub-commands are named as strings and imported when they are called, so that `stream` never
imports `bookie`, and `--help` waits for nothing (docs/adr/0009-one-command.md). It is started by
`ledgerstream_entry.main`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, Literal

from cyclopts import App, CycloptsError, Group, UnusedCliTokensError

from ledger.cli.output import EXIT_USAGE, examples, remark, write_output
from ledger.runtime.logs import escape_warnings
from ledgerstream_entry import installed_version

AUDIT_VARIABLE = "LEDGERSTREAM_AUDIT_FILE"
_CLUSTER = Group("Cluster", sort_key=1)
_RECORDS = Group("Records", sort_key=2)
_ADMINISTRATION = Group("Administration", sort_key=3)
_MEASURE = Group("Measure", sort_key=4)
_COMMAND = Group("The command itself", sort_key=5)

COMMANDS: list[tuple[Group, str, str, str]] = [
    (_CLUSTER, "standalone", "bookie.cli.standalone:standalone", "Run a cluster on this machine."),
    (_CLUSTER, "bookie", "bookie.cli.bookie:app", "Run one bookie; list, show and check bookies."),
    (_CLUSTER, "status", "stream.cli.status:status", "Report whether the cluster is healthy."),
    (_CLUSTER, "context", "ledger.cli.context_commands:app", "Save and select clusters by name."),
    (_RECORDS, "append", "stream.cli.records:append", "Append lines to a stream."),
    (_RECORDS, "read", "stream.cli.reading:read", "Read streams to their end."),
    (_RECORDS, "tail", "stream.cli.reading:tail", "Follow streams."),
    (_ADMINISTRATION, "namespace", "stream.cli.namespaces:app", "Create, list, show, set, delete."),
    (_ADMINISTRATION, "stream", "stream.cli.verify:app", "Create, list, show, truncate, delete."),
    (_ADMINISTRATION, "cursor", "stream.cli.cursors:app", "List, show, set, delete."),
    (_ADMINISTRATION, "group", "stream.cli.groups:app", "Consumer groups: list, show, delete."),
    (_ADMINISTRATION, "sink", "stream.cli.sinks:app", "Batches of sinks: list, show, forget."),
    (_ADMINISTRATION, "permission", "stream.cli.permissions:app", "Who may do what, and why."),
    (_ADMINISTRATION, "retention", "stream.cli.retention:app", "Explain what is dropped, and why."),
    (_ADMINISTRATION, "ledger", "ledger.cli.ledgers:app", "The layer below streams."),
    (_ADMINISTRATION, "autorecovery", "ledger.cli.autorecovery:app", "Heal what lacks copies."),
    (_ADMINISTRATION, "metadata", "ledger.cli.metadata:app", "Back up and restore the metadata."),
    (_ADMINISTRATION, "user", "ledger.cli.users:app", "Create, list, passwd, delete."),
    (_ADMINISTRATION, "security", "ledger.cli.security:app", "Set up, and list what is open."),
    (_ADMINISTRATION, "canary", "stream.cli.canary:canary", "Verify guarantees continuously."),
    (_ADMINISTRATION, "janitor", "stream.cli.janitor:janitor", "Apply retention."),
    (_MEASURE, "bench", "stream.cli.bench:bench", "Run a benchmark."),
]
EXAMPLES: dict[str, tuple[str, ...]] = {
    "standalone": (
        "ledgerstream standalone --dir ./cluster",
        "ledgerstream standalone --dir ./cluster --bookies 5",
        "ledgerstream standalone --dir ./cluster --secure",
    ),
    "status": ("ledgerstream status", "ledgerstream status --lag-max 10m --json"),
    "append": (
        "ledgerstream append demo/clicks clicks.txt",
        "ledgerstream append demo/clicks - --key-separator : --header source=web",
        "ledgerstream read demo/a --json | ledgerstream append demo/b --format json",
    ),
    "read": (
        "ledgerstream read demo/clicks --from earliest --json",
        "ledgerstream read demo/clicks --since 1h --grep error -f '%t %k %v\\n'",
    ),
    "tail": (
        "ledgerstream tail demo/clicks -n 10 -f '%k=%v\\n'",
        'ledgerstream tail "demo/clicks-*" --count 100',
    ),
    "canary": ("ledgerstream canary demo/canary --interval-s 30",),
    "janitor": ("ledgerstream janitor --once",),
    "bench": ("ledgerstream bench append",),
}
"""Of the commands that are functions; others have theirs beside their sub-commands."""


def build_app(arguments: Sequence[str] = ()) -> App:
    """Returns the parser of the whole command. Its errors are raised (see `main`).

    Commands that `arguments` name are described by their own docstrings, the others by their
    summaries, so that they need not be imported.
    """
    app = App(
        name="ledgerstream",
        help="A durable, replicated streaming log.",
        help_epilogue=examples(
            "ledgerstream standalone --dir ./cluster",
            "ledgerstream help stream",
        ),
        # A renderer of Markdown would drop characters like the stars of "rack1-*,rack2-*".
        help_format="plaintext",
        version=installed_version,
        backend="trio",
        suppress_keyboard_interrupt=False,
        result_action="return_value",
        print_error=False,
        exit_on_error=False,
    )
    for group, name, path, summary in COMMANDS:
        # Benchmarks have a parser of their own: it answers --help too.
        more: dict[str, Any] = {"help_flags": []} if name == "bench" else {}
        if name not in arguments:
            more["help"] = summary
        if name in EXAMPLES:
            more["help_epilogue"] = examples(*EXAMPLES[name])
        app.command(path, name=name, group=group, **more)
    _add_own_commands(app)
    return app


def _add_own_commands(app: App) -> None:
    """Adds the commands that are about the command itself."""

    @app.command(
        name="help",
        group=_COMMAND,
        help_epilogue=examples("ledgerstream help", "ledgerstream help stream list"),
    )
    def show_help(*command: str) -> None:
        """Show the help of a command.

        Parameters
        ----------
        command
            The words of the command, like: stream list.
        """
        app([*command, "--help"])

    @app.command(name="version", group=_COMMAND, help_epilogue=examples("ledgerstream version"))
    def version() -> None:
        """Print the version."""
        write_output(f"{installed_version()}\n".encode())

    @app.command(
        name="completion",
        group=_COMMAND,
        help_epilogue=examples(
            "ledgerstream completion bash > ~/.ledgerstream-completion",
            'ledgerstream completion zsh > "${fpath[1]}/_ledgerstream"',
            "ledgerstream completion fish > ~/.config/fish/completions/ledgerstream.fish",
        ),
    )
    def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
        """Print a script that completes commands and options in a shell.

        Parameters
        ----------
        shell
            bash, zsh or fish.
        """
        write_output(app.generate_completion(shell=shell).encode())


def main() -> object:
    """Runs the command of this process and returns its result, or the exit code of wrong usage."""
    escape_warnings()
    try:
        arguments = sys.argv[1:]
        app = build_app(arguments)
        path = os.environ.get(AUDIT_VARIABLE)
        if not path:
            return app(arguments)
        from stream.cli.audit import run_audited

        return run_audited(app, arguments, path)
    except CycloptsError as error:
        remark(f"ledgerstream: {_explained(error)}")
        return EXIT_USAGE


def _explained(error: CycloptsError) -> str:
    """Returns an error of the parser in one line, with the command whose help explains it."""
    if isinstance(error, UnusedCliTokensError):
        unused = " ".join(map(repr, error.unused_tokens or ()))
        text = f"too many arguments: {unused}"
    else:
        text = " ".join(str(error).split())
    command = " ".join(["ledgerstream", *(error.command_chain or ())])
    if not text.endswith("..."):
        text = text.removesuffix(".")
    return f"{text}; see `{command} --help`"
