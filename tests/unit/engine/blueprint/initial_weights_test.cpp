// Weights that are drawn layer by layer, against the whole model's.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <c10/core/Allocator.h>
#include <c10/core/GradMode.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/resnet_pipeline/resnet.hpp"
#include "apps/transformer_pipeline/gpt.hpp"
#include "engine/blueprint/initial_weights.hpp"
#include "engine/model/blocks.hpp"
#include "engine/model/model.hpp"
#include "engine/model/transformer_layers.hpp"
#include "tests/refusal.hpp"

namespace {

using namespace troupe;
using namespace troupe::engine;
using Catch::Matchers::ContainsSubstring;

constexpr std::uint64_t seed = 7;

/// Bytes of tensors that this thread has allocated and not freed since it was made, and the most.
class live_bytes {
 public:
  live_bytes() : count_(std::make_shared<counter>()), guard_(kind, count_) {}

  [[nodiscard]] std::int64_t now() const { return count_->now; }
  [[nodiscard]] std::int64_t peak() const { return count_->peak; }

 private:
  static constexpr auto kind = c10::DebugInfoKind::PROFILER_STATE;

  struct counter final : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void* /*at*/, std::int64_t bytes, std::size_t /*allocated*/,
                           std::size_t /*reserved*/, c10::Device /*device*/) override {
      now += bytes;
      peak = std::max(peak, now);
    }
    [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }

    std::int64_t now = 0;
    std::int64_t peak = 0;
  };

  std::shared_ptr<counter> count_;
  c10::DebugInfoGuard guard_;
};

std::int64_t bytes_of(const layer& which) {
  std::int64_t bytes = 0;
  for (const auto& each : which.parameters())
    bytes += static_cast<std::int64_t>(each.tensor.nbytes());
  for (const auto& each : which.buffers()) bytes += static_cast<std::int64_t>(each.tensor.nbytes());
  return bytes;
}

std::int64_t bytes_of(const model& layers) {
  std::int64_t bytes = 0;
  for (const auto& each : layers) bytes += bytes_of(*each);
  return bytes;
}

std::int64_t largest_of(const model& layers) {
  std::int64_t most = 0;
  for (const auto& each : layers) most = std::max(most, bytes_of(*each));
  return most;
}

/// As a program made its models before there were blueprints: all layers from one generator, then
/// the second drawing, then the ties.
model made_at_once(const model_blueprint& of) {
  const at::Generator random = at::make_generator<at::CPUGeneratorImpl>(seed);
  model layers;
  for (const auto& make : of.layers) layers.push_back(make(random));
  for (const auto& each : layers)
    if (of.redraw) of.redraw(*each, random);
  const c10::NoGradGuard unrecorded;
  auto all = parameters(layers);
  for (const auto& [one, other] : ties(layers)) {
    const auto from = std::ranges::find(all, one, &named_tensor::name);
    std::ranges::find(all, other, &named_tensor::name)->tensor.copy_(from->tensor);
  }
  return layers;
}

bool same_bits(const layer& one, const layer& other) {
  const auto equal = [](const std::vector<named_tensor>& a, const std::vector<named_tensor>& b) {
    return std::ranges::equal(a, b, [](const named_tensor& x, const named_tensor& y) {
      return x.name == y.name && at::equal(x.tensor, y.tensor);
    });
  };
  return one.name() == other.name() && equal(one.parameters(), other.parameters()) &&
         equal(one.buffers(), other.buffers());
}

model_blueprint resnet() {
  return apps::resnet_blueprint(GENERATE("resnet18", "resnet50"), 10).value();
}

model_blueprint decoder(bool tied) {
  return apps::gpt_blueprint(256,
                             {.layers = 6, .width = 64, .heads = 4, .context = 64, .tied = tied})
      .value();
}

/// The slices of a V over two stages: the first stage has the model's ends, the second its middle.
void check_stages_of_a_v(const model_blueprint& of) {
  const auto whole = made_at_once(of);
  const auto n = whole.size();
  const std::vector<std::vector<layer_range>> stages{{{0, n / 4}, {3 * n / 4, n}},
                                                     {{n / 4, n / 2}, {n / 2, 3 * n / 4}}};
  for (const auto& slices : stages) {
    const live_bytes live;
    initial_weights weights(of, seed);
    std::int64_t own = 0;
    std::vector<model> made;
    for (const auto range : slices) {
      auto slice = weights.make(range).value();
      own += bytes_of(slice);
      for (std::size_t i = 0; i < slice.size(); ++i)
        CHECK(same_bits(*slice.at(i), *whole[range.first + i]));
      made.push_back(std::move(slice));
    }
    CHECK(live.now() == own);
    CHECK(live.peak() <= own + largest_of(whole));
    CHECK(live.peak() < bytes_of(whole));
  }
}

/// Writes its elements one by one, which needs memory.
class counting final : public layer {
 public:
  explicit counting(std::string name) : layer(std::move(name)), weight_(at::empty({4})) {
    for (int i = 0; i < 4; ++i) weight_.mutable_data_ptr<float>()[i] = static_cast<float>(i);
  }
  at::Tensor forward(const at::Tensor& input, bool) override { return input; }
  [[nodiscard]] double macs(std::vector<std::int64_t>&) const override { return 0; }

 private:
  at::Tensor weight_;
};

}  // namespace

TEST_CASE("A stage draws the whole model's weights and holds its slices and one layer more") {
  SECTION("a residual network, which draws its convolutions twice") check_stages_of_a_v(resnet());
  SECTION("a decoder with an embedding of its own at each end") check_stages_of_a_v(decoder(false));
  SECTION("a decoder whose ends share one weight") check_stages_of_a_v(decoder(true));
}

TEST_CASE("Layers are drawn in any order, and again, with the same bits") {
  const auto of =
      GENERATE(0, 1) == 0 ? apps::resnet_blueprint("resnet18", 10).value() : decoder(true);
  const auto whole = made_at_once(of);
  initial_weights weights(of, seed);
  for (const std::size_t i :
       {whole.size() - 1, std::size_t{0}, whole.size() / 2, std::size_t{4}, whole.size() - 1}) {
    INFO("layer " << i);
    const auto made = weights.make(i).value();
    CHECK(same_bits(*made, *whole[i]));
  }
  for (const layer_range wrong : {layer_range{2, 2}, layer_range{0, whole.size() + 1}})
    CHECK(error_of(weights.make(wrong)).code == errc::bad_config);
}

TEST_CASE("A described model has shapes, ties and multiply-accumulates, and no memory") {
  for (const auto& of : {apps::resnet_blueprint("resnet50", 10).value(), decoder(true)}) {
    const auto whole = made_at_once(of);
    const live_bytes live;
    const auto described = describe(of);
    REQUIRE(described);
    CHECK(live.peak() == 0);
    CHECK(bytes_of(*described) == bytes_of(whole));
    CHECK(layer_names(*described) == layer_names(whole));
    CHECK((ties(*described) == ties(whole)));
    const auto shapes = collect_weights(*described), real = collect_weights(whole);
    REQUIRE(shapes.size() == real.size());
    for (std::size_t i = 0; i < real.size(); ++i) {
      CHECK(shapes[i].name == real[i].name);
      CHECK(shapes[i].tensor.sizes() == real[i].tensor.sizes());
      CHECK(shapes[i].tensor.scalar_type() == real[i].tensor.scalar_type());
    }
    std::vector<std::int64_t> here{3, 64, 64}, there = here;
    if (ties(whole).size() == 1) here = there = {64};  // tokens
    for (std::size_t i = 0; i < whole.size(); ++i)
      CHECK(described->at(i)->macs(here) == whole[i]->macs(there));
    CHECK(here == there);
  }
}

TEST_CASE("A layer that needs memory to be described is refused by its place") {
  model_blueprint of;
  of.add<linear>("in", 2, 4);
  of.add<counting>("counting");
  CHECK_THAT(error_of(describe(of), errc::bad_config).text,
             ContainsSubstring("layer 1") && ContainsSubstring("memory"));
  CHECK(at::randn({2}).sum().item<float>() != 0);  // tensors have memory again
}

TEST_CASE("A tie of three parameters, of different shapes or to what is no parameter is refused") {
  const auto refused = [](std::int64_t width, const std::vector<std::string>& tied_to) {
    model_blueprint of;
    of.add<linear>("in", 4, 4);
    for (std::size_t i = 0; i < tied_to.size(); ++i)
      of.add<token_scores>("out" + std::to_string(i), std::int64_t{4}, width, tied_to[i]);
    const auto described = describe(of);
    return described ? std::string() : error_of(described, errc::bad_config).text;
  };
  const std::string other = "a tie is between two parameters of the model that are in no other tie";
  CHECK(refused(4, {"in.weight", ""}).empty());
  CHECK(refused(4, {"in.weight", "in.weight"}) ==
        "the model ties 'in.weight' and 'out1.weight', but " + other);
  CHECK(refused(4, {"in.weight", "out0.weight"}) ==
        "the model ties 'out0.weight' and 'out1.weight', but " + other);
  CHECK(refused(4, {"out0.weight"}) ==
        "the model ties 'out0.weight' and 'out0.weight', but " + other);
  CHECK(refused(4, {"elsewhere"}) == "the model ties 'elsewhere' and 'out0.weight', but " + other);
  CHECK(refused(5, {"in.weight"}) ==
        "the model ties 'in.weight' and 'out0.weight', but they have different shapes");
}
