"""`connectors.spark` under the name of the distribution: for Spark."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from connectors.spark import *
else:
    sys.modules[__name__] = import_module("connectors.spark")
