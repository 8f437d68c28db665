"""The ways to run the checks run the same commands, and what the documents name is there."""

from __future__ import annotations

import re
import tomllib

from tests.tidy.checkout import ROOT

_MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def recipe(target: str) -> list[str]:
    """The commands of a target of the Makefile."""
    match = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", _MAKEFILE, re.MULTILINE)
    assert match is not None, f"the Makefile has no target {target}"
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in match[1].splitlines()]


def test_pre_commit_runs_what_make_check_runs() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert re.findall(r"^ +entry: (.+)$", text, re.MULTILINE) == recipe("check")
    assert re.findall(r"repo: (\S+)", text) == ["local"], "nothing is downloaded"


def test_hosted_ci_runs_the_script_and_has_no_secrets() -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    assert re.findall(r"run: (.+)$", text, re.MULTILINE) == [".ci/run"]
    assert "secrets" not in text
    assert "://" not in text


def test_the_list_of_commands_names_every_target() -> None:
    phony = re.search(r"^\.PHONY: (.+)$", _MAKEFILE, re.MULTILINE)
    assert phony is not None
    explained = set(re.findall(r'"make ([a-z-]+)', "\n".join(recipe("help"))))
    silent = {"help", "test-all", "interop-table", "clean"}
    assert set(phony[1].split()) - silent == explained


def test_commands_in_the_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", _MAKEFILE, re.MULTILINE))
    for name in ("CONTRIBUTING.md", "README.md", "changelog.d/README.md"):
        named = set(re.findall(r"`make ([a-z-]+)", (ROOT / name).read_text(encoding="utf-8")))
        assert named <= targets, f"{name} names commands that the Makefile does not have"


def test_the_distribution_claims_python_versions_and_no_addresses() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    claimed = [line for line in project["classifiers"] if re.search(r":: 3\.\d+$", line)]
    oldest = project["requires-python"].removeprefix(">=")
    assert claimed[0].endswith(f":: {oldest}")
    assert "urls" not in project
