"""Mutates pure cores, one decision at a time, and lists the mutants that no test notices.

mutate.py [--build FOLDER] [--seconds N] [--jobs N] [SOURCE..]

A mutant is a source with one change: a comparison that is another one, a condition that is negated,
`and` for `or`, a statement that is left out, a number that is one more or less. Only what depends on
that source is compiled, into a folder of its own: neither the working tree nor the build is written.
The test programs of the core (below) are linked with it and run one after the other, each for a
limited time, until one fails or does not end. A mutant that all of them let pass survives. What is
known to change nothing is in harmless.txt, with the reason. Ends with code 1 if another one survives.
"""

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# A mutant may take memory without an end.
MODESTLY = ("nice", "-n", "5", "prlimit", f"--data={4 << 30}")

# By core: its test programs, the fast ones first, with the tests to run: titles, or "[#x]" for those
# in x.cpp.
CORES = {
    "cluster/recovery/return_core.cpp": (("unit_recovery", ()), ("sim_replay", ("a run that*",))),
    "cluster/recovery/return_core.hpp": (("unit_recovery", ()), ("sim_replay", ("a run that*",))),
    "cluster/recovery/checkpoint_record_core.hpp": (("unit_recovery", ()),
                                                    ("sim_replay", ("a run that*",))),
    "cluster/recovery/checkpoint_write_core.hpp": (("unit_recovery", ()), ("sim_checkpoints", ()),
                                                   ("sim_replay", ("a run that loses trainers*",))),
    "actors/recovery/stores_core.hpp": (("unit_stage_core", ()), ("sim_replay", ())),
    "actors/recovery/departed_core.hpp": (("unit_stage_core", ()), ("sim_replay", ())),
    "engine/step/replay_window.cpp": (("unit_stage_core", ()), ("sim_replay", ())),
    "engine/step/replay_window.hpp": (("unit_stage_core", ()), ("sim_replay", ())),
    "cluster/hosts/keepers_core.cpp": (("unit_hosts", ()),),
    "cluster/hosts/keepers_core.hpp": (("unit_hosts", ()), ("sim_replay", ("a run that*",))),
    "actors/recovery/kept_versions_core.hpp": (("unit_transfer", ("[#kept_versions_test]",)),
                                               ("sim_replay", ("*in pieces*",))),
    "actors/recovery/kept_stages_core.hpp": (("unit_transfer", ("[#kept_versions_test]",)),
                                             ("sim_replay", ("a run that loses trainers*",))),
    "actors/recovery/version_forms_core.hpp": (("unit_stage_core", ()),
                                               ("sim_replay", ("*keepers that compute*",))),
    "engine/step/step_end_core.cpp": (("unit_stage_core", ()), ("sim_step_end", ()),
                                      ("sim_replay", ())),
    "engine/step/step_end_core.hpp": (("unit_stage_core", ()), ("sim_step_end", ()),
                                      ("sim_replay", ())),
    "engine/step/credits.cpp": (("unit_stage_core", ()), ("sim_replay", ())),
    "engine/step/credits.hpp": (("unit_stage_core", ()), ("sim_replay", ())),
    "engine/step/loss_scaler.cpp": (("unit_stage_core", ()), ("sim_step_end", ())),
    "engine/step/loss_scaler.hpp": (("unit_stage_core", ()), ("sim_step_end", ())),
    "engine/step/stage_core.cpp": (("unit_stage_core", ()), ("sim_stages", ()), ("sim_replay", ())),
    "engine/step/stage_core.hpp": (("unit_stage_core", ()), ("sim_stages", ()), ("sim_replay", ())),
    "engine/collective/all_reduce_core.cpp": (("unit_collective", ()), ("sim_replay", ())),
    "engine/collective/all_reduce_core.hpp": (("unit_collective", ()), ("sim_replay", ())),
    "engine/step/step_coordinator_core.cpp": (("unit_stage_core", ()), ("sim_step_end", ()),
                                              ("sim_replay", ())),
    "engine/step/step_coordinator_core.hpp": (("unit_stage_core", ()), ("sim_step_end", ()),
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
    "cluster/config/sources/resume_command_core.hpp": (
        ("unit_config", ("A run is resumed with*", "What the settings say of resuming*",
                         "A run that verified its*", "Words that a shell would*")),),
    "cluster/training/parameter_server/attempts_core.cpp": (("unit_server_recovery", ()),),
    "engine/parameter_server/shard_core.cpp": (
        ("unit_parameter_server", ("[#parameter_server_cores_test]",)),
        ("sim_parameter_server", ())),
    "engine/parameter_server/coordinator_core.cpp": (
        ("unit_parameter_server", ("[#parameter_server_cores_test]",)),
        ("sim_parameter_server", ())),
    "actors/remote/liveness.cpp": (("unit_actors", ("[#liveness_test]",)),),
    "actors/remote/liveness.hpp": (("unit_actors", ("[#liveness_test]",)),),
    "actors/remote/neighbourhood.cpp": (("unit_actors", ("[#neighbourhood_test]",)),
                                        ("sim_nodes", ())),
    "actors/remote/neighbourhood.hpp": (("unit_actors", ("[#neighbourhood_test]",)),
                                        ("sim_nodes", ())),
    "actors/remote/remote_core.cpp": (("unit_actors", ("[#remote_core_test]",)),
                                      ("sim_nodes", ("[#remote_core_test]",))),
    "actors/remote/remote_core.hpp": (("unit_actors", ("[#remote_core_test]",)),
                                      ("sim_nodes", ("[#remote_core_test]",))),
    "actors/remote/progress_core.cpp": (("unit_progress", ("[#progress_core_test]",)),),
    "engine/collective/norm/norm_sum_core.cpp": (("unit_collective", ("[#norm_sum_test]",)),),
    "cluster/membership/countdown_core.hpp": (("unit_hosts", ("[#countdown_test]",)),),
    "cluster/membership/launchers/held_up_core.hpp": (("unit_hosts", ("[#held_up_test]",)),),
    "cluster/launch/long_stop_core.hpp": (("unit_launch", ("[#long_stop_test]",)),),
    "cluster/launch/agents/agent_core.cpp": (
        ("unit_hosts", ("[#agents_test]", "[#agent_ends_test]")),),
    "cluster/launch/agents/agent_core.hpp": (
        ("unit_hosts", ("[#agents_test]", "[#agent_ends_test]")),),
    "cluster/launch/agents/session_core.cpp": (
        ("unit_hosts", ("[#agents_test]", "[#agent_ends_test]")),),
    "cluster/launch/agents/session_core.hpp": (
        ("unit_hosts", ("[#agents_test]", "[#agent_ends_test]")),),
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

    def unit(self, made):
        words = self.compiles[made]
        return self.build / words[words.index("-c") + 1]

    def includes(self, made, file, source):
        """Whether a file that an object is made of includes the source."""
        words = self.compiles[made]
        said = subprocess.run([*words[:words.index("-MD")], "-MM", str(file)], cwd=self.build,
                              check=True, capture_output=True, text=True).stdout
        return any((self.build / word).resolve() == ROOT / source for word in said.split())

    def split(self, made, source):
        """The text of a unity in two: what depends on the source, and the rest, which may be empty."""
        text = self.unit(made).read_text()
        included = re.findall(r'^#include "(/.*)"$', text, re.MULTILINE)
        rest = [file for file in included if Path(file).resolve() != ROOT / source and
                (source.endswith(".cpp") or not self.includes(made, file, source))]
        needed = [file for file in included if file not in rest]
        return without(text, rest), without(text, needed) if rest else ""

    def compile(self, made, unit, out, folder):
        """Compiles the source `unit` in the place of what an object is made of, and says whether that
        is possible. Headers are looked for in `folder` first."""
        words = list(self.compiles[made])
        words[words.index("-c") + 1] = str(unit)
        words[words.index("-o") + 1] = str(out)
        for flag in ("-MF", "-MT"):
            if flag in words:
                words[words.index(flag) + 1] = str(out) + ".d"
        first = next(i for i, word in enumerate(words) if word.startswith("-I") or word == "-c")
        words.insert(first, f"-I{folder}")
        done = subprocess.run(words, cwd=self.build, capture_output=True, text=True,
                              env={**os.environ, "CCACHE_DISABLE": "1"})  # none comes twice
        if "fatal error" in done.stderr:  # of the compiler: no memory, no room
            sys.exit(f"mutate: {made}: {done.stderr}")
        return done.returncode == 0

    def link_with(self, objects, folder):
        """Links with `objects`, by the object that they stand for."""
        words = list(self.link)
        for made, out in objects.items():
            at = words.index(made if made in words else "-o")  # before the library that it is in
            words[at:at + (made in words)] = map(str, out)
        program = folder / self.name
        words[words.index("-o") + 1] = str(program)
        words.append("-Wl,-z,muldefs")
        subprocess.run(words, cwd=self.build, check=True, capture_output=True)
        return program


def without(text, files):
    """A unity's text without these files."""
    for file in files:
        text = text.replace(f'#include "{file}"\n', "")
    return text


def run(program, tests, seconds=None):
    """Whether the tests pass; None where they take longer than that."""
    try:
        done = subprocess.run([*MODESTLY, str(program), "-a",
                               *([",".join(tests)] if tests else [])],
                              cwd=ROOT, timeout=seconds, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return None
    return done.returncode == 0


class Core:
    """A core with its test programs, and what of them does not depend on it, in a folder."""

    def __init__(self, source, build, folder):
        self.source, self.folder = source, folder
        self.text = (ROOT / source).read_text()
        self.programs = [(Program(build, name), tests) for name, tests in CORES[source]]
        self.objects = [program.objects_with(source) for program, _ in self.programs]
        self.units, self.rests, self.seconds = {}, {}, []
        for (program, _), objects in zip(self.programs, self.objects):
            if not objects:
                sys.exit(f"mutate: {program.name} does not depend on {source}: build it first")
            for made in objects:
                if made not in self.rests:
                    self.divide(program, made)

    def divide(self, program, made):
        """Compiles what of an object's unity does not depend on the core."""
        self.rests[made] = []
        if program.unit(made).suffix != ".cxx":
            return
        self.units[made], rest = program.split(made, self.source)
        if rest:
            unit = self.folder / (made.replace("/", "_") + ".rest.cxx")
            unit.write_text(rest)
            self.rests[made] = [unit.with_suffix(".o")]
            if not program.compile(made, unit, *self.rests[made], self.folder):
                sys.exit(f"mutate: {made} does not compile without {self.source}")

    def compile(self, program, made, folder):
        """The object of what depends on the core, which is in the folder, or None."""
        out = folder / made.replace("/", "_")
        unit = program.unit(made)
        if made in self.units:
            unit = out.with_suffix(".cxx")
            unit.write_text(self.units[made].replace(str(ROOT / self.source),
                                                     str(folder / self.source)))
        elif unit.resolve() == ROOT / self.source:
            unit = folder / self.source
        return out if program.compile(made, unit, out, folder) else None

    def linked(self, text, folder):
        """Each test program with this text of the core, and its tests; None where it does not
        compile."""
        (folder / self.source).parent.mkdir(parents=True)
        (folder / self.source).write_text(text)
        compiled = {}
        for (program, tests), objects in zip(self.programs, self.objects):
            for made in objects:
                if made not in compiled:
                    compiled[made] = self.compile(program, made, folder)
                if compiled[made] is None:
                    yield None, tests
                    return
            yield program.link_with({made: [compiled[made], *self.rests[made]] for made in objects},
                                    folder), tests

    def measure(self, least_seconds, pool, jobs):
        """How long the tests may take, by what they take of the core as it is, as many at a time as
        there will be of mutants."""
        for program, tests in self.linked(self.text, self.folder):
            begin = time.monotonic()
            if not program:
                sys.exit(f"mutate: {self.source} does not compile without a mutant")
            if not all(pool.map(run, [program] * jobs, [tests] * jobs)):
                sys.exit(f"mutate: {self.source}: {program.name} fails without a mutant; where "
                         "it does so only beside itself, --jobs 1 helps")
            self.seconds.append(least_seconds + 5 * (time.monotonic() - begin))

    def fate(self, text):
        """What becomes of a mutant: it "survives", is "caught" or "late", or is "unbuilt"."""
        with tempfile.TemporaryDirectory(prefix="troupe-mutant-") as folder:
            for (program, tests), seconds in zip(self.linked(text, Path(folder)), self.seconds):
                if program is None:
                    return "unbuilt"
                passed = run(program, tests, seconds)
                if not passed:
                    return "late" if passed is None else "caught"
        return "survives"


def known_harmless():
    """(file, line of code, its mutant), with the reason."""
    known = {}
    for block in (Path(__file__).parent / "harmless.txt").read_text().split("\n\n"):
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        if len(lines) < 4:
            continue
        known[(lines[0], lines[1].strip(), lines[2].strip())] = " ".join(lines[3:])
    return known


def try_core(source, build, least_seconds, jobs):
    """The mutants that survive."""
    survivors, fates = [], []
    with tempfile.TemporaryDirectory(prefix="troupe-core-") as folder, \
            ThreadPoolExecutor(jobs) as pool:
        core = Core(source, build, Path(folder))
        core.measure(least_seconds, pool, jobs)
        mutants = list(mutants_of(core.text))
        for (number, line, made, _), fate in zip(
                mutants, pool.map(core.fate, [whole for *_, whole in mutants])):
            fates.append(fate)
            if fate == "survives":
                survivors.append((number, line.strip(), made.strip()))
                print(f"{source}:{number} survives\n    {line.strip()}\n    {made.strip()}",
                      flush=True)
    unbuilt, late = fates.count("unbuilt"), fates.count("late")
    print(f"{source}: {len(fates) - unbuilt} mutants, {fates.count('caught') + late} caught, {late} "
          f"of them because the tests did not end, {len(survivors)} survive ({unbuilt} more do not "
          "compile)", flush=True)
    return survivors


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", metavar="SOURCE")
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--seconds", type=float, default=20,
                        help="for each test program, beside five times what it takes otherwise")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count()),
                        help="how many mutants of a core are tried at a time")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that its folders go
    build = (ROOT / given.build).resolve()
    harmless = known_harmless()
    bad = 0
    for source in given.sources or CORES:
        if source not in CORES:
            sys.exit(f"mutate: no core {source}; the cores are {', '.join(CORES)}")
        subprocess.run(["ninja", "-C", str(build), *(name for name, _ in CORES[source])],
                       check=True, stdout=subprocess.DEVNULL)
        for _, line, made in try_core(source, build, given.seconds, given.jobs):
            why = harmless.get((source, line, made))
            if why:
                print(f"    harmless: {line} -> {made}: {why}")
            else:
                bad += 1
    print(f"{bad} mutants survive that are not known to be harmless")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
