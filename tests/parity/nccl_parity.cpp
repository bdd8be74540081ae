// Replicas on the devices of tests sum by the NCCL of tests to the CPU's bits, and what goes wrong
// in NCCL fails their step. The same on CPUs by a simulated group.

#include <ATen/ops/empty.h>

#include "tests/parity/nccl_company.hpp"
#include "tests/refusal.hpp"
#include "tests/sim/collective/simulated_ports.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;

void check_parity(const task& what, int devices) {
  INFO(what.schedule << ", " << what.replicas << " replicas of " << what.cuts.size() + 1
                     << (what.shares_state ? " slices, shared state" : " slices"));
  const auto expected = train(what, {c10::Device(c10::kCPU)});
  fake::reset();
  const int operations = library().calls_of("ncclSend");
  const int fast = library().calls_of("ncclAllReduce");
  const auto found = train(what, cards(devices), nccl_maker());
  CHECK(found.line == "replicas sum their gradients by NCCL 2.28.9 in a fixed order");
  CHECK(library().calls_of("ncclSend") > operations);
  CHECK(library().calls_of("ncclAllReduce") == fast);
  check_nothing_found();
  check_same(expected, found);
}

}  // namespace

TEST_CASE("Replicas on devices sum by NCCL to the CPU's bits, with shared state too") {
  const prepared ready;
  for (const bool shares_state : {false, true}) {
    check_parity(
        {.build = resnet, .batches = images({9, 8}), .replicas = 2, .shares_state = shares_state},
        2);
    check_parity({.build = decoder,
                  .batches = sentences({8, 1, 7}),  // one of them has nothing in the second
                  .cuts = {2},
                  .schedule = "zb-h1",
                  .optimizer = "adamw",
                  .options = {},
                  .replicas = 2,
                  .shares_state = shares_state,
                  .clip_norm = 0.1},
                 4);
    check_parity({.build = decoder,
                  .batches = sentences({8, 3}),
                  .optimizer = "adamw",
                  .options = {},
                  .replicas = 4,
                  .shares_state = shares_state},
                 4);
  }
}

TEST_CASE("Replicas that sum by NCCL normalize together by messages, to the CPU's bits") {
  const prepared ready;
  check_parity({.build = normed_by_operators,
                .batches = images({16, 8}),
                .cuts = {3},
                .replicas = 2,
                .synced_norm = true},
               4);
}

TEST_CASE("Replicas sum by NCCL's own all-reduce where bits are not asked for, and say so") {
  const prepared ready;
  const task what{.build = decoder, .batches = sentences({8, 8}), .replicas = 2, .fast = true};
  const auto expected = train(what, {c10::Device(c10::kCPU)});
  CHECK_THAT(expected.line, ContainsSubstring("over links (NCCL is for GPUs"));
  const int before = library().calls_of("ncclAllReduce");
  const auto found = train(what, cards(2), nccl_maker());
  CHECK(found.line ==
        "replicas sum their gradients by NCCL 2.28.9 in its own order, which promises no bits "
        "(reduce = \"fast\")");
  CHECK(library().calls_of("ncclAllReduce") > before);
  check_nothing_found();
  for (std::size_t i = 0; i < found.weights.size(); ++i)
    CHECK(at::allclose(found.weights[i].tensor, expected.weights[i].tensor, 1e-4, 1e-5));
}

TEST_CASE("Replicas that share a device sum over links, to the same bits, and say why") {
  const prepared ready;
  const task what{.build = decoder, .batches = sentences({8}), .replicas = 2};
  const auto expected = train(what, {c10::Device(c10::kCPU)});
  const auto found = train(what, cards(1), nccl_maker());
  CHECK(found.line ==
        "replicas sum their gradients over links (stage-1 and stage-0 share fake:0: there are more "
        "replicas than GPUs)");
  check_same(expected, found);
}

TEST_CASE("By a simulated group, whatever its seed, replicas on CPUs train to the bits of links") {
  const prepared ready;
  for (const bool shares_state : {false, true}) {
    const task what{.build = decoder,
                    .batches = sentences({8, 3}),
                    .cuts = {2},
                    .optimizer = "adamw",
                    .options = {},
                    .replicas = 2,
                    .shares_state = shares_state};
    const auto expected = train(what, {c10::Device(c10::kCPU)});
    for (std::uint64_t drawn = 1; drawn <= 4; ++drawn) {
      INFO("seed " << drawn);
      const auto world =
          std::make_shared<tests::simulated_maker>(tests::simulated_terms{.seed = drawn});
      std::vector<c10::Device> places;
      const auto found = train(what, {c10::Device(c10::kCPU)}, world);
      CHECK(world->messages() > 0);
      check_same(expected, found);
    }
  }
}

namespace {

/// A step with two replicas that is to fail while what `harm` has done keeps it from its end.
result<actors::step_outcome> failed_step(company& all, actors::pipeline& pipeline,
                                         const std::function<void(company&)>& harm) {
  const auto batch = sentences({8}).front();
  auto step =
      std::async(std::launch::async, [&] { return pipeline.train(batch, microbatches, rate); });
  harm(all);
  REQUIRE(step.wait_for(30s) == std::future_status::ready);
  return step.get();
}

const task two{.build = decoder, .batches = sentences({8}), .replicas = 2};

}  // namespace

TEST_CASE("A replica that dies while NCCL sums fails the step of the others within a second") {
  const prepared ready;
  company all(two, cards(2), nccl_maker());
  auto pipeline = all.compose(two);
  script("ncclSend", "stall");
  const int aborts = library().calls_of("ncclCommAbort");
  const int launched = library().calls_of("ncclGroupEnd");
  std::chrono::steady_clock::time_point begin;
  const auto outcome = failed_step(all, pipeline, [&](company& stages) {
    while (library().calls_of("ncclGroupEnd") < launched + 2) std::this_thread::yield();
    begin = std::chrono::steady_clock::now();
    stages.kill(1);
  });
  CHECK(std::chrono::steady_clock::now() - begin < 1s);
  REQUIRE_FALSE(outcome);
  while (library().calls_of("ncclCommAbort") < aborts + 2 &&
         std::chrono::steady_clock::now() - begin < 10s)
    std::this_thread::yield();
  CHECK(library().calls_of("ncclCommAbort") == aborts + 2);  // each rank its own
  const auto again = pipeline.train(two.batches.front(), microbatches, rate);
  CHECK_FALSE(again);
  CHECK(library().wrong_uses() == std::string());
}

TEST_CASE("A sum that never ends on a device fails the step at its deadline") {
  const prepared ready;
  company all(two, cards(2), nccl_maker({.operation = 500ms}));
  auto pipeline = all.compose(two);
  script("ncclSend", "stall");
  CHECK_THAT(error_of(failed_step(all, pipeline, [](company&) {}), errc::timed_out).text,
             ContainsSubstring("NCCL (the replicas of stage-") &&
                 ContainsSubstring("is not done after 0.5 s: another rank is missing or stuck"));
}

TEST_CASE("After a sum that failed, stages that are connected again meet in a new communicator") {
  const prepared ready;
  const auto expected = train(two, {c10::Device(c10::kCPU)});
  company all(two, cards(2), nccl_maker({.operation = 300ms}));
  {
    auto pipeline = all.compose(two);
    script("ncclSend", "stall");
    REQUIRE_FALSE(failed_step(all, pipeline, [](company&) {}));
  }
  ::unsetenv("FAKE_NCCL_SCRIPT");
  // The other stage's step fails at the same deadline, perhaps a little later.
  std::optional<actors::pipeline> again;
  for (const auto end = std::chrono::steady_clock::now() + 20s;
       !again && std::chrono::steady_clock::now() < end;)
    if (auto made = all.try_compose(two)) again.emplace(std::move(*made));
  REQUIRE(again);
  const auto outcome = again->train(two.batches.front(), microbatches, rate);
  if (!outcome) FAIL(outcome.error().text);
  CHECK(outcome->loss == expected.losses.front());
  const auto weights = again->read_weights().value();
  check_same(expected.weights, weights);
}

TEST_CASE("What NCCL notices of a peer's death fails the step as a lost peer") {
  const prepared ready;
  const std::vector<std::pair<std::string, std::string>> noticed = {
      {"6,Connection closed by remote peer",
       "remote process exited or there was a network error (Connection closed by remote peer)"},
      {"2,recv failed: Connection reset by peer", "(recv failed: Connection reset by peer)"}};
  for (const auto& [event, text] : noticed) {
    company all(two, cards(2), nccl_maker({.operation = 2s}));
    auto pipeline = all.compose(two);
    script("ncclRecv", "async=" + event);
    check_refused(failed_step(all, pipeline, [](company&) {}), errc::peer_lost, text);
  }
}

TEST_CASE("NCCL that finds no interface, and replicas that cannot join, are one line each") {
  const prepared ready;
  {
    company all(two, cards(2), nccl_maker());
    script("ncclGetUniqueId", "fail=2,NET/Socket : no interface found");
    CHECK_THAT(
        error_of(all.try_compose(two)).text,
        ContainsSubstring("stage-0: NCCL cannot begin a communicator: unhandled system error "
                          "(NET/Socket : no interface found); name a network interface "
                          "that is up in NCCL_SOCKET_IFNAME"));
  }
  ::unsetenv("FAKE_NCCL_SCRIPT");
  company all(two, cards(2), nccl_maker({.join = 300ms}));
  script("ncclCommInitRankConfig", "fail=5,Duplicate GPU detected : rank 0 and rank 1");
  auto pipeline = all.compose(two);
  const error outcome = error_of(failed_step(all, pipeline, [](company&) {}));
  CHECK((outcome.text.find("there are more ranks than GPUs") != std::string::npos ||
         outcome.text.find("joining takes longer") != std::string::npos));
}

TEST_CASE(
    "An abort that hangs is reported, where a process would end, and holds up no other stage") {
  const prepared ready;
  std::promise<std::string> hung;
  std::atomic<bool> told = false;
  company all(two, cards(2), nccl_maker({.call = 300ms}, [&](const std::string& line) {
                if (!told.exchange(true)) hung.set_value(line);
              }));
  const struct releasing {
    ~releasing() { library().release(); }
  } before_stages_end;
  auto pipeline = all.compose(two);
  script("ncclSend", "stall");
  const int launched = library().calls_of("ncclGroupEnd");
  const auto outcome = failed_step(all, pipeline, [&](company& stages) {
    while (library().calls_of("ncclGroupEnd") < launched + 2) std::this_thread::yield();
    script("ncclCommAbort", "hang", 1);  // after that of the stage that is killed
    stages.kill(1);
  });
  REQUIRE_FALSE(outcome);
  auto line = hung.get_future();
  REQUIRE(line.wait_for(20s) == std::future_status::ready);
  CHECK_THAT(line.get(), ContainsSubstring("NCCL (the replicas of stage-") &&
                             ContainsSubstring("ncclCommAbort has not returned for 0."));
}

TEST_CASE("Memory of a device that is taken between NCCL's operations is counted") {
  const prepared ready;
  const auto device = fake::make_nccl_device(library(), fake::device(0));
  at::Tensor memory;
  const auto count_after = [&](const std::function<void()>& kernels) {
    REQUIRE(device->run(kernels));
    const auto end = device->mark_own();
    REQUIRE(end);
    while (!(*end)->reached().value()) std::this_thread::yield();
    return fake::seen().late_allocations;
  };
  CHECK(count_after([&] { memory = at::empty({4}, fake::device(0)); }) == 1);
  CHECK(count_after([&] { memory.fill_(1); }) == 1);  // takes none
}
