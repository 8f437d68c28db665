"""Reads the file with the secrets of a cluster, or with the keys of some of its namespaces, from
which keys of ledgers are derived.

Without a file it finds the one that the environment names, so that every command and every process
of a cluster can be given it in one way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ledger.core.ledger_keys import NO_KEYS, LedgerKeys, parse_secrets
from ledger.credentials import read_private

SECRET_FILE_VARIABLE: Final = "LEDGERSTREAM_CLUSTER_SECRET_FILE"


def load_keys(file: str, environment: Mapping[str, str]) -> LedgerKeys:
    """Returns the secrets and keys in `file`, or in the file that `environment` names by
    LEDGERSTREAM_CLUSTER_SECRET_FILE; none if both are empty. Raises InvalidArgument if the file
    cannot be read, can be read by others, or holds neither."""
    path = file or environment.get(SECRET_FILE_VARIABLE, "")
    if not path:
        return NO_KEYS
    return parse_secrets(read_private(path, "secret of a cluster"), path)
