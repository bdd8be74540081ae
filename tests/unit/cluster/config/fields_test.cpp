// Every field of a run's file wrong in turn: each in every way in which one of its kind can be, by
// the tables that validate, and then in the ways that are its own.

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "apps/parameter_server/application.hpp"
#include "apps/resnet_pipeline/application.hpp"
#include "apps/transformer_pipeline/application.hpp"
#include "cluster/config/option_fields.hpp"
#include "cluster/config/sources/toml_file.hpp"
#include "cluster/training/parameter_server/settings.hpp"
#include "tests/unit/cluster/config_fixture.hpp"

namespace {

using namespace troupe;
using namespace troupe::cluster;
using namespace troupe::cluster::testing;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;

/// A field, and the first program that takes it.
struct field_of_program {
  const program_info* program;
  option entry;
};

/// Every field of every table; what several programs take is there once.
std::vector<field_of_program> all_fields() {
  static const std::vector<program_info> programs{
      apps::resnet_application().info, apps::transformer_application().info,
      with_server(apps::parameter_server_application().info)};
  std::vector<field_of_program> found;
  std::set<std::string> names;
  for (const auto& program : programs)
    for (auto& entry : option_table(program))
      if (names.insert(entry.name()).second) found.push_back({&program, std::move(entry)});
  return found;
}

/// A TOML value of another kind than the field's, and how an error calls it.
std::pair<std::string, std::string> wrong_kind_for(const option& entry) {
  if (std::holds_alternative<text_field>(entry.field)) return {"7", "the integer 7"};
  if (std::holds_alternative<list_field>(entry.field)) return {"7", "the integer 7"};
  return {"\"seven\"", "the text \"seven\""};
}

std::vector<std::string> not_allowed(const integer_field& field) {
  const std::int64_t zero = field.zero_word.empty() ? 0 : 1;  // a 0 stands for the word
  std::vector<std::string> values{std::to_string(field.least - 1 - zero)};
  if (field.most < fields::any) values.push_back(std::to_string(field.most + 1));
  return values;
}

std::vector<std::string> not_allowed(const number_field& field) {
  std::vector<std::string> values{"nan", "inf",
                                  std::to_string(field.least - std::abs(field.least) - 1)};
  if (field.above_least) values.push_back(std::to_string(field.least));
  if (std::isfinite(field.most))
    values.push_back(std::to_string(field.most + std::abs(field.most) + 1));
  return values;
}

/// Values of the field's kind that are not allowed: out of range, no such word, no text at all, a
/// wrong element. A switch has none.
std::vector<std::string> not_allowed(const option& entry) {
  if (const auto* whole = std::get_if<integer_field>(&entry.field)) return not_allowed(*whole);
  if (const auto* number = std::get_if<number_field>(&entry.field)) return not_allowed(*number);
  if (std::holds_alternative<list_field>(entry.field)) return {"[true]", "[\"\"]"};
  const auto* const words = std::get_if<text_field>(&entry.field);
  if (words == nullptr) return {};
  return {words->allowed.empty() ? "\"a\\u0000b\"" : "\"nosuchword\""};
}

std::string table_line(const option& entry) {
  return entry.repeated ? "[[" + entry.table + "]]\n" : "[" + entry.table + "]\n";
}

/// The first error of a file, without the file's name.
std::string error_in(const std::string& text, const program_info& program = trainer) {
  const folder here;
  const auto file = here.write("run.toml", text);
  const auto error = error_of({"--config", file}, program);
  return error.starts_with(file) ? "run.toml" + error.substr(file.size()) : error;
}

/// What the reader of files alone says of one, which is one thing.
std::string complaint_in(const std::string& text, const program_info& program) {
  const auto table = option_table(program);
  const auto read = parse_toml(text, "run.toml", table, variables_of_process());
  REQUIRE(read.complaints.size() == 1);
  return read.complaints.front().text;
}

}  // namespace

TEST_CASE("the fields that are made wrong in turn are those of all tables") {
  std::set<std::string> tables;
  for (const auto& [program, entry] : all_fields()) tables.insert(entry.table);
  CHECK(tables == std::set<std::string>{"checkpoint", "cluster", "data", "link", "model", "node",
                                        "observe", "optimizer", "pipeline", "server", "train",
                                        "transformer"});
}

TEST_CASE("every field refuses what is not of its kind, with all it takes") {
  for (const auto& [program, entry] : all_fields()) {
    const auto [value, found] = wrong_kind_for(entry);
    const auto column = std::to_string(entry.key.size() + 4);
    const auto allowed = allowed_values(entry);
    CHECK(error_in(table_line(entry) + entry.key + " = " + value + "\n", *program) ==
          "run.toml:2:" + column + ": " + entry.name() + ": expected " +
              std::string(kind_name(entry)) + ", got " + found +
              (allowed.empty() ? "" : "; allowed: " + allowed));
  }
}

TEST_CASE("every field refuses what it does not allow") {
  for (const auto& [program, entry] : all_fields()) {
    for (const auto& value : not_allowed(entry)) {
      INFO(entry.name() << " = " << value);
      const auto error =
          complaint_in(table_line(entry) + entry.key + " = " + value + "\n", *program);
      CHECK_THAT(error, StartsWith("run.toml:2:"));
      CHECK_THAT(error, ContainsSubstring(": " + entry.name() + ": "));
      CHECK_THAT(error, ContainsSubstring(allowed_values(entry)));
    }
  }
}

TEST_CASE("every field is the nearest of its misspelt self") {
  for (const auto& [program, entry] : all_fields()) {
    const std::string misspelt = entry.key + "s";
    const auto error = complaint_in(table_line(entry) + misspelt + " = 1\n", *program);
    INFO(error);
    CHECK(error.starts_with("run.toml:2:1: " + entry.table + "." + misspelt + ": unknown key; "));
    CHECK_THAT(error, ContainsSubstring("did you mean " + entry.key + "?"));
    CHECK_THAT(error, ContainsSubstring("; allowed: "));
  }
}

namespace {

/// A text that a field cannot be though it takes any word, and what its error says.
struct wrong_text {
  std::string name;
  std::string value;
  std::string why;
};

const std::vector<wrong_text> wrong_texts{
    {"pipeline.schedule_file", "/nowhere/plan", "/nowhere/plan cannot be read: "},
    {"model.name", "", "is empty; name a model"},
    {"model.init", "/nowhere/weights", "/nowhere/weights cannot be read: "},
    {"data.source", "", "is empty; name a data source"},
    {"data.node", "nowhere", "unknown value \"nowhere\"; allowed: stage-0, stage-1"},
    {"train.save", "/nowhere/weights", "cannot be written: the directory /nowhere does not exist"},
    {"checkpoint.dir", "/dev/null/all", "takes no files: /dev/null is not a directory"},
    {"checkpoint.every", "often", "write a number of steps, or a time such as 30s, 5m or 2h"},
    {"checkpoint.resume", "latest", "in a folder, which --checkpoint-dir names"},
    {"checkpoint.on_signal", "SIGTERM", "take SIGUSR1 or SIGUSR2"},
    {"link.listen", "nowhere", "allowed: HOST:PORT with a port from 0 to 65535"},
    {"link.secret_file", "/nowhere/secret", "/nowhere/secret cannot hold the secret: "},
    {"observe.json", "/nowhere/steps", "cannot be written: the directory /nowhere does not exist"},
    {"observe.save_profile", "/nowhere/profile", "the directory /nowhere does not exist"},
    {"cluster.network", "10.0.0.0", "write an address whose host bits are 0 and its prefix"},
    {"cluster.host_file", "hosts", "choose launch = \"mpi\", or leave it out"},
    {"cluster.logs", "/nowhere", "there is a file for each node, and no node; add [[node]] tables"},
    {"node.name", "a/b", "use letters, digits, '.', '_' and '-'"},
    {"node.host", "-v", "is no host; write HOST or USER@HOST"},
    {"node.address", "a b", "is no address; write HOST or HOST:PORT"},
    {"node.network", "10.0.0.0", "write an address whose host bits are 0 and its prefix"},
    {"node.working_folder", "/nowhere", "is no folder of this machine, where its stages run"},
    {"node.program", "/nowhere", "is no program that may be executed on this machine"},
    {"node.device", "gpu", "allowed: cpu, auto, cuda:0, cuda:1, .."},
};

/// The one is `troupe launch`'s, which looks for it itself; the other is made on another host.
const std::set<std::string> told_by_others{"cluster.program", "node.checkpoint_dir"};

}  // namespace

TEST_CASE("every field that takes any text refuses one that it cannot be, with what it can be") {
  for (const auto& entry : option_table(trainer)) {
    const auto* const field = std::get_if<text_field>(&entry.field);
    if (field == nullptr || !field->allowed.empty() || told_by_others.contains(entry.name()))
      continue;
    INFO(entry.name());
    const auto row = std::ranges::find(wrong_texts, entry.name(), &wrong_text::name);
    REQUIRE(row != wrong_texts.end());
    const bool has_name = entry.repeated && entry.key != "name";
    const auto error = error_in(table_line(entry) + (has_name ? "name = \"alpha\"\n" : "") +
                                entry.key + " = \"" + row->value + "\"\n");
    const std::string place = std::string(has_name ? "3" : "2") + ":" +
                              std::to_string(entry.key.size() + 4) + ": " + entry.name() + ": ";
    CHECK_THAT(error, StartsWith("run.toml:" + place) && ContainsSubstring(row->why));
  }
}

TEST_CASE("every field of a node that takes any text refuses those that it cannot be") {
  const std::string node = "[[node]]\nname = \"alpha\"\n";
  const std::vector<std::pair<std::string, std::string>> rows{
      {"[[node]]\nname = \"\"\n", "run.toml:2:8: node.name: \"\" is no name"},
      {"[[node]]\nname = \"a/b\"\n", "run.toml:2:8: node.name: \"a/b\" is no name"},
      {node + "[[node]]\nname = \"alpha\"\n", "run.toml:4:8: node.name: two nodes are named"},
      {node + "host = \"-v\"\n", "run.toml:3:8: node.host: \"-v\" is no host; write HOST or USER"},
      {node + "host = \"a b\"\n", "run.toml:3:8: node.host: \"a b\" is no host"},
      {node + "network = \"10.0.0.0\"\n", "run.toml:3:11: node.network: \"10.0.0.0\" is not a net"},
      {node + "network = \"10.0.0.0/33\"\n", "run.toml:3:11: node.network: "},
      {node + "network = \"fd00::1/64\"\n", "run.toml:3:11: node.network: "},
      {node + "address = \"a\"\nnetwork = \"10.0.0.0/8\"\n",
       "run.toml:4:11: node.network: says where its processes listen, and so does address"},
      {node + "stages = [2]\n", "run.toml:3:10: node.stages: node \"alpha\": stage 2 does not"},
      {node + "stages = [0]\n[[node]]\nname = \"beta\"\nstages = [0]\n",
       "run.toml:6:10: node.stages: node \"beta\": stage 0 is on node \"alpha\" already"},
      {node + "stages = [0, 1]\n[[node]]\nname = \"beta\"\n",
       "run.toml:5:8: node.stages: node \"beta\" is left without a stage"},
      {node + "environment = [\"=b\"]\n", "run.toml:3:15: node.environment: \"=b\" is not NAME="},
      {node + "stages = \"zero\"\n",
       "run.toml:3:10: node.stages: expected a list of integers, got"},
      {node + "stages = \"0-1\"\n", "run.toml:3:10: node.stages: expected a list of integers, got"},
      {node + "stages = \"-1\"\n", "run.toml:3:10: node.stages: expected a list of integers, got"},
      {node + "replicas = \"1x\"\n", "run.toml:3:12: node.replicas: expected a list of integers"},
      {node + "stages = \"99999999999999999999\"\n", "run.toml:3:10: node.stages: expected a list"},
      {"[cluster]\nunderstudies = 1.5\n",
       "run.toml:2:16: cluster.understudies: expected an intege"},
      {"[cluster]\nnetwork = \"10.1.0.0/8\"\n", "run.toml:2:11: cluster.network: "},
      {"[cluster]\nssh_options = [\"-p\", \"-p\"]\n",
       "run.toml:2:15: cluster.ssh_options: \"-p\" stands in the list twice"},
  };
  for (const auto& [text, expected] : rows) {
    INFO(text);
    CHECK_THAT(error_in(text), StartsWith(expected));
  }
}

namespace {

/// The first error of a launch over ssh whose second node has more lines, which begin at line 8.
std::string error_of_second(const std::string& more, const std::string& host = "10.0.0.3") {
  return error_in(
      "[cluster]\nlaunch = \"ssh\"\n"
      "[[node]]\nname = \"alpha\"\nhost = \"10.0.0.2\"\n"
      "[[node]]\nname = \"beta\"\n" +
      (host.empty() ? "" : "host = \"" + host + "\"\n") + more);
}

}  // namespace

TEST_CASE("a host that names a port is refused with where a port goes") {
  const std::string port =
      " names a port, which is no part of a host; write HOST, and the port in ";
  for (const std::string host : {"root@10.0.0.3:22", "10.0.0.3:22", "[fd00::3]:22", "alpha:22"})
    CHECK_THAT(error_of_second("", host),
               StartsWith("run.toml:8:8: node.host: \"" + host + "\"" + port) &&
                   ContainsSubstring("ssh_options = [\"-p\", \"22\"]"));
  CHECK_THAT(error_of_second("", "ssh://root@10.0.0.3:22"), ContainsSubstring("is a URI; write"));
  for (const std::string host : {"[fd00::3]", "a:b:c", "10.0.0.3:22:33"})
    CHECK_THAT(error_of_second("", host), ContainsSubstring("\" is no host; write HOST or USER"));
  for (const std::string host : {"fd00::3", "root@fd00::3", "root@10.0.0.3", "user@alpha"})
    CHECK(error_of_second("", host) == "accepted");
}

TEST_CASE("an address at which no other host can reach a node is refused before anything starts") {
  const std::string at = "run.toml:9:11: node.address: ";
  for (const std::string any : {"0.0.0.0", "::", "[::]:0", "0.0.0.0:4711", "0"})
    CHECK_THAT(error_of_second("address = \"" + any + "\"\n"),
               StartsWith(at) && ContainsSubstring("stands for all addresses of a host") &&
                   ContainsSubstring("or its network (network = \"10.0.0.0/8\")"));
  for (const std::string local : {"fe80::1", "[fe80::1]:4711", "fe80::1%eth0"})
    CHECK_THAT(error_of_second("address = \"" + local + "\"\n"),
               StartsWith(at) && ContainsSubstring("is a link-local address") &&
                   ContainsSubstring("(a zone, such as %eth0); name another address"));
  for (const std::string own : {"127.0.0.1", "[::1]:0", "127.1"})
    CHECK_THAT(
        error_of_second("address = \"" + own + "\"\n"),
        StartsWith(at) && ContainsSubstring("is an address that only its own host reaches") &&
            ContainsSubstring("as 10.0.0.2; name the address") && !ContainsSubstring("/etc/hosts"));
  for (const std::string port : {"10.0.0.3:99999", "10.0.0.3:http", ":4711"})
    CHECK_THAT(error_of_second("address = \"" + port + "\"\n"),
               StartsWith(at) && ContainsSubstring("with a port from 0 to 65535"));
  for (const std::string good : {"10.0.0.3", "10.0.0.3:4711", "fd00::3", "[fd00::3]:0", "beta"})
    CHECK(error_of_second("address = \"" + good + "\"\n") == "accepted");
}

TEST_CASE("a launch of one machine over ssh may listen at its loopback address") {
  CHECK(error_in("[pipeline]\nstages = 1\n[cluster]\nlaunch = \"ssh\"\n[[node]]\nname = "
                 "\"alpha\"\nhost = \"root@localhost\"\naddress = \"127.0.0.1\"\n") == "accepted");
}

TEST_CASE("link-local addresses are refused wherever somebody is to listen at them") {
  CHECK_THAT(error_of_second("network = \"fe80::/10\"\n"),
             StartsWith("run.toml:9:11: node.network: \"fe80::/10\" is a link-local address"));
  CHECK_THAT(error_in("[link]\nlisten = \"[fe80::1]:0\"\n"),
             StartsWith("run.toml:2:10: link.listen: \"fe80::1\" is a link-local address"));
  CHECK_THAT(error_of_second("", "fe80::3%eth0"),
             StartsWith("run.toml:8:8: node.host: \"fe80::3%eth0\" is a link-local address") &&
                 ContainsSubstring("--listen ([link] listen)"));
  CHECK(error_of_second("[link]\nlisten = \"10.0.0.1:0\"\n", "fe80::3%eth0") == "accepted");
}

TEST_CASE("a trainer over hosts names the address that they are to connect to") {
  CHECK_THAT(error_of_second("[link]\nlisten = \"0.0.0.0:0\"\n"),
             StartsWith("run.toml:10:10: link.listen: \"0.0.0.0\" stands for all addresses") &&
                 ContainsSubstring("name the address that all of them reach"));
}
