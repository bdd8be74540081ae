"""The examples in the README and in docs/own_program.md are what CI compiles, to the letter, and a newcomer's steps in
docs/clusters.md fit a screen each."""

import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
readme = (root / "README.md").read_text()
blocks = re.findall(r"```cpp\n(.*?)```", readme, re.DOTALL)
for program in ("apps/compose_pipeline/main.cpp", "apps/custom_optimizer/main.cpp"):
    if (root / program).read_text() not in blocks:
        sys.exit(f"README.md does not show {program} as it is")
for command in ("./dev train", "./dev test", "troupe launch apps/resnet_pipeline/two_hosts.toml"):
    if command not in readme:
        sys.exit(f"README.md does not show {command}")

program = (root / "tests/package/rings.cpp").read_text()
for block in re.findall(r"```cpp\n(.*?)```", (root / "docs/own_program.md").read_text(), re.DOTALL):
    if block not in program:
        sys.exit("docs/own_program.md does not show tests/package/rings.cpp as it is")

SCREEN = 40  # lines
steps = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", (root / "docs/clusters.md").read_text(), re.MULTILINE))
for step in ("One machine", "Two hosts", "Slurm"):
    if steps[step].count("\n") >= SCREEN:
        sys.exit(f"docs/clusters.md: the section {step} has more than {SCREEN} lines")
