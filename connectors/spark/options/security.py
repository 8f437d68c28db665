"""Parses the options that say which cluster is meant, and how its clients are admitted.

An option must never hold a secret: Spark keeps options in plans, and shows them in its UI.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar

from connectors.spark.core.cluster_access import ClusterAccess
from connectors.spark.options import values
from connectors.spark.options.table import CLUSTER_OPTION, SECURITY_OPTIONS
from ledger.errors import InvalidArgument
from ledger.options import TLS_MODES

CLUSTER_VARIABLE = "LEDGERSTREAM_CLUSTER"
_SECRET = re.compile(r"secret|password|passwd|token|credential|access.?key|user", re.IGNORECASE)
_FLAGS = ("tlsChecksHostNames", "metadataTls")
_ACLS = ("open", "creator")

T = TypeVar("T")


class GivenTexts(Protocol):
    """The options that were given, by their names in any case."""

    def text(self, name: str) -> str | None: ...
    def get(self, name: str, parse: Callable[[str], T]) -> T | None: ...


def cluster_access(given: GivenTexts, environment: Mapping[str, str]) -> ClusterAccess:
    """Returns the cluster, and what the options say of how to reach it. Reads no file. Raises
    InvalidArgument."""
    cluster = (given.text("cluster") or environment.get(CLUSTER_VARIABLE, "")).strip()
    if not cluster:
        raise InvalidArgument(
            f"option cluster is missing, and {CLUSTER_VARIABLE} is not set in the environment "
            f"of Spark's driver (a running session reads it at register(spark)): give "
            f"{CLUSTER_OPTION.forms}"
        )
    settings: list[tuple[str, str | bool]] = []
    for option in SECURITY_OPTIONS:
        value = given.get(option.name, _parser(option.name))
        if value is not None:
            settings.append((setting_of(option.name), value))
    return ClusterAccess(cluster, tuple(settings))


def setting_of(option: str) -> str:
    """Returns the name in `ClientOptions` of an option: "tls_ca_file" of "tlsCaFile"."""
    return re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", option)


def check_no_secret(unknown: Iterable[str]) -> None:
    """Raises InvalidArgument if the name of an unknown option is one that a secret would have. Its
    value is not quoted."""
    for name in unknown:
        if _SECRET.search(name):
            raise InvalidArgument(
                f"there is no option {name!r}: Spark keeps options in its plans, so that secrets "
                "are read from files. Cure: option credentialsFile, and change a secret that was "
                "given here"
            )


def _parser(name: str) -> Callable[[str], str | bool]:
    if name in _FLAGS:
        return values.flag
    if name == "tls":
        return lambda text: values.one_of(text, TLS_MODES)
    return _acl if name == "zookeeperAcl" else values.file_name


def _acl(text: str) -> str:
    """Parses a word, or the ids of two users, whose hashes are checked by the client."""
    return text.strip() if "," in text else values.one_of(text, _ACLS)
