"""The mutants of docs/recovery.md and tests/mutation are those of the sources that there are: mutants_test.py ROOT

The table in docs/recovery.md has the cores that mutate.py changes, and no others. No row counts more changes than the
source gives, unless it says that an earlier form was counted. The tests that mutate.py runs are there, and each
harmless mutant is one of its source.
"""

import pathlib
import re
import sys

from failures_test import has_case, programs_in

ROW = re.compile(r"^\| `([\w/]+\.(?:\w+|\{\w+(?:,\w+)+\}))`( \(earlier form\))? \| (\d+|not counted) \|", re.MULTILINE)


def rows_in(text):
    """The sources of each row, whether the counts are of an earlier form, and how many changes were counted."""
    for name, earlier, count in ROW.findall(text):
        stem, _, ends = name.partition(".")
        sources = [f"{stem}.{end}" for end in ends.strip("{}").split(",")]
        yield sources, bool(earlier), int(count) if count.isdigit() else None


def check_table(root, mutate):
    """What is wrong with the table."""
    rows = list(rows_in((root / "docs" / "recovery.md").read_text()))
    named = [source for sources, _, _ in rows for source in sources]
    for source in sorted(set(named) ^ set(mutate.CORES)):
        yield f"{source} is {'no core of mutate.py' if source in named else 'not in the table'}"
    for sources, is_earlier, count in rows:
        made = sum(len(list(mutate.mutants_of((root / source).read_text()))) for source in sources)
        if count and count > made and not is_earlier:
            yield f"{sources[0]}: {count} changes were counted, and there are {made}"


def sources_in(root):
    """The names of each test program's sources, without their folders, by its name."""
    return {name: set(re.findall(r"(\w+)\.cpp\b", rest))
            for listed in (root / "tests").rglob("CMakeLists.txt")
            for name, rest in re.findall(r"\btroupe_test\((\w+)([^)]*)\)", listed.read_text())}


def check_tests(root, mutate):
    """Which tests that mutate.py names are not there."""
    programs, sources = programs_in(root), sources_in(root)
    for source, tests in mutate.CORES.items():
        for program, patterns in tests:
            if not programs.get(program):
                yield f"{source}: no test program: {program}"
                continue
            for pattern in patterns:
                if pattern.removeprefix("[#").removesuffix("]") in sources[program]:
                    continue
                if not has_case(programs, program, pattern):
                    yield f"{source}: no test case of {program}: {pattern}"


def check_harmless(root, mutate):
    """Which of the harmless mutants are none."""
    for source, line, made in mutate.known_harmless():
        mutants = mutate.mutants_of((root / source).read_text())
        if not any((line, made) == (old.strip(), new.strip()) for _, old, new, _ in mutants):
            yield f"harmless.txt: {source} has no such mutant: {line}"


def main(root):
    sys.path.insert(0, str(root / "tests" / "mutation"))
    import mutate
    wrong = [each for check in (check_table, check_tests, check_harmless) for each in check(root, mutate)]
    if not mutate.CORES or not mutate.known_harmless():
        wrong.append("no cores, or no harmless mutants, were read")
    if wrong:
        sys.exit("\n".join(["mutants:", *wrong]))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
