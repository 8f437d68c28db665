"""Shared by all sub-commands: the cluster's address, and how results and errors are printed.

Data is written to stdout, as tables for people or JSON for programs; remarks and progress to
stderr. An error that a user can cause is one line and exit code 1, never a traceback.
"""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from cyclopts import Parameter, validators

from ledger.cli.contexts import CONTEXT_VARIABLE, read_contexts
from ledger.cli.standard_streams import (
    OutputClosed,
    StandardStreamFailed,
    drop_output,
    open_standard_streams,
)
from ledger.cli.tables import Page, page_of_stdout, property_lines, row_lines
from ledger.core.times import time_text
from ledger.errors import InvalidArgument, LedgerError, MetadataUnavailable
from ledger.shown_text import escaped_json, shown_bytes, shown_text

if TYPE_CHECKING:
    from ledger.options import ClientOptions

AtLeastZero = Annotated[int, Parameter(validator=validators.Number(gte=0))]
AtLeastOne = Annotated[int, Parameter(validator=validators.Number(gte=1))]
PositiveSeconds = Annotated[float, Parameter(validator=validators.Number(gt=0))]
SecondsOrZero = Annotated[float, Parameter(validator=validators.Number(gte=0))]
CLUSTER_VARIABLE = "LEDGERSTREAM_CLUSTER"
CREDENTIALS_VARIABLE = "LEDGERSTREAM_CREDENTIALS"
EXIT_ERROR = 1
EXIT_USAGE = 2
_EXIT_INTERRUPTED = 130
_EXIT_OUTPUT_CLOSED = 141  # as a shell shows a program that SIGPIPE ended


class UsageError(InvalidArgument):
    """The command line itself is wrong: exit code 2."""


@contextmanager
def usage() -> Iterator[None]:
    """Makes an InvalidArgument from inside a UsageError: it is about an argument of the command."""
    try:
        yield
    except UsageError:
        raise
    except InvalidArgument as error:
        raise UsageError(str(error)) from None


def examples(*lines: str) -> str:
    """Returns the text below the help of a command: lines as they are typed."""
    return "\n".join(["Examples:", *(f"  {line}" for line in lines)])


_address_used: list[str] = []
"""The address of the cluster of this process, and what named it: for errors about it."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOption:
    cluster: str | None = None
    """Where the cluster's metadata is stored, like zk://host:2181/ledgers. Default:
    LEDGERSTREAM_CLUSTER, else the context LEDGERSTREAM_CONTEXT, else that of `context use`."""

    credentials: str | None = None
    """A file with who you are, for bookies that authenticate clients, and how connections are
    encrypted. Default:
    LEDGERSTREAM_CREDENTIALS, else LEDGERSTREAM_USER and LEDGERSTREAM_PASSWORD, or
    LEDGERSTREAM_TOKEN, else the file of the context."""

    @property
    @usage()
    def options(self) -> ClientOptions:
        """The options of a client of the cluster, with the credentials of this process and what it
        says of TLS. Raises UsageError if they cannot be read."""
        from ledger.credentials import environment_settings
        from ledger.options import ClientOptions

        environment = os.environ
        file = self.credentials or environment.get(CREDENTIALS_VARIABLE, "")
        settings = environment_settings(environment, file)
        is_said = file or "credentials" in settings
        if not (is_said or self.cluster or environment.get(CLUSTER_VARIABLE)):
            contexts = read_contexts()
            name = environment.get(CONTEXT_VARIABLE) or contexts.current or ""
            if file := contexts.credentials.get(name, ""):
                settings = environment_settings(environment, file)
        return ClientOptions(**settings)

    @property
    def uri(self) -> str:
        """The address of the cluster. Raises UsageError if there is none, or a wrong one."""
        from ledger.metastore.address import ClusterAddress

        address, source = self.address_and_source()
        try:
            ClusterAddress.parse(address)
        except InvalidArgument as error:
            raise UsageError(f"{error} (the address is from {source})") from None
        _address_used[:] = [address, source]
        return address

    @usage()
    def address_and_source(self) -> tuple[str, str]:
        """Returns the address, and which option, variable or context it is from. Raises UsageError
        if there is none."""
        if self.cluster:
            return self.cluster, "--cluster"
        if address := os.environ.get(CLUSTER_VARIABLE):
            return address, CLUSTER_VARIABLE
        contexts = read_contexts()
        if name := os.environ.get(CONTEXT_VARIABLE):
            return contexts.address(name), f"context {name!r} of {CONTEXT_VARIABLE}"
        if contexts.current is not None:
            return contexts.address(contexts.current), f"context {contexts.current!r}"
        raise UsageError(
            f"which cluster? Give --cluster URI, set {CLUSTER_VARIABLE}, or save it (ledgerstream "
            f"context add NAME URI); `ledgerstream standalone --dir DIR` starts one and prints its "
            f"URI"
        )


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOption:
    json: Annotated[bool, Parameter(negative="")] = False
    """Print JSON, with exact numbers and times."""

    wide: Annotated[bool, Parameter(negative="")] = False
    """Print all columns of tables, and times in full, also beyond the width of the terminal."""

    def show(self, data: Mapping[str, Any], *, title: str) -> None:
        """Prints one object with named properties; as JSON, one object on one line."""
        if self.json:
            print_json(data)
            return
        self._print(property_lines(data, title, self._page))

    def report(self, done: Mapping[str, Any], remarked: str) -> None:
        """Reports what was done: as a JSON object, or as a remark on stderr."""
        if self.json:
            print_json(done)
        else:
            remark(remarked)

    def show_list(self, items: Iterable[Mapping[str, Any]], *, title: str, none: str) -> None:
        """Prints a list of objects, or `none` if it is empty; as JSON, an array."""
        listed = list(items)
        if self.json:
            print_json(listed)
        elif not listed:
            remark(none)
        else:
            lines, left_out = row_lines(listed, title, self._page)
            self._print(lines)
            if left_out:
                remark(f"not shown: {', '.join(left_out)} (--wide shows all columns)")

    def say(self, line: str) -> None:
        """Prints a line of a result for people."""
        print_line(line)

    @property
    def _page(self) -> Page:
        return page_of_stdout(is_wide=self.wide)

    def _print(self, lines: Sequence[str]) -> None:
        write_output("".join(f"{line}\n" for line in lines).encode())


def print_json(data: object) -> None:
    """Prints one line in UTF-8, whatever the locale is, and flushes it, so that a program at the
    other end of a pipe gets it."""
    text = escaped_json(json.dumps(data, default=_plain, ensure_ascii=False))
    write_output(text.encode() + b"\n")


def print_line(text: str) -> None:
    """Prints a line of a result, as `shown_text`, and flushes it."""
    write_output(shown_text(text).encode() + b"\n")


def _plain(value: object) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        return text_or_base64(bytes(value))
    return str(value)


def text_or_base64(value: bytes) -> str | dict[str, str]:
    """Returns UTF-8 as a string, other bytes as {"base64": ...}: lossless, without a guess."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode("ascii")}


def remark(text: str) -> None:
    """Prints a line for people to stderr, as `shown_text`."""
    sys.stderr.write(f"{shown_text(text)}\n")
    sys.stderr.flush()


def time_of(milliseconds: int | None) -> str | int | None:
    """Returns a time that metadata has as `time_text`; None for one that was never set (-1)."""
    return None if milliseconds is None or milliseconds < 0 else time_text(milliseconds)


def write_output(data: bytes) -> None:
    """Writes bytes to stdout as they are, and flushes them. What others wrote passes
    `stored_bytes_shown` or `shown_text` before. Raises OutputClosed, StandardStreamFailed."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def stored_bytes_shown(*, is_raw: bool) -> Callable[[bytes], bytes]:
    """Returns the function for stored bytes that are written to stdout: on a terminal they become
    `shown_text`, unless `is_raw`; a pipe or a file gets them as they are."""
    return bytes if is_raw or not sys.stdout.isatty() else shown_bytes


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """Yields the errors inside nested groups, in order."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from causes_of(inner)
    else:
        yield error


def run(main: Callable[[], object]) -> NoReturn:
    """Runs a command and ends the process with its exit code.

    0: done; 1: an error, explained in one line; 2: wrong usage; 129: SIGHUP; 130: interrupted; 141:
    the reader of stdout has closed it. Bugs keep their traceback.
    """
    open_standard_streams()
    _stop_on_signals()
    code: object
    try:
        try:
            code = main()
        except SystemExit as end:  # of the parser, which has printed help or an error
            code = end.code
        sys.stdout.flush()
    except BaseException as error:  # the process ends here, whatever it is
        drop_output()
        causes = list(causes_of(error))
        if not all(isinstance(cause, _EXPLAINED) for cause in causes):
            raise
        sys.exit(_explain(causes))
    sys.exit(code if isinstance(code, int) else 0)


_STOPS: list[int] = []
"""Each signal that asked this process to stop, but for Ctrl-C."""


def _stop_on_signals() -> None:
    """Makes SIGTERM and SIGHUP orderly stops, with a line, unless they are ignored (nohup).

    A command that uses one of them itself replaces the handler while it runs.
    """

    def stop(number: int, frame: object) -> None:
        _STOPS.append(number)
        with suppress(OSError, ValueError):  # the terminal may be gone
            remark(f"ledgerstream: stopped by {signal.Signals(number).name}")
        signal.raise_signal(signal.SIGINT)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, stop)


_EXPLAINED = (LedgerError, OSError, OutputClosed, StandardStreamFailed, KeyboardInterrupt)


def _explain(causes: Sequence[BaseException]) -> int:
    if any(isinstance(cause, KeyboardInterrupt) for cause in causes):
        return 128 + (_STOPS[0] if _STOPS else signal.SIGINT)
    if any(isinstance(cause, OutputClosed) for cause in causes):
        return _EXIT_OUTPUT_CLOSED
    remark(f"ledgerstream: {_bytes_shown(_text_of(causes[0]))}")
    return EXIT_USAGE if isinstance(causes[0], UsageError) else EXIT_ERROR


def _bytes_shown(text: str) -> str:
    """Returns the text with bytes that are not UTF-8 as \\xff: the repr of an argument has \\udcff
    for them."""
    return re.sub(r"\\udc([89a-f][0-9a-f])", r"\\x\1", text)


def _text_of(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    text = " ".join(str(error).split()) or type(error).__name__
    if _address_used:
        address, source = _address_used
        is_named = address.removeprefix("sqlite://") in text
        if isinstance(error, MetadataUnavailable) or is_named:
            text += f" (the address is from {source})"
    return text
