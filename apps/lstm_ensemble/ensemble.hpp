#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "actors/futures/pool.hpp"
#include "apps/lstm_ensemble/trace.hpp"

namespace troupe::apps {

/// An ensemble of bidirectional LSTMs, as in PyTorch's tutorial on dynamic parallelism: each model
/// runs one LSTM over the sequence and another over it reversed, and joins their outputs; the
/// ensemble adds the models'.
struct ensemble_shape {
  std::int64_t models = 4;
  std::int64_t steps = 50;       // T
  std::int64_t batch = 50;       // B
  std::int64_t channels = 1024;  // C: of the input and of each LSTM's hidden state
};

/// What runs beside what.
enum class ensemble_form : std::uint8_t {
  serial,      ///< Everything in order.
  directions,  ///< The two directions of a model are forked, models in order.
  models,      ///< The models are forked, and in each its directions.
};

/// An LSTM of one layer in one direction.
class lstm {
 public:
  /// Weights as torch.nn.LSTM draws them: uniform in +-1/sqrt(channels).
  lstm(std::int64_t channels, const at::Generator& random, bool train);

  [[nodiscard]] at::Tensor forward(const at::Tensor& input) const;  // [T, B, C] -> [T, B, C]
  [[nodiscard]] const std::vector<at::Tensor>& weights() const noexcept { return weights_; }

 private:
  std::int64_t channels_;
  std::vector<at::Tensor> weights_;  // [4C, C], [4C, C], [4C], [4C]
};

/// What one pass came to.
struct ensemble_outcome {
  at::Tensor output;                  // [T, B, 2C]
  double loss = 0;                    // mean of the squares; when training
  std::vector<at::Tensor> gradients;  // of all weights; when training
};

/// The models, and how their work is laid out on a pool. The same bits come out in every form.
class lstm_ensemble {
 public:
  lstm_ensemble(const ensemble_shape& shape, std::uint64_t seed, bool train);

  /// Forward, and when training backward. Call it in a thread of `on`. Errors: handler_failed with
  /// torch's message.
  [[nodiscard]] result<ensemble_outcome> run(actors::pool& on, ensemble_form form,
                                             const at::Tensor& input, trace& spans) const;

 private:
  bool train_;
  std::vector<lstm> cells_;  // two a model: forward in time, backward in time
};

/// FNV-1a over the bytes of tensors: equal for equal bits.
[[nodiscard]] std::uint64_t fingerprint(const ensemble_outcome& of);

}  // namespace troupe::apps
