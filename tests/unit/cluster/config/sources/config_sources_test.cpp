// Where settings come from: several files, environment variables in them, --set, and who wins.

#include <stdlib.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <map>
#include <string>
#include <vector>

#include "cluster/config/sources/set_flag.hpp"
#include "cluster/config/sources/toml_file.hpp"
#include "cluster/config/sources/variables.hpp"
#include "tests/unit/cluster/config_fixture.hpp"

namespace {

using namespace troupe;
using namespace troupe::cluster;
using namespace troupe::cluster::testing;
using Catch::Matchers::ContainsSubstring;

const variables some = [](const std::string& name) -> std::optional<std::string> {
  const std::map<std::string, std::string> all{{"A", "one"}, {"EMPTY", ""}, {"N_2", "2"}};
  const auto found = all.find(name);
  return found == all.end() ? std::nullopt : std::optional(found->second);
};

std::string filled(const std::string& text) {
  const auto made = with_variables(text, some);
  return made ? *made : "refused: " + made.error();
}

/// What a text of a file sets, or the complaint about it.
settings_layer read_text(const std::string& text) {
  static const auto table = option_table(trainer);
  return parse_toml(text, "run.toml", table, some);
}

std::string complaint_of(const std::string& text) {
  const auto made = read_text(text);
  return made.complaints.empty() ? "accepted" : made.complaints.front().text;
}

}  // namespace

TEST_CASE("environment variables are put into texts") {
  CHECK(filled("") == "");
  CHECK(filled("plain $A $ {A} a$") == "plain $A $ {A} a$");
  CHECK(filled("${A}") == "one");
  CHECK(filled("x${A}y${N_2}z") == "xoney2z");
  CHECK(filled("${EMPTY}") == "");
  CHECK(filled("${EMPTY:-b}/${NO:-c d}/${A:-e}/${NO:-}") == "b/c d/one/");
  CHECK(filled("$${A} ${A} $${") == "${A} one ${");
}

TEST_CASE("a variable that is not set, or is none, is refused with what to write") {
  CHECK(filled("a${NO}") ==
        "refused: ${NO}: the environment variable NO is not set; set it, or write ${NO:-default}");
  CHECK_THAT(filled("${}"), ContainsSubstring("\"\" is not the name of an environment variable"));
  CHECK_THAT(filled("${2A}"), ContainsSubstring("\"2A\" is not the name"));
  CHECK_THAT(filled("${A-b}"), ContainsSubstring("\"A-b\" is not the name"));
  CHECK_THAT(filled("x ${A"), ContainsSubstring("\"${A\" has no closing brace"));
}

TEST_CASE("a file's texts take variables, and an error of one has file, line and column") {
  CHECK(complaint_of("[data]\n\nsource = \"folder:${NOWHERE}\"\n") ==
        "run.toml:3:10: data.source: ${NOWHERE}: the environment variable NOWHERE is not set; set "
        "it, or write ${NOWHERE:-default}");
  CHECK(complaint_of("[pipeline]\ncut = [\"a\", \"${NOWHERE}\"]\n")
            .starts_with("run.toml:2:13: pipeline.cut: ${NOWHERE}: "));
  const auto read = read_text(
      "[data]\nsource = \"folder:${A}\"\n[pipeline]\nstages = \"${N_2}\"\ncut = "
      "[\"${A}\"]\n[train]\neval = \"${E:-false}\"\n");
  REQUIRE(read.complaints.empty());
  REQUIRE(read.settings.size() == 4);
  CHECK(read.settings[0].value == option_value(std::string("folder:one")));
  CHECK(read.settings[1].value == option_value(std::int64_t{2}));
  CHECK(read.settings[2].value == option_value(std::vector<std::string>{"one"}));
  CHECK(read.settings[3].value == option_value(false));
  CHECK(complaint_of("[pipeline]\nstages = \"${A}\"\n") ==
        "run.toml:2:10: pipeline.stages: \"one\" is not an integer; allowed: 1 to 1024");
  CHECK(complaint_of("[pipeline]\nstages = \"2\"\n")
            .starts_with("run.toml:2:10: pipeline.stages: expected an integer, got the text"));
}

TEST_CASE("variables are those of the process") {
  const folder here;
  ::setenv("TROUPE_TEST_SOURCE", "folder:there", 1);
  ::unsetenv("TROUPE_TEST_NONE");
  const auto file = here.write("run.toml", "[data]\nsource = \"${TROUPE_TEST_SOURCE}\"\n");
  CHECK(config_of({"--config", file}).data.source == "folder:there");
  const auto other = here.write("other.toml", "[data]\nsource = \"${TROUPE_TEST_NONE}\"\n");
  CHECK(error_of({"--config", other}).starts_with(other + ":2:10: data.source: "));
}

TEST_CASE("a later file wins, key by key, and its nodes replace those before it") {
  const folder here;
  const auto first = here.write("a.toml", R"(
[train]
batch_size = 32
steps = 3
[model]
name = "first"
[[node]]
name = "alpha"
cores = 1
[[node]]
name = "beta"
cores = 1
)");
  const auto second = here.write("b.toml", "[train]\nepochs = 2\n[model]\nname = \"second\"\n");
  const auto third = here.write("c.toml", "[[node]]\nname = \"gamma\"\n");
  const auto two = config_of({"--config", first, "--config", second});
  CHECK(two.train.batch_size == 32);
  CHECK(two.train.epochs == 2);
  CHECK_FALSE(two.train.steps.has_value());
  CHECK(two.model.name == "second");
  CHECK(two.cluster.nodes.size() == 2);
  CHECK(two.config_files == std::vector<std::filesystem::path>{first, second});
  const auto three = config_of({"--config", first, "--config", second, "--config", third});
  REQUIRE(three.cluster.nodes.size() == 1);
  CHECK(three.cluster.nodes[0].name == "gamma");
  CHECK(three.cluster.nodes[0].cores == 0);
  CHECK(config_of({"--config", second, "--config", first}).model.name == "first");
  // An error of what the last file says names that one.
  const auto wrong = here.write("d.toml", "[[node]]\nname = \"a b\"\n");
  CHECK(error_of({"--config", first, "--config", wrong})
            .starts_with(wrong + ":2:8: node.name: \"a b\" is no name"));
}

TEST_CASE("a --set wins over the files, and flags over --set") {
  const folder here;
  const auto file =
      here.write("run.toml", "[optimizer]\nlr = 0.5\nmomentum = 0.5\n[model]\nname = \"x\"\n");
  const auto set = config_of({"--config", file, "--set", "optimizer.lr=0.25", "--set",
                              "model.name=\"of set\"", "--set=optimizer.momentum=1e-1",
                              "--momentum", "0.75", "--set", "pipeline.cut=[\"a\", \"b\"]"});
  CHECK(set.optimizer.options.at("lr") == 0.25);
  CHECK(set.optimizer.options.at("momentum") == 0.75);
  CHECK(set.model.name == "of set");
  CHECK(set.pipeline.cut == std::vector<std::string>{"a", "b"});
  CHECK(config_of({"--set", "train.seed=1", "--set", "train.seed=2"}).train.seed == 2);
  CHECK(config_of({"--set", "pipeline.micro_batches=auto"}).pipeline.micro_batches == 0);
}

TEST_CASE("what is no TOML is a text, and so is anything where a key takes texts") {
  CHECK(config_of({"--set", "data.source=folder:/x y"}).data.source == "folder:/x y");
  CHECK(config_of({"--set", "model.name=18"}).model.name == "18");
  CHECK(config_of({"--set", "model.name=a=b"}).model.name == "a=b");
  CHECK(config_of({"--set", "pipeline.cut=layer2,layer3"}).pipeline.stages == 3);
  CHECK(config_of({"--set=train.save="}).train.save.empty());
  CHECK(config_of({"--set", "model.name=1\n[data]"}).model.name == "1\n[data]");
}

TEST_CASE("a --set reaches a key of a [[node]] by its number") {
  const folder here;
  const auto file =
      here.write("run.toml", "[[node]]\nname = \"alpha\"\n[[node]]\nname = \"beta\"\ncores = 3\n");
  const auto c = config_of({"--config", file, "--set", "node[0].cores=2"});
  CHECK(c.cluster.nodes[0].cores == 2);
  CHECK(c.cluster.nodes[0].name == "alpha");
  CHECK(c.cluster.nodes[1].name == "beta");
  CHECK(c.cluster.nodes[1].cores == 3);
  CHECK(error_of({"--config", file, "--set", "node[2].cores=7"}) ==
        "--set node[2].cores: there is no such [[node]]; the files have 2, from 0");
  CHECK(error_of({"--config", file, "--set", "node.cores=7"})
            .starts_with("--set node.cores: say which node: node[0].cores"));
  CHECK(error_of({"--config", file, "--set", "node[1].name=alpha"}) ==
        "--set node[1].name: two nodes are named \"alpha\"; give each its own name");
}

TEST_CASE("a wrong --set names the key, what was found, what is allowed and the nearest key") {
  const std::vector<std::pair<std::string, std::string>> rows{
      {"optimizer.lr=-1", "--set optimizer.lr: -1 is out of range; allowed: above 0"},
      {"pipeline.stages=two",
       "--set pipeline.stages: expected an integer, got the text \"two\"; allowed: 1 to 1024"},
      {"pipeline.stages=[2]",
       "--set pipeline.stages: expected an integer, got an array; allowed: 1 to 1024"},
      {"link.transprot=tcp",
       "--set link.transprot: unknown key; did you mean transport?; allowed: transport, listen, "
       "network, secret_file"},
      {"train.lr=1",
       "--set train.lr: unknown key; did you mean lr in [optimizer]?; allowed: batch_size"},
      {"optimzer.lr=1", "--set optimzer.lr: unknown key; did you mean optimizer.lr?"},
      {"zzzzz.qqqqqqqqq=1", "--set zzzzz.qqqqqqqqq: unknown table; allowed: pipeline, model"},
      {"lr=1", "--set lr=1: is not TABLE.KEY=VALUE; did you mean lr in [optimizer]?"},
      {"optimizer.lr", "--set optimizer.lr: is not TABLE.KEY=VALUE"},
      {"train[0].seed=1", "--set train[0].seed: there is one [train]"},
      {"node[x].name=1", "--set node[x].name=1: is not TABLE.KEY=VALUE"},
  };
  for (const auto& [text, expected] : rows) {
    INFO(text);
    CHECK(error_of({"--set", text}).starts_with(expected));
  }
}

TEST_CASE("values that do not fit each other are said with who gave them") {
  const folder here;
  const auto file = here.write("run.toml", "[train]\nbatch_size = 2\n");
  CHECK(error_of({"--config", file, "--set", "pipeline.micro_batches=3"}) ==
        "--set pipeline.micro_batches: 3 micro-batches (--set pipeline.micro_batches=3) need as "
        "many samples, but a batch has 2 (train.batch_size = 2 in " +
            file + ":2:14)");
  CHECK(error_of({"--set", "train.steps=1", "--set", "train.epochs=1"}) ==
        "--set train.epochs: given together with --set train.steps; give one of them");
}

TEST_CASE("every error of all sources is told, and of values that fit where they are known") {
  const folder here;
  const auto first = here.write("a.toml", "[train]\nbatch_sise = 1\nseed = -1\n");
  const auto second = here.write("b.toml",
                                 "[cluster]\nnetwork = \"here\"\n[[node]]\nname = \"a b\"\n"
                                 "[[node]]\nname = \"beta\"\nenvironment = [\"A\"]\n");
  const std::vector<const char*> words{"--config", first.c_str(),    "--config",     second.c_str(),
                                       "--set",    "data.threads=0", "--image-size", "x"};
  const auto all = every_error(trainer, words);
  REQUIRE(all.size() == 7);
  CHECK(all[0].starts_with(first + ":2:1: train.batch_sise: unknown key; did you mean batch_size"));
  CHECK(all[1].starts_with(first + ":3:8: train.seed: -1 is out of range"));
  CHECK(all[2].starts_with("--set data.threads: 0 is out of range"));
  CHECK(all[3].starts_with("--image-size: \"x\" is not an integer"));
  CHECK(all[4].starts_with(second + ":2:11: cluster.network: \"here\" is not a network"));
  CHECK(all[5].starts_with(second + ":4:8: node.name: \"a b\" is no name"));
  CHECK(all[6].starts_with(second + ":7:15: node.environment: \"A\" is not NAME=VALUE"));
}

TEST_CASE("what depends on a table that has an error is not said") {
  const folder here;
  // Were the stages those by default, alpha would be left without one.
  const auto file = here.write("run.toml",
                               "[pipeline]\nstages = \"x\"\n[[node]]\nname = \"alpha\"\n[[node]]\n"
                               "name = \"beta\"\nstages = [0, 1]\n");
  const std::vector<const char*> words{"--config", file.c_str()};
  CHECK(every_error(trainer, words).size() == 1);
}

TEST_CASE("one text of a file is read by the same rules") {
  const folder here;
  const auto read = [&](const std::string& text) {
    const auto found = read_text_key(here.write("run.toml", text), "cluster", "program", some);
    if (!found) return found.error().text.substr(here.file("").size());
    return *found ? (*found)->text + " of " + (*found)->place.substr(here.file("").size()) : "none";
  };
  CHECK(read("[own]\nx = 1\n[cluster]\nprogram = \"p${N_2}\"\n") == "p2 of run.toml:4:11");
  CHECK(read("[cluster]\n") == "none");
  CHECK(read("[cluster]\nprogram = 3\n") ==
        "run.toml:2:11: cluster.program: expected a text, got the integer 3");
  CHECK(read("[cluster]\nprogram = \"${NO}\"\n").starts_with("run.toml:2:11: cluster.program: "));
  CHECK(read("[cluster\n").starts_with("run.toml:1:9: not valid TOML: "));
}
