"""The README's examples are the programs that CI compiles, to the letter."""

import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
readme = (root / "README.md").read_text()
blocks = re.findall(r"```cpp\n(.*?)```", readme, re.DOTALL)
for program in ("apps/compose_pipeline/main.cpp", "apps/custom_optimizer/main.cpp"):
    if (root / program).read_text() not in blocks:
        sys.exit(f"README.md does not show {program} as it is")
for command in ("./dev train", "./dev test"):
    if command not in readme:
        sys.exit(f"README.md does not show {command}")
