"""Checks the public headers, which are those that docs/headers.md lists.

usage: python3 tests/lint/headers.py ROOT [--compile BUILD]

Each is there; the examples from outside the library include no others of Troupe; and none pulls in all of
LibTorch or CAF, a folder `detail`, or more than MOST_LINES lines of Troupe's own. --compile: also compiles
each of them alone, as BUILD/compile_commands.json has the flags, and prints how many lines the compiler
reads for it and how long that takes; first for one that includes all of them, and last for PROGRAM, which
is compiled whole.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import time

import lint

MOST_LINES = 4400
LISTED = re.compile(r"^\| `([^`]+\.hpp)` \|", re.MULTILINE)
BANNED = re.compile(r"(torch/(all|torch|extension)\.h|ATen/(ATen|Functions)\.h|caf/all\.hpp"
                    r"|(capnp|kj|ucp|ucs|uct)/.*|(.*/)?detail/.*)$")
EXAMPLES = ["tests/package", "apps/compose_pipeline", "apps/custom_optimizer"]
PROGRAM = "tests/package/rings.cpp"
TARGET = "resnet_pipeline"  # whose flags they are compiled with


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def includes_of(source):
    return [match[2] for match in lint.INCLUDE.finditer(lint.without(source, {"comment"}))]


def closure(root, header):
    """Of a header: which of Troupe's own it pulls in, itself too, and the others."""
    own, others, waiting = set(), set(), [header]
    while waiting:
        path = waiting.pop()
        if path in own or path in others:
            continue
        if path.split("/")[0] in lint.FOLDERS and os.path.isfile(os.path.join(root, path)):
            own.add(path)
            waiting += includes_of(read(root, path))
        else:
            others.add(path)
    return own, others


def check_header(root, header):
    if not os.path.isfile(os.path.join(root, header)):
        return [f"{header}: headers: is listed in docs/headers.md, and is not there"]
    own, others = closure(root, header)
    lines = sum(read(root, each).count("\n") for each in own)
    found = [f"{header}: headers: pulls in {each}" for each in sorted(own | others)
             if BANNED.match(each)]
    if lines > MOST_LINES:
        found.append(f"{header}: headers: pulls in {len(own)} headers of {lines} lines; {MOST_LINES} "
                     "are the most: include what its signatures need, and declare the rest")
    return found


def check_examples(root, listed):
    found = []
    for folder in EXAMPLES:
        for name in sorted(os.listdir(os.path.join(root, folder))):
            if not name.endswith((".cpp", ".hpp")):
                continue
            for each in includes_of(read(root, f"{folder}/{name}")):
                if each.split("/")[0] in lint.MAY_INCLUDE and each not in listed:
                    found.append(f"{folder}/{name}: headers: {each} is not public: see docs/headers.md")
    return found


def check(root):
    listed = LISTED.findall(read(root, "docs/headers.md"))
    found = [f"docs/headers.md: headers: {each} is listed twice"
             for each in sorted({each for each in listed if listed.count(each) > 1})]
    for header in listed:
        found += check_header(root, header)
    return listed, found + check_examples(root, set(listed))


def flags_in(build):
    """The compiler and its flags for TARGET, and the folder that they are relative to."""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        commands = json.load(file)
    of_target = [each for each in commands if f"/{TARGET}.dir/" in each["command"]]
    if not of_target:
        sys.exit(f"headers: {build}/compile_commands.json has no {TARGET}: configure the build again")
    words = shlex.split(of_target[0]["command"])
    if os.path.basename(words[0]) == "ccache":
        words = words[1:]
    kept, takes_next = [], False
    for word in words:
        if takes_next or word in ("-o", "-MF", "-MT", "-include"):
            takes_next = not takes_next
        elif word not in ("-c", "-MD") and not word.endswith((".cpp", ".cxx")):
            kept.append(word)
    return kept, of_target[0]["directory"]


def compiled(flags, folder, source, how):
    """Lines that the compiler reads of a source, seconds, and what it says if it refuses."""
    def run(*more):
        return subprocess.run([*flags, *more, "-x", "c++", "-"], cwd=folder, input=source, text=True,
                              capture_output=True, check=False)
    lines = sum(1 for line in run("-E", "-P").stdout.splitlines() if line.strip())
    begin = time.monotonic()
    done = run(*how)
    return lines, time.monotonic() - begin, done.stderr if done.returncode else ""


def compile_all(root, build, listed):
    flags, folder = flags_in(os.path.abspath(build))
    found = []

    def show(name, source, *how):
        lines, seconds, refused = compiled(flags, folder, source, how)
        print(f"{lines:8} {seconds:8.1f}  {name}", flush=True)
        if refused:
            found.append(f"{name}: headers: does not compile alone:\n{refused}")

    print("   lines  seconds  header")
    show(f"all {len(listed)} together", "".join(f'#include "{each}"\n' for each in listed),
         "-fsyntax-only")
    for each in listed:
        show(each, f'#include "{each}"\n', "-fsyntax-only")
    show(f"{PROGRAM}, compiled", read(root, PROGRAM), "-c", "-o", os.devnull)
    return found


def main():
    if len(sys.argv) not in (2, 4) or (len(sys.argv) == 4 and sys.argv[2] != "--compile"):
        sys.exit(__doc__)
    root = os.path.abspath(sys.argv[1])
    listed, found = check(root)
    if len(sys.argv) == 4 and not found:
        found += compile_all(root, sys.argv[3], listed)
    print("\n".join([*found, f"headers: {len(listed)} public headers, {len(found)} violations"]))
    sys.exit(1 if found or not listed else 0)


if __name__ == "__main__":
    main()
