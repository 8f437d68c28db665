"""ClusterAccess: which cluster is meant, and how its clients are admitted. Pure.

It goes to executors inside of readers, partitions and sinks, so that it has names of files and must
never have a secret: the files are read by the process that connects.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """The address of a cluster, and how to reach it. Its text is the address.

    `settings` are those of `ledger.options.ClientOptions` that the options of Spark give, by name.
    Files are named by their paths on each machine, or by their names among the files that Spark
    has distributed.
    """

    uri: str
    settings: tuple[tuple[str, str | bool], ...] = ()

    def __str__(self) -> str:
        return self.uri
