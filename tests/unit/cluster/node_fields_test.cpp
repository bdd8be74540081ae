// Every field of [cluster] and [[node]] wrong in turn: each in every way in which one of its kind
// can be, by the table that validates, and then in the ways that are its own.

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cluster/config/option_fields.hpp"
#include "tests/unit/cluster/config_fixture.hpp"

namespace {

using namespace troupe;
using namespace troupe::cluster;
using namespace troupe::cluster::testing;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;

/// A TOML value of another kind than the field's, and how an error calls it.
std::pair<std::string, std::string> wrong_kind_for(const option& entry) {
  if (std::holds_alternative<text_field>(entry.field)) return {"7", "the integer 7"};
  if (std::holds_alternative<list_field>(entry.field)) return {"7", "the integer 7"};
  return {"\"seven\"", "the text \"seven\""};
}

/// Values of the field's kind that are not allowed: out of range, no such word, a wrong element.
std::vector<std::string> not_allowed(const option& entry) {
  if (const auto* whole = std::get_if<integer_field>(&entry.field)) {
    std::vector<std::string> values{std::to_string(whole->least - 1)};
    if (whole->most < fields::any) values.push_back(std::to_string(whole->most + 1));
    return values;
  }
  if (std::holds_alternative<number_field>(entry.field)) return {"-1.5", "1e9", "nan"};
  if (const auto* words = std::get_if<text_field>(&entry.field))
    return words->allowed.empty() ? std::vector<std::string>{}
                                  : std::vector<std::string>{"\"nosuchword\""};
  if (std::holds_alternative<list_field>(entry.field)) return {"[true]", "[\"\"]"};
  return {};
}

std::string table_line(const option& entry) {
  return entry.repeated ? "[[" + entry.table + "]]\n" : "[" + entry.table + "]\n";
}

/// The first error of a file, without the file's name.
std::string error_in(const std::string& text) {
  const folder here;
  const auto file = here.write("run.toml", text);
  const auto error = error_of({"--config", file});
  return error.starts_with(file) ? "run.toml" + error.substr(file.size()) : error;
}

std::vector<option> fields_of_cluster() {
  std::vector<option> found;
  for (auto& entry : option_table(trainer))
    if (entry.table == "cluster" || entry.table == "node") found.push_back(std::move(entry));
  return found;
}

}  // namespace

TEST_CASE(
    "every field of [cluster] and [[node]] refuses what is not of its kind, with all it takes") {
  const auto fields = fields_of_cluster();
  REQUIRE(fields.size() >= 16);
  for (const auto& entry : fields) {
    const auto [value, found] = wrong_kind_for(entry);
    const auto column = std::to_string(entry.key.size() + 4);
    const auto allowed = allowed_values(entry);
    CHECK(error_in(table_line(entry) + entry.key + " = " + value + "\n") ==
          "run.toml:2:" + column + ": " + entry.name() + ": expected " +
              std::string(kind_name(entry)) + ", got " + found +
              (allowed.empty() ? "" : "; allowed: " + allowed));
  }
}

TEST_CASE("every field of [cluster] and [[node]] refuses what it does not allow") {
  for (const auto& entry : fields_of_cluster()) {
    for (const auto& value : not_allowed(entry)) {
      const auto error = error_in(table_line(entry) + entry.key + " = " + value + "\n");
      INFO(entry.name() << " = " << value << " gives " << error);
      CHECK(error.starts_with("run.toml:2:"));
      CHECK_THAT(error, ContainsSubstring(": " + entry.name() + ": "));
      CHECK_THAT(error, ContainsSubstring(allowed_values(entry)));
    }
  }
}

TEST_CASE("every field of [cluster] and [[node]] is the nearest of its misspelt self") {
  for (const auto& entry : fields_of_cluster()) {
    const std::string misspelt = entry.key + "s";
    const auto error = error_in(table_line(entry) + misspelt + " = 1\n");
    INFO(error);
    CHECK(error.starts_with("run.toml:2:1: " + entry.table + "." + misspelt + ": unknown key; "));
    CHECK_THAT(error, ContainsSubstring("did you mean " + entry.key + "?"));
    CHECK_THAT(error, ContainsSubstring("; allowed: "));
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
                   ContainsSubstring("(a zone, as %eth0); name another address"));
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
