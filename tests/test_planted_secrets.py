"""The search for planted secrets finds them in every form: it would prove nothing otherwise."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from tests.certificates import Authority
from tests.planted_secrets import PlantedSecrets, recognisable

SECRET = recognisable("password")
RAW = SECRET.encode()


@pytest.mark.parametrize(
    "shown",
    [
        f"password={SECRET}",
        f"key={RAW.hex()}",
        f"key={RAW.hex().upper()}",
        *("Basic " + base64.b64encode(b"u" * n + b":" + RAW + b"!").decode() for n in range(4)),
        base64.urlsafe_b64encode(b"?" + RAW).decode(),
        f"/path?password={quote(SECRET)}",
        urlencode({"password": SECRET}),
        json.dumps({"password": SECRET}),
        repr(RAW),
    ],
)
def test_a_secret_is_found_in_every_form(shown: str) -> None:
    secrets = PlantedSecrets()
    secrets.plant("the password", SECRET)
    assert secrets.search("a log", f"before {shown} after")
    with pytest.raises(AssertionError, match=r"the password .* in a log"):
        secrets.check()


def test_bytes_that_are_no_text_are_found_in_their_repr() -> None:
    secrets = PlantedSecrets()
    secrets.plant("a key", bytes(range(240, 256)))
    assert secrets.search("a traceback", f"ValueError: {bytes(range(256))!r}")


def test_a_private_key_is_found_in_its_file_and_by_its_number(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).issue("bookie", "localhost")
    secrets = PlantedSecrets()
    secrets.plant_key("the bookie's key", key)
    assert secrets.search_files([certificate]) == 1
    assert secrets.leaks == []
    secrets.search_files([tmp_path])
    assert ["bookie.key" in leak for leak in secrets.leaks] == [True]


def test_other_text_is_no_leak() -> None:
    secrets = PlantedSecrets()
    secrets.plant("the password", SECRET)
    assert secrets.search("a log", "password=<redacted> " * 1000) == []
    secrets.check()


def test_arguments_and_environment_of_processes_are_searched() -> None:
    secrets = PlantedSecrets()
    secrets.plant("the password", SECRET)
    program = [sys.executable, "-c", "print(flush=True); input()"]
    pipe = subprocess.PIPE
    for arguments, environment in (([SECRET], {}), ([], {"P": SECRET})):
        begun = subprocess.Popen([*program, *arguments], stdin=pipe, stdout=pipe, env=environment)
        with begun as process:
            assert process.stdout is not None
            process.stdout.readline()  # before that it may not have its arguments yet
            secrets.search_processes([process.pid])
            process.kill()
    assert [leak.split(" in ")[1].split(" of ")[0] for leak in secrets.leaks] == [
        "cmdline", "environ",
    ]  # fmt: skip
