"""Each row of each table in docs/failures.md names tests that are there, and so do each bug in
docs/chaos.md and each command of a page that runs some tests of a program: failures_test.py ROOT

The last column of a table is headed "test" or "tests". A cell there names test programs, each with
titles of its test cases (`multiprocess`: "A title", "Another"), or titles alone; a remark may follow
in brackets. A row for which there is no test says so: not tested. A bug has its tests' titles in
brackets. A command is one of `build/release/bin/PROGRAM "TITLES*"`.
"""

import fnmatch
import pathlib
import re
import sys

# Tables of what was found once, by their first heading.
RECORDS = {"UCX inside a machine", "found", "under"}
TITLE = r'"(?:[^"\\]|\\.)*"'
LEAST_ROWS, LEAST_BUGS, LEAST_COMMANDS = 70, 15, 7


def titles_in(file):
    """Titles of a file's test cases; a long one is several strings."""
    start = r"\b[A-Z_]*TEST(?:_CASE)?(?:_METHOD)?\(\s*(?:\w+,\s*)?"
    for found in re.finditer(start + rf"((?:{TITLE}\s*)+)", file.read_text()):
        yield "".join(part[1:-1] for part in re.findall(TITLE, found[1]))


def programs_in(root):
    """The titles of each test program's test cases, by its name."""
    programs = {}
    for listed in (root / "tests").rglob("CMakeLists.txt"):
        for name, rest in re.findall(r"\btroupe_test\((\w+)([^)]*)\)", listed.read_text()):
            files = [listed.parent / word for word in rest.split() if word.endswith(".cpp")]
            programs[name] = {title for file in files for title in titles_in(file)}
    return programs


def tables_in(text):
    """Each table's heading and rows, as lists of cells."""
    for lines in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines.splitlines()]
        yield cells[0], cells[2:]


def complaints(cell, programs):
    """What is wrong with a row's last cell."""
    if cell == "not tested":
        return
    cell = re.sub(r" \([^()]*\)$", "", cell)
    everywhere = set().union(*programs.values())
    for part in re.split("; (?=`)", cell):
        named = re.fullmatch(rf"(?:`(\w+)`)?(?:: )?((?:{TITLE}(?:, )?)*)", part)
        if not named or not (named[1] or named[2]):
            yield f"no tests are named: {part}"
            continue
        program, titles = named[1], [title[1:-1] for title in re.findall(TITLE, named[2])]
        if program and program not in programs:
            yield f"no test program: {program}"
        for title in titles:
            if title not in programs.get(program, set()) if program else title not in everywhere:
                yield f"no test case{f' of {program}' if program else ''}: {title}"


def check_bugs(text, programs):
    """How many titles the section "Bugs found" has in brackets, and what is wrong with them."""
    section = re.sub(r"\s+", " ", text.partition("## Bugs found\n")[2])
    cited = re.findall(rf"[(,] ?({TITLE})(?=[,)])", section)
    return len(cited), [f"docs/chaos.md: {each}" for title in cited for each in complaints(title, programs)]


def has_case(programs, program, pattern):
    """Whether a program has a test case that Catch2 runs for this pattern, whatever its case."""
    return bool(fnmatch.filter([title.lower() for title in programs.get(program, ())], pattern.lower()))


def check_commands(root, programs):
    """How many commands the pages have that run some tests, and what is wrong with them."""
    count, wrong = 0, []
    for page in (root / "README.md", *sorted((root / "docs").glob("*.md"))):
        text = re.sub(r"\s+", " ", page.read_text())
        for program, titles in re.findall(r'build/release/bin/(\w+) "([^"]+)"', text):
            count += 1
            if not has_case(programs, program, titles):
                wrong.append(f"{page.name}: no test case of {program}: {titles}")
    return count, wrong


def main(root):
    programs = programs_in(root)
    bugs, wrong = check_bugs((root / "docs" / "chaos.md").read_text(), programs)
    commands, wrong_commands = check_commands(root, programs)
    wrong += wrong_commands
    count = 0
    for heading, rows in tables_in((root / "docs" / "failures.md").read_text()):
        if heading[0] in RECORDS:
            continue
        if heading[-1] not in ("test", "tests"):
            wrong.append(f"a table without tests: {' | '.join(heading)}")
            continue
        for row in rows:
            count += 1
            if len(row) != len(heading):
                wrong.append(f"{row[0]}: {len(row)} cells, not {len(heading)}")
            wrong += [f"{row[0]}: {each}" for each in complaints(row[-1], programs)]
    if count < LEAST_ROWS:
        wrong.append(f"{count} rows, fewer than there were")
    if bugs < LEAST_BUGS:
        wrong.append(f"docs/chaos.md: {bugs} tests of bugs, fewer than there were")
    if commands < LEAST_COMMANDS:
        wrong.append(f"{commands} commands that run some tests, fewer than there were")
    if wrong:
        sys.exit("\n".join(["docs/failures.md:", *wrong]))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
