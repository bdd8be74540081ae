// Stages in different processes, each on a device of its own, send each other activations and
// gradients by the NCCL of tests, to the bits of links, and what goes wrong there fails their step.

#include <ATen/ops/ones.h>

#include <caf/actor_cast.hpp>
#include <caf/event_based_actor.hpp>

#include "actors/stage/edges/edge_ports.hpp"
#include "tests/parity/edges/watched_ports.hpp"
#include "tests/parity/nccl_company.hpp"
#include "tests/refusal.hpp"
#include "tests/sim/collective/simulated_ports.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;

/// What the two ends of a port move when they join, and how many ports two neighbours have: two,
/// and with several chunks four.
constexpr int transfers_to_meet = 1, most_ports = 4;

/// Waits until the ports of two stages with one chunk have met. `sent`: the calls before.
void wait_until_met(int sent) {
  while (library().calls_of("ncclSend") < sent + 2 * transfers_to_meet) std::this_thread::yield();
}

/// Every stage is in another process than its neighbours, and on another device.
void check_edges(task what, std::size_t stages) {
  INFO(what.schedule << ", " << what.replicas << " replicas of " << stages << " stages");
  const auto on_cpu = train(what, {c10::Device(c10::kCPU)});
  const auto devices = cards(static_cast<int>(stages * what.replicas));
  const auto processes = stages * what.replicas;
  fake::reset();
  const auto by_links = train(what, devices, nccl_maker(), separate_homes(processes));
  check_same(on_cpu, by_links);
  fake::reset();
  what.edges = engine::edge_transport::nccl;
  const int sent = library().calls_of("ncclSend"), received = library().calls_of("ncclRecv");
  const auto by_nccl = train(what, devices, nccl_maker(), separate_homes(processes));
  const int met = static_cast<int>(processes) * most_ports * transfers_to_meet;
  CHECK(library().calls_of("ncclSend") > sent + met);
  CHECK(library().calls_of("ncclRecv") > received + met);
  check_nothing_found();
  check_same(by_links, by_nccl);
}

const task two_stages = two_stages_by(engine::edge_transport::nccl);

/// Of the first batch.
std::future<result<actors::step_outcome>> begin_step(actors::pipeline& pipeline) {
  return std::async(std::launch::async, [&pipeline] {
    return pipeline.train(two_stages.batches.front(), microbatches, rate);
  });
}

void refuses(const std::vector<c10::Device>& devices, homes in, const std::string& why) {
  company all(two_stages, devices, nccl_maker(), std::move(in));
  CHECK_THAT(error_of(all.try_compose(two_stages)).text, ContainsSubstring(why));
}

/// Of their sender, stage-1, which begins when stage-0 has.
actors::edge_port port_of_gradients(const simulated_maker& world) {
  actors::edge_port place;
  place.on = engine::edge::gradient;
  place.number = 7;
  place.sends = true;
  place.receiver_first = true;
  place.name = "gradients from stage-1 to stage-0";
  place.invitation = world.invite(2, engine::socket_reach::loopback, c10::kCPU).value();
  return place;
}

result<actors::edge_ports> join_on_cpu(const std::vector<actors::edge_port>& places,
                                       const maker& by) {
  return actors::edge_ports::join(places, {.sums = by}, c10::Device(c10::kCPU));
}

}  // namespace

TEST_CASE("Two stages in different processes send by NCCL to the bits of links") {
  const prepared ready;
  check_edges({.build = resnet, .batches = images({9, 8}), .cuts = {5}}, 2);
  check_edges({.build = decoder,
               .batches = sentences({8, 7, 8}),
               .cuts = {2},
               .schedule = "zb-h1",
               .optimizer = "adamw",
               .options = {},
               .clip_norm = 0.1},
              2);
}

TEST_CASE("Stages of several chunks send by NCCL in both directions to the bits of links") {
  const prepared ready;
  for (const char* const schedule : {"interleaved-1f1b", "zb-v"})
    check_edges({.build = resnet, .batches = images({8}), .cuts = {3, 5, 7}, .schedule = schedule},
                2);
  check_edges({.build = resnet, .batches = images({9}), .cuts = {3, 5, 7}, .schedule = "gpipe"}, 4);
}

TEST_CASE("Replicas that sum by NCCL send by it too, to the bits of links") {
  const prepared ready;
  check_edges({.build = decoder,
               .batches = sentences({8, 1, 7}),  // one of them has nothing in the second
               .cuts = {2},
               .optimizer = "adamw",
               .options = {},
               .replicas = 2,
               .shares_state = true},
              2);
  check_edges({.build = normed_by_operators,
               .batches = images({16}),
               .cuts = {3},
               .replicas = 2,
               .synced_norm = true},
              2);
}

TEST_CASE("By a simulated library, whatever its seed, stages on CPUs send to the bits of links") {
  const prepared ready;
  task what{.build = decoder,
            .batches = sentences({8, 3}),
            .cuts = {2},
            .schedule = "zb-h1",
            .optimizer = "adamw",
            .options = {}};
  const auto expected = train(what, {c10::Device(c10::kCPU)});
  what.edges = engine::edge_transport::nccl;
  for (std::uint64_t drawn = 1; drawn <= 4; ++drawn) {
    INFO("seed " << drawn);
    const auto world = std::make_shared<simulated_maker>(simulated_terms{.seed = drawn});
    const auto found = train(what, {c10::Device(c10::kCPU)}, world, separate_homes(2));
    CHECK(world->messages() > 2 * transfers_to_meet);
    check_same(expected, found);
  }
}

TEST_CASE("Of two stages the first begins each transfer, and the other when that is under way") {
  const prepared ready;
  const std::uint32_t sender = 0, receiver = 1;
  const std::set<std::uint32_t> by_sender{sender}, by_receiver{receiver};
  const auto first_of = [](task what) {
    what.edges = engine::edge_transport::nccl;
    const auto watched = std::make_shared<watched_maker>(nccl_maker());
    static_cast<void>(train(what, cards(2), watched, separate_homes(2)));
    return watched->log().first();
  };
  CHECK(first_of(two_stages) == std::map<std::string, std::set<std::uint32_t>>{
                                    {"activations from stage-0 to stage-1", by_sender},
                                    {"gradients from stage-1 to stage-0", by_receiver}});
  CHECK(first_of({.build = resnet,
                  .batches = images({8}),
                  .cuts = {3, 5, 7},
                  .schedule = "interleaved-1f1b"}) ==
        std::map<std::string, std::set<std::uint32_t>>{
            {"activations from stage-0 to stage-1", by_sender},
            {"activations from stage-1 to stage-0", by_receiver},
            {"gradients from stage-0 to stage-1", by_sender},
            {"gradients from stage-1 to stage-0", by_receiver}});
  check_nothing_found();
}

TEST_CASE("What is awaited and was not announced is refused by the name of its edge") {
  const auto world = std::make_shared<simulated_maker>();
  auto ports = join_on_cpu({port_of_gradients(*world)}, world);
  REQUIRE(ports);
  const engine::device_streams streams{c10::Device(c10::kCPU)};
  const auto refusal = error_of(ports->send_awaited({.port = 7, .place = 0}, streams));
  CHECK(refusal.code == errc::bad_frame);
  CHECK(refusal.text ==
        "gradients from stage-1 to stage-0: tensor 0 is awaited, and none is announced");
}

TEST_CASE("What a receiver has not begun when it goes, and what is sent there later, is lost") {
  const auto world = std::make_shared<simulated_maker>();
  home here;
  const auto other = here.system.spawn([]() -> caf::behavior { return {[](int) {}}; });
  auto place = port_of_gradients(*world);
  place.other = caf::actor_cast<caf::strong_actor_ptr>(other);
  auto ports = join_on_cpu({place}, world);
  REQUIRE(ports);
  const auto stage = caf::actor_cast<actors::stage_actor>(place.other);
  const engine::device_streams streams{c10::Device(c10::kCPU)};
  std::vector<error> told;
  const auto send = [&] {
    return ports->send(
        engine::edge::gradient, stage, actors::microbatch_key{}, at::ones({2}), nullptr, streams,
        [](const actors::announced_tensor&) {}, [&told](const error& why) { told.push_back(why); });
  };
  CHECK(send());
  CHECK(told.empty());
  ports->lose(other.address());
  CHECK(told.size() == 1);
  CHECK(send());
  const error lost{errc::peer_lost,
                   "gradients from stage-1 to stage-0: the stage at its other end is gone"};
  CHECK((told == std::vector<error>{lost, lost}));
  CHECK(ports->send_awaited({.port = 7}, streams));  // it may have been on its way
}

TEST_CASE("What is announced out of turn, or is no tensor, is refused by the name of its edge") {
  const auto world = std::make_shared<simulated_maker>();
  const auto invitation = world->invite(2, engine::socket_reach::loopback, c10::kCPU).value();
  actors::edge_port place;
  place.number = 7;
  place.name = "activations from stage-0 to stage-1";
  place.invitation = invitation;
  auto ports = join_on_cpu({place}, world);
  REQUIRE(ports);
  const engine::device_streams streams{c10::Device(c10::kCPU)};
  const auto refusal = [&](const actors::announced_tensor& what) {
    return error_of(ports->receive(
        what, streams, [](const auto&, const auto&) {}, [](engine::edge, const auto&) {}));
  };
  const actors::announced_tensor good{.port = 7, .shape = {2}, .strides = {1}};
  auto late = good;
  late.place = 1;
  CHECK(refusal(late).code == errc::bad_frame);
  CHECK(refusal(late).text ==
        "activations from stage-0 to stage-1: tensor 1 was announced where 0 is the next");
  auto negative = good;
  negative.shape = {-2};
  CHECK(refusal(negative).code == errc::bad_frame);
  CHECK_THAT(refusal(negative).text, ContainsSubstring("a tensor has a size of -2"));
}

TEST_CASE("What is announced for the ports of an earlier connection is left out") {
  const auto world = std::make_shared<simulated_maker>();
  const engine::device_streams streams{c10::Device(c10::kCPU)};
  auto ports = join_on_cpu({}, world);
  REQUIRE(ports);
  const actors::announced_tensor of_before{.port = 6, .shape = {2}, .strides = {1}};
  bool told = false;
  const auto left_out = ports->receive(
      of_before, streams, [&told](const auto&, const auto&) { told = true; },
      [&told](engine::edge, const auto&) { told = true; });
  CHECK(left_out);
  CHECK(ports->send_awaited({.port = 6}, streams));
  CHECK_FALSE(told);
}

TEST_CASE("Evaluations send by NCCL, which a line at the start of a run says") {
  const prepared ready;
  task what{.build = resnet, .batches = images({8, 5}), .cuts = {5}};
  company near(what, {c10::Device(c10::kCPU)});
  const auto expected = train(near, what);
  what.edges = engine::edge_transport::nccl;
  company far(what, cards(2), nccl_maker(), separate_homes(2));
  const auto line = far.compose(what).edge_line();
  CHECK(line ==
        "stages in different processes send each other activations and gradients by NCCL 2.28.9");
  check_same(expected, train(far, what));
  check_nothing_found();
}

TEST_CASE("A stage that dies while NCCL sends has its neighbour abort within a second") {
  const prepared ready;
  company all(two_stages, cards(2), nccl_maker(), separate_homes(2));
  const int before = library().calls_of("ncclSend");
  auto pipeline = all.compose(two_stages);
  wait_until_met(before);
  script("ncclSend", "stall");
  const int aborts = library().calls_of("ncclCommAbort"), sent = library().calls_of("ncclSend");
  auto step = begin_step(pipeline);
  while (library().calls_of("ncclSend") == sent) std::this_thread::yield();
  const auto begin = std::chrono::steady_clock::now();
  all.kill(1);
  // Both ends of both ports: activations have one, and gradients.
  while (library().calls_of("ncclCommAbort") < aborts + 4 &&
         std::chrono::steady_clock::now() - begin < 10s)
    std::this_thread::yield();
  CHECK(std::chrono::steady_clock::now() - begin < 1s);
  CHECK(library().calls_of("ncclCommAbort") == aborts + 4);
  REQUIRE(step.wait_for(30s) == std::future_status::ready);
  CHECK_FALSE(step.get());
  CHECK_FALSE(begin_step(pipeline).get());
  CHECK(library().wrong_uses() == std::string());
}

TEST_CASE("A send that never ends fails the step at its deadline") {
  const prepared ready;
  company all(two_stages, cards(2), nccl_maker({.operation = 500ms}), separate_homes(2));
  const int before = library().calls_of("ncclSend");
  auto pipeline = all.compose(two_stages);
  wait_until_met(before);
  script("ncclSend", "stall");
  auto step = begin_step(pipeline);
  REQUIRE(step.wait_for(30s) == std::future_status::ready);
  CHECK_THAT(error_of(step.get(), errc::timed_out).text,
             ContainsSubstring("NCCL (activations from stage-0 to stage-1, rank ") &&
                 ContainsSubstring("is not done after 0.5 s: another rank is missing or stuck"));
}

TEST_CASE("Stages that cannot send by NCCL are refused in one line that says which and why") {
  const prepared ready;
  refuses(cards(1), separate_homes(2),
          "edges = \"nccl\": stage-0 and stage-1 share fake:0, and NCCL takes one rank a GPU; give "
          "each stage a GPU of its own; or leave it out, and links carry what stages send each "
          "other");
  refuses({c10::Device(c10::kCPU)}, separate_homes(2),
          "edges = \"nccl\": stage-0: NCCL is for GPUs, and the stage computes on the CPU; or");
  refuses(cards(2), {std::make_shared<home>()},
          "no two neighbouring stages are in different processes");
}
