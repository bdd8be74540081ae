// Heartbeats carry what a node tells, and a node can be declared lost.

#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <utility>

#include "actors/base/errors.hpp"
#include "actors/remote/node.hpp"
#include "actors/remote/progress_board.hpp"
#include "actors/system.hpp"
#include "messages/link/loopback/loopback.hpp"

namespace {

using namespace troupe;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

constexpr auto patience = 10s;

struct member {
  member(const messages::loopback_network& network, actors::node_settings settings)
      : system(config) {
    settings.on_node_down = [this](const auto&, const error& why) {
      if (!std::exchange(is_down, true)) down.set_value(why);
    };
    auto started = actors::node::start(system, types, std::move(settings), [network](auto events) {
      return messages::make_loopback_link(network, std::move(events));
    });
    REQUIRE(started);
    node = std::move(*started);
  }

  actors::message_registry types;
  actors::system_config config;
  bool is_down = false;
  std::promise<error> down;
  caf::actor_system system;
  std::unique_ptr<actors::node> node;
};

}  // namespace

TEST_CASE("What a node's threads are at arrives with its heartbeats, while they are at it") {
  const auto board = std::make_shared<actors::progress_board>(100ms);
  const auto doing = std::make_shared<engine::activity>();
  board->watch("arithmetic", doing);
  doing->begin({.kind = engine::work_kind::forward, .step = 17, .microbatch = 3}, {});

  std::promise<actors::progress_report> late;
  bool told = false;
  const messages::loopback_network network;
  member stage(network, {.name = "stage-1", .tell = [board] {
                           return board->tell(std::chrono::steady_clock::now());
                         }});
  member trainer(network,
                 {.name = "trainer", .on_told = [&](const auto& node, const auto& elements) {
                    if (elements.size() != 1 || node != "stage-1") return;  // and late never comes
                    const auto report = actors::to_report(elements[0]);
                    if (report && report->running_s > 0.3 && !std::exchange(told, true))
                      late.set_value(*report);
                  }});
  REQUIRE(trainer.node->join(stage.node->address(), patience) == "stage-1");
  auto outcome = late.get_future();
  REQUIRE(outcome.wait_for(patience) == std::future_status::ready);
  const auto report = outcome.get();
  CHECK(report.thread == "arithmetic");
  CHECK(report.kind == engine::work_kind::forward);
  CHECK(report.what == "forward of micro-batch 3, step 17");
}

TEST_CASE("A node that is declared lost is lost, and hears why") {
  const messages::loopback_network network;
  member stage(network, {.name = "stage-1"});
  member trainer(network, {.name = "trainer"});
  const auto mute = stage.system.spawn([](caf::event_based_actor* self) -> caf::behavior {
    return {[self](int) { return self->make_response_promise<int>(); }};
  });
  stage.node->publish("mute", caf::actor_cast<caf::strong_actor_ptr>(mute));
  REQUIRE(trainer.node->join(stage.node->address(), patience) == "stage-1");
  const auto found = trainer.node->find("stage-1", "mute", patience);
  REQUIRE(found);
  caf::scoped_actor self(trainer.system);
  auto question = self->request(caf::actor_cast<caf::actor>(*found), patience, 1);
  trainer.node->lose("stage-1", {errc::timed_out, "it hangs"});
  question.receive([](int) { FAIL("it answered"); },
                   [](const caf::error& why) {
                     CHECK(actors::from_caf(why).code == errc::peer_lost);
                     CHECK(actors::from_caf(why).text == "node 'stage-1' is gone: it hangs");
                   });
  auto heard = stage.down.get_future();
  REQUIRE(heard.wait_for(patience) == std::future_status::ready);
  CHECK_THAT(heard.get().text,
             ContainsSubstring("node 'trainer' has cut node 'stage-1' off: it hangs"));
  caf::anon_send_exit(mute, caf::exit_reason::user_shutdown);
}
