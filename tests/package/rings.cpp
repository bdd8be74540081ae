// Learns which of three rings a point lies in: a program of its own layer, model, data, loss,
// metric, schedule, optimizer, options, message and actor, trained as a pipeline of processes.
// docs/own_program.md explains it.

#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/topk.h>
#include <sys/resource.h>

#include <caf/actor_cast.hpp>
#include <caf/actor_system.hpp>
#include <caf/event_based_actor.hpp>
#include <charconv>
#include <chrono>
#include <cmath>
#include <memory>
#include <numbers>
#include <string>
#include <tuple>
#include <vector>

#include "actors/arrivals/cheap_actors.hpp"
#include "actors/futures/requester.hpp"
#include "actors/messages/declaration.hpp"
#include "actors/wire/message_registry.hpp"
#include "cluster/config/option_fields.hpp"
#include "cluster/training/application.hpp"
#include "engine/base/random.hpp"
#include "engine/model/blocks.hpp"
#include "engine/schedule/plan.hpp"
#include "optimizers/elementwise.hpp"

namespace {

using namespace troupe;

/// The table [rings].
struct ring_settings {
  std::int64_t width = 32;

  bool operator==(const ring_settings&) const = default;
};

/// sin(scale * x). [N, K] -> [N, K]
class wave final : public engine::layer {
 public:
  wave(std::string name, std::int64_t width)
      : layer(std::move(name)), scale_(at::ones({width}).requires_grad_(true)) {}

  at::Tensor forward(const at::Tensor& input, bool) override { return at::sin(input * scale_); }
  [[nodiscard]] std::vector<engine::named_tensor> parameters() const override {
    return {{name() + ".scale", scale_}};
  }
  [[nodiscard]] double macs(std::vector<std::int64_t>&) const override {
    return static_cast<double>(scale_.numel());
  }

 private:
  at::Tensor scale_;  // [K] f32
};

result<engine::model_blueprint> waves(const engine::model_order& order) {
  const auto width = static_cast<std::int64_t>(order.options.at("width"));
  engine::model_blueprint made;
  made.add<engine::linear>("in", 2, width);
  made.add<wave>("wave", width);
  made.add<engine::linear>("hidden", width, width);
  made.add<engine::relu>("relu");
  made.add<engine::linear>("scores", width, order.classes);
  return made;
}

/// Points of three rings around the origin: a sample depends on (seed, split, index) alone.
class rings final : public engine::dataset {
 public:
  rings(std::int64_t count, std::uint64_t seed) : count_(count), seed_(seed) {}

  [[nodiscard]] std::int64_t size(engine::split part) const override {
    return part == engine::split::train ? count_ : count_ / 10;
  }
  [[nodiscard]] std::int64_t classes() const override { return 3; }
  [[nodiscard]] std::vector<std::int64_t> sample_shape() const override { return {2}; }
  [[nodiscard]] result<engine::batch> read(engine::split part,
                                           std::span<const std::int64_t> indices) const override {
    const auto count = static_cast<std::int64_t>(indices.size());
    engine::batch made{at::empty({count, 2}), at::empty({count}, at::kLong)};
    auto* point = made.inputs.mutable_data_ptr<float>();
    auto* label = made.labels.mutable_data_ptr<std::int64_t>();
    for (const auto index : indices) {
      if (index < 0 || index >= size(part)) return fail(errc::bad_data, "rings: no such sample");
      engine::splitmix64 random(engine::splitmix64::combine(
          seed_ * 2 + (part == engine::split::train), static_cast<std::uint64_t>(index)));
      const auto even = [&random] { return static_cast<double>(random.next() >> 11) * 0x1p-53; };
      *label = static_cast<std::int64_t>(random.below(3));
      const double radius = static_cast<double>(*label++) + 0.3 + 0.4 * even();
      const double angle = 2 * std::numbers::pi * even();
      *point++ = static_cast<float>(radius * std::cos(angle));
      *point++ = static_cast<float>(radius * std::sin(angle));
    }
    return made;
  }

 private:
  std::int64_t count_;
  std::uint64_t seed_;
};

result<std::unique_ptr<engine::dataset>> open_rings(std::string_view rest,
                                                    const engine::dataset_options& options) {
  std::int64_t count = 0;
  const auto [end, wrong] = std::from_chars(rest.data(), rest.data() + rest.size(), count);
  if (wrong != std::errc() || end != rest.data() + rest.size() || count < 10)
    return fail(errc::bad_config, "--data: \"" + options.source + "\" is not rings:COUNT");
  return std::make_unique<rings>(count, options.seed);
}

/// Cross entropy of labels that are a little in doubt.
at::Tensor smooth(const at::Tensor& scores, const at::Tensor& labels) {
  return at::cross_entropy_loss(scores, labels, /*weight=*/{}, /*reduction=*/1,
                                /*ignore_index=*/-100, /*label_smoothing=*/0.1);
}

/// How many labels are among the two rings with the largest scores.
at::Tensor among_two(const engine::evaluated_batch& of) {
  const auto rings = std::get<1>(at::topk(of.outputs, 2));  // [N, 2] i64
  return rings.eq(of.labels.unsqueeze(1)).sum();
}

/// Every micro-batch forward, then every one backward.
engine::plan all_forward(std::uint32_t stages, std::uint32_t microbatches,
                         std::uint32_t /*chunks*/) {
  engine::stage_plan each;
  each.memory_cap = microbatches;
  for (const auto kind : {engine::action_kind::forward, engine::action_kind::backward})
    for (std::uint32_t i = 0; i < microbatches; ++i) each.actions.push_back({kind, {i}});
  return {"all-forward", microbatches, std::vector<engine::stage_plan>(stages, each)};
}

struct ask_peak {
  static constexpr auto declared = actors::travels("rings.ask_peak");
};

struct peak_told {
  static constexpr auto declared = actors::travels("rings.peak_told");
  std::uint64_t bytes = 0;

  static void fields(auto& self, auto& f) { f(self.bytes); }
};

using peak_messages = actors::message_list<ask_peak, peak_told>;

/// Tells the peak of its process's memory.
caf::behavior tell_peak(caf::event_based_actor* /*self*/) {
  return {[](const ask_peak&) {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    return peak_told{static_cast<std::uint64_t>(used.ru_maxrss) * 1024};
  }};
}

result<std::string> peaks(const joined_nodes& nodes) {
  actors::requester ask(nodes.system);
  std::string text = "peak memory:";
  for (const auto& name : nodes.names) {
    const auto actor = nodes.find(name, "peak");
    if (!actor) return tl::unexpected(actor.error());
    const auto answer = ask.request<peak_told>(*actor, ask_peak{}, std::chrono::seconds(10));
    const auto& told = answer.get();
    if (!told) return tl::unexpected(told.error());
    text += " " + name + " " + std::to_string(told->bytes >> 20) + " MiB";
  }
  return text;
}

optimizers::optimizer heavy_ball() {
  return optimizers::elementwise("heavy-ball",
                                 {{.name = "lr", .fallback = 0.01},
                                  {.name = "friction",
                                   .fallback = 0.1,
                                   .most = 1,
                                   .help = "Share of the velocity that a step loses"}},
                                 {"velocity"},
                                 [](auto& x, auto gradient, auto& v, auto lr, auto friction) {
                                   v = (1 - friction) * v - lr * gradient;
                                   x += v;
                                 });
}

}  // namespace

int main(int argc, char** argv) {
  using namespace cluster::fields;
  application program;
  program.info = {
      .name = "rings", .version = "1.0", .summary = "Learns which of three rings a point lies in."};
  program.info.own = {{"rings", "width", "--width", "", "N", "Width of the hidden layers",
                       integer(own(&ring_settings::width), 1, 1024), ""}};
  auto& known = program.info.known;
  known.models["waves"] = waves;
  known.data.add("rings", {"rings:COUNT", open_rings});
  known.losses.add("smooth", smooth);
  known.metrics.add("top-2", {.sum = among_two, .is_share = true});
  known.optimizers.add(heavy_ball());
  known.schedules.add("all-forward", {all_forward});
  known.own_messages = [](auto& types) { types.add(peak_messages{}); };
  known.own_actors.add("peak", [](auto& system) {
    auto actor = caf::actor_cast<caf::strong_actor_ptr>(system.spawn(tell_peak));
    actors::declare_cheap(actor);
    return actor;
  });
  program.info.defaults.model.name = "waves";
  program.info.defaults.data.source = "rings:1000";
  program.model_options = [](const cluster::trainer_config& config) {
    const auto width = config.own.of<ring_settings>().width;
    return std::map<std::string, double>{{"width", static_cast<double>(width)}};
  };
  program.ask_nodes = peaks;
  return troupe::main(argc, argv, program);
}
