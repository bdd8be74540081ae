"""Unity builds: what is in which batch, and that an edited source leaves its batch and moves no other."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

root = pathlib.Path(sys.argv.pop(1))
many = [f"many/{i}.cpp" for i in range(13)]
sources = ["few/0.cpp", *many, "few/1.cpp", "one/0.cpp", "own/0.cpp"]
project = f"""cmake_minimum_required(VERSION 3.25)
project(batches LANGUAGES CXX)
add_library(batches STATIC {' '.join(sources)})
set_source_files_properties(own/0.cpp PROPERTIES COMPILE_OPTIONS -O3)
list(APPEND CMAKE_MODULE_PATH {root}/.cmake)
include(troupe_unity)
troupe_for_targets(${{PROJECT_SOURCE_DIR}} troupe_unity_target)
"""


class Batches(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.build = self.folder / "build" / "release"
        for source in sources:
            (self.folder / source).parent.mkdir(exist_ok=True)
            (self.folder / source).write_text("")
        (self.folder / "CMakeLists.txt").write_text(project)
        (self.folder / ".gitignore").write_text("/build/\n")
        self.run_in_folder("git", "init", "-q")
        self.commit()
        self.configure()

    def run_in_folder(self, *words):
        return subprocess.run(words, cwd=self.folder, check=True, capture_output=True, text=True)

    def commit(self):
        self.run_in_folder("git", "add", "-A")
        self.run_in_folder("git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "-m", "t")

    def configure(self):
        self.run_in_folder("cmake", "-G", "Ninja", "-S", ".", "-B", str(self.build),
                           "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON")

    def note_edited(self):
        """What ./dev build does before it builds."""
        function = re.search(r"^note_edited\(\) \{.*?^\}", (root / "dev").read_text(), re.M | re.S)[0]
        self.run_in_folder("bash", "-euo", "pipefail", "-c", function + "\nnote_edited release")
        return (self.build / "edited_sources.txt").read_text().split()

    def batches(self):
        """What is compiled: lists of sources, by the file that the compiler gets."""
        compiled = {}
        for entry in json.loads((self.build / "compile_commands.json").read_text()):
            file = pathlib.Path(entry["file"])
            held = [file] if file.suffix == ".cpp" else re.findall(r'#include "(.+)"', file.read_text())
            compiled[file.name] = [str(pathlib.Path(each).relative_to(self.folder)) for each in held]
        return compiled

    def test_batches_are_few_and_even_with_folders_side_by_side_and_without_sources_of_own_options(self):
        batches = sorted(self.batches().values())
        self.assertEqual(batches, [["few/0.cpp", *many[:6], "few/1.cpp"], [*many[6:], "one/0.cpp"],
                                   ["own/0.cpp"]])

    def test_an_edited_source_is_compiled_alone_from_then_on(self):
        before = self.batches()
        self.assertEqual(self.note_edited(), [])
        (self.folder / "many/3.cpp").write_text("int edited;\n")
        (self.folder / "many/new.cpp").write_text("int added;\n")
        self.assertEqual(self.note_edited(), ["many/3.cpp", "many/new.cpp"])
        self.assertEqual(self.note_edited(), ["many/3.cpp", "many/new.cpp"])
        self.configure()
        after = self.batches()
        self.assertEqual(after.pop("3.cpp"), ["many/3.cpp"])
        self.assertEqual(after.keys(), before.keys())
        for name, held in before.items():
            self.assertEqual(after[name], [each for each in held if each != "many/3.cpp"])
        self.commit()
        self.assertEqual(self.note_edited(), ["many/3.cpp", "many/new.cpp"])


if __name__ == "__main__":
    unittest.main()
