"""What a secure cluster shows: all that users run, see, log and list is searched for secrets."""

from __future__ import annotations

import ssl
import tomllib
from base64 import b64encode
from http.client import HTTPSConnection
from pathlib import Path

import trio

from bookie.core.operations import HTTP_OPERATIONS
from ledger.core.entry import master_key
from ledger.metastore import ClusterAddress, open_store
from ledger.metastore.ledgers import LedgerStore
from ledger.metastore.users import UserStore
from tests.planted_secrets import PlantedSecrets, recognisable
from tests.system.cluster import StandaloneCluster

PASSWORD, OTHER, WRONG = (recognisable(name) for name in ("user", "changed", "wrong"))
LEDGERS, TOKEN = recognisable("ledger"), "eyJhbGciOiJFZERTQSJ9.e30.planted-signature-of-a-token"
CLUSTER, ZOOKEEPER = recognisable("cluster-secret"), recognisable("zookeeper")


class SecretSearch:
    """A search in one secure cluster, whose audit log is the file `audit`."""

    def __init__(self, cluster: StandaloneCluster, directory: Path, audit: Path) -> None:
        self.secrets = self._secrets = PlantedSecrets()
        self._cluster = cluster
        self._directory = directory
        self._audit = audit
        self._security = cluster.directory / "security"
        self._variables = {
            "LEDGERSTREAM_LOG_LEVEL": "debug",
            "LEDGERSTREAM_AUDIT_FILE": str(audit),
            "XDG_CONFIG_HOME": str(directory / "config"),
        }
        self._admin = ("--credentials", str(self._security / "admin.toml"))

    def passive(self) -> None:
        """Searches what commands have shown until now, HTTP, logs, files and processes."""
        self._plant()
        trio.run(self._plant_metadata)
        self._http()
        for command, said in self._cluster.shown:
            self._secrets.search(command, said)
        self._files_and_processes()

    def active(self) -> None:
        """Runs commands, those that fail, too, with planted secrets, and searches everything."""
        self._plant()
        self._streams()
        self._users()
        self._ledgers()
        self._failures()
        with self._cluster.begin("tail", "demo/s0", *self._admin) as tailing:
            self._secrets.search_processes([tailing.pid])
        self.passive()

    def _plant(self) -> None:
        secrets = self._secrets
        for name in ("PASSWORD", "OTHER", "WRONG", "LEDGERS", "CLUSTER", "ZOOKEEPER"):
            secrets.plant(name, globals()[name])
        secrets.plant("TOKEN", TOKEN.rpartition(".")[2])
        for file in self._security.glob("*.password"):
            secrets.plant(file.name, file.read_bytes().strip())
        for file in self._security.glob("*.key"):
            secrets.plant_key(file.name, file)

    def _file(self, name: str, text: str, mode: int = 0o600) -> str:
        path = self._directory / name
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    def _show(
        self, *arguments: str, code: int | None = 0, stdin: str = "", **variables: str
    ) -> str:
        """Runs a command that ends with `code`, or with any one; returns what it says."""
        done = self._cluster.try_run(
            *arguments, stdin=stdin.encode(), **{**self._variables, **variables}
        )
        said = done.stdout.decode() + done.stderr.decode()
        assert code is None or done.returncode == code, (arguments, said)
        return said

    def _streams(self) -> None:
        for n in range(3):
            self._show("append", f"demo/s{n}", *self._admin, stdin="a\nb\n")
        self._show("read", "demo/s0", "--from", "earliest", *self._admin)
        for command in ("status", "bookie list", "bookie show", "stream list", "ledger list"):
            self._show(*command.split(), "--json", *self._admin)
        self._show("stream", "show", "demo/s0", "--json", *self._admin)
        self._show("stream", "verify", "demo/s0", *self._admin)
        trio.run(self._plant_metadata)
        self._show("context", "add", "here", self._cluster.uri, "--use", *self._admin)
        for command in ("context list", "context show", "context show here --json"):
            self._show(*command.split())
        self._show("stream", "list", LEDGERSTREAM_CLUSTER="")

    async def _plant_metadata(self) -> None:
        """Plants what the metadata keeps: passwords of ledgers, and keys of users."""
        async with open_store(self._cluster.uri) as store:
            ledgers = LedgerStore(store, ClusterAddress.parse(self._cluster.uri).root)
            for ledger_id in await ledgers.list():
                metadata, _ = await ledgers.read(ledger_id)
                if len(metadata.password) > 8:
                    self._secrets.plant(f"the password of ledger {ledger_id}", metadata.password)
                    key = master_key(metadata.password)
                    self._secrets.plant(f"the key of ledger {ledger_id}", key)
            for user in await UserStore(store).list():
                for name, verifier in user.verifiers.items():
                    self._secrets.plant(f"{user.name}'s key of {name}", verifier.stored_key)
                    self._secrets.plant(f"the server's {name} of {user.name}", verifier.server_key)

    def _users(self) -> None:
        password = self._file("password", f"{PASSWORD}\n")
        self._show("user", "create", "eve", "--digest-md5", "--password-file", password)
        self._show("user", "passwd", "eve", "--password-file", "-", stdin=f"{OTHER}\n")
        trio.run(self._plant_metadata)
        self._show("user", "list", "--json")
        self._show("permission", "grant", "eve", "demo", "--role", "read")
        for command in ("permission list --json", "permission explain eve demo --json"):
            self._show(*command.split())
        eve = self._credentials("eve.toml", f'user = "eve"\npassword = "{OTHER}"')
        self._show("read", "demo/s0", "--from", "earliest", "--credentials", eve)
        self._show("append", "demo/s0", "--credentials", eve, stdin="c\n", code=1)
        init = ("security", "init", "--dir", str(self._directory / "security"))
        self._show(*init, "--host", "b1.example.com")
        for file in (self._directory / "security").glob("*.password"):
            self._secrets.plant(f"another {file.name}", file.read_bytes().strip())
        for file in (self._directory / "security").glob("*.key"):
            self._secrets.plant_key(f"another {file.name}", file)
        self._show(*init, "--host", "b1.example.com")
        self._show("security", "check", "--json", *self._admin)

    def _credentials(self, name: str, text: str, mode: int = 0o600) -> str:
        tls = f'tls = "start_tls"\ntls_ca_file = "{self._security}/ca.pem"\n'
        return self._file(name, f"{tls}{text}\n", mode)

    def _ledgers(self) -> None:
        password = self._file("ledger.password", LEDGERS)
        sizes = ("--ensemble", "1", "--write-quorum", "1", "--ack-quorum", "1")
        made = ("ledger", "create", *sizes, "--password-file", password, *self._admin)
        ledger_id = self._show(*made).split()[0]
        self._show("ledger", "append", ledger_id, *self._admin, stdin="a\n")
        read = ("ledger", "read", ledger_id, *self._admin, "--password-file")
        assert "a" in self._show(*read, password)
        self._show(*read, self._file("wrong.password", WRONG), code=1)
        self._show("ledger", "show", ledger_id, "--json", *self._admin)
        self._show("ledger", "recover", ledger_id, "--password-file", password, *self._admin)
        trio.run(self._plant_metadata)
        settings = tomllib.loads(self._cluster.settings_of(1).read_text())
        for directory in settings["journal_directories"]:
            self._show("bookie", "inspect", "journal", directory, code=None)
        for directory in settings["ledger_directories"]:
            self._show("bookie", "inspect", "index", directory, code=None)
            self._show("bookie", "inspect", "ledger", directory, ledger_id, code=None)

    def _failures(self) -> None:
        """Commands that fail, with what is wrong near a secret."""
        right = f'user = "eve"\npassword = "{OTHER}"'
        for name, text, mode in (
            ("wrong.toml", f'user = "eve"\npassword = "{WRONG}"', 0o600),
            ("nobody.toml", f'user = "nobody"\npassword = "{WRONG}"', 0o600),
            ("open.toml", right, 0o644),
            ("broken.toml", f"user = eve\npassword = {OTHER}", 0o600),
            ("token.toml", f'token = "{TOKEN}"', 0o600),
            ("both.toml", f'{right}\ntoken = "{TOKEN}"', 0o600),
        ):
            file = self._credentials(name, text, mode)
            self._show("append", "demo/s1", "--credentials", file, stdin="x\n", code=None)
        read = ("read", "demo/s1", "--from", "earliest")
        self._show(*read, code=None, LEDGERSTREAM_USER="eve", LEDGERSTREAM_PASSWORD=WRONG)
        self._show(*read, code=None, LEDGERSTREAM_TOKEN=TOKEN)
        for name, text in (("secret", CLUSTER), ("odd-secret", f"{CLUSTER} {CLUSTER}")):
            file = self._file(name, text)
            self._show(*read, *self._admin, code=None, LEDGERSTREAM_CLUSTER_SECRET_FILE=file)
        for name, text in (("zookeeper", f"me:{ZOOKEEPER}"), ("odd-zookeeper", ZOOKEEPER)):
            file = self._file(name, text, 0o644)  # refused, before anything connects
            self._show(*read, code=None, LEDGERSTREAM_ZOOKEEPER_CREDENTIALS_FILE=file)
        address = f"zk://me:{ZOOKEEPER}@127.0.0.1:1/ledgers"
        self._show("status", code=None, LEDGERSTREAM_CLUSTER=address)
        self._show("user", "create", "odd", "--password-file", "-", stdin=f"\x00{WRONG}\n", code=2)

    def _http(self) -> None:
        """Asks a bookie for everything that it shows, with right and wrong credentials."""
        port = tomllib.loads(self._cluster.settings_of(1).read_text())["http_port"]
        context = ssl.create_default_context(cafile=self._security / "ca.pem")
        admin = (self._security / "admin.password").read_text().strip()
        for user, password in (("admin", admin), ("admin", WRONG)):
            basic = b64encode(f"{user}:{password}".encode()).decode()
            for one in HTTP_OPERATIONS:
                if one.method != "GET" or (password is WRONG and one.path != "/metrics"):
                    continue
                connection = HTTPSConnection("localhost", port, context=context)
                connection.request("GET", one.path, headers={"Authorization": f"Basic {basic}"})
                answer = connection.getresponse()
                where = f"GET {one.path} as {user}: {answer.status}"
                self._secrets.search(where, f"{answer.headers}")
                self._secrets.search(where, answer.read())
                connection.close()

    def _files_and_processes(self) -> None:
        cluster = self._cluster
        assert "authentication failed" in cluster.logs()
        found = self._secrets.search_files(
            [
                *cluster.directory.glob("bookie-*/bookie.*"),
                *cluster.directory.glob("*.toml"),
                cluster.said,
                *self._audit.parent.glob("audit.log*"),
                *(self._directory / "config").rglob("*"),
            ]
        )
        assert found > 10, "logs, settings and process ids of all bookies"
        self._secrets.search_processes(cluster.pids())
