// Stages with a keeper that shares no memory with them.

#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <atomic>
#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "actors/base/errors.hpp"
#include "actors/futures/requester.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/mirror.hpp"
#include "actors/messages/notes.hpp"
#include "actors/messages/recovery.hpp"
#include "actors/pipeline/local_stages.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "actors/recovery/keeper_actor.hpp"
#include "actors/recovery/repeated_update.hpp"
#include "actors/system.hpp"
#include "tests/unit/two_linear_layers.hpp"

using namespace troupe;

namespace {

using named_tensors = std::vector<engine::named_tensor>;
using strong_ptr = caf::strong_actor_ptr;

/// What a distant keeper was sent.
struct sent_versions {
  std::atomic<int> states = 0;  // their last pieces
  std::atomic<int> updates = 0;
};

/// Another keeper, as if it were on another machine. With `refusal` it takes no update.
actors::keeper_actor::behavior_type distant_keeper(actors::keeper_actor::pointer self,
                                                   const actors::keeper_actor& real,
                                                   const std::shared_ptr<sent_versions>& sent,
                                                   errc refusal) {
  return {
      [self, real, sent](const actors::store_version& what) {
        if (what.piece.last) ++sent->states;
        return self->delegate(real, what);
      },
      [self, real, sent,
       refusal](const actors::store_update& what) -> caf::result<actors::acknowledged> {
        if (what.piece.last) ++sent->updates;
        if (refusal != errc::timed_out) return actors::to_caf({refusal, "it is refused"});
        return self->delegate(real, what);
      },
      [](const actors::describe_keeper&) {
        return actors::keeper_described{"elsewhere", 1};
      },
      [self, real](const actors::list_versions& what) { return self->delegate(real, what); },
      [self, real](const actors::fetch_version& what) { return self->delegate(real, what); },
      [self, real](const actors::forget_kept& what) { return self->delegate(real, what); },
  };
}

constexpr auto takes_all = errc::timed_out;

/// Two stages with Adam and a parameter group, whose gradients are clipped, each with a keeper
/// beside it and a distant one.
struct mirrored_stages {
  explicit mirrored_stages(const std::string& optimizer = "adam", errc refusal = takes_all) {
    actors::stage_blueprint like{.optimizer = optimizer,
                                 .rules = {.groups = {"*.bias weight_decay=0.1 lr_scale=0.5"}}};
    auto spawned = actors::local_stages::spawn(system, tests::two_linear_layers(3, 8, 4), {1}, like,
                                               optimizers::built_in());
    REQUIRE(spawned);
    stages = std::make_unique<actors::local_stages>(std::move(*spawned));
    std::vector<std::vector<strong_ptr>> keepers;
    for (std::size_t stage = 0; stage < 2; ++stage) {
      for (auto* const each : {&near, &real})
        each->push_back(actors::spawn_keeper(system, optimizers::built_in()));
      sent.push_back(std::make_shared<sent_versions>());
      far.push_back(system.spawn(distant_keeper, real.back(), sent.back(), refusal));
      keepers.push_back(
          {caf::actor_cast<strong_ptr>(near.back()), caf::actor_cast<strong_ptr>(far.back())});
    }
    auto composed =
        actors::pipeline::compose(system, stages->handles(), "1f1b",
                                  {.skip_bad_steps = true, .clip_norm = 0.1, .keepers = keepers});
    REQUIRE(composed);
    pipeline = std::make_unique<actors::pipeline>(std::move(*composed));
    REQUIRE(pipeline->take_versions(0));
  }
  ~mirrored_stages() {
    pipeline.reset();
    for (const auto* const list : {&near, &far, &real})
      for (const auto& each : *list) caf::anon_send_exit(each, caf::exit_reason::user_shutdown);
  }

  /// `input`: an element of the batch.
  std::string train(double input = 1) {
    auto inputs = at::randn({4, 3});
    inputs.narrow(0, 0, 1).fill_(input);
    const engine::batch batch{inputs, at::randint(0, 4, {4}, at::kLong)};
    const auto done = pipeline->train(batch, 2, 0.1);
    REQUIRE(done);
    return done->skipped;
  }

  named_tensors version(const actors::keeper_actor& of, std::uint32_t stage, std::uint64_t step) {
    actors::requester ask(system);
    const auto piece =
        ask.request<actors::version_piece>(of, actors::fetch_version{stage, step, {}, {}},
                                           std::chrono::seconds(20))
            .get();
    REQUIRE(piece);
    REQUIRE(piece->piece.last);
    named_tensors all;
    for (const auto& part : piece->piece.parts) all.push_back({part.name, part.tensor});
    return all;
  }

  /// Both keepers of each stage have the same version to the bit. When a step is over, all have
  /// the version of the step before.
  void check_version(std::uint64_t step) {
    for (std::uint32_t stage = 0; stage < 2; ++stage) {
      const auto here = version(near[stage], stage, step), there = version(far[stage], stage, step);
      REQUIRE(here.size() == there.size());
      for (std::size_t i = 0; i < here.size(); ++i) CHECK(here[i].name == there[i].name);
      CHECK(actors::digest_of(here) == actors::digest_of(there));
    }
  }

  actors::system_config config;
  caf::actor_system system{config};
  std::vector<actors::keeper_actor> near, far, real;
  std::vector<std::shared_ptr<sent_versions>> sent;
  std::unique_ptr<actors::local_stages> stages;
  std::unique_ptr<actors::pipeline> pipeline;
};

}  // namespace

TEST_CASE("A keeper on another machine computes a stage's versions from its gradients") {
  mirrored_stages company;
  for (std::uint64_t step = 1; step <= 4; ++step) {
    CHECK(company.train().empty());
    company.check_version(step - 1);
  }
  for (const auto& each : company.sent) {
    CHECK(each->states == 1);
    CHECK(each->updates >= 3);
  }
}

TEST_CASE("A step that was left out makes a version with the bits of the one before") {
  mirrored_stages company;
  CHECK(company.train().empty());
  CHECK_FALSE(company.train(std::numeric_limits<double>::quiet_NaN()).empty());
  const auto before = company.version(company.far[0], 0, 1);
  CHECK(company.train().empty());
  company.check_version(2);
  CHECK(actors::digest_of(company.version(company.far[0], 0, 2)) == actors::digest_of(before));
  CHECK(company.train().empty());
  company.check_version(3);
  for (const auto& each : company.sent) CHECK(each->states == 1);
}

TEST_CASE("A keeper that computes other bits, or cannot compute, gets states from then on") {
  for (const auto refusal : {errc::bad_data, errc::handler_failed}) {
    CAPTURE(refusal);
    mirrored_stages company("adam", refusal);
    for (int step = 1; step <= 4; ++step) CHECK(company.train().empty());
    company.check_version(3);
    for (const auto& each : company.sent) {
      CHECK(each->updates == 1);
      CHECK(each->states >= 4);
    }
  }
}

TEST_CASE("A keeper that lacks the version before gets the state of one version alone") {
  mirrored_stages company("adam", errc::stale);
  for (int step = 1; step <= 4; ++step) CHECK(company.train().empty());
  company.check_version(3);
  for (const auto& each : company.sent) {
    CHECK(each->updates >= 3);
    CHECK(each->states >= 4);
  }
}

TEST_CASE("Versions travel whole where gradients are no fewer bytes, or CPUs may differ") {
  for (const std::string optimizer : {"sgd", "muon"}) {
    CAPTURE(optimizer);
    mirrored_stages company(optimizer);
    for (int step = 1; step <= 3; ++step) CHECK(company.train().empty());
    company.check_version(2);
    for (const auto& each : company.sent) CHECK(each->updates == 0);
  }
}

TEST_CASE("Versions that are ordered between steps are taken whole, and updates follow them") {
  mirrored_stages company;
  CHECK(company.train().empty());
  REQUIRE(company.pipeline->take_versions(1));
  for (int step = 2; step <= 4; ++step) CHECK(company.train().empty());
  company.check_version(3);
  for (const auto& each : company.sent) CHECK(each->states == 2);
}
