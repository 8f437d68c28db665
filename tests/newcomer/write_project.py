"""Writes the tests of a document's examples as files, each as a reader would paste it."""

import re
import sys
from pathlib import Path

document, directory = map(Path, sys.argv[1:])
directory.mkdir()
examples = re.findall(r"```python\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)
tests = [example for example in examples if "def test_" in example]
assert len(tests) >= 4, f"{document} has {len(tests)} tests"
for number, test in enumerate(tests):
    (directory / f"test_{number}.py").write_text(test, encoding="utf-8")
