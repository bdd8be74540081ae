"""Checks where the Markdown pages lead: python3 tests/lint/links.py ROOT

In README.md and docs/*.md each link to a file leads to one, with an anchor to a heading there, and each path
in backticks that begins with a folder of the source is there; its suffix may be left out. In the README each
test named under "shown by" is one that CMake lists; `fuzz_*` stands for some. Links into the web are not
followed. Prints one line for each that leads nowhere, and exits with 1 if there is any.
"""

import fnmatch
import pathlib
import re
import sys

BLOCK = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)")
PATH = re.compile(r"`((?:messages|optimizers|engine|actors|cluster|apps|tests|docs)/[\w./{},-]+)`")
LISTED = re.compile(r"\b(?:troupe_test\(|add_test\(NAME )\s*([\w${}]+)")
LEAST_LINKS, LEAST_TESTS = 200, 60


def without_code(text):
    """A page without its blocks of code; lines stay where they are."""
    return BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)


def anchors_of(text):
    """The anchors that GitHub gives to a page's headings; a repeated one gets a number."""
    found, times = set(), {}
    for heading in re.findall(r"^#{1,6} +(.+?) *$", without_code(text), re.MULTILINE):
        shown = LINK.sub(lambda link: link[0][1:link[0].index("]")], heading)
        anchor = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        count = times[anchor] = times.get(anchor, -1) + 1
        found.add(f"{anchor}-{count}" if count else anchor)
    return found


def links_in(text):
    """Each link of a page with its line, without those into the web."""
    prose = without_code(text)
    for link in LINK.finditer(prose):
        if not re.match(r"[a-z]+:", link[1]):
            yield prose.count("\n", 0, link.start()) + 1, link[1]


def paths_in(text):
    """Each path of the source that a page names, with its line; `a.{hpp,cpp}` are two."""
    prose = without_code(text)
    for path in PATH.finditer(prose):
        begin, brace, rest = path[1].partition("{")
        choices, _, end = rest.partition("}")
        for choice in choices.split(",") if brace else [""]:
            yield prose.count("\n", 0, path.start()) + 1, f"{begin}{choice}{end}"


def check_page(root, page):
    """How many links a page has, and what is wrong with them and with its paths."""
    text = (root / page).read_text()
    links, wrong = list(links_in(text)), []
    for line, path in paths_in(text):
        if not (root / path).exists() and not any(root.glob(f"{path}.*")):
            wrong.append(f"{page}:{line}: links: there is no {path}")
    for line, link in links:
        path, _, anchor = link.partition("#")
        target = (root / page).parent / path if path else root / page
        if not target.exists():
            wrong.append(f"{page}:{line}: links: there is no {path}")
        elif anchor and anchor not in anchors_of(target.read_text()):
            wrong.append(f"{page}:{line}: links: {path or page} has no heading #{anchor}")
    return len(links), wrong


def tests_in(root):
    """The tests that CMake lists; what it puts together from a variable has a * there."""
    return {re.sub(r"\$\{\w+\}", "*", name) for listed in (root / "tests").rglob("CMakeLists.txt")
            for name in LISTED.findall(listed.read_text())}


def check_tests(readme, tests):
    """How many tests a table's last column, headed "shown by", names, and which of them are not there."""
    count, wrong = 0, []
    for table in re.findall(r"^\|.*\| shown by \|\n((?:\|.*\|\n?)+)", readme, re.MULTILINE):
        for row in table.splitlines()[1:]:
            for name in re.findall(r"`([^`]+)`", row.rstrip("| ").rpartition("|")[2]):
                count += 1
                if not any(fnmatch.fnmatch(test, name) or fnmatch.fnmatch(name, test) for test in tests):
                    wrong.append(f"README.md: shown by: no test is called {name}")
    return count, wrong


def main(root):
    pages = ["README.md", *sorted(f"docs/{page.name}" for page in (root / "docs").glob("*.md"))]
    checked = [check_page(root, page) for page in pages]
    named, wrong = check_tests((root / "README.md").read_text(), tests_in(root))
    for found in checked:
        wrong += found[1]
    links = sum(count for count, _ in checked)
    if links < LEAST_LINKS or named < LEAST_TESTS:
        wrong.append(f"links: {links} links and {named} names of tests, fewer than there were")
    print("\n".join([*wrong, f"links: {links} links, {named} names of tests, {len(wrong)} lead nowhere"]))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]))
