// A pipeline whose layers do nothing but take their time: what the executor makes of a schedule, in
// real processes over UCX, where no arithmetic and no shortage of cores blurs it.
//
//   paced_pipeline --model paced ..    otherwise as resnet_pipeline; of the environment it reads
//     TROUPE_PACE_LAYERS   how many layers
//     TROUPE_PACE_MS       how long a layer's F, I and W take each
//     TROUPE_PACE_SIGMA    of the lognormal factor, of mean 1, that each of them takes longer: the
//                          same in any schedule, and in schedules_bench (see pace.hpp)
//     TROUPE_PACE_TRACE    a file that gets a JSON line each time: the layer, the action (with the
//                          micro-batch as if all steps were one), begin and end in microseconds

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/custom_function.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

#include "cluster/training/application.hpp"
#include "engine/autograd/weight_gradients.hpp"
#include "engine/model/layer.hpp"
#include "engine/schedule/plan_text.hpp"
#include "tests/bench/programs/pace.hpp"

namespace {

using namespace troupe;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

double number(const char* name, double otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtod(text, nullptr);
}

/// Takes a layer's time. Used by one thread.
class pace {
 public:
  explicit pace(std::uint32_t layer)
      : layer_(layer), mean_(number("TROUPE_PACE_MS", 4)), sigma_(number("TROUPE_PACE_SIGMA", 0)) {
    if (const char* const trace = std::getenv("TROUPE_PACE_TRACE"))
      trace_.open(trace, std::ios::app);
  }

  void take(engine::action_kind kind) {
    const auto begin = clock::now();
    const std::uint64_t turn = turns_[kind]++;
    const std::chrono::duration<double, std::milli> time(
        mean_ * tests::pace_factor({layer_, kind, turn}, sigma_));
    std::this_thread::sleep_until(begin + time);
    if (trace_.is_open()) note(kind, turn, begin, clock::now());
  }

 private:
  using clock = std::chrono::steady_clock;

  // All processes append to one file, a line in one piece.
  void note(engine::action_kind kind, std::uint64_t turn, clock::time_point begin,
            clock::time_point end) {
    const auto us = [](clock::time_point when) {
      return std::chrono::duration_cast<std::chrono::microseconds>(when.time_since_epoch()).count();
    };
    std::ostringstream line;
    line << R"({"layer": )" << layer_ << R"(, "action": ")"
         << engine::to_string({kind, {static_cast<std::uint32_t>(turn)}}) << R"(", "begin": )"
         << us(begin) << R"(, "end": )" << us(end) << "}\n";
    trace_ << line.str() << std::flush;
  }

  std::uint32_t layer_;
  double mean_;
  double sigma_;
  std::ofstream trace_;
  std::map<engine::action_kind, std::uint64_t> turns_;
};

/// x * weight, slowly.
struct paced_function : torch::autograd::Function<paced_function> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            pace* how) {
    const at::AutoDispatchBelowADInplaceOrView below;
    how->take(engine::action_kind::forward);
    context->save_for_backward({x, weight});
    context->saved_data["pace"] = reinterpret_cast<std::int64_t>(how);
    return x * weight;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    auto* const how = reinterpret_cast<pace*>(context->saved_data["pace"].toInt());
    how->take(engine::action_kind::input_gradient);
    const auto weights = [how, gradient = gradients[0], x = saved[0]]() -> at::Tensor {
      how->take(engine::action_kind::weight_gradient);
      return at::sum(gradient * x).view(1);
    };
    variable_list out(3);
    if (context->needs_input_grad(0)) out[0] = gradients[0] * saved[1];
    if (auto* const later = engine::weight_gradient_collector::current())
      later->add({saved[1], weights});
    else
      out[1] = weights();
    return out;
  }
};

class paced_layer final : public engine::layer {
 public:
  explicit paced_layer(std::uint32_t number)
      : layer("layer" + std::to_string(number)),
        pace_(number),
        weight_(at::ones({1}).requires_grad_(true)) {}

  at::Tensor forward(const at::Tensor& input, bool) override {
    return paced_function::apply(input.flatten(1), weight_, &pace_);
  }
  [[nodiscard]] std::vector<engine::named_tensor> parameters() const override {
    return {{name() + ".weight", weight_}};
  }
  [[nodiscard]] double macs(std::vector<std::int64_t>&) const override { return 1; }

 private:
  pace pace_;
  at::Tensor weight_;
};

result<engine::model_blueprint> build(const engine::model_order&) {
  engine::model_blueprint made;
  const auto count = static_cast<std::uint32_t>(number("TROUPE_PACE_LAYERS", 8));
  for (std::uint32_t i = 0; i < count; ++i) made.add<paced_layer>(i);
  return made;
}

}  // namespace

int main(int argc, char** argv) {
  application program;
  program.info = {
      .name = "paced_pipeline", .version = "0", .summary = "Takes its time, as a pipeline."};
  program.info.known.models["paced"] = build;
  return troupe::main(argc, argv, program);
}
