"""Checks the installation before ledgerstream runs, and starts its command.

The four packages have names that others use as well, and most of their dependencies are extras.
Where another package hides one of ours, or an extra is missing, the first import or command says
so, with the cause and the cure. This module must import nothing but the standard library, and none
of the four packages when it is imported: it is kept beside them because it must work when they
do not (docs/adr/0026-an-entry-beside-the-packages.md).
"""

from __future__ import annotations

import errno
import os
import os.path
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import NoReturn

DISTRIBUTION = "ledgerstream"
PACKAGES = ("ledger", "bookie", "stream", "connectors", "ledgerstream")

EXTRAS = {
    "bookie": (
        "rocksdict", "msgspec", "tomli_w", "prometheus_client", "starlette", "hypercorn",
    ),
    "zookeeper": ("kazoo",),
    "security": ("jwt", "cryptography"),
    "compression": ("zstandard", "lz4"),
    "arrow": ("pyarrow",),
    "spark": ("pyspark", "pyarrow"),
}  # fmt: skip
"""The modules that each extra installs; a test compares them with pyproject.toml. The first extra
that has a module is the one to name."""
CORE = ("trio", "google", "crc32c", "cyclopts", "rich")
"""The modules that every installation has, unless it was made without dependencies."""

_EXIT_ERROR = 1
_EXIT_INTERRUPTED = 130
_EXIT_OUTPUT_CLOSED = 141  # as a shell shows a program that SIGPIPE ended


class ForeignPackage(ImportError):
    """Another package is imported under the name of one of ours."""


class MissingExtra(ImportError):
    """The dependencies of an extra are not installed."""


def require_own_packages(*names: str) -> None:
    """Raises ForeignPackage unless each of the packages `names` is the one of ledgerstream.

    Each is imported, which costs nothing that its first use would not cost, and must name its
    distribution. Its location is not enough: of two distributions in one folder, the one that was
    installed later has overwritten files of the other.
    """
    for name in names:
        try:
            package = import_module(name)
        except Exception as error:  # a foreign package may raise anything
            raise ForeignPackage(_hidden(name), name=name) from error
        if getattr(package, "__distribution__", None) != DISTRIBUTION:
            raise ForeignPackage(_hidden(name), name=name)


def _hidden(name: str) -> str:
    """Returns the error text for a package that is not ours: what was found, and the cure."""
    found = _location(name)
    if found is None:
        return (
            f"the package {name!r} of {DISTRIBUTION} is missing. Cure: pip install "
            f"--force-reinstall --no-deps {DISTRIBUTION}"
        )
    text = f"the package {name!r} of {DISTRIBUTION} is hidden by another one, {found}"
    owner = _owner(name, found)
    if owner is None:
        return f"{text}. Cure: rename it, or take its folder out of the import path (sys.path)"
    title, version = owner
    cure = f"pip uninstall {title}"
    if _folder(found) == os.path.dirname(
        os.path.realpath(__file__)
    ):  # uninstalling takes our files along
        cure += f" && pip install --force-reinstall --no-deps {DISTRIBUTION}"
    return (
        f"{text}, of the distribution {title!r} {version}. Cure: {cure}; "
        "or one virtual environment for each of the two"
    )


def _location(name: str) -> str | None:
    """The file, or the folder of a package without one, that `import name` finds."""
    from importlib.util import find_spec

    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.has_location and spec.origin:
        return spec.origin
    return next(iter(spec.submodule_search_locations or ()), None)


def _folder(found: str) -> str:
    """The folder on the import path that holds the package or module at `found`."""
    path = os.path.realpath(found)
    is_package_file = os.path.basename(path).startswith("__init__.")
    return os.path.dirname(os.path.dirname(path) if is_package_file else path)


def _owner(name: str, found: str) -> tuple[str, str] | None:
    """The name and version of the distribution that installed the package at `found`."""
    from importlib.metadata import distribution, packages_distributions

    for title in packages_distributions().get(name, ()):
        if title.lower() != DISTRIBUTION:
            other = distribution(title)
            if os.path.realpath(str(other.locate_file(""))) == _folder(found):
                return title, other.version
    return None


def require_extra(extra: str) -> None:
    """Raises MissingExtra unless all modules of `extra` are installed. None of them is imported."""
    from importlib.util import find_spec

    for module in EXTRAS[extra]:
        if find_spec(module) is None:
            raise MissingExtra(_missing(module, extra), name=module)


def _missing(module: str, extra: str) -> str:
    cure = f"pip install '{DISTRIBUTION}[{extra}]'"
    return f"this needs {module}, which is not installed. Cure: {cure}"


def installed_version() -> str:
    """Returns the version of the installed distribution."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown (not installed)"


def _print_version() -> int:
    """Prints the version and returns the exit code."""
    try:
        os.write(1, f"{installed_version()}\n".encode())
    except BrokenPipeError:
        return _EXIT_OUTPUT_CLOSED
    except OSError as error:
        cause = "it is closed" if error.errno == errno.EBADF else error.strerror
        if sys.stderr is not None:
            sys.stderr.write(f"{DISTRIBUTION}: standard output: {cause}\n")
        return _EXIT_ERROR
    return 0


def main() -> NoReturn:
    """Runs the command `ledgerstream` and ends the process with its exit code.

    What is wrong with the installation is reported in one line, with exit code 1.
    """
    if sys.argv[1:] == ["--version"]:  # needs no extra
        sys.exit(_print_version())
    try:
        require_own_packages("ledger", "stream")
        from ledger.cli.output import run
        from stream.cli.command import main as command

        run(command)
    except KeyboardInterrupt:  # while modules are imported
        sys.exit(_EXIT_INTERRUPTED)
    except Exception as error:
        explained = explain(error)
        if explained is None:
            raise
        sys.stderr.write(f"{DISTRIBUTION}: {explained}\n")
        sys.exit(_EXIT_ERROR)


def explain(error: BaseException) -> str | None:
    """Returns what is wrong with the installation, in one line with the cure; None if `error` has
    another cause, which keeps its traceback."""
    texts = [_explain_import(cause) for cause in _causes(error)]
    return None if None in texts else texts[0]


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The errors inside nested groups, in order."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _causes(inner)
    else:
        yield error


def _explain_import(error: BaseException) -> str | None:
    if isinstance(error, ForeignPackage | MissingExtra):
        return str(error)
    if not isinstance(error, ImportError):
        return None
    if not error.name:  # cyclopts raises its own error where a sub-command cannot be imported
        return None if error.__cause__ is None else _explain_import(error.__cause__)
    top = error.name.partition(".")[0]
    if top in PACKAGES:
        return _explain_own_package(top)
    if not isinstance(error, ModuleNotFoundError):
        return None
    if top in CORE:
        return f"this needs {top}, which is not installed. Cure: pip install {DISTRIBUTION}"
    extra = next((extra for extra, modules in EXTRAS.items() if top in modules), None)
    return None if extra is None else _missing(top, extra)


def _explain_own_package(name: str) -> str | None:
    try:
        require_own_packages(name)
    except ForeignPackage as error:
        return str(error)
    return None


if __name__ == "__main__":
    main()
