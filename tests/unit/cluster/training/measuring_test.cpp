// Layers are measured within the memory that there is, or refused before it is used.

#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cluster/training/measured_layers.hpp"
#include "engine/data/dataset.hpp"
#include "engine/model/blocks.hpp"
#include "engine/partition/profile.hpp"
#include "tests/refusal.hpp"

namespace {

using namespace troupe;
using namespace troupe::cluster;
using Catch::Matchers::ContainsSubstring;
using places = std::map<std::string, std::string>;

constexpr std::uint64_t mebi = 1 << 20;

/// Gives what it is given, and makes 24 times as much of it meanwhile.
class greedy final : public engine::layer {
 public:
  using layer::layer;
  at::Tensor forward(const at::Tensor& input, bool) override {
    std::vector<at::Tensor> all;
    for (int i = 0; i < 24; ++i) all.push_back(at::tanh(input));
    return all.back();
  }
  double macs(std::vector<std::int64_t>&) const override { return 1; }
};

engine::model_blueprint two_layers() {
  engine::model_blueprint layers;
  layers.add<engine::linear>("wide", 4, 1024);
  layers.add<greedy>("greedy");
  return layers;
}

/// Images of the shape [2, 2], which no layer minds.
struct measurable {
  engine::model_blueprint blueprint = two_layers();
  engine::model described = engine::describe(blueprint).value();
  trainer_config config;
  registries known;
  std::unique_ptr<engine::dataset> data =
      engine::open_dataset({.source = "synthetic:1x1x4:10:8", .warn = {}}).value();

  [[nodiscard]] layers_to_measure what() const {
    return {described, blueprint, config, known, *data};
  }
};

}  // namespace

TEST_CASE("A layer that makes more of a micro-batch than it may is refused by name") {
  const auto layers = two_layers();
  const engine::batch samples{at::randn({256, 4}), at::randint(0, 4, {256}, at::kLong)};
  // 1 MiB is between the layers. The second has it, a copy, and 24 of its own.
  std::vector<std::size_t> begun;
  const auto note = [&](std::size_t layer) { begun.push_back(layer); };
  const auto refused =
      engine::profile_model(layers, {}, samples, 0, {.bytes = 20.0 * mebi, .begins = note});
  REQUIRE_FALSE(refused);
  CHECK(refused.error() ==
        error{errc::bad_config,
              "the layer 'greedy' takes more than 20 MiB for a micro-batch of 256 samples"});
  CHECK(begun == std::vector<std::size_t>{0, 1});
  const auto measured = engine::profile_model(layers, {}, samples, 0, {.bytes = 40.0 * mebi});
  REQUIRE(measured);
  CHECK(measured->layers[1].kept_bytes >= 1.0 * mebi);
  trainer_config config;
  config.places = setting_places(places{{"train.batch_size", "run.toml:3:14: train.batch_size"}});
  const auto blamed = blame_bound(config.places, config.cluster, 256, refused.error()).text;
  CHECK_THAT(blamed, ContainsSubstring("run.toml:3:14: train.batch_size: the layer 'greedy'") &&
                         ContainsSubstring("take smaller micro-batches"));
}

TEST_CASE("What a micro-batch takes at least is known by its shapes, before anything is read") {
  measurable of;
  of.config.places = setting_places(places{{"train.batch_size", "run.toml:3:14: train.batch_size"},
                                           {"data.source", "run.toml:6:10: data.source"}});
  // Of 1024 samples: 4 MiB from the first layer, which the second has twice, and a gradient.
  CHECK(engine::least_profile_bytes(of.described, {4}, 1024, 4).back() == 12.0 * mebi);
  CHECK(check_measurable(of.what(), 1024, {.bytes = 12 * mebi}));
  const auto refused =
      check_measurable(of.what(), 1024, {.bytes = 11 * mebi, .group_limit_bytes = 50 * mebi});
  REQUIRE_FALSE(refused);
  CHECK(refused.error() ==
        error{errc::bad_config,
              "run.toml:3:14: train.batch_size: the layer 'greedy' takes at least 12 MiB for a "
              "micro-batch of 1024 samples, but 11 MiB are free on this machine within the limit "
              "of the control group, 50 MiB; take smaller micro-batches (more of them: "
              "--micro-batches), smaller samples, or another machine"});
  const auto one = error_of(check_measurable(of.what(), 1, {.bytes = 10000}));
  CHECK_THAT(one.text, ContainsSubstring("model.name: the layer 'wide' alone has 0 MiB"));
  of.config.train.batch_size = 8;
  const auto check = [&](std::uint64_t bytes) {
    const auto& config = of.config;
    return check_batch(config.train, config.places, config.cluster, *of.data, {.bytes = bytes});
  };
  CHECK(check(128));
  CHECK_THAT(error_of(check(127)).text,
             ContainsSubstring("run.toml:3:14: train.batch_size: a step's 8 samples take "));
  of.config.cluster.launch = launch_way::ssh;
  CHECK_THAT(error_of(check_measurable(of.what(), 1, {.bytes = 22000})).text,
             ContainsSubstring("run.toml:6:10: data.source: the layer") &&
                 ContainsSubstring(" on this machine, where its activations are measured; take "
                                   "smaller samples, or another machine"));
}

TEST_CASE("A measurement that takes long says where it is, and a short one nothing") {
  const measurable of;
  std::promise<std::string> reads;
  std::promise<std::string> second;
  int lines = 0;
  bool is_told = false;
  const auto say = [&](const std::string& line) {
    if (++lines == 1) reads.set_value(line);
    if (!is_told && line.find("layer '") != std::string::npos) {
      is_told = true;
      second.set_value(line);
    }
  };
  {
    const measuring_teller quiet(of.described, [&](const std::string&) { lines = 100; });
  }
  CHECK(lines == 0);
  using std::chrono::milliseconds;
  std::string first;
  std::string later;
  {
    measuring_teller teller(of.described, say, milliseconds(1), milliseconds(50));
    first = reads.get_future().get();
    teller.begins(1);
    later = second.get_future().get();
  }
  CHECK(first == "measuring what a micro-batch leaves in memory: its samples are read");
  CHECK(later == "measuring what a micro-batch leaves in memory: layer 'greedy', 2 of 2");
}
