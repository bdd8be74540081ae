"""Proves that lint.py can fail: a bad sample for every rule, and good ones that must pass."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import headers
import links
import lint
import local_names

BAD = [
    # (path, source, rules that must fire)
    ("messages/a.hpp", '#include "engine/schedule/plan.hpp"', ["direction"]),
    ("messages/a.hpp", '#include "optimizers/optimizer.hpp"', ["direction"]),
    ("engine/a.hpp", '#include "optimizers/optimizer.hpp"', ["direction"]),
    ("engine/a.hpp", '#include "actors/interfaces.hpp"', ["direction"]),
    ("engine/parameter_server/a.hpp", '#include "actors/interfaces.hpp"', ["direction"]),
    ("optimizers/a.cpp", '#include "engine/model/layer.hpp"', ["direction"]),
    ("actors/a.cpp", '  #  include "cluster/config/config.hpp"  // why not', ["direction"]),
    ("cluster/a.cpp", '#include "apps/resnet_pipeline/flags.hpp"', ["direction"]),
    ("engine/a.cpp", '#include "tests/helper.hpp"', ["direction"]),
    ("engine/a.cpp", '#include "../actors/interfaces.hpp"', ["direction"]),
    ("engine/a.cpp", '#include <actors/interfaces.hpp>', ["direction"]),
    ("engine/stage/a.cpp", "#include <caf/all.hpp>", ["caf"]),
    ("apps/x/a.cpp", '#include "caf/actor.hpp"', ["caf"]),
    ("messages/a.cpp", "#include <ucp/api/ucp.h>", ["ucx"]),
    ("messages/link/loopback.cpp", "#include <ucs/type/status.h>", ["ucx"]),
    ("messages/link/ucx_link.cpp", "#include <capnp/message.h>", ["capnp"]),
    ("cluster/a.cpp", "#include <kj/common.h>", ["capnp"]),
    ("actors/a.cpp", '#include "messages/schema/frame.capnp.h"', ["capnp"]),
    ("engine/state/a.cpp", "#include <nccl.h>", ["cuda"]),
    ("optimizers/a.cpp", "#include <cuda_runtime.h>", ["cuda"]),
    ("messages/frame.hpp", "#include <ATen/core/Tensor.h>", ["torch"]),
    ("messages/frame.hpp", "#include <c10/core/Device.h>", ["torch"]),
    ("engine/a.cpp", "#include <torch/torch.h>", ["torch-all"]),
    ("tests/unit/a.cpp", "int a;\n\n#include <torch/all.h>", ["torch-all"]),
    ("engine/a.cpp", "auto g = weight.grad();", ["grad"]),
    ("actors/a.cpp", "auto g = weight->grad( );", ["grad"]),
    ("optimizers/a.cpp", "weight.mutable_grad() = g;", ["grad"]),
    ("optimizers/a.cpp", "std::mutex all;", ["lock"]),
    ("optimizers/a.cpp", "#include <mutex>", ["core", "lock"]),
    ("optimizers/a.cpp", "std::shared_mutex m; std::unique_lock hold(m);", ["lock", "lock"]),
    ("engine/step/stage_core.cpp", "auto t = std::chrono::steady_clock::now();", ["core"]),
    ("actors/stage/x_core.hpp", "#include <caf/actor.hpp>", ["core"]),
    ("actors/stage/x_core.hpp", "#include <thread>", ["core"]),
    ("engine/step/stage_core.cpp", "#include <caf/actor.hpp>", ["caf", "core"]),
    ("messages/link/frames/outbox.cpp", "auto t = std::chrono::steady_clock::now();", ["core"]),
    ("optimizers/sweep.hpp", "#include <random>", ["core"]),
    ("messages/link/wire/connection_io.cpp", '#include "messages/base/log.hpp"', ["core"]),
    ("messages/link/wire/connection_io.cpp", 'log::warning("copied");', ["core"]),
    ("messages/link/wire/connection.hpp", "#include <sys/mman.h>\n#include <unistd.h>", ["core", "core"]),
    ("engine/schedule/plan.cpp", "std::this_thread::yield();", ["core"]),
    ("engine/schedule/plan.cpp", "std::filesystem::exists(file);", ["core"]),
    ("engine/collective/buckets.cpp", 'std::getenv("HOME");', ["core"]),
    ("cluster/launch/agents/ssh_words.cpp", "#include <netinet/in.h>", ["core"]),
    ("engine/a.cpp", "int a(int of) {" + 60 * "\n" + "}", ["length"]),
    ("tests/unit/a.cpp", "TEST_CASE() {\n  if (a) {" + 60 * "\n" + "}\n}", ["length"]),
    ("engine/a.hpp", "struct b {\n  void a()\n      const {" + 59 * "\n" + "}\n};", ["length"]),
]

GOOD = [
    ("actors/a.cpp", '#include <caf/all.hpp>\n#include "engine/schedule/plan.hpp"'),
    ("engine/parameter_server/a.hpp", '#include "optimizers/optimizer.hpp"'),
    ("cluster/a.cpp", '#include "actors/interfaces.hpp"\n#include <caf/all.hpp>'),
    ("apps/x/a.cpp", '#include "cluster/config/config.hpp"\n#include "apps/x/b.hpp"'),
    ("messages/codec/a.cpp", '#include "messages/schema/frame.capnp.h"\n#include <kj/array.h>'),
    ("messages/link/ucx_link.cpp", "#include <ucp/api/ucp.h>"),
    ("engine/stage/a.cpp", "#include <cuda_runtime.h>\n#include <ATen/ops/add.h>"),
    ("engine/a.cpp", "// never weight.grad(), std::mutex or\n/* #include <torch/torch.h>\n*/ int a;"),
    ("engine/a.cpp", 'auto s = "weight.grad()"; auto r = R"x(w.mutable_grad() ")x"; char c = \'"\';'),
    ("engine/a.cpp", "auto g = torch::autograd::grad({loss}, {w}); auto h = tape.gradient();"),
    ("optimizers/a.cpp", "const int count = 1'000'000; int block_lock = 0;"),
    ("engine/a.cpp", "std::mutex fine;"),
    ("tests/unit/a.cpp", '#include <capnp/message.h>\nauto g = w.grad();'),
    ("tests/unit/x_core_test.cpp", "#include <random>"),
    ("engine/a.cpp", "int a(int of) {" + 59 * "\n" + "}"),
    ("engine/a.cpp", "struct a : b {" + 99 * "\n" + "};\nconstexpr c d[] = {" + 99 * "\n" + "};"),
    ("cluster/launch/push/push_core.hpp", "std::filesystem::path program; void begin_log();"),
]


class Rules(unittest.TestCase):
    def test_every_bad_sample_is_caught_by_its_rule(self):
        for path, source, rules in BAD:
            with self.subTest(path=path, source=source):
                self.assertEqual([rule for _, rule, _ in lint.check_file(path, source)], rules)

    def test_every_rule_has_a_bad_sample(self):
        named = {rule for *_, rules in BAD for rule in rules}
        known = {"direction", "length"} | {rule.rule for rule in lint.CONFINED + lint.BANNED}
        self.assertEqual(named, known)

    def test_good_samples_pass(self):
        for path, source in GOOD:
            with self.subTest(path=path, source=source):
                self.assertEqual(lint.check_file(path, source), [])

    def test_a_violation_names_its_line(self):
        source = "/* one\ntwo */\n\n#include <torch/torch.h>\n"
        self.assertEqual(lint.check_file("engine/a.cpp", source)[0][0], 4)


class Cores(unittest.TestCase):
    def test_each_path_of_cores_is_of_some_file(self):
        here = os.path.dirname(os.path.abspath(__file__))
        paths = list(lint.sources(os.path.dirname(os.path.dirname(here))))
        for pattern in lint.CORE_PATHS:
            with self.subTest(pattern=pattern):
                self.assertTrue(any(re.match(pattern, path) for path in paths))


class Folders(unittest.TestCase):
    def test_folders_that_include_each_other_are_named(self):
        files = {"engine/a/x.hpp": '#include "engine/b/y.hpp"', "engine/b/y.hpp": "",
                 "engine/b/z.cpp": '#include "engine/c/w.hpp"',
                 "engine/c/w.hpp": '#include "engine/a/x.hpp"',
                 "engine/d/v.cpp": '#include "engine/a/x.hpp"\n#include "engine/a/gone.hpp"'}
        self.assertEqual(lint.check_folders(files),
                         ["engine/a engine/b engine/c: circle: folders include each other"])

    def test_a_crowded_folder_is_named(self):
        files = {f"tests/unit/{name}.cpp": "" for name in range(lint.MOST_FILES + 1)}
        self.assertEqual(lint.check_folders(files),
                         ["tests/unit: crowd: 21 files; 20 is the most of a folder"])
        few = dict([*files.items()][1:])
        self.assertEqual(lint.check_folders(few), [])
        self.assertEqual(lint.check_folders(few, ["tests/unit/run.py"]),
                         ["tests/unit: crowd: 21 files; 20 is the most of a folder"])

    def test_a_folder_of_unit_tests_that_mirrors_none_is_named(self):
        files = {"engine/a/b/x.hpp": "", "tests/unit/x_test.cpp": "", "tests/unit/engine/a/x_test.cpp": "",
                 "tests/unit/engine/c/x_test.cpp": ""}
        self.assertEqual(lint.check_folders(files),
                         ["tests/unit/engine/c: mirror: there is no folder engine/c/ to test"])


class Program(unittest.TestCase):
    def run_over(self, files, folders=lint.FOLDERS):
        with tempfile.TemporaryDirectory() as root:
            for folder in folders:
                os.makedirs(os.path.join(root, folder))
            for path, source in files:
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(source)
            program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lint.py")
            return subprocess.run([sys.executable, program, root], capture_output=True, text=True)

    def test_it_fails_over_a_tree_with_a_violation(self):
        ran = self.run_over([("engine/a.cpp", "\nauto g = w.grad();"), ("engine/b.hpp", "int b;")])
        self.assertEqual(ran.returncode, 1)
        self.assertIn("engine/a.cpp:2: grad: ", ran.stdout)
        self.assertIn("2 files, 1 violations", ran.stdout)

    def test_it_passes_over_a_clean_tree(self):
        self.assertEqual(self.run_over([("engine/a.cpp", "int a;")]).returncode, 0)

    def test_it_fails_where_there_is_nothing_to_check(self):
        self.assertEqual(self.run_over([]).returncode, 1)
        ran = self.run_over([("engine/a.cpp", "int a;")], ["engine"])
        self.assertEqual(ran.returncode, 1)
        self.assertIn("has no folder", ran.stderr)


class PublicHeaders(unittest.TestCase):
    """A tree with one public header, and the files that a test adds."""

    def found_in(self, files):
        tree = {"docs/headers.md": "| Header | For |\n| --- | --- |\n| `engine/a.hpp` | a |\n",
                "engine/a.hpp": '#include <vector>\n#include "engine/b.hpp"\n',
                "engine/b.hpp": "int b;\n", **files}
        with tempfile.TemporaryDirectory() as root:
            for folder in [*headers.EXAMPLES, *(os.path.dirname(path) for path in tree)]:
                os.makedirs(os.path.join(root, folder), exist_ok=True)
            for path, source in tree.items():
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(source)
            return headers.check(root)[1]

    def test_what_they_include_is_followed(self):
        self.assertEqual(self.found_in({}), [])
        found = self.found_in({"engine/b.hpp": "#include <torch/all.h>\n"})
        self.assertEqual(found, ["engine/a.hpp: headers: pulls in torch/all.h"])
        found = self.found_in({"engine/b.hpp": '#include "engine/detail/c.hpp"\n'})
        self.assertEqual(found, ["engine/a.hpp: headers: pulls in engine/detail/c.hpp"])

    def test_lines_are_counted(self):
        found = self.found_in({"engine/b.hpp": "\n" * headers.MOST_LINES})
        self.assertEqual(len(found), 1)
        self.assertIn(f"2 headers of {headers.MOST_LINES + 2} lines", found[0])

    def test_a_header_that_is_gone_is_named(self):
        found = self.found_in({"docs/headers.md": "| `engine/gone.hpp` | nothing |\n"})
        self.assertEqual(len(found), 1)
        self.assertIn("engine/gone.hpp", found[0])

    def test_examples_include_public_headers_alone(self):
        example = f"{headers.EXAMPLES[0]}/x.cpp"
        self.assertEqual(self.found_in({example: '#include "engine/a.hpp"\n'}), [])
        found = self.found_in({example: '#include "engine/b.hpp"\n'})
        self.assertEqual(found, [f"{example}: headers: engine/b.hpp is not public: see "
                                 "docs/headers.md"])


class LocalNames(unittest.TestCase):
    """What two sources of a target have in anonymous namespaces."""

    def clashes_of(self, one, other, around="troupe"):
        wrapped = {path: f"namespace {where} {{\nnamespace {{\n\n{text}\n\n}}  // namespace\n}}\n"
                   for path, text, where in (("a.cpp", one, "troupe"), ("b.cpp", other, around))}
        return [name for name, *_ in local_names.clashes(wrapped)]

    def test_constants_types_and_functions_of_the_same_parameters_clash(self):
        for one, other in (("constexpr int a = 1;", "const std::vector<int> a{1, 2};"),
                           ("struct a {\n  int b;\n};", "enum class a { b };"),
                           ("using a = int;", "using a = long;"),
                           ("using a = int;", "struct a : b {\n};"),
                           ("int a[2] = {};", "a_type& a() { return all; }"),
                           ("void a(int b, c<d, e> f) {}", "[[noreturn]] int a(int g,\n  c<d, e> h = {}) {\n}"),
                           ("template <class T>\nT a(const T& b) {}", "template <class T>\nint a(const T& c) {}")):
            with self.subTest(one=one, other=other):
                self.assertEqual(self.clashes_of(one, other), ["a"])
                self.assertEqual(self.clashes_of(one, other, around="other"), [])

    def test_overloads_equal_aliases_and_what_is_inside_others_do_not(self):
        for one, other in (("void a(int b) {}", "void a(long b) {}"),
                           ("using a = int;", "using a = int;"),
                           ("struct a {\n  int b = 1;\n};", "struct c {\n  int a = 1;\n};"),
                           ("// int a = 1;\nint b = 1;", "int a = 1;")):
            with self.subTest(one=one, other=other):
                self.assertEqual(self.clashes_of(one, other), [])

    def test_sources_are_those_of_one_target_that_batches_may_hold(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "engine").mkdir()
            for name in "abcd":
                (root / "engine" / f"{name}.cpp").write_text("")
            (root / "engine" / "CMakeLists.txt").write_text(
                "troupe_library(one a.cpp b.cpp)  # c.cpp\ntroupe_test(two c.cpp $<X(y)> d.cpp LINK one)\n"
                "set_source_files_properties(d.cpp PROPERTIES\n  SKIP_UNITY_BUILD_INCLUSION ON)\n")
            self.assertEqual([(name, sorted(sources)) for name, sources in local_names.targets(root)],
                             [("one", ["engine/a.cpp", "engine/b.cpp"]), ("two", ["engine/c.cpp"])])


class Pages(unittest.TestCase):
    """A README, and one other page."""

    def wrong_of(self, readme):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "docs").mkdir()
            (root / "docs" / "a.md").write_text("# A page\n\n## `--set`, twice\n\n## Limits\n\n## Limits\n")
            (root / "README.md").write_text(readme)
            return links.check_page(root, "README.md")[1]

    def test_links_to_files_and_headings_are_followed(self):
        self.assertEqual(self.wrong_of("# Here\n[a](docs/a.md) [b](docs/a.md#--set-twice) [c](#here)\n"
                                       "[d](docs/a.md#limits) [e](docs/a.md#limits-1) [f](https://x.org/#y)\n"
                                       "```cpp\ncall([](int) {});\n```\n"), [])

    def test_a_file_and_a_heading_that_are_not_there_are_named(self):
        self.assertEqual(self.wrong_of("# Here\n\n[a](docs/b.md)\n[b](docs/a.md#limits-2)\n[c](#there)\n"),
                         ["README.md:3: links: there is no docs/b.md",
                          "README.md:4: links: docs/a.md has no heading #limits-2",
                          "README.md:5: links: README.md has no heading #there"])

    def test_paths_of_the_source_are_looked_up(self):
        self.assertEqual(self.wrong_of("`docs/a.md`, `docs/a`, `docs/`, `docs/a.{md}`, `other/b.md`\n"), [])
        self.assertEqual(self.wrong_of("# Here\n`docs/{a,b}.md` and\n`docs/c`\n"),
                         ["README.md:2: links: there is no docs/b.md",
                          "README.md:3: links: there is no docs/c"])

    def test_tests_that_a_readme_names_are_listed(self):
        table = "| | what | shown by |\n| --- | --- | --- |\n| `x` | y | `unit_a`, `fuzz_*` |\n"
        self.assertEqual(links.check_tests(table, {"unit_a", "fuzz_*"}), (2, []))
        self.assertEqual(links.check_tests(table, {"unit_b", "fuzz_*"}),
                         (2, ["README.md: shown by: no test is called unit_a"]))


if __name__ == "__main__":
    unittest.main()
