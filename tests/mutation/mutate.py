"""Mutates pure cores, one decision at a time, and lists the mutants that no test notices.

mutate.py [--build FOLDER] [--seconds N] [SOURCE..]

A mutant is a source with one change: a comparison that is another one, a condition that is negated,
`and` for `or`, a statement that is left out, a number that is one more or less. Only what depends on
that source is compiled, into a folder of its own: neither the working tree nor the build is written.
The test programs of the core (below) are linked with it and run one after the other, each for a
limited time, until one fails or does not end. A mutant that all of them let pass survives. What is known to change
nothing is in harmless.txt, with the reason. Ends with code 1 if another one survives.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# By core: its test programs, the fast ones first, with the tests to run.
CORES = {
    "cluster/recovery/return_core.cpp": (("unit_recovery", ()), ("sim_replay", ("a run that*",))),
    "cluster/recovery/checkpoint_record_core.hpp": (("unit_recovery", ()),
                                                    ("sim_replay", ("a run that*",))),
    "cluster/recovery/checkpoint_write_core.hpp": (("unit_recovery", ()), ("sim_checkpoints", ()),
                                                   ("sim_replay", ("a run that loses trainers*",))),
    "actors/recovery/stores_core.hpp": (("unit_stage_core", ()), ("sim_replay", ())),
    "actors/recovery/departed_core.hpp": (("unit_stage_core", ()), ("sim_replay", ())),
    "engine/step/replay_window.cpp": (("unit_stage_core", ()), ("sim_replay", ())),
    "engine/step/replay_window.hpp": (("unit_stage_core", ()), ("sim_replay", ())),
    "cluster/hosts/keepers_core.cpp": (("unit_hosts", ()),),
    "actors/recovery/kept_versions_core.hpp": (("unit_transfer", ()),
                                               ("sim_replay", ("*in pieces*",))),
    "actors/recovery/kept_stages_core.hpp": (("unit_transfer", ()),
                                             ("sim_replay", ("a run that loses trainers*",))),
    "actors/recovery/version_forms_core.hpp": (("unit_stage_core", ()),
                                               ("sim_replay", ("*keepers that compute*",))),
    "engine/step/step_end_core.cpp": (("unit_stage_core", ()), ("sim_step_end", ()),
                                      ("sim_replay", ())),
    "engine/step/credits.cpp": (("unit_stage_core", ()), ("sim_replay", ())),
    "engine/step/stage_core.cpp": (("unit_stage_core", ()), ("sim_stages", ()), ("sim_replay", ())),
    "engine/step/stage_core.hpp": (("unit_stage_core", ()), ("sim_stages", ()), ("sim_replay", ())),
    "engine/collective/all_reduce_core.cpp": (("unit_collective", ()), ("sim_replay", ())),
    "engine/collective/all_reduce_core.hpp": (("unit_collective", ()), ("sim_replay", ())),
    "engine/step/step_coordinator_core.cpp": (("unit_stage_core", ()), ("sim_step_end", ()),
                                              ("sim_replay", ())),
    "engine/collective/all_gather_core.cpp": (("unit_collective", ()), ("sim_replay", ())),
    "engine/collective/all_gather_core.hpp": (("unit_collective", ()), ("sim_replay", ())),
    "cluster/recovery/throws_core.hpp": (("unit_recovery", ()),),
    "cluster/recovery/processors_core.hpp": (("unit_recovery", ()),),
    "cluster/recovery/shared_hosts_core.cpp": (("unit_recovery", ()),),
    "cluster/recovery/data_places_core.hpp": (("unit_recovery", ()),),
    "cluster/recovery/earlier_scalers_core.hpp": (("unit_recovery", ()),),
    "cluster/recovery/left_versions_core.hpp": (("unit_recovery", ()), ("sim_trainers", ()),
                                                ("sim_replay", ("a run that loses trainers*",))),
    "cluster/hosts/slice_copies_core.cpp": (
        ("unit_hosts", ("Each disk's files are*", "A disk gets the files*")),
        ("sim_checkpoints", ())),
    "cluster/membership/suspicions_core.hpp": (
        ("unit_hosts", ("A node that only another*", "Of two nodes that have lost*",
                        "What a node says that is itself*", "A suspicion stays when*")),),
    "cluster/membership/understudies_core.hpp": (("unit_hosts", ("*understud*",)),
                                                 ("sim_replay", ("*understud*",))),
    "cluster/training/restarts/restarts_core.hpp": (
        ("unit_checkpoint_keeper", ("a trainer that dies or fails*", "what would end in the same*",
                                    "a later trainer that is refused*",
                                    "nothing is started once*")),),
    "cluster/config/sources/resume_command_core.cpp": (
        ("unit_config", ("A run is resumed with*", "What the settings say of resuming*",
                         "A run that verified its*", "Words that a shell would*")),),
    "cluster/training/parameter_server/attempts_core.cpp": (("unit_server_recovery", ()),),
}

# What is looked for in a line, and what stands there in its mutant.
SWAPS = (
    (r" == ", " != "), (r" != ", " == "), (r" <= ", " < "), (r" >= ", " > "),
    (r"(?<!<) < ", " <= "), (r"(?<!-)(?<!>) > ", " >= "), (r" && ", " || "), (r" \|\| ", " && "),
    (r" \+ 1\b", ""), (r" - 1\b", ""), (r"\btrue\b", "false"), (r"\bfalse\b", "true"),
    (r"\bif \((?=[^;]*\))", "if (!"), (r"(?<=[( ])!(?=[a-z(])", ""), (r"\+\+(?=[a-z])", "--"),
    (r" % ", " / "), (r"\bupper_bound\b", "lower_bound"), (r"\blower_bound\b", "upper_bound"),
    (r"\ball_of\b", "any_of"), (r"\bany_of\b", "all_of"), (r"\bnone_of\b", "any_of"),
    (r"\bmin\b", "max"), (r"\bmax\b", "min"),
)
# A statement on a line of its own that declares nothing and returns nothing. What stands behind a
# condition on the same line is left out too.
STATEMENT = re.compile(r"^(?P<before>\s*(?:(?:if|for|while) \(.*\) |else )?)"
                       r"(?P<what>(?:static_cast<void>\()?(?:\+\+|--)?[a-z_][\w.\->\[\]():*]*"
                       r"(?:\(.*\)| [-+]?= .*)?;)\s*(?://.*)?$")
NO_STATEMENT = re.compile(r"^\s*(?:return|using|const|auto|struct|class|enum|case|break|continue|"
                          r"namespace|friend|public|private|std::\w+<?.*> \w+;|[\w:]+ \w+_?;|"
                          r"\[\[nodiscard)")


def negated(line, at):
    """The line with its condition that begins at `at` negated, or None where it ends elsewhere."""
    depth = 0
    for i in range(at, len(line)):
        depth += {"(": 1, ")": -1}.get(line[i], 0)
        if depth == 0:
            condition = line[at + 1:i]
            if "; " in condition:
                return None
            return f"{line[:at]}(!({condition})){line[i + 1:]}"
    return None


def mutants_of_line(line):
    code = line.split("//")[0]
    for found, put in SWAPS:
        for match in re.finditer(found, code):
            if put == "if (!":
                made = negated(line, match.end() - 1)
                if made:
                    yield made
                continue
            yield line[:match.start()] + put + line[match.end():]
    match = STATEMENT.match(line)
    if match and not NO_STATEMENT.match(line[match.start("what"):]) and \
            not NO_STATEMENT.match(line):
        yield match["before"] + ";"


def mutants_of(text):
    """(number, line, mutated line, whole mutated text) of each mutant."""
    lines = text.split("\n")
    for i, line in enumerate(lines):
        if line.lstrip().startswith(("//", "#", "template", "using", "case ")):
            continue
        for made in dict.fromkeys(mutants_of_line(line)):
            if made != line:
                yield i + 1, line, made, "\n".join(lines[:i] + [made] + lines[i + 1:])


class Program:
    """How a test program is built, as ninja tells it, and what of it depends on a source."""

    def __init__(self, build, name):
        said = subprocess.run(["ninja", "-C", str(build), "-t", "commands", name], check=True,
                              capture_output=True, text=True).stdout
        self.build, self.name = build, name
        commands = [line for line in said.splitlines() if not line.startswith("ninja:")]
        self.link = shlex.split(next(c for c in commands if f"-o bin/{name} " in c))
        self.link = self.link[self.link.index("&&") + 1:]
        self.link = self.link[:self.link.index("&&")]
        self.compiles = {}
        for each in commands:
            words = shlex.split(each)
            if "-c" in words and "-o" in words:
                self.compiles[words[words.index("-o") + 1]] = words

    def objects_with(self, source):
        said = subprocess.run(["ninja", "-C", str(self.build), "-t", "deps", *self.compiles],
                              capture_output=True, text=True).stdout
        found = set()
        for block in said.split("\n\n"):
            lines = block.splitlines()
            if lines and any((self.build / line.strip()).resolve() == ROOT / source
                             for line in lines[1:]):
                found.add(lines[0].split(":")[0])
        for made, words in self.compiles.items():
            if (self.build / words[words.index("-c") + 1]).resolve() == ROOT / source:
                found.add(made)
        return sorted(found)

    def compile(self, made, source, shadow):
        """Compiles an object with the mutant, which is in `shadow` under its own path."""
        words = list(self.compiles[made])
        at = words.index("-c") + 1
        unit = self.build / words[at]
        if unit.resolve() == ROOT / source:
            words[at] = str(shadow / source)
        elif unit.suffix == ".cxx":
            copy = shadow / unit.name
            copy.write_text(unit.read_text().replace(str(ROOT / source), str(shadow / source)))
            words[at] = str(copy)
        out = shadow / (made.replace("/", "_"))
        words[words.index("-o") + 1] = str(out)
        for flag in ("-MF", "-MT"):
            if flag in words:
                words[words.index(flag) + 1] = str(out) + ".d"
        words.insert(words.index("-c"), f"-I{shadow}")
        first = next(i for i, word in enumerate(words) if word.startswith("-I"))
        words.insert(first, f"-I{shadow}")
        done = subprocess.run(words, cwd=self.build, capture_output=True, text=True)
        return out if done.returncode == 0 else None

    def link_with(self, objects, shadow):
        words = list(self.link)
        for made, out in objects.items():
            if made in words:
                words[words.index(made)] = str(out)
            else:
                words.insert(words.index("-o"), str(out))  # before the library that it is in
        program = shadow / self.name
        words[words.index("-o") + 1] = str(program)
        words.append("-Wl,-z,muldefs")
        subprocess.run(words, cwd=self.build, check=True, capture_output=True)
        return program


def run(program, tests, seconds=None):
    """Whether the tests pass; None where they take longer than that."""
    try:
        done = subprocess.run([str(program), "-a", *([",".join(tests)] if tests else [])],
                              cwd=ROOT, timeout=seconds, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, preexec_fn=lambda: os.nice(5))
    except subprocess.TimeoutExpired:
        return None
    return done.returncode == 0


def seconds_of(program, tests):
    """How long the tests take of what is not mutated."""
    begin = time.monotonic()
    if not run(program.build / "bin" / program.name, tests):
        sys.exit(f"mutate: {program.name} fails without a mutant")
    return time.monotonic() - begin


def known_harmless():
    """(file, line of code, its mutant), with the reason."""
    known = {}
    for block in (Path(__file__).parent / "harmless.txt").read_text().split("\n\n"):
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        if len(lines) < 4:
            continue
        known[(lines[0], lines[1].strip(), lines[2].strip())] = " ".join(lines[3:])
    return known


def try_core(source, build, least_seconds):
    """The mutants that survive."""
    programs = [(Program(build, name), tests) for name, tests in CORES[source]]
    depend = [(program, tests, program.objects_with(source),
               least_seconds + 5 * seconds_of(program, tests)) for program, tests in programs]
    text = (ROOT / source).read_text()
    total = caught = late = unbuilt = 0
    survivors = []
    for number, line, made, whole in mutants_of(text):
        total += 1
        with tempfile.TemporaryDirectory(prefix="troupe-mutant-") as folder:
            shadow = Path(folder)
            (shadow / source).parent.mkdir(parents=True)
            (shadow / source).write_text(whole)
            is_dead = False
            for program, tests, objects, seconds in depend:
                compiled = {each: program.compile(each, source, shadow) for each in objects}
                if not compiled:
                    sys.exit(f"{program.name} does not depend on {source}: build it first")
                if None in compiled.values():
                    unbuilt += 1
                    total -= 1
                    is_dead = True
                    break
                passed = run(program.link_with(compiled, shadow), tests, seconds)
                if not passed:
                    late += passed is None
                    caught += 1
                    is_dead = True
                    break
            if not is_dead:
                survivors.append((number, line.strip(), made.strip()))
                print(f"{source}:{number} survives\n    {line.strip()}\n    {made.strip()}",
                      flush=True)
    print(f"{source}: {total} mutants, {caught} caught, {late} of them because the tests did not "
          f"end, {len(survivors)} survive ({unbuilt} more do not compile)", flush=True)
    return survivors


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", metavar="SOURCE")
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--seconds", type=float, default=20,
                        help="for each test program, beside five times what it takes otherwise")
    given = parser.parse_args()
    build = (ROOT / given.build).resolve()
    harmless = known_harmless()
    bad = 0
    for source in given.sources or CORES:
        if source not in CORES:
            sys.exit(f"mutate: no core {source}; the cores are {', '.join(CORES)}")
        subprocess.run(["ninja", "-C", str(build), *(name for name, _ in CORES[source])],
                       check=True, stdout=subprocess.DEVNULL)
        for _, line, made in try_core(source, build, given.seconds):
            why = harmless.get((source, line, made))
            if why:
                print(f"    harmless: {line} -> {made}: {why}")
            else:
                bad += 1
    print(f"{bad} mutants survive that are not known to be harmless")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
