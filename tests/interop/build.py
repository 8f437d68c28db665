"""Builds the Java side of the interop suite, once per Apache version.

Maven resolves the classpath and compiles the driver into `.interop/<version>/`, which is reused
until the pom or the sources change. If several test processes need a build, one builds and the
others wait, also for another version, because Maven's repository does not support concurrent use.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from bookie.standalone.zookeeper_server import ZooKeeperMissing, find_jars, find_java
from tests.interop.versions import VERSIONS
from tests.tidy.checkout import ROOT

__all__ = ["VERSIONS", "Build", "build", "missing_tools", "require_tools"]


OUTPUT = ROOT / ".interop"
_SOURCES = Path(__file__).resolve().parent / "java"
_BUILD_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class Build:
    """The classpath of one version, beginning with the driver."""

    version: str
    classpath: str

    def command(self, main_class: str, *arguments: str, heap_mb: int = 192) -> list[str]:
        """Returns the command that runs a class in a JVM that starts fast and stays small."""
        return [
            find_java(),
            f"-Xmx{heap_mb}m",
            "-Xss512k",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-XX:MaxDirectMemorySize=192m",
            "-Xshare:auto",
            "-Dio.netty.eventLoopThreads=2",
            "-Dio.netty.allocator.numDirectArenas=2",
            "-Dio.netty.allocator.numHeapArenas=1",
            "-Dzookeeper.disableAutoWatchReset=false",
            "-Djava.net.preferIPv4Stack=true",
            "-Dlog4j2.disableJmx=true",
            "-cp",
            self.classpath,
            main_class,
            *arguments,
        ]


def missing_tools() -> str | None:
    """Returns why the suite cannot run on this machine, or None."""
    try:
        find_java()
        find_jars()
    except ZooKeeperMissing as error:
        return str(error)
    for tool in ("mvn", "javac"):
        if shutil.which(tool) is None:
            return (
                f"the interop suite needs Maven and a JDK, and there is no `{tool}` in PATH. "
                "Cure: install Maven and a JDK 17 or newer"
            )
    return None


def require_tools() -> None:
    """Skips the test if Java or Maven is missing; in CI this is a failure."""
    reason = missing_tools()
    if reason is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@cache
def build(version: str) -> Build:
    """Returns the classpath of a version; builds it if necessary. Skips the test without Maven."""
    return build_project(version, _SOURCES, f"-Dbookkeeper.version={version}")


def build_project(version: str, sources: Path, *properties: str) -> Build:
    """Builds the Maven project in `sources`; the output goes to `.interop/<version>`."""
    require_tools()
    directory = OUTPUT / version
    wanted = _fingerprint(version, sources)
    stamp = directory / "built"
    if not _says(stamp, wanted):
        with _lock():
            if not _says(stamp, wanted):
                stamp.unlink(missing_ok=True)
                _compile(version, directory, sources, properties)
                stamp.write_text(wanted)
    resolved = (directory / "classpath").read_text().strip()
    return Build(version, os.pathsep.join([str(directory / "classes"), resolved]))


def _says(stamp: Path, wanted: str) -> bool:
    """Returns whether the build is up to date. To be called with the lock."""
    try:
        return stamp.read_text() == wanted
    except FileNotFoundError:
        return False


def _fingerprint(version: str, sources: Path) -> str:
    digest = hashlib.sha256(version.encode())
    for path in sorted(
        p for p in sources.rglob("*") if p.suffix in {".java", ".xml", ".properties"}
    ):
        digest.update(path.relative_to(sources).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _compile(version: str, directory: Path, sources: Path, properties: tuple[str, ...]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(directory / "classes", ignore_errors=True)
    done = subprocess.run(
        [
            "mvn",
            "--batch-mode",
            "--quiet",
            f"--file={sources / 'pom.xml'}",
            *properties,
            f"-Ddriver.output={directory}",
            "compile",
            "dependency:build-classpath",
            f"-Dmdep.outputFile={directory / 'classpath'}",
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"Maven failed for {version}:\n{done.stdout[-4000:]}{done.stderr[-2000:]}")


@contextmanager
def _lock() -> Iterator[None]:
    OUTPUT.mkdir(exist_ok=True)
    with (OUTPUT / "maven.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
