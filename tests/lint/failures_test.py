"""Each fault of a host in docs/failures.md has a test that is there: usage: failures_test.py ROOT"""

import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])


def titles():
    """Titles of all test cases; a long one is several strings."""
    for file in (root / "tests").rglob("*.cpp"):
        for found in re.finditer(r'TEST_CASE\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)', file.read_text()):
            yield "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', found[1]))


text = (root / "docs" / "failures.md").read_text()
section = re.search(r"^## Faults of hosts\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
if not section:
    sys.exit("docs/failures.md has no table of faults of hosts")
rows = [line for line in section[1].splitlines() if line.startswith("|")][2:]
known = set(titles())
wrong = [row for row in rows if not (named := re.findall(r'"([^"]+)" \|$', row))
         or not set(named) <= known]
if wrong or len(rows) < 10:
    sys.exit("\n".join(["docs/failures.md: no such test, or no rows:", *wrong]))
