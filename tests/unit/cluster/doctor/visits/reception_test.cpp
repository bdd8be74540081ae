#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cluster/doctor/edge_plan_core.hpp"
#include "cluster/doctor/edges/words.hpp"
#include "cluster/doctor/facts/facts_text.hpp"
#include "cluster/doctor/tour.hpp"
#include "cluster/doctor/visits/guest.hpp"
#include "cluster/doctor/visits/reception.hpp"
#include "messages/link/link_options.hpp"

using namespace troupe;
using namespace troupe::cluster;
using namespace troupe::cluster::doctor;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

namespace {

messages::link_options with_secret(const messages::cluster_secret& secret) {
  messages::link_options out;
  out.secret = secret;
  return out;
}

/// A process that connects to a reception, says one thing, and answers as the test has it.
class caller {
 public:
  using answering = std::function<void(messages::link&, peer_id, const messages::frame&)>;

  caller(const reception& to, const messages::cluster_secret& secret, messages::frame said,
         answering answer = {})
      : answer_(std::move(answer)) {
    auto made = messages::make_link(with_secret(secret),
                                    {.on_peer_up = [](peer_id) {},
                                     .on_frame =
                                         [this](peer_id peer, const messages::frame& heard) {
                                           if (answer_) answer_(*link_, peer, heard);
                                         },
                                     .on_peer_down =
                                         [this](peer_id, const error& why) {
                                           const std::lock_guard lock(mutex_);
                                           end_ = why;
                                           changed_.notify_all();
                                         }});
    REQUIRE(made);
    link_ = std::move(*made);
    link_->connect(to.address(), 5s, [this, what = std::move(said)](const result<peer_id>& peer) {
      if (peer) link_->send(*peer, what, {});
    });
  }

  /// How the reception has ended the connection.
  error end() {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, 10s, [this] { return end_.has_value(); }));
    return *end_;
  }

 private:
  const answering answer_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<error> end_;
  std::unique_ptr<messages::link> link_;  // its thread calls into the rest
};

/// As a process says it that comes to join a run.
messages::frame hello_of(const std::string& name, const std::string& build) {
  messages::frame out{.kind = messages::frame_kind::hello};
  out.body.push_back({"hello",
                      {{name},
                       {std::string("127.0.0.1:1")},
                       {std::string("host")},
                       {std::string("network")},
                       {std::int64_t{1}},
                       {std::int64_t{1}},
                       {build}}});
  return out;
}

std::unique_ptr<reception> open_for(const messages::cluster_secret& secret,
                                    std::chrono::milliseconds patience) {
  auto opened = reception::open({.link = with_secret(secret),
                                 .listen = "127.0.0.1:0",
                                 .names = {"stage-0", "stage-1"},
                                 .own = {"home", "/opt/trainer", "b1"},
                                 .patience = patience});
  REQUIRE(opened);
  return std::move(*opened);
}

/// Answers each request with a fact, and goes when it is told that this is all.
void answer_as_guest(messages::link& by, peer_id doctor, const messages::frame& asked) {
  const auto& word = asked.body.front().type;
  if (word == words::leave) return by.close(doctor, {errc::cancelled, "it is over"});
  const auto* const process = field_of<std::string>(asked, 0);
  if (word != words::start || process == nullptr) return;  // that the doctor is alive
  host_facts facts;
  facts.host = "alpha";
  for (const auto& line : lines_of(facts))
    by.send(doctor, saying(words::line, {{*process}, {std::int64_t{0}}, {line}}), {});
  by.send(doctor, saying(words::end, {{*process}, {std::int64_t{0}}, {std::int64_t{0}}}), {});
}

}  // namespace

TEST_CASE("Who comes to join a run is told that a doctor is there, unless no run would admit it") {
  const auto secret = messages::cluster_secret::random();
  const auto here = open_for(secret, 1min);
  CHECK(has_met_doctor(caller(*here, secret, hello_of("stage-0", "b1")).end()));
  const auto unknown = caller(*here, secret, hello_of("stage-7", "b1")).end();
  CHECK(unknown.code == errc::bad_config);
  CHECK_FALSE(has_met_doctor(unknown));
  CHECK_THAT(unknown.text,
             ContainsSubstring("this run has no node 'stage-7'; it has stage-0, stage-1"));
  const auto other = caller(*here, secret, hello_of("stage-0", "b2")).end();
  CHECK_FALSE(has_met_doctor(other));
  CHECK_THAT(other.text, ContainsSubstring("is another build of the program, b2 and not b1"));
}

TEST_CASE("A guest serves the doctor's requests, and no other comes under its name") {
  const auto secret = messages::cluster_secret::random();
  const auto here = open_for(secret, 1min);
  caller guest(*here, secret, saying(words::visit, {{std::string("stage-0")}}), answer_as_guest);
  auto visit = here->await("stage-0");
  REQUIRE(visit);
  const auto said = (*visit)->ask(requests::facts{}, 10s);
  CHECK(said.error.empty());
  const auto facts = decode_host(said.lines);
  REQUIRE(facts);
  CHECK(facts->host == "alpha");
  const auto taken = caller(*here, secret, hello_of("stage-0", "b1")).end();
  CHECK_THAT(taken.text, ContainsSubstring("the name 'stage-0' is taken"));
  visit->reset();  // which waits until the guest has gone
  CHECK(guest.end().code != errc::bad_config);
}

TEST_CASE("Who never comes to a doctor is said with how it joins, and whom the doctor refused") {
  const auto here = open_for(messages::cluster_secret::random(), 2s);
  const caller stranger(*here, messages::cluster_secret::random(), hello_of("stage-1", "b1"));
  const auto absent = here->await("stage-1");
  REQUIRE_FALSE(absent);
  CHECK(absent.error().code == errc::timed_out);
  CHECK_THAT(absent.error().text,
             ContainsSubstring("it has not joined within 2 s") &&
                 ContainsSubstring("(a connection was refused: ") &&
                 ContainsSubstring("; start it while doctor waits: troupe join 127.0.0.1:") &&
                 ContainsSubstring(" --name stage-1 --secret-file FILE"));
}

TEST_CASE("There are never more edges than examiners for them") {
  for (const std::uint32_t stages : {1U, 2U, 3U, 8U})
    for (const std::uint32_t replicas : {1U, 2U, 4U}) {
      pipeline_config pipeline;
      pipeline.stages = stages;
      pipeline.replicas = replicas;
      std::vector<std::size_t> places;  // each on a node of its own
      for (std::size_t i = 0; i < std::size_t{stages} * replicas; ++i) places.push_back(i + 1);
      const auto nodes = places.size() + 1;
      CHECK(edges_to_probe(nodes, places, stages, true).size() <= most_edges(pipeline, nodes));
    }
}
