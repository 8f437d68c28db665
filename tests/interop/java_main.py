"""Runs programs that come with Apache BookKeeper to their end: benchmarks, the shell."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import trio

from tests.interop.apache_bookie import bookie_settings, write_settings
from tests.interop.build import build
from tests.interop.timeouts import PATIENCE_S


@dataclass(frozen=True, slots=True)
class Ended:
    """The stdout of a program and its exit code; its log went to stderr."""

    code: int
    output: str
    log: str


async def run_java(version: str, main_class: str, *arguments: str, heap_mb: int = 256) -> Ended:
    """Runs a main class of a version's classpath to its end. Raises trio.TooSlowError."""
    command = build(version).command(main_class, *arguments, heap_mb=heap_mb)
    with trio.fail_after(PATIENCE_S):
        done = await trio.run_process(
            command, capture_stdout=True, capture_stderr=True, check=False
        )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode()[-4000:])


def shell_command(version: str, directory: Path, zookeeper_uri: str, *arguments: str) -> list[str]:
    """Returns the command of `bookkeeper shell ...` of a version."""
    directory.mkdir(parents=True, exist_ok=True)
    configuration = directory / "shell.conf"
    write_settings(configuration, bookie_settings(directory, zookeeper_uri, 3181))
    return build(version).command(
        "org.apache.bookkeeper.bookie.BookieShell", "-conf", str(configuration), *arguments
    )


def run_shell(
    version: str, directory: Path, zookeeper_uri: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command of the shell in a separate process."""
    return subprocess.run(
        shell_command(version, directory, zookeeper_uri, *arguments),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
