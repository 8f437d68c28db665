"""`ledgerstream user`: who may authenticate with a password. The bookies read users from the
metadata; passwords themselves are stored nowhere."""

from __future__ import annotations

import getpass
import secrets
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from ledger.cli.output import ClusterOption, OutputOption, UsageError, examples, time_of, usage

if TYPE_CHECKING:
    from ledger.metastore.users import User

app = App(
    name="user",
    help="Create, list, passwd, delete.",
    help_epilogue=examples("ledgerstream user create ann", "ledgerstream user list"),
)

_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()
_Flag = Annotated[bool, Parameter(negative="")]
PasswordFile = Annotated[str | None, Parameter(allow_leading_hyphen=True)]
"""A path, or - for standard input."""


@app.command(
    help_epilogue=examples(
        "ledgerstream user create ann",
        "ledgerstream user create ann --password-file ann.password",
    )
)
async def create(
    name: str,
    /,
    *,
    password_file: PasswordFile = None,
    digest_md5: _Flag = False,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Create a user with a password.

    Parameters
    ----------
    name
        Letters and digits of ASCII and . _ @ : + -
    password_file
        A file with the password, - for standard input. Without it the terminal is asked.
    digest_md5
        Store what DIGEST-MD5 needs, too, for Apache's clients. It is as good as the password:
        a reader of the metadata can log in as this user.
    """
    from ledger.metastore import open_metadata
    from ledger.metastore.users import UserStore

    with usage():
        user = _with_password(name, password_file, digest_md5=digest_md5)
    async with open_metadata(cluster.uri, cluster.options) as store:
        await UserStore(store).create(user)
    output.report(_row(user), f"user {name} is created")


@app.command(
    help_epilogue=examples(
        "ledgerstream user passwd ann", "ledgerstream user passwd ann --password-file new.password"
    )
)
async def passwd(
    name: str,
    /,
    *,
    password_file: PasswordFile = None,
    digest_md5: _Flag = False,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Give a user another password. Connections that rest on the old one end within seconds.

    Parameters
    ----------
    name
        A user.
    password_file
        A file with the password, - for standard input. Without it the terminal is asked.
    digest_md5
        As for `user create`; without it, what was stored for DIGEST-MD5 is removed.
    """
    from ledger.metastore import open_metadata
    from ledger.metastore.users import UserStore

    with usage():
        user = _with_password(name, password_file, digest_md5=digest_md5)
    async with open_metadata(cluster.uri, cluster.options) as store:
        await UserStore(store).change(user)
    output.report(
        {"user": name, "changed": time_of(user.changed_ms)}, f"user {name} has another password"
    )


@app.command(name="list", help_epilogue=examples("ledgerstream user list --json"))
async def list_users(*, cluster: ClusterOption = _CLUSTER, output: OutputOption = _OUTPUT) -> None:
    """List the users, and by which mechanisms each can authenticate."""
    from ledger.metastore import open_metadata
    from ledger.metastore.users import UserStore

    async with open_metadata(cluster.uri, cluster.options) as store:
        found = await UserStore(store).list()
    output.show_list([_row(user) for user in found], title="users", none="no users")


@app.command(help_epilogue=examples("ledgerstream user delete ann"))
async def delete(
    name: str, /, *, cluster: ClusterOption = _CLUSTER, output: OutputOption = _OUTPUT
) -> None:
    """Delete a user, and what was granted to it. Connections that rest on its password end within
    seconds. Tokens and certificates of this name have no rights any more, either.

    Parameters
    ----------
    name
        A user.
    """
    from ledger.core.authentication.names import check_user_name
    from ledger.errors import MetadataCorrupt
    from ledger.metastore import open_metadata
    from ledger.metastore.permissions import Permissions
    from ledger.metastore.users import UserStore, no_such_user

    revoked: list[str] = []
    with usage():
        check_user_name(name)
    async with open_metadata(cluster.uri, cluster.options) as store:
        users = UserStore(store)
        with suppress(MetadataCorrupt):  # a damaged user can be deleted
            if await users.read(name) is None:
                raise no_such_user(name)
        with suppress(MetadataCorrupt):  # a damaged table grants nothing to a later user
            revoked = [str(one) for one in await Permissions(store).forget_user(name)]
        await users.delete(name)
    output.report(
        {"user": name, "deleted": True, "revoked": revoked},
        f"user {name} is deleted; revoked: {', '.join(revoked) or 'nothing'}",
    )


def _with_password(name: str, password_file: str | None, *, digest_md5: bool) -> User:
    """Returns the user with the password that the caller gives. Raises UsageError."""
    from ledger.client import wall_ms
    from ledger.core.authentication import scram
    from ledger.core.authentication.names import check_user_name
    from ledger.metastore.users import new_user

    check_user_name(name)  # before anybody types a password
    password = _password(name, password_file)
    return new_user(
        name,
        password,
        salts={mechanism: secrets.token_bytes(scram.SALT_BYTES) for mechanism in scram.HASHES},
        now_ms=wall_ms(),
        digest_md5=digest_md5,
    )


def _password(name: str, file: str | None) -> str:
    from ledger.credentials import FILE_BYTES_MAX, read_secret

    if file == "-":
        line = sys.stdin.buffer.readline(FILE_BYTES_MAX)
        try:
            return line.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise UsageError("the password on standard input is not text in UTF-8") from None
    if file is not None:
        return read_secret(file).reveal()
    if not sys.stdin.isatty():
        raise UsageError(
            "no terminal to ask for the password; give --password-file FILE, or --password-file - "
            "and the password on standard input"
        )
    try:
        password = getpass.getpass(f"password of {name}: ")
        again = getpass.getpass("once more: ")
    except EOFError:
        raise UsageError("no password was typed") from None
    if password != again:
        raise UsageError("the two passwords differ")
    return password


def _row(user: User) -> dict[str, object]:
    mechanisms = [*user.verifiers, *(["DIGEST-MD5"] if user.digest_md5 is not None else [])]
    return {
        "user": user.name,
        "mechanisms": mechanisms,
        "created": time_of(user.created_ms),
        "changed": time_of(user.changed_ms),
    }
