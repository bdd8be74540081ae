// What stages have in a device's memory, as the devices of tests count it, beside what is
// predicted.

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "apps/resnet_pipeline/resnet.hpp"
#include "apps/transformer_pipeline/gpt.hpp"
#include "engine/blueprint/initial_weights.hpp"
#include "engine/model/model.hpp"
#include "engine/partition/cost_model.hpp"
#include "engine/partition/planner.hpp"
#include "engine/partition/profile.hpp"
#include "tests/fake_device/fake_device.hpp"
#include "tests/parity/on_devices.hpp"
#include "tests/parity/stage_company.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;
namespace fake = tests::fake_device;

/// Of a step of what is trained, with a device for each stage; `copies`: of each parameter in the
/// optimizer's state.
std::vector<double> predicted(const task& what, const engine::model_blueprint& blueprint,
                              double copies) {
  const auto& batch = what.batches.front();
  const auto size = batch.inputs.size(0);
  const auto each = size / microbatches;
  const engine::batch samples{batch.inputs.narrow(0, 0, each), batch.labels.narrow(0, 0, each)};
  const auto profile =
      engine::profile_model(blueprint, {.seed = seed}, samples, /*repeats=*/0).value();
  const engine::planning how{
      .schedule = {.name = what.schedule},
      .stages = static_cast<std::uint32_t>(what.cuts.size()) + 1,
      .batch_size = size,
      .credits = 4,
      .optimizer_copies = copies,
      .sample_bytes = static_cast<double>(batch.inputs.nbytes()) / static_cast<double>(size)};
  const auto made =
      engine::predict(engine::cost_model::fit({profile}).value(), how, microbatches, what.cuts)
          .value();
  std::vector<double> bytes;
  for (const auto& stage : made.stages) bytes.push_back(stage.memory.on_device);
  return bytes;
}

/// The most that each stage's device holds in two steps, the optimizer's state included: as the
/// device counts it, and as the stage's report of the last step says.
std::vector<double> counted(const task& what) {
  std::vector<c10::Device> devices;
  for (std::size_t i = 0; i <= what.cuts.size(); ++i)
    devices.push_back(fake::device(static_cast<int>(i)));
  company all(what, devices);
  auto pipeline = all.compose(what);
  std::vector<double> most;
  for (const auto& device : devices) static_cast<void>(fake::take_peak_bytes(device.index()));
  std::vector<double> told;
  for (int i = 0; i < 2; ++i) {
    const auto outcome = pipeline.train(what.batches.front(), microbatches, what.rate);
    if (!outcome) FAIL(outcome.error().text);
    told.clear();
    for (const auto& stage : outcome->stages)
      told.push_back(static_cast<double>(stage.peak_device_bytes));
  }
  for (const auto& device : devices)
    most.push_back(static_cast<double>(fake::take_peak_bytes(device.index())));
  CHECK(told == most);
  return most;
}

/// Whose scores are most of what its last stage holds.
constexpr std::int64_t wide_vocabulary = 2048;
const apps::gpt_options wide_shape{
    .layers = 2, .width = 32, .heads = 4, .context = 16, .tied = false, .dropout = 0.2};

engine::model wide_decoder() {
  return engine::make_whole(apps::gpt_blueprint(wide_vocabulary, wide_shape).value(), seed).value();
}

void compare(const task& what, const engine::model_blueprint& blueprint, double copies) {
  const auto expected = predicted(what, blueprint, copies), found = counted(what);
  for (std::size_t i = 0; i < found.size(); ++i) {
    INFO(what.schedule << ", stage " << i << ": predicted " << expected[i] / (1 << 20)
                       << " MiB, counted " << found[i] / (1 << 20));
    CHECK(found[i] < 1.1 * expected[i]);
    CHECK(found[i] > 0.85 * expected[i]);
  }
}

}  // namespace

TEST_CASE("What stages hold on devices is what is predicted of them") {
  const tests::devices_ready ready;
  const auto images_of = apps::resnet_blueprint("resnet18", 10);
  const auto text_of = apps::gpt_blueprint(
      64, {.layers = 2, .width = 32, .heads = 4, .context = 16, .tied = true, .dropout = 0.2});
  REQUIRE(images_of);
  const auto wide_text_of = apps::gpt_blueprint(wide_vocabulary, wide_shape);
  REQUIRE(text_of);
  REQUIRE(wide_text_of);
  for (const std::string schedule : {"1f1b", "gpipe", "zb-h1"}) {
    compare({.build = whole_resnet,
             .batches = images({128}),
             .cuts = {6},
             .schedule = schedule,
             .skips_bad_steps = true},
            *images_of, 1);
    compare({.build = decoder,
             .batches = sentences({256}),
             .cuts = {2},
             .schedule = schedule,
             .optimizer = "adamw",
             .options = {}},
            *text_of, 2);
    compare({.build = wide_decoder,
             .batches = sentences({256}),
             .cuts = {2},
             .schedule = schedule,
             .optimizer = "adamw",
             .options = {}},
            *wide_text_of, 2);
  }
}
