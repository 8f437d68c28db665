"""Which commands change something, and their lines in the audit log.

A bookie sees requests for ledgers, and not who changes users, permissions, policies or streams:
those are changes of the metadata. The command that makes one adds a line to the file that
LEDGERSTREAM_AUDIT_FILE names. Only arguments that are listed here are in it, so that no secret can
be.
"""

from __future__ import annotations

import dataclasses
import os
import pwd
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ledger.cli.output import ClusterOption, UsageError, causes_of, remark
from ledger.core.audit import Field, audit_line
from ledger.errors import LedgerError
from ledger.runtime.audit_file import AuditFile
from ledger.shown_text import shown_address

if TYPE_CHECKING:
    from cyclopts import App

_NONE: Final[tuple[str, ...]] = ()
CHANGES: Final[Mapping[str, tuple[str, ...]]] = {
    "namespace create": ("name", "policy"),
    "namespace set": ("name", "policy"),
    "namespace delete": ("name", "purge"),
    "append": ("stream",),
    "stream create": ("stream", "partitions"),
    "stream grow": ("stream", "partitions"),
    "stream truncate": ("stream", "position"),
    "stream delete": ("stream",),
    "stream undelete": ("stream", "as_name"),
    "stream untruncate": ("stream", "position"),
    "stream purge": ("stream",),
    "stream adopt": ("stream", "ledgers", "partial"),
    "stream repair": ("stream", "end"),
    "cursor set": ("stream", "cursor", "to"),
    "cursor delete": ("stream", "cursor"),
    "group delete": ("stream", "group"),
    "sink reset": ("sink", "batch"),
    "sink forget": ("sink", "older_than"),
    "permission grant": ("user", "namespace", "role"),
    "permission revoke": ("user", "namespace", "role", "all_"),
    "user create": ("name", "digest_md5"),
    "user passwd": ("name", "digest_md5"),
    "user delete": ("name",),
    "security init": ("directory", "host", "admin"),
    "security namespace-key": ("namespaces", "without_namespace"),
    "security zookeeper-acl": ("dry_run",),
    "ledger create": ("ensemble", "write_quorum", "ack_quorum", "digest"),
    "ledger append": ("ledger_id",),
    "ledger recover": ("ledger_id",),
    "ledger delete": ("ledger_id",),
    "autorecovery enable": _NONE,
    "autorecovery disable": _NONE,
    "autorecovery delay": ("seconds",),
    "autorecovery audit": _NONE,
    "metadata import": ("file",),
    "metadata release": ("number",),
    "bookie place": ("bookie", "location", "remove"),
    "bookie decommission": ("bookie", "cancel"),
    "bookie replace": ("bookie", "replacement", "cancel"),
    "bookie rebalance": _NONE,
    "bookie rename": ("old", "new", "config"),
    "bookie gc": ("bookie", "minor"),
    "bookie rebuild-index": ("config", "directory"),
    "bookie expand-storage": ("config",),
    "bookie drop-directory": ("config", "directory"),
}
"""The commands that change something, and the arguments that are recorded."""


def run_audited(app: App, arguments: Sequence[str], path: str) -> object:
    """Runs a command and returns its result. If it changes something, a line of the audit log at
    `path` says so afterwards.

    Raises UsageError, before anything is changed, if the file cannot be opened; besides that what
    the command raises.
    """
    found = _change(app, arguments)
    if found is None:
        return app(arguments)
    action, fields = found
    file = AuditFile(path)
    try:
        file.open()
    except OSError as error:
        raise UsageError(
            f"the audit file {path} of LEDGERSTREAM_AUDIT_FILE cannot be opened: {error.strerror};"
            " nothing was changed"
        ) from None
    try:
        result = app(arguments)
    except BaseException as error:
        cause = next(causes_of(error))
        is_stopped = isinstance(cause, KeyboardInterrupt)
        outcome = "interrupted" if is_stopped else "failed"
        _write(file, action, outcome, **fields, cause=type(cause).__name__)
        raise
    _write(file, action, "failed" if result else "ok", **fields)
    return result


def _write(file: AuditFile, action: str, outcome: str, /, **fields: Field) -> None:
    from ledger.client import wall_ms

    source = ("host", socket.gethostname())
    try:
        file.write([audit_line(wall_ms(), source, action, outcome, **fields)])
    except OSError as error:
        remark(f"ledgerstream: no line in the audit file {file.path}: {error.strerror}")
    finally:
        file.close()


def _change(app: App, arguments: Sequence[str]) -> tuple[str, dict[str, Field]] | None:
    """Returns what a command line changes, and the fields about it; None if that is nothing, also
    for a command line that the command will reject."""
    from cyclopts import CycloptsError

    try:
        function, bound, _ = app.parse_args(arguments)
        chain, _, _ = app.parse_commands(arguments)
    except (CycloptsError, ValueError):
        return None
    action = " ".join(chain)
    # The parser returns another function for --help.
    if action not in CHANGES or function == app.help_print:
        return None
    given = bound.arguments
    if given.get("dry_run") or (action == "autorecovery delay" and given.get("seconds") is None):
        return None
    fields: dict[str, Field] = {"user": _system_user()}
    if action == "security init":
        # It changes the cluster that it is given, and no other.
        if running := given.get("running"):
            fields |= _where(ClusterOption(cluster=running))
    elif "config" not in CHANGES[action]:
        fields |= _where(given.get("cluster", ClusterOption()))
    asked = {name.strip("_"): _field(given[name]) for name in CHANGES[action] if name in given}
    if asked:
        fields["arguments"] = asked
    return action, fields


def _system_user() -> str:
    """Returns the user of this process, by its name if it has one."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _where(cluster: ClusterOption) -> dict[str, Field]:
    """Returns the address of the cluster, and as whom the command logs in there."""
    from ledger.credentials import read_credentials

    try:
        address, _ = cluster.address_and_source()
        options = cluster.options
        who = options.credentials
        if who is None and options.credentials_file:
            who = read_credentials(options.credentials_file)
    except (LedgerError, OSError):
        return {}  # the command will fail, and say why
    fields: dict[str, Field] = {"cluster": shown_address(address)}
    if who is not None and who.user:
        fields["credentials_user"] = who.user
    return fields


def _field(value: Any) -> Field:
    """Returns an argument as it is recorded."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, tuple | list):
        return [one if isinstance(one, int) else str(one) for one in value]
    if dataclasses.is_dataclass(value):  # the options of a policy
        given = ((one.name, getattr(value, one.name)) for one in dataclasses.fields(value))
        return {name: _field(one) for name, one in given if one is not None}
    return str(value)
