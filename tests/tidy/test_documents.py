"""Every setting of a bookie, every command and every word of the glossary is written down."""

from __future__ import annotations

import ast
import re

from tests.tidy.checkout import ROOT, tree_of

CONFIGURATION = ROOT / "docs" / "configuration.md"


def settings_of(source: ast.Module, class_name: str) -> list[str]:
    for node in source.body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            return [
                field.target.id
                for field in node.body
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            ]
    raise AssertionError(f"no class {class_name}")


def test_every_setting_of_a_bookie_is_described() -> None:
    described = set(re.findall(r"`([a-z0-9_]+)`", CONFIGURATION.read_text(encoding="utf-8")))
    settings = settings_of(tree_of(ROOT / "bookie" / "config.py"), "BookieConfig")
    assert settings
    assert not [name for name in settings if name not in described]
