"""What admits a process of Spark to a cluster: files on this machine, and its environment.

Credentials come from files: on each machine, or distributed by Spark (`--files`), which gives its
copies to the user that runs the job alone. Secrets must never be part of what Spark keeps: options,
plans and pickled objects.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from connectors.spark.core.cluster_access import ClusterAccess
from ledger.errors import InvalidArgument
from ledger.options import ClientOptions

_RUNNER_FOLDER = "streaming_job"
"""The driver's process of a streaming source gets from Spark this folder of the one that has the
files (PythonStreamingSourceRunner in Spark 4.2 and 4.3)."""


def client_options(
    access: ClusterAccess, environment: Mapping[str, str], **others: Any
) -> ClientOptions:
    """Returns the options of a client in this process, with `others` of `ClientOptions`.

    What the access says goes before what its file of credentials says. If it says nothing, the
    environment does, as for the command. Raises InvalidArgument for files that cannot be used.
    """
    given: dict[str, Any] = {
        name: local_path(value) if name.endswith("_file") and isinstance(value, str) else value
        for name, value in access.settings
    }
    file = given.pop("credentials_file", None)
    if file is not None:
        return ClientOptions.from_file(file, **given, **others)
    return ClientOptions(**given, **others).completed(None, environment)


def local_path(name: str) -> str:
    """Returns the path of a file on this machine: an absolute one as it is, else that of the file
    which Spark has distributed under this name. Raises InvalidArgument if there is none."""
    if os.path.isabs(name):
        return name
    folders = _distributed()
    for folder in folders:
        if (folder / name).is_file():
            return str(folder / name)
    looked = f"looked in {folders[0]}" if folders else "this process has none"
    raise InvalidArgument(
        f"file {name!r} is not among the files that Spark has distributed ({looked}). Cure: "
        "spark-submit --files, spark.files or addFile; or an absolute path that every machine has"
    )


def _distributed() -> list[Path]:
    """Returns the folders that may have the files that Spark has distributed."""
    from pyspark import SparkFiles

    try:
        root = Path(SparkFiles.getRootDirectory()).absolute()
    except (AssertionError, AttributeError):
        return []  # there is no session in this process, and it is no worker of one
    return [root, root.parent] if root.name == _RUNNER_FOLDER else [root]
