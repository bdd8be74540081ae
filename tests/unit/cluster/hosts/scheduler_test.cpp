// What schedulers say of their hosts, and the stream on which they carry what a launcher and its
// agents say to each other.

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cluster/hosts/scheduler_core.hpp"
#include "cluster/launch/agents/agent_messages.hpp"
#include "cluster/launch/agents/stream_seal.hpp"
#include "cluster/launch/line_splitter.hpp"
#include "tests/refusal.hpp"

namespace {

using namespace troupe;
using namespace troupe::cluster;
using Catch::Matchers::ContainsSubstring;
using names = std::vector<std::string>;

/// Without spaces, as a credential is one word.
std::string text_to_word(std::string text) {
  for (auto& each : text)
    if (each == ' ') each = '+';
  return text;
}

std::string word_to_text(std::string word) {
  for (auto& each : word)
    if (each == '+') each = ' ';
  return word;
}

/// Credentials that anybody can read and, but for the user's name, make.
stream_witness witness_of(const std::string& user) {
  return {.vouch = [user](const std::string& text) { return user + ":" + text_to_word(text); },
          .check = [user](const std::string& credential) -> result<std::string> {
            if (!credential.starts_with(user + ":"))
              return fail(errc::bad_frame, "a credential of another user");
            return word_to_text(credential.substr(user.size() + 1));
          }};
}

std::string without_newline(std::string line) {
  REQUIRE(line.ends_with('\n'));
  line.pop_back();
  return line;
}

/// Both ends of a stream that have agreed on their keys.
struct agreed_stream {
  stream_seal launcher;
  stream_seal agent;

  agreed_stream(stream_witness left, stream_witness right)
      : launcher(stream_seal::end::launcher, std::move(left)),
        agent(stream_seal::end::agent, std::move(right)) {}

  /// The first error of either end; empty: they have agreed.
  std::string agree() {
    REQUIRE(launcher.take(magic_line()).value().clear == magic_line());
    const auto answer = launcher.take(without_newline(agent.opening().value()));
    if (!answer) return "launcher: " + answer.error().text;
    const auto end = agent.take(without_newline(answer->answer));
    return end ? "" : "agent: " + end.error().text;
  }
};

std::string clear_of(stream_seal& end, const std::string& line) {
  const auto what = end.take(line);
  REQUIRE(what);
  REQUIRE(what->clear);
  return *what->clear;
}

}  // namespace

TEST_CASE("a list of Slurm's nodes is expanded as scontrol shows it") {
  CHECK(expand_host_list("n1").value() == names{"n1"});
  CHECK(expand_host_list("alpha,beta").value() == names{"alpha", "beta"});
  CHECK(expand_host_list("n[1-3,7],login").value() == names{"n1", "n2", "n3", "n7", "login"});
  CHECK(expand_host_list("gpu[08-11]").value() == names{"gpu08", "gpu09", "gpu10", "gpu11"});
  CHECK(expand_host_list("r[0-1]n[1-2]-x").value() ==
        names{"r0n1-x", "r0n2-x", "r1n1-x", "r1n2-x"});
  for (const auto* wrong : {"", ",", "n[", "n]", "n[1", "n[a]", "n[3-1]", "n[]", "n[1-]",
                            "n[1-4000000000]", "n[1-60000]m[1-60000]"}) {
    INFO(wrong);
    REQUIRE_FALSE(expand_host_list(wrong));
    CHECK_THAT(expand_host_list(wrong).error().text, ContainsSubstring("not a list of Slurm's"));
  }
}

TEST_CASE("the cores of an allocation go to its hosts in order") {
  CHECK(slurm_hosts("n[1-3]", "8(x2),4").value() ==
        std::vector<given_host>{{"n1", 8}, {"n2", 8}, {"n3", 4}});
  CHECK(slurm_hosts("n1", "").value() == std::vector<given_host>{{"n1", 0}});
  for (const auto* wrong : {"8(x4)", "8,8,8,8", "x", "8(x", "8(xy)"}) {
    INFO(wrong);
    CHECK_FALSE(slurm_hosts("n[1-3]", wrong));
  }
}

TEST_CASE("a host file names hosts and slots, and what is wrong with it is said with its line") {
  CHECK(host_file_hosts(
            "# all\nalpha slots=2\n\n  beta\tslots=4 max_slots=8 # fast\nalpha slots=1\r\n")
            .value() == std::vector<given_host>{{"alpha", 3}, {"beta", 4}});
  CHECK(host_file_hosts("").value().empty());
  const auto wrong = error_of(host_file_hosts("alpha\nbeta cpus=2\n"));
  CHECK(wrong.text == "line 2: \"cpus=2\" is not slots=N or max_slots=N");
  CHECK_FALSE(host_file_hosts("alpha slots=many\n"));
}

TEST_CASE("nodes get the hosts and cores that a scheduler gives") {
  const std::vector<given_host> hosts{{"alpha", 8}, {"beta", 4}};
  const auto all = nodes_on({}, hosts, "the allocation", "ask for more").value();
  REQUIRE(all.size() == 2);
  CHECK(all[1].name == "beta");
  CHECK(all[1].host == "beta");
  CHECK(all[1].cores == 4);
  std::vector<node_entry> two(2);
  two[0].name = "first";
  two[1].name = "second";
  two[1].host = "alpha";
  two[1].cores = 2;
  const auto given = nodes_on(two, hosts, "the allocation", "ask for more").value();
  CHECK(given[0].host == "beta");
  CHECK(given[0].cores == 4);
  CHECK(given[1].cores == 2);
  two.resize(3);
  two[2].name = "third";
  CHECK(nodes_on(two, hosts, "the allocation", "ask for more").error().text ==
        "the allocation has 2 hosts (alpha, beta), but there are 3 [[node]] tables; ask for more, "
        "or take tables out");
  two[2].host = "gamma";
  CHECK(nodes_on(two, hosts, "the allocation", "ask for more").error().text ==
        "node third: gamma is not in the allocation, which has alpha, beta; take another host, or "
        "ask for more");
}

TEST_CASE("a sealed stream carries lines both ways, and shows none of them") {
  agreed_stream stream(witness_of("me"), witness_of("me"));
  CHECK(stream.agent.seal("before any key").empty());  // kept
  CHECK(stream.launcher.take("a prolog prints\n").value().clear == "a prolog prints\n");
  REQUIRE(stream.launcher.take(magic_line()));
  const auto answer = stream.launcher.take(without_newline(stream.agent.opening().value()));
  REQUIRE(answer);
  CHECK_FALSE(answer->clear);
  const auto kept = stream.agent.take(without_newline(answer->answer));
  REQUIRE(kept);
  CHECK(clear_of(stream.launcher, without_newline(kept->answer)) == "before any key");
  for (const std::string text : {"{\"secret\":\"00ff\"}", "", "{\"secret\":\"00ff\"}"}) {
    const auto line = without_newline(stream.launcher.seal(text));
    CHECK(line.find('\n') == std::string::npos);
    CHECK((text.empty() || line.find(text) == std::string::npos));
    CHECK(clear_of(stream.agent, line) == text);
    CHECK(clear_of(stream.launcher, without_newline(stream.agent.seal(text))) == text);
  }
  const auto longest = encode(agent_event(
      events::line{"stage-0", output_stream::out, std::string(most_text_bytes, '\x01')}));
  CHECK(stream.agent.seal(longest).size() < line_splitter::longest_line_bytes);
}

TEST_CASE(
    "a line of a sealed stream that was changed, left out, repeated or sent back is noticed") {
  for (const std::string how : {"changed", "left out", "repeated", "sent back", "in the clear"}) {
    INFO(how);
    agreed_stream stream({}, {});
    REQUIRE(stream.agree().empty());
    auto first = without_newline(stream.launcher.seal("one"));
    auto second = without_newline(stream.launcher.seal("two"));
    stream_seal* to = &stream.agent;
    if (how == "changed") first[3] = first[3] == 'A' ? 'B' : 'A';
    if (how == "left out") first = second;
    if (how == "repeated") {
      CHECK(clear_of(stream.agent, first) == "one");
    }
    if (how == "sent back") to = &stream.launcher;
    if (how == "in the clear") first = "{\"is\":\"alive\"}";
    CHECK_THAT(error_of(to->take(first)).text, ContainsSubstring("changed on its way"));
  }
}

TEST_CASE("whoever poses as an end of a stream is refused by its witness") {
  CHECK_THAT(agreed_stream(witness_of("me"), witness_of("mallory")).agree(),
             ContainsSubstring("launcher: a credential of another user"));
  CHECK_THAT(agreed_stream(witness_of("me"), {}).agree(),
             ContainsSubstring("launcher: a credential of another user"));
  CHECK_THAT(agreed_stream({}, witness_of("me")).agree(),
             ContainsSubstring("agent: a credential of another user"));
  // Somebody in the middle has a credential of the agent's, but puts a key of its own beside it.
  agreed_stream honest(witness_of("me"), witness_of("me"));
  stream_seal mallory(stream_seal::end::agent, {});
  REQUIRE(honest.launcher.take(magic_line()));
  const auto own = mallory.opening().value();
  const auto real = honest.agent.opening().value();
  const auto mixed = own.substr(0, own.rfind(' ')) + real.substr(real.rfind(' '));
  const auto what = error_of(honest.launcher.take(without_newline(mixed)));
  CHECK_THAT(what.text, ContainsSubstring("a credential for something else than its key"));
}

TEST_CASE("what is no key is refused where one must come") {
  const std::vector<std::string> wrong{"",
                                       "key",
                                       "key 00 -",
                                       "hello",
                                       "key " + std::string(64, 'g') + " -",
                                       "key " + std::string(64, '0') + " -",
                                       "key " + std::string(64, '0')};
  for (const auto& line : wrong) {
    INFO(line);
    stream_seal agent(stream_seal::end::agent, {});
    CHECK_FALSE(agent.take(line));
  }
}
