"""What the tests of the harness and those of single benchmarks share."""

from __future__ import annotations

import contextlib
import io
import tempfile
import unittest
from pathlib import Path

from harness import Contender, Result


def contender(name: str, command: list[str]) -> Contender:
    """A contender whose figure is the last JSON line's value."""
    return Contender(name, command, lambda run: {"value": run.json_lines()[-1]["value"]})


def result(name: str, *values: float) -> Result:
    """A result with one reading a value."""
    return Result(contender(name, []), [{"value": value} for value in values])


class Quiet(unittest.TestCase):
    """Keeps what the harness says, and gives each test a folder."""

    def setUp(self) -> None:
        self.said = io.StringIO()
        self.enterContext(contextlib.redirect_stderr(self.said))
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
