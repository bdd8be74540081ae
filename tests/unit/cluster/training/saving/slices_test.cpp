// The files of a checkpoint as the stages of a pipeline write them, while further steps run, and as
// they are written for stages that do not see the folder.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/futures/requester.hpp"
#include "actors/pipeline/data/feed.hpp"
#include "actors/pipeline/local_stages.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "actors/recovery/keeper_actor.hpp"
#include "actors/system.hpp"
#include "cluster/training/saving/distant_slices.hpp"
#include "engine/state/safetensors.hpp"
#include "tests/refusal.hpp"
#include "tests/scratch_folder.hpp"
#include "tests/unit/two_linear_layers.hpp"

namespace {

namespace fs = std::filesystem;
using namespace troupe;
using Catch::Matchers::ContainsSubstring;
using tests::scratch_folder;
using tensor_map = std::map<std::string, at::Tensor>;

engine::model layers() {
  return tests::two_linear_layers(3, 8, 4);
}

/// Two stages with Adam.
struct company {
  explicit company(bool keeps_versions = false, std::optional<engine::loss_scaler> scaler = {}) {
    actors::stage_blueprint like;
    like.optimizer = "adam";
    auto spawned = actors::local_stages::spawn(system, layers(), {1}, like, optimizers::built_in());
    REQUIRE(spawned);
    stages = std::make_unique<actors::local_stages>(std::move(*spawned));
    if (keeps_versions) keeper = actors::spawn_keeper(system, optimizers::built_in());
    const auto kept = caf::actor_cast<caf::strong_actor_ptr>(keeper);
    auto composed = actors::pipeline::compose(
        system, stages->handles(), "1f1b",
        {.scaler = scaler,
         .keepers = keeps_versions ? std::vector(2, std::vector{kept})
                                   : std::vector<std::vector<caf::strong_actor_ptr>>()});
    REQUIRE(composed);
    pipeline = std::make_unique<actors::pipeline>(std::move(*composed));
  }
  ~company() {
    if (keeper) caf::anon_send_exit(keeper, caf::exit_reason::user_shutdown);
  }

  /// Begins a step, and waits for none.
  void begin(int step) {
    const auto random = at::detail::createCPUGenerator(static_cast<std::uint64_t>(step));
    const engine::batch batch{at::randn({4, 3}, random), at::randint(0, 4, {4}, random, at::kLong)};
    const auto key = pipeline->next_step();
    const auto parts = actors::feed(batch, key, 2, pipeline->feeders());
    REQUIRE(pipeline->begin(key, {.microbatches = parts, .samples = 4, .learning_rate = 0.1}));
  }
  void finish_all() {
    while (pipeline->under_way() > 0) REQUIRE(pipeline->finish());
  }
  tensor_map tensors() {
    tensor_map all;
    for (const auto& list : {pipeline->read_weights(), pipeline->read_state()}) {
      REQUIRE(list);
      for (const auto& [name, tensor] : *list) all.emplace(name, tensor);
    }
    all.erase("optimizer.loss_scaler");
    return all;
  }

  actors::system_config config;
  caf::actor_system system{config};
  actors::keeper_actor keeper;
  std::unique_ptr<actors::local_stages> stages;
  std::unique_ptr<actors::pipeline> pipeline;
};

/// What so many steps, one after another, make of the stages.
tensor_map after(int steps) {
  company other;
  for (int step = 1; step <= steps; ++step) {
    other.begin(step);
    other.finish_all();
  }
  return other.tensors();
}

tensor_map tensors_in(const fs::path& folder, const std::vector<std::string>& files) {
  tensor_map all;
  for (const auto& file : files) {
    const auto loaded = engine::load_safetensors(folder / file);
    REQUIRE(loaded);
    for (const auto& [name, tensor] : *loaded) all.emplace(name, tensor);
  }
  return all;
}

void check_same(const tensor_map& one, const tensor_map& other) {
  REQUIRE(one.size() == other.size());
  for (const auto& [name, tensor] : one) {
    INFO(name);
    REQUIRE(other.contains(name));
    CHECK(tensor.equal(other.at(name)));
  }
}

/// Waits for what stages write, and checks its sums.
tensor_map written(const actors::slices_under_way& of, const fs::path& folder) {
  std::vector<std::string> files;
  for (const auto& each : of.slices) {
    const auto done = each.written.get();
    INFO((done ? "" : done.error().text));
    REQUIRE(done);
    CHECK_FALSE(done->keeper);
    CHECK(done->files.size() == 2);
    for (const auto& [name, sums] : done->files) {
      files.push_back(name);
      CHECK(sums.bytes == fs::file_size(folder / name));
      const auto reader = engine::tensor_reader::open(folder / name);
      REQUIRE(reader);
      CHECK(sums.tensors.size() == (*reader)->tensors().size());
    }
  }
  return tensors_in(folder, files);
}

}  // namespace

TEST_CASE("Stages write what the last step leaves, while the steps behind it run") {
  for (const bool keeps_versions : {false, true}) {
    INFO(keeps_versions);
    const scratch_folder folder;
    company run(keeps_versions);
    run.begin(1);
    run.begin(2);
    const auto slices = run.pipeline->write_slices(2, folder.path().string());
    for (int step = 3; step <= 6; ++step) run.begin(step);
    check_same(written(slices, folder.path()), after(2));
    run.finish_all();
    check_same(run.tensors(), after(6));
    // And once a step is over.
    const scratch_folder other;
    const auto last = run.pipeline->write_slices(6, other.path().string());
    check_same(written(last, other.path()), after(6));
  }
}

TEST_CASE("The loss scale of a checkpoint is the one that its step leaves, told when it does") {
  const scratch_folder folder;
  company run(false, engine::loss_scaler{.scale = 8, .interval = 2});
  run.begin(1);
  run.begin(2);
  const auto slices = run.pipeline->write_slices(2, folder.path().string());
  run.begin(3);
  const auto scaler = slices.scaler.get();
  REQUIRE(scaler);
  REQUIRE(*scaler);
  CHECK((*scaler)->scale == 16);
  CHECK((*scaler)->applied == 0);
  static_cast<void>(written(slices, folder.path()));
  run.finish_all();
  company without;
  CHECK_FALSE(without.pipeline->write_slices(0, folder.path().string()).scaler.get()->has_value());
}

TEST_CASE("A stage that does not see the folder keeps its slice for who does") {
  const scratch_folder folder;
  company run;
  run.begin(1);
  auto slices = run.pipeline->write_slices(1, (folder / "elsewhere").string());
  run.begin(2);
  actors::requester ask(run.system);
  std::vector<std::string> files;
  for (auto& each : slices.slices) {
    const auto kept = each.written.get();
    REQUIRE(kept);
    REQUIRE(kept->keeper);
    CHECK(kept->files.empty());
    each.what.folder = folder.path().string();
    const auto fetched = cluster::fetch_slice(ask, each.what, kept->keeper);
    INFO((fetched ? "" : fetched.error().text));
    REQUIRE(fetched);
    CHECK(fetched->size() == 2);
    for (const auto& [name, sums] : *fetched) {
      files.push_back(name);
      const auto reader = engine::tensor_reader::open(folder / name);
      REQUIRE(reader);
      CHECK(sums.header == engine::header_sum_of(**reader, sums.by).value());
      for (const auto& tensor : (*reader)->tensors())
        CHECK(sums.tensors.at(tensor.name) ==
              engine::tensor_sum_of(**reader, tensor, sums.by).value());
    }
    auto stale = each.what;
    stale.step = 7;
    CHECK(error_of(cluster::fetch_slice(ask, stale, kept->keeper)).code == errc::stale);
  }
  check_same(tensors_in(folder.path(), files), after(1));
  run.finish_all();
}

TEST_CASE("A slice that cannot be written is refused by stage and file, and the steps go on") {
  const scratch_folder folder;
  company run;
  run.begin(1);
  fs::create_directory(folder / "weights.stage-1.safetensors");
  const auto slices = run.pipeline->write_slices(1, folder.path().string());
  run.begin(2);
  CHECK(slices.slices.at(0).written.get());
  const auto failed = error_of(slices.slices.at(1).written.get());
  CHECK(failed.code == errc::io_failed);
  CHECK_THAT(failed.text, ContainsSubstring("stage-1: cannot write " + folder.path().string() +
                                            "/weights.stage-1.safetensors: "));
  run.finish_all();
  check_same(run.tensors(), after(2));
}

TEST_CASE("An order to write before its step is over makes room for the next order") {
  const scratch_folder folder;
  company run;
  run.begin(1);
  run.finish_all();
  const auto first = run.pipeline->write_slices(1, folder.path().string());
  static_cast<void>(written(first, folder.path()));
  run.begin(2);
  const auto second = run.pipeline->write_slices(2, folder.path().string());
  const auto third = run.pipeline->write_slices(2, folder.path().string());
  for (const auto& each : third.slices) CHECK(each.written.get());
  for (const auto& each : second.slices) {
    const auto how = each.written.get();
    CHECK((how || how.error().code == errc::cancelled));
  }
  run.finish_all();
  check_same(
      tensors_in(folder.path(), {"weights.stage-0.safetensors", "state.stage-0.safetensors",
                                 "weights.stage-1.safetensors", "state.stage-1.safetensors"}),
      after(2));
}
