"""The README's example is the program that CI compiles, to the letter."""

import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
readme = (root / "README.md").read_text()
blocks = re.findall(r"```cpp\n(.*?)```", readme, re.DOTALL)
program = (root / "apps/compose_pipeline/main.cpp").read_text()
if program not in blocks:
    sys.exit("README.md does not show apps/compose_pipeline/main.cpp as it is")
for command in ("./dev train", "./dev test"):
    if command not in readme:
        sys.exit(f"README.md does not show {command}")
