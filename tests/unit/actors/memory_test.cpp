// Memory that is refused in the middle of an actor's work is an error of what asked for it, which
// names who needed how many bytes; the process and everybody else go on.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "actors/base/failure.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/mirror.hpp"
#include "actors/messages/parameter_server/coordinator.hpp"
#include "actors/messages/parameter_server/worker.hpp"
#include "actors/messages/recovery.hpp"
#include "actors/parameter_server/client.hpp"
#include "actors/parameter_server/coordinator_actor.hpp"
#include "actors/parameter_server/shard_actor.hpp"
#include "actors/pipeline/local_stages.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "actors/recovery/keeper_actor.hpp"
#include "actors/recovery/repeated_update.hpp"
#include "actors/system.hpp"
#include "engine/base/thread_limit.hpp"
#include "engine/base/torch_error.hpp"
#include "engine/model/blocks.hpp"
#include "engine/stage/work_thread.hpp"
#include "tests/refusal.hpp"
#include "tests/unit/lowered_limit.hpp"

namespace {

using namespace troupe;
using namespace troupe::actors;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

constexpr auto patience = 60s;
constexpr std::size_t no_limit = ~std::size_t{0};

/// LibTorch's allocator on a machine that has no block of so many bytes.
class scarce_memory final : public c10::Allocator {
 public:
  static scarce_memory& instance() {
    static auto* const one = [] {
      auto* const made = new scarce_memory(*c10::GetCPUAllocator());
      c10::SetCPUAllocator(made);
      return made;
    }();
    return *one;
  }

  std::atomic<std::size_t> least_refused = no_limit;

  c10::DataPtr allocate(std::size_t bytes) override {
    TORCH_CHECK(bytes < least_refused,
                "DefaultCPUAllocator: can't allocate memory: you tried to allocate ", bytes,
                " bytes. Error code 12 (Cannot allocate memory)");
    return usual_.allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return usual_.raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  explicit scarce_memory(c10::Allocator& usual) : usual_(usual) {}
  c10::Allocator& usual_;
};

/// No block of so many bytes, as long as this lives.
class refusing {
 public:
  explicit refusing(std::size_t bytes) { scarce_memory::instance().least_refused = bytes; }
  refusing(const refusing&) = delete;
  refusing& operator=(const refusing&) = delete;
  ~refusing() { scarce_memory::instance().least_refused = no_limit; }
};

template <class T>
void check_refused(const result<T>& outcome, const std::string& who, const std::string& bytes) {
  REQUIRE_FALSE(outcome);
  CHECK(outcome.error().code == errc::handler_failed);
  CHECK_THAT(outcome.error().text, ContainsSubstring(who));
  CHECK_THAT(outcome.error().text, ContainsSubstring(bytes + " bytes"));
  CHECK_THAT(outcome.error().text,
             ContainsSubstring("no memory for a tensor") || ContainsSubstring("can't allocate"));
}

/// A shard of one parameter, its coordinator, and a worker.
struct small_server {
  explicit small_server(engine::owned_parameter parameter,
                        const optimizers::options& how = {{"lr", 1.0}}) {
    const auto sgd = *optimizers::built_in().find("sgd");
    shard = spawn_shard(
        system, {"shard-0", std::make_unique<engine::parameter_store>(
                                std::vector<engine::owned_parameter>{std::move(parameter)}, sgd,
                                *optimizers::complete(sgd, how))});
    coordinator = spawn_coordinator(system, {{shard}});
    worker = parameter_client::join(system, ask, coordinator, {.deadline = patience}).value();
  }
  ~small_server() {
    worker.reset();
    caf::anon_send_exit(shard, caf::exit_reason::user_shutdown);
    caf::anon_send_exit(coordinator, caf::exit_reason::user_shutdown);
  }

  system_config config;
  caf::actor_system system{config};
  requester ask{system};
  shard_actor shard;
  coordinator_actor coordinator;
  std::unique_ptr<parameter_client> worker;
};

/// Asks a shard for what has changed since the beginning.
result<parameters_pulled> pull(small_server& here) {
  return here.ask
      .request<parameters_pulled>(here.shard, pull_parameters{{}, param_version{0}}, patience)
      .get(patience);
}

engine::model wide_layers() {
  const auto random = at::detail::createCPUGenerator(1);
  engine::model made;
  made.push_back(std::make_unique<engine::linear>("one", 3, 4, random));
  made.push_back(std::make_unique<engine::linear>("two", 4, 100'000, random));
  made.push_back(std::make_unique<engine::linear>("three", 100'000, 4, random));
  return made;
}

using behaviour = caf::typed_actor<caf::replies_to<acknowledged>::with<acknowledged>>;

}  // namespace

TEST_CASE("what LibTorch and the library say of memory and threads becomes one line") {
  try {
    (void)at::empty({std::int64_t{1} << 50}, at::kByte);
    FAIL("so much memory there is not");
  } catch (const std::exception& problem) {  // the real allocator's own words
    CHECK(engine::reason_of(problem) ==
          "there is no memory for a tensor of 1125899906842624 bytes");
  }
  CHECK(engine::reason_of(std::bad_alloc()) == "there is no memory left");
  CHECK_THAT(engine::reason_of(std::system_error(EAGAIN, std::generic_category())),
             ContainsSubstring("no thread can be started: ") && ContainsSubstring("(ulimit -u"));
  CHECK(engine::code_of(std::system_error(EAGAIN, std::generic_category())) == errc::io_failed);
  CHECK(engine::code_of(std::system_error(EINVAL, std::generic_category())) ==
        errc::handler_failed);
}

TEST_CASE("where no thread is started, a limit is named that would do") {
  rlimit now{};
  REQUIRE(::getrlimit(RLIMIT_NPROC, &now) == 0);
  const auto few = std::min<rlim_t>(now.rlim_max, 30'000);
  const auto told = tests::under_limit(RLIMIT_NPROC, few, [] { return engine::raise_threads(8); });
  CHECK(told == "(ulimit -u " + std::to_string(few + 8) + ", or the machine's limit)");
}

TEST_CASE("a shard that has no memory for an answer refuses that request and goes on") {
  constexpr std::int64_t rows = 50'000;
  small_server here({"table", at::zeros({rows, 4}), /*by_rows=*/true});
  (void)here.worker->refresh().get(patience);
  constexpr std::int64_t some = 10'000;
  const auto gradient =
      at::sparse_coo_tensor(at::arange(some).view({1, some}), at::ones({some, 4}), {rows, 4});
  REQUIRE(here.worker->push({{"table", gradient}}, {0}).get(patience));
  {
    const refusing large(100'000);
    check_refused(pull(here), "shard-0: reading all parameters after update 1", "160000");
  }
  CHECK(pull(here).value().version.value == 1);
  REQUIRE(here.worker->push({}, {1}).get(patience));
}

TEST_CASE("a shard that has no memory for an update says so to its pushers and takes no more") {
  small_server here({"dense", at::zeros({100'000})}, {{"lr", 1.0}, {"momentum", 0.9}});
  (void)here.worker->refresh().get(patience);
  const auto gradient = at::ones({100'000});
  {
    const refusing large(100'000);
    check_refused(here.worker->push({{"dense", gradient}}, {0}).get(patience), "shard-0: update 1",
                  "400000");
  }
  check_refused(here.worker->push({}, {0}).get(patience), "shard-0", "400000");
  CHECK(here.ask.request<coordinator_report>(here.coordinator, read_coordinator{}, patience)
            .get(patience));
}

TEST_CASE("a stage without memory fails its step, and what reads it, with the bytes") {
  system_config config;
  caf::actor_system system(config);
  auto stages = local_stages::spawn(system, wide_layers(), {1}, {.optimizer = "adamw"},
                                    optimizers::built_in());
  REQUIRE(stages);
  auto pipeline = pipeline::compose(system, stages->handles(), "1f1b");
  REQUIRE(pipeline);
  const auto random = at::detail::createCPUGenerator(2);
  const engine::batch batch{at::randn({6, 3}, random), at::randint(4, {6}, random, at::kLong)};
  REQUIRE(pipeline->train(batch, 2, 0.05));
  {
    const refusing large(1'600'000);
    check_refused(pipeline->read_weights(), "stage-1", "1600000");
    check_refused(pipeline->read_state(), "stage-1: optimizer 'adamw'", "1600000");
  }
  CHECK(pipeline->read_weights());
  {
    const refusing large(1'200'000);  // 3 x 100,000 activations
    check_refused(pipeline->train(batch, 2, 0.05), "stage-1: F0 of step 2 failed", "1200000");
  }
}

TEST_CASE("a keeper that has no memory to compute a version refuses it and keeps what it had") {
  system_config config;
  caf::actor_system system(config);
  const auto keeper = spawn_keeper(system, optimizers::built_in());
  {
    requester ask(system);
    const auto piece_of = [](const std::string& name) {
      return tensor_piece{.begin = {}, .parts = {{name, at::ones({100'000})}}, .last = true};
    };
    const auto store = [&](std::uint64_t step) {
      return ask
          .request<acknowledged>(keeper, store_version{.step = step, .piece = piece_of("w")},
                                 patience)
          .get(patience);
    };
    const auto kept = [&] {
      return ask.request<versions_kept>(keeper, list_versions{0}, patience).get(patience)->steps;
    };
    REQUIRE(store(1));
    const auto sgd = *optimizers::built_in().find("sgd");
    const store_update update{.stage = 0,
                              .step = 2,
                              .after = 1,
                              .terms = {.optimizer = "sgd",
                                        .options = *optimizers::complete(sgd, {{"lr", 1.0}}),
                                        .learning_rate = 1,
                                        .number = 1},
                              .digest = 0,
                              .piece = piece_of(gradient_name("w"))};
    {
      const refusing large(100'000);
      check_refused(ask.request<acknowledged>(keeper, update, patience).get(patience),
                    "the keeper of versions: ", "400000");
    }
    CHECK(kept() == std::vector<std::uint64_t>{1});
    REQUIRE(store(2));
    CHECK(kept() == std::vector<std::uint64_t>{1, 2});
  }
  caf::anon_send_exit(keeper, caf::exit_reason::user_shutdown);
}

TEST_CASE("a work thread tells what a task or the filling of a gap threw, and goes on") {
  std::string told;  // of the thread's alone while it lives
  int gaps = 0;
  std::promise<void> in_gap;
  {
    engine::work_thread thread(
        "throws", 1,
        [&]() -> bool {
          ++gaps;
          throw std::bad_alloc();
        },
        [&](const std::exception& problem) {
          told += engine::reason_of(problem) + ";";
          if (gaps > 0) in_gap.set_value();
        });
    thread.post([] { throw std::runtime_error("first"); });
    thread.post([&] { told += "second;"; });
    std::promise<void> done;
    thread.post([&] { done.set_value(); });
    REQUIRE(done.get_future().wait_for(patience) == std::future_status::ready);
    thread.open_gap();
    REQUIRE(in_gap.get_future().wait_for(patience) == std::future_status::ready);
    thread.open_gap();
    thread.post([&] { told += "last;"; });
  }
  CHECK(told == "first;second;there is no memory left;last;");
  CHECK(gaps == 1);
}

TEST_CASE("an actor whose handler throws ends with an error that names it, and who waits gets it") {
  system_config config;
  caf::actor_system system(config);
  requester ask(system);
  const auto thrower = system.spawn([](behaviour::pointer self) -> behaviour::behavior_type {
    end_when_thrown(*self, "thrower");
    return {[](const acknowledged&) -> acknowledged { throw std::bad_alloc(); }};
  });
  const auto answer =
      error_of(ask.request<acknowledged>(thrower, acknowledged{}, patience).get(patience));
  CHECK(answer.code == errc::handler_failed);
  CHECK_THAT(answer.text, ContainsSubstring("thrower: there is no memory left"));

  const auto ended = system.spawn([](behaviour::pointer self) -> behaviour::behavior_type {
    return {[self](const acknowledged&) -> caf::result<acknowledged> {
      return self->make_response_promise<acknowledged>();  // never kept
    }};
  });
  const auto waits = ask.request<acknowledged>(ended, acknowledged{}, patience);
  end_because(ended.address(), "worker", std::runtime_error("why"));
  CHECK_THAT(waits.get(patience).error().text, ContainsSubstring("worker: why"));
}
