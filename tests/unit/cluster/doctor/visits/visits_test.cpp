#include <signal.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cluster/doctor/facts/facts_text.hpp"
#include "cluster/doctor/visits/node_visit.hpp"
#include "cluster/doctor/visits/visit_mailbox.hpp"

using namespace troupe;
using namespace troupe::cluster;
using namespace troupe::cluster::doctor;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

namespace {

const std::string a_fact = std::string(facts_mark) + "{\"cores\":4}";

/// A node whose processes say what a test has them say as they begin, and whose ends a test tells.
struct scripted_node {
  std::shared_ptr<visit_mailbox> box = std::make_shared<visit_mailbox>();
  std::vector<std::string> started = {};
  std::vector<std::string> killed = {};
  std::function<void(const std::string& process)> on_start = [](const auto&) {};
  std::function<void(const std::string& process)> on_kill = [](const auto&) {};

  visit_means means() {
    return {.start = [this](const std::string& process, const std::string&) -> result<void> {
              started.push_back(process);
              on_start(process);
              return {};
            },
            .kill =
                [this](const std::string& process) {
                  killed.push_back(process);
                  on_kill(process);
                },
            .leave = [] {}};
  }
};

}  // namespace

TEST_CASE("What a node says of a process that nobody has started there is not kept") {
  visit_mailbox box;
  box.hear("stranger", output_stream::out, a_fact);
  box.hear("stranger", output_stream::err, "trouble");
  box.note_end({.name = "stranger"});
  CHECK(box.processes.empty());
}

TEST_CASE("A process that says too much is ended, and nothing that it said is kept") {
  const std::string too_long = std::string(visit_mailbox::longest_line + 1, 'x');
  for (const bool is_by_lines : {true, false}) {
    scripted_node node;
    node.on_start = [&](const std::string& process) {
      for (std::size_t i = 0; i < visit_mailbox::most_lines; ++i)
        node.box->hear(process, output_stream::out, a_fact);
      if (is_by_lines)
        node.box->hear(process, output_stream::out, a_fact);
      else
        node.box->hear(process, output_stream::err, too_long);
      node.box->hear(process, output_stream::out, a_fact);
    };
    node.on_kill = [&](const std::string& process) {
      node.box->note_end({.name = process, .signal = SIGKILL});
    };
    node_visit visit(node.box, node.means());
    const auto said = visit.ask(requests::facts{}, 10s);
    CHECK_THAT(said.error, ContainsSubstring("it says more than a process of this program would"));
    CHECK(said.lines.empty());
    CHECK(node.killed == node.started);
    CHECK(node.box->processes.at(node.started.front()).lines.empty());
  }
}

TEST_CASE("No process is started under the name of one that has not ended yet") {
  scripted_node node;
  node.on_start = [&](const std::string& process) {
    node.box->hear(process, output_stream::out, a_fact);
  };
  node_visit visit(node.box, node.means());
  CHECK(visit.begin(requests::listen{}, 10s).error.empty());
  CHECK_THAT(visit.begin(requests::listen{}, 10s).error, ContainsSubstring("has not ended"));
  REQUIRE(node.started.size() == 1);
  node.box->note_end({.name = node.started.front(), .signal = SIGKILL});
  const auto next = visit.begin(requests::listen{}, 10s);
  CHECK(next.error.empty());
  CHECK(next.lines.size() == 1);
  CHECK(node.started.size() == 2);
}
