// The sum over replicas goes on beside the backward, and does not wait for a replica that is gone.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/base/errors.hpp"
#include "actors/pipeline/data/feed.hpp"
#include "actors/pipeline/local_stages.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "actors/system.hpp"
#include "engine/autograd/weight_gradients.hpp"
#include "engine/model/blocks.hpp"
#include "engine/schedule/generators.hpp"
#include "tests/unit/actors/stage/idle_stage.hpp"

namespace {

using namespace troupe;
using namespace std::chrono_literals;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Called before the gated layer's weight gradient is computed.
std::function<void()> before_gradient;

struct gated_function : torch::autograd::Function<gated_function> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows,
                            const at::Tensor& weight) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({rows, weight});
    return at::mm(rows, weight);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    auto* const later = engine::weight_gradient_collector::current();
    if (later == nullptr) throw std::logic_error("nobody collects weight gradients");
    later->add({saved[1], [rows = saved[0], gradient = gradients[0]] {
                  before_gradient();
                  return rows.t().mm(gradient);
                }});
    return {at::Tensor(), at::Tensor()};
  }
};

/// The first layer, and so the last whose gradient is computed: the largest of all parameters.
class gated final : public engine::layer {
 public:
  gated() : layer("gated"), weight_(at::randn({64, 64}).set_requires_grad(true)) {}
  at::Tensor forward(const at::Tensor& input, bool /*training*/) override {
    return gated_function::apply(input, weight_);
  }
  [[nodiscard]] std::vector<engine::named_tensor> parameters() const override {
    return {{"gated.weight", weight_}};
  }
  [[nodiscard]] double macs(std::vector<std::int64_t>& /*sample*/) const override { return 0; }

 private:
  at::Tensor weight_;  // [64, 64] f32
};

/// One stage of two replicas; the other one is idle.
struct half_a_pair {
  explicit half_a_pair(bool shares_state = false) {
    actors::stage_blueprint parts{.name = "stage-0", .progress = board};
    actors::model_slice slice;
    slice.layers.push_back(std::make_unique<gated>());
    slice.layers.push_back(
        std::make_unique<engine::linear>("two", 64, 10, at::detail::createCPUGenerator(1)));
    parts.slices.push_back(std::move(slice));
    auto spawned =
        actors::spawn_stage_with_optimizer(system, std::move(parts), optimizers::built_in());
    REQUIRE(spawned);
    stage = *spawned;
    auto made = actors::pipeline::compose(
        system, {stage, other}, "1f1b",
        actors::pipeline_options{.replicas = 2, .shares_state = shares_state});
    REQUIRE(made);
    pipeline.emplace(std::move(*made));
  }
  ~half_a_pair() {
    pipeline.reset();
    for (const auto& each : {stage, other})
      caf::anon_send_exit(each, caf::exit_reason::user_shutdown);
  }

  /// Runs a step of a micro-batch a replica on the one that is not idle. Gives why it failed.
  std::string run() {
    caf::scoped_actor self(system);
    self->request(stage, 10s,
                  actors::announce_plan{.number = 5,
                                        .kind = engine::step_kind::training,
                                        .microbatches = 1,
                                        .chunks = 1,
                                        .steps = engine::gpipe(1, 1).stages.front()})
        .receive([](const actors::acknowledged&) {},
                 [](const caf::error& why) { FAIL(actors::from_caf(why).text); });
    step = pipeline->next_step();
    const engine::batch batch{at::randn({2, 64}), at::zeros({2}, at::kLong)};
    REQUIRE(actors::feed(batch, step, 2, pipeline->feeders()) == 2);
    std::string text;
    self->request(stage, 20s,
                  actors::run_stage{.step = step,
                                    .kind = engine::step_kind::training,
                                    .plan = 5,
                                    .batch_size = 2,
                                    .number = 1,
                                    .learning_rate = 0.1,
                                    .shares = {1}})
        .receive([](const actors::stage_done&) {},
                 [&](const caf::error& why) { text = actors::from_caf(why).text; });
    return text;
  }

  /// What a heartbeat would tell of a thread of the stage.
  actors::progress_report told_of(const std::string& thread) {
    for (const auto& each : board->tell(std::chrono::steady_clock::now()))
      if (const auto report = actors::to_report(each); report && report->thread == thread)
        return *report;
    return {};
  }

  std::shared_ptr<actors::progress_board> board = std::make_shared<actors::progress_board>(1s);
  actors::system_config config;
  caf::actor_system system{config};
  std::shared_ptr<tests::received> got = std::make_shared<tests::received>();
  actors::stage_actor stage;
  actors::stage_actor other = system.spawn(tests::idle_stage, got);
  std::optional<actors::pipeline> pipeline;
  engine::step_key step;  // that runs
};

constexpr std::uint32_t others_bucket = 0, own_bucket = 1;

}  // namespace

TEST_CASE("Gradients leave for another replica before the backward ends; its death is told") {
  half_a_pair pair;
  bool came = false;
  before_gradient = [&] {
    // The backward does not end before the layer after this one has been sent.
    came = pair.got->gradients.comes();
    caf::anon_send_exit(pair.other, caf::exit_reason::user_shutdown);
  };
  const auto why = pair.run();
  CHECK(came);
  const auto sent = pair.got->gradients.next();
  CHECK(sent.bucket == others_bucket);
  CHECK(sent.from == 0);
  CHECK_FALSE(sent.summed);
  REQUIRE(sent.gradients.size() == 2);
  CHECK(sent.gradients[0].sizes() == at::IntArrayRef({10}));
  CHECK(sent.gradients[1].sizes() == at::IntArrayRef({10, 64}));
  CHECK(why == "stage-0: replica 1 of it is gone: gradients cannot be summed without it");
}

TEST_CASE("A replica that dies before it sends its updated parameters fails the step of others") {
  half_a_pair pair(/*shares_state=*/true);
  before_gradient = [&] {
    // All that the other one has to send before its update: of a bucket that it owns, nothing.
    const auto send = [&](auto message) { caf::anon_send(pair.stage, std::move(message)); };
    const std::vector<at::Tensor> none(2);
    if (!pair.got->gradients.comes()) return;
    send(actors::replica_gradients{pair.step, others_bucket, 1, true, none});
    send(actors::replica_gradients{pair.step, own_bucket, 1, false, {at::zeros({64, 64})}});
    send(actors::replica_statistics{pair.step, 1, std::vector<engine::step_statistics>(1)});
  };
  std::thread killer([&] {
    static_cast<void>(pair.got->parameters.comes());
    caf::anon_send_exit(pair.other, caf::exit_reason::user_shutdown);
  });
  const auto why = pair.run();
  killer.join();
  const auto sent = pair.got->parameters.next();
  REQUIRE(sent.values.size() == 1);
  CHECK(sent.values.front().sizes() == at::IntArrayRef({64, 64}));
  CHECK(sent.bucket == own_bucket);
  CHECK(why == "stage-0: replica 1 of it is gone: its parameters cannot be had without it");
  // The thread that added up its bucket is watched like the others. It sends the sums before it
  // ends.
  const auto until = std::chrono::steady_clock::now() + 10s;
  while (pair.told_of("sum over replicas").count < 4 && std::chrono::steady_clock::now() < until)
    std::this_thread::yield();
  CHECK(pair.told_of("sum over replicas").count >= 4);
}
