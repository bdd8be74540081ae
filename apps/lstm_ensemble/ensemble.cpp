#include "apps/lstm_ensemble/ensemble.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <exception>
#include <utility>

#include "actors/futures/combine.hpp"
#include "actors/futures/fork.hpp"
#include "engine/base/torch_error.hpp"

namespace troupe::apps {
namespace {

using actors::pool;

/// Both parts of something, the first forked where `beside`. What fails is thrown.
template <class First, class Second>
void both(pool& on, bool beside, First first, Second second) {
  if (!beside) return first(), second();
  const auto forked = actors::fork(on, std::move(first));
  second();
  if (const auto done = actors::wait(forked); !done) throw std::runtime_error(done.error().text);
}

/// A call for each number below `count`, forked where `beside`. What fails is thrown.
template <class Body>
void for_each(pool& on, bool beside, std::int64_t count, Body body) {
  std::vector<actors::future<void>> forked;
  for (std::int64_t i = 0; i < count; ++i)
    beside ? forked.push_back(actors::fork(on, body, i)) : body(i);
  if (const auto done = actors::wait(actors::all(std::move(forked))); !done)
    throw std::runtime_error(done.error().text);
}

/// One pass: which cell runs where. Each cell's forward and backward are a task; its graph is cut
/// at its output, so that cells differentiate beside each other.
class pass {
 public:
  pass(const std::vector<lstm>& cells, pool& on, ensemble_form form, bool train, trace& spans)
      : cells_(cells),
        on_(on),
        fork_models_(form == ensemble_form::models),
        fork_directions_(form != ensemble_form::serial),
        train_(train),
        spans_(spans),
        outputs_(cells.size()),
        gradients_(cells.size()) {}

  ensemble_outcome run(const at::Tensor& input) {
    const at::AutoGradMode record(train_);
    const auto reversed = input.flip({0});
    each_cell([this, &input, &reversed](std::size_t cell) {
      const trace::span here(spans_, name(cell, "forward"));
      outputs_[cell] = cells_[cell].forward(cell % 2 == 0 ? input : reversed);
    });
    std::vector<at::Tensor> leaves = outputs_;
    if (train_)
      for (auto& leaf : leaves) leaf = leaf.detach().requires_grad_();
    ensemble_outcome outcome{.output = join(leaves), .loss = 0, .gradients = {}};
    if (train_) differentiate(leaves, outcome);
    return outcome;
  }

 private:
  template <class Body>
  void each_cell(Body body) {
    const auto models = static_cast<std::int64_t>(cells_.size() / 2);
    for_each(on_, fork_models_, models, [this, body](std::int64_t model) {
      const auto first = static_cast<std::size_t>(2 * model);
      both(
          on_, fork_directions_, [body, first] { body(first); },
          [body, first] { body(first + 1); });
    });
  }

  static at::Tensor join(const std::vector<at::Tensor>& cells) {
    std::vector<at::Tensor> models;  // [T, B, 2C]
    for (std::size_t i = 0; i < cells.size(); i += 2)
      models.push_back(at::cat({cells[i], cells[i + 1].flip({0})}, 2));
    return at::stack(models).sum(0);
  }

  void differentiate(const std::vector<at::Tensor>& leaves, ensemble_outcome& outcome) {
    const auto loss = outcome.output.square().mean();
    const auto seeds = torch::autograd::grad({loss}, leaves);
    each_cell([this, &seeds](std::size_t cell) {
      const trace::span here(spans_, name(cell, "backward"));
      gradients_[cell] =
          torch::autograd::grad({outputs_[cell]}, cells_[cell].weights(), {seeds[cell]});
    });
    outcome.loss = loss.item<double>();
    outcome.output = outcome.output.detach();
    for (auto& of_cell : gradients_)
      outcome.gradients.insert(outcome.gradients.end(), of_cell.begin(), of_cell.end());
  }

  static std::string name(std::size_t cell, const char* what) {
    return "model " + std::to_string(cell / 2) + (cell % 2 == 0 ? " ahead " : " reversed ") + what;
  }

  const std::vector<lstm>& cells_;
  pool& on_;
  const bool fork_models_;
  const bool fork_directions_;
  const bool train_;
  trace& spans_;
  std::vector<at::Tensor> outputs_;                 // [T, B, C], one a cell
  std::vector<std::vector<at::Tensor>> gradients_;  // of its weights, one a cell
};

}  // namespace

lstm::lstm(std::int64_t channels, const at::Generator& random, bool train) : channels_(channels) {
  const double bound = 1 / std::sqrt(static_cast<double>(channels));
  const std::vector<std::vector<std::int64_t>> shapes{
      {4 * channels, channels}, {4 * channels, channels}, {4 * channels}, {4 * channels}};
  for (const auto& shape : shapes)
    weights_.push_back(at::empty(shape).uniform_(-bound, bound, random).set_requires_grad(train));
}

at::Tensor lstm::forward(const at::Tensor& input) const {
  const auto start = at::zeros({1, input.size(1), channels_}, input.options());
  return std::get<0>(at::lstm(input, {start, start}, weights_, /*has_biases=*/true,
                              /*num_layers=*/1, /*dropout=*/0.0, /*train=*/false,
                              /*bidirectional=*/false, /*batch_first=*/false));
}

lstm_ensemble::lstm_ensemble(const ensemble_shape& shape, std::uint64_t seed, bool train)
    : train_(train) {
  const auto random = at::detail::createCPUGenerator(seed);
  for (std::int64_t i = 0; i < 2 * shape.models; ++i)
    cells_.emplace_back(shape.channels, random, train);
}

result<ensemble_outcome> lstm_ensemble::run(actors::pool& on, ensemble_form form,
                                            const at::Tensor& input, trace& spans) const try {
  return pass(cells_, on, form, train_, spans).run(input);
} catch (const std::exception& problem) {
  return fail(errc::handler_failed, engine::reason_of(problem));
}

std::uint64_t fingerprint(const ensemble_outcome& of) {
  std::uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&hash](const at::Tensor& tensor) {
    const auto dense = tensor.contiguous();
    const auto* const bytes = static_cast<const unsigned char*>(dense.const_data_ptr());
    for (std::size_t i = 0; i < dense.nbytes(); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3;
  };
  add(of.output);
  for (const auto& gradient : of.gradients) add(gradient);
  return hash;
}

}  // namespace troupe::apps
