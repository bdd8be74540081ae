"""Checks that sources of one CMake target, which a unity build may compile as one, have different names in
their anonymous namespaces: also where today's batches happen to keep them apart.

usage: python3 tests/lint/local_names.py ROOT

Prints one line a clash, and exits with 1 if there is any.
"""

import os
import pathlib
import re
import sys

import lint

TARGET = re.compile(r"\b(?:troupe_library|troupe_test|troupe_engine_room|add_library|add_executable)"
                    r"\s*\(\s*(\S+)((?:[^()]|\([^()]*\))*)\)")
OF_ITS_OWN = re.compile(r"\bset_source_files_properties\s*\(([^()]*)\bPROPERTIES\b[^()]*"
                        r"\b(?:SKIP_UNITY_BUILD_INCLUSION|COMPILE_OPTIONS|COMPILE_DEFINITIONS)\b")
ANONYMOUS = re.compile(r"^namespace \{\n(.*?)^\}  // namespace$", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"^namespace ([\w:]+) \{$", re.MULTILINE)
# What begins a line of an anonymous namespace: an alias, a type, or a value or function.
ALIAS = re.compile(r"^using (\w+) = ([^;]*);", re.MULTILINE)
TYPE = re.compile(r"^(?:struct|class|union|enum(?: class)?) (\w+)[^;{]*\{", re.MULTILINE)
OTHER = r"^(?!using |struct |class |union |enum |template|namespace |static_assert)[\w\[][^;={}()]*?[\s*&](\w+)"
FUNCTION = re.compile(OTHER + r"\(((?:[^(){}]|\([^()]*\)|\{\})*)\)[^;{]*\{", re.MULTILINE)
VALUE = re.compile(OTHER + r"(?:\[[^\]]*\])*\s*[={;]", re.MULTILINE)


def types_of(parameters):
    """Of a function's parameters, without their names and defaults."""
    parts, depth = [""], 0
    for letter in parameters:
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return tuple(re.sub(r"(?<=[>\s*&])\w+$", "", " ".join(part.split("=")[0].split())).strip() for part in parts)


def local_names(source):
    """What a source has in anonymous namespaces: (namespace around it, name, what it is)."""
    for region in ANONYMOUS.finditer(source):
        around = [match[1] for match in NAMED.finditer(source, 0, region.start())][-1:]
        _, code = lint.code_of(region[1])
        for kind, pattern in (("alias", ALIAS), ("type", TYPE), ("function", FUNCTION), ("value", VALUE)):
            for match in pattern.finditer(code):
                what = {"alias": lambda: match[2], "function": lambda: types_of(match[2])}.get(kind, lambda: None)()
                yield "".join(around), match[1], (kind, what)


def is_clash(one, other):
    """Overloads are none, and neither are aliases of the same."""
    if one[0] == other[0] == "function":
        return one == other
    return not (one[0] == other[0] == "alias" and one == other)


def clashes(sources):
    """Of the sources of one target, by path: (name, path, other path)."""
    seen, found = {}, []
    for path, source in sources.items():
        for around, name, what in local_names(source):
            known = seen.setdefault((around, name), [])
            found += [(name, other, path) for other, its in known if other != path and is_clash(its, what)]
            known.append((path, what))
    return sorted(set(found))


def targets(root):
    """The sources of each target which unity builds may compile together, by path."""
    for lists in sorted(root.rglob("CMakeLists.txt")):
        if lists.relative_to(root).parts[0] not in lint.FOLDERS:
            continue
        text = re.sub(r"#.*", "", lists.read_text(encoding="utf-8"))
        alone = {word for match in OF_ITS_OWN.finditer(text) for word in match[1].split()}
        for target in TARGET.finditer(text):
            paths = [lists.parent / word for word in target[2].split() if word.endswith(".cpp") and word not in alone]
            yield target[1], {os.path.relpath(path, root): path.read_text(encoding="utf-8")
                              for path in paths if path.is_file()}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    count, lines = 0, []
    for target, sources in targets(pathlib.Path(sys.argv[1]).resolve()):
        count += len(sources)
        lines += [f"{target}: '{name}' is local to {one} and to {other}, which a unity build may compile as one"
                  for name, one, other in clashes(sources)]
    print("\n".join([*lines, f"local names: {count} sources, {len(lines)} clashes"]))
    sys.exit(1 if lines or count == 0 else 0)


if __name__ == "__main__":
    main()
