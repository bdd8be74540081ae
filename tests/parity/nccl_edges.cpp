// Stages in different processes, each on a device of its own, send each other activations and
// gradients by the NCCL of tests, to the bits of links, and what goes wrong there fails their step.

#include "actors/stage/edges/edge_ports.hpp"
#include "tests/parity/nccl_company.hpp"
#include "tests/sim/collective/simulated_ports.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;

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
  what.edges = true;
  const int sent = library().calls_of("ncclSend"), received = library().calls_of("ncclRecv");
  const auto by_nccl = train(what, devices, nccl_maker(), separate_homes(processes));
  CHECK(library().calls_of("ncclSend") > sent);
  CHECK(library().calls_of("ncclRecv") > received);
  check_nothing_found();
  check_same(by_links, by_nccl);
}

const task two_stages{.build = decoder,
                      .batches = sentences({8, 8}),
                      .cuts = {2},
                      .optimizer = "adamw",
                      .options = {},
                      .edges = true};

/// Of the first batch.
std::future<result<actors::step_outcome>> begin_step(actors::pipeline& pipeline) {
  return std::async(std::launch::async, [&pipeline] {
    return pipeline.train(two_stages.batches.front(), microbatches, rate);
  });
}

void refuses(const std::vector<c10::Device>& devices, homes in, const std::string& why) {
  company all(two_stages, devices, nccl_maker(), std::move(in));
  const auto made = all.try_compose(two_stages);
  REQUIRE_FALSE(made);
  CHECK_THAT(made.error().text, ContainsSubstring(why));
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
  what.edges = true;
  for (std::uint64_t drawn = 1; drawn <= 4; ++drawn) {
    INFO("seed " << drawn);
    const auto world = std::make_shared<simulated_maker>(simulated_terms{.seed = drawn});
    const auto found = train(what, {c10::Device(c10::kCPU)}, world, separate_homes(2));
    CHECK(world->messages() > 0);
    check_same(expected, found);
  }
}

TEST_CASE("What is announced out of turn, or is no tensor, is refused by the name of its edge") {
  const simulated_maker world;
  const auto invitation = world.invite(2, engine::socket_reach::loopback);
  REQUIRE(invitation);
  actors::edge_port place;
  place.number = 7;
  place.name = "activations from stage-0 to stage-1";
  place.invitation = *invitation;
  auto ports = actors::edge_ports::join({place}, world, c10::Device(c10::kCPU));
  REQUIRE(ports);
  const engine::device_streams streams{c10::Device(c10::kCPU)};
  const auto refusal = [&](const actors::announced_tensor& what) {
    const auto begun = ports->receive(what, streams, [](engine::edge, const auto&) {});
    REQUIRE_FALSE(begun);
    return begun.error();
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
  const simulated_maker world;
  const engine::device_streams streams{c10::Device(c10::kCPU)};
  auto ports = actors::edge_ports::join({}, world, c10::Device(c10::kCPU));
  REQUIRE(ports);
  const actors::announced_tensor of_before{.port = 6, .shape = {2}, .strides = {1}};
  bool told = false;
  const auto left_out =
      ports->receive(of_before, streams, [&told](engine::edge, const auto&) { told = true; });
  CHECK(left_out);
  CHECK_FALSE(told);
}

TEST_CASE("Evaluations send by NCCL, which a line at the start of a run says") {
  const prepared ready;
  task what{.build = resnet, .batches = images({8, 5}), .cuts = {5}};
  company near(what, {c10::Device(c10::kCPU)});
  const auto expected = train(near, what);
  what.edges = true;
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
  auto pipeline = all.compose(two_stages);
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
  auto pipeline = all.compose(two_stages);
  script("ncclSend", "stall");
  auto step = begin_step(pipeline);
  REQUIRE(step.wait_for(30s) == std::future_status::ready);
  const auto outcome = step.get();
  REQUIRE_FALSE(outcome);
  CHECK(outcome.error().code == errc::timed_out);
  CHECK_THAT(outcome.error().text,
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
