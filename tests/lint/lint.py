"""Checks the house rules that a compiler does not: who may include what, and what nobody may use.

usage: python3 tests/lint/lint.py ROOT

Prints one line a violation (FILE:LINE: RULE: what to do) and exits with 1 if there is any.
"""

import os
import re
import sys
from typing import NamedTuple

# Includes point one way: each folder and what it may include, besides itself.
MAY_INCLUDE = {
    "messages": set(),
    "optimizers": {"messages"},
    "engine": {"messages"},
    "actors": {"messages", "optimizers", "engine"},
    "cluster": {"messages", "optimizers", "engine", "actors"},
    "apps": {"messages", "optimizers", "engine", "actors", "cluster"},
}
# What one room may include besides: the arithmetic of a parameter server is an optimizer's.
ROOM_MAY_INCLUDE = {"engine/parameter_server": {"optimizers"}}
FOLDERS = [*MAY_INCLUDE, "tests"]
UNIT_TESTS = "tests/unit/"  # whose folders are those of the tree
MOST_FILES = 20
MOST_LINES = 60  # of a function
SUFFIXES = (".hpp", ".cpp", ".h", ".cc", ".cu", ".cuh", ".inc")
SCRIPTS = (".py", ".sh")  # which count as files of their folder, and are held to nothing else


class Confined(NamedTuple):
    """Headers that only some paths may include. Tests may include them too."""

    rule: str
    header: re.Pattern
    where: re.Pattern
    advice: str


class Banned(NamedTuple):
    """Text that must not appear, outside comments and strings, in files whose path matches."""

    rule: str
    text: re.Pattern
    where: re.Pattern
    advice: str


CONFINED = [
    Confined("caf", re.compile(r"caf/"), re.compile(r"(actors|cluster)/"),
             "CAF belongs to actors/ and cluster/"),
    Confined("ucx", re.compile(r"(ucp|ucs|uct|ucm)/"), re.compile(r"messages/link/ucx"),
             "UCX belongs to messages/link/ucx*"),
    Confined("capnp", re.compile(r"(capnp|kj)/|.*\.capnp\.h$"), re.compile(r"messages/codec/"),
             "Cap'n Proto belongs to messages/codec/"),
    Confined("cuda", re.compile(r"nccl|cuda|(ATen|c10)/cuda/"),
             re.compile(r"engine/(collective|stage)/"),
             "NCCL and CUDA belong to engine/collective/ and engine/stage/"),
    Confined("torch", re.compile(r"(torch|ATen|c10)/"),
             re.compile(r"(optimizers|engine|actors|cluster|apps)/"),
             "messages/ knows tensors as bytes, not torch"),
]

# Cores: pure logic whose effects are values, so that it can be simulated. What is read from files or
# measured stays outside them.
# Each fits the beginning of some file's path, or a core that has moved is held to nothing.
CORE_PATHS = (
    r"(?!tests/).*_core\.(hpp|cpp)$",
    r"engine/(schedule|step|parameter_server|partition)/(?!plan_file|profile)",
    r"engine/collective/(buckets|edge_ways|packing|shares|norm/)",
    r"engine/data/(.*/)?(idx_header|resample|sampler|take_number|utf8)\.",
    r"engine/model/usual_times\.",
    r"engine/state/safetensors_header\.",
    r"messages/base/(near_miss|printable)\.",
    r"messages/codec/",
    r"messages/link/(frames|seal|wire)/(?!loans|records)",
    r"messages/link/refusal\.",
    r"optimizers/",
    r"actors/(remote/(liveness|neighbourhood)|step_end/tied_gradients|transfer/)",
    r"cluster/launch/(line_splitter|agents/(scheduler|ssh)_words)\.",
    r"cluster/training/needs/columns\.",
)
CORES = re.compile("|".join(CORE_PATHS))

BANNED = [
    Banned("torch-all", re.compile(r'#\s*include\s*[<"]torch/(torch|all|extension)\.h[>"]'),
           re.compile(r""), "include the narrow header: ATen/core/Tensor.h, ATen/ops/NAME.h"),
    Banned("grad", re.compile(r"(\.|->)\s*grad\s*\(\s*\)|\bmutable_grad\b"),
           re.compile(r"(?!tests/)"),
           "gradients belong to an autograd context; .grad is never touched"),
    Banned("lock", re.compile(r"\bstd::\w*(mutex|_lock|lock_guard|call_once|condition_variable\w*)\b"
                              r"|#\s*include\s*<(mutex|shared_mutex|condition_variable)>"),
           re.compile(r"optimizers/"), "an optimizer is a pure function and holds no lock"),
    Banned("core", re.compile(r"\b\w+_clock::now\b|\blog::\w+|\bstd::(this_thread|getenv|f?printf|fopen)\b"
                              r"|\bstd::filesystem::(?!path\b)\w+"
                              r"|#\s*include\s*[<\"](caf/[^>\"]*|messages/base/log\.hpp)[>\"]"
                              r"|#\s*include\s*<(thread|stop_token|mutex|shared_mutex|future"
                              r"|condition_variable|semaphore|latch|barrier|iostream|fstream|random"
                              r"|unistd\.h|fcntl\.h|poll\.h|dirent\.h|netdb\.h"
                              r"|(sys|arpa|netinet)/[^>]*)>"),
           CORES,
           "a core has no CAF, thread, clock, I/O or randomness of its own"),
]

TOKENS = re.compile(
    r'(?P<comment>//(?:\\\n|[^\n])*|/\*.*?\*/)'
    r'|(?P<raw>R"(?P<mark>[^()\s\\]{0,16})\(.*?\)(?P=mark)")'
    r'|(?P<string>"(?:\\.|[^"\\\n])*")'
    r"|(?P<char>(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])+')", re.DOTALL)
TYPE_OR_TABLE = re.compile(r"\b(namespace|struct|class|enum|union)\b[^()]*$|=\s*$")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.MULTILINE)


def without(source, kinds):
    """The source with tokens of these kinds blanked; lines stay where they are."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match[0]) if match.lastgroup in kinds else match[0]
    # lastgroup of a raw string is its mark's enclosing group, since that group closes last
    return TOKENS.sub(blank, source)


def code_of(source):
    """Code without comments, strings and characters, but with the paths of its includes."""
    bare = without(source, {"comment"})
    includes = {match.start(): match[0] for match in INCLUDE.finditer(bare)}
    code = without(bare, {"raw", "string", "char"})
    for start, text in includes.items():
        code = code[:start] + text + code[start + len(text):]
    return bare, code


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def check_direction(path, header, quoted):
    folder, target = path.split("/")[0], header.split("/")[0]
    if not quoted and target in FOLDERS and "/" in header and header.endswith(".hpp"):
        return 'include our own headers with quotes'
    if quoted and ".." in header.split("/"):
        return "include from the root of the repository, without '..'"
    if folder == "tests" or target == folder or target not in FOLDERS:
        return None
    may_include = MAY_INCLUDE[folder] | ROOM_MAY_INCLUDE.get(os.path.dirname(path), set())
    if target not in may_include:
        allowed = ", ".join(sorted(may_include)) or "nothing but itself"
        return f"{folder}/ may not include {target}/; it may include: {allowed}"
    return None


def long_functions(code):
    """Where functions begin that have too many lines, and how many. What has parentheses before its
    brace is one, or a part of one; types and tables are not."""
    open_blocks, head, found = [], 0, []
    for mark in re.finditer(r"[{};]", code):
        if mark[0] == "{":
            before = code[head:mark.start()]
            is_function = "(" in before and not TYPE_OR_TABLE.search(before)
            begin = head + len(before) - len(before.lstrip())
            open_blocks.append(line_of(code, begin) if is_function else None)
        elif mark[0] == "}" and open_blocks:
            if begin := open_blocks.pop():
                lines = line_of(code, mark.start()) - begin + 1
                if lines > MOST_LINES:
                    found = [each for each in found if each[0] < begin] + [(begin, lines)]
        head = mark.end()
    return found


def check_file(path, source):
    """Violations in one file, as (line, rule, advice)."""
    bare, code = code_of(source)
    found = []
    for match in INCLUDE.finditer(bare):
        header, line = match[2], line_of(bare, match.start())
        if problem := check_direction(path, header, match[1] == '"'):
            found.append((line, "direction", problem))
        for rule in CONFINED:
            if (rule.header.match(header) and not rule.where.match(path)
                    and not path.startswith("tests/")):
                found.append((line, rule.rule, rule.advice))
    for rule in BANNED:
        if rule.where.match(path):
            found += [(line_of(code, match.start()), rule.rule, rule.advice)
                      for match in rule.text.finditer(code)]
    found += [(line, "length", f"{lines} lines of one function; {MOST_LINES} are the most")
              for line, lines in long_functions(code)]
    return sorted(found)


def sources(root, suffixes=SUFFIXES):
    for folder in FOLDERS:
        if not os.path.isdir(os.path.join(root, folder)):
            sys.exit(f"lint: {root} has no folder {folder}/: not the root of the repository?")
        for where, _, names in os.walk(os.path.join(root, folder)):
            for name in sorted(names):
                if name.endswith(suffixes):
                    yield os.path.relpath(os.path.join(where, name), root).replace(os.sep, "/")


def circles(folders):
    """Sets of folders that include each other, directly or not. `folders`: of each, whom it
    includes."""
    def reached(start):
        seen, waiting = set(), list(folders.get(start, ()))
        while waiting:
            if (folder := waiting.pop()) not in seen:
                seen.add(folder)
                waiting += folders.get(folder, ())
        return seen
    reach = {folder: reached(folder) for folder in folders}
    return sorted({tuple(sorted({folder, *(other for other in reach[folder]
                                           if folder in reach.get(other, ()))}))
                   for folder in folders if folder in reach[folder]})


def check_folders(files, scripts=()):
    """Violations of whole folders, as lines of text. `files`: the sources by their paths; `scripts`:
    the paths of scripts."""
    included, members = {}, {}
    for path in scripts:
        members.setdefault(os.path.dirname(path), []).append(path)
    for path, source in files.items():
        folder = os.path.dirname(path)
        members.setdefault(folder, []).append(path)
        if path.startswith("tests/"):
            continue
        bare, _ = code_of(source)
        included.setdefault(folder, set()).update(
            os.path.dirname(match[2]) for match in INCLUDE.finditer(bare)
            if match[2] in files and os.path.dirname(match[2]) != folder)
    mirrors = {folder: folder.removeprefix(UNIT_TESTS) for folder in members
               if folder.startswith(UNIT_TESTS)}
    return [*(f"{' '.join(circle)}: circle: folders include each other"
              for circle in circles(included)),
            *(f"{folder}: crowd: {len(paths)} files; {MOST_FILES} is the most of a folder"
              for folder, paths in sorted(members.items()) if len(paths) > MOST_FILES),
            *(f"{folder}: mirror: there is no folder {mirrored}/ to test"
              for folder, mirrored in sorted(mirrors.items())
              if not any(f"{other}/".startswith(f"{mirrored}/") for other in members))]


def check_tree(root):
    """How many files were read, and their violations as lines of text."""
    files, lines = {}, []
    for path in sources(root):
        with open(os.path.join(root, path), encoding="utf-8") as file:
            files[path] = file.read()
        lines += [f"{path}:{line}: {rule}: {advice}"
                  for line, rule, advice in check_file(path, files[path])]
    return len(files), lines + check_folders(files, sources(root, SCRIPTS))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    count, lines = check_tree(sys.argv[1])
    print("\n".join([*lines, f"lint: {count} files, {len(lines)} violations"]))
    sys.exit(1 if lines or count == 0 else 0)


if __name__ == "__main__":
    main()
