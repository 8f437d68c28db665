"""Prints the first Python example of a document, as a reader would copy it."""

import re
import sys
from pathlib import Path

text = Path(sys.argv[1]).read_text(encoding="utf-8")
found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
assert found is not None, f"{sys.argv[1]} has no example"
sys.stdout.write(found[1])
