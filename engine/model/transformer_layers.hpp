#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/model/layer.hpp"
#include "engine/operators/weight_copies.hpp"

namespace troupe::engine {

// The blocks that a GPT-style decoder is built of (Radford et al., 2019), as layers that map
// [N, T, W] to [N, T, W]: residual additions stay inside a layer, so the model may be cut between
// any two. Weights are drawn from a normal distribution; biases start at 0. Dropout draws from
// `random_for` its layer, and is off outside of training.

/// Token and position embeddings, summed. [N, T] i64 -> [N, T, W] f32
class token_embedding final : public layer {
 public:
  /// `context`: the longest T.
  token_embedding(std::string name, std::int64_t tokens, std::int64_t context, std::int64_t width,
                  double dropout, const at::Generator& random);

  at::Tensor forward(const at::Tensor& input, bool training) override;
  [[nodiscard]] std::vector<named_tensor> parameters() const override;
  [[nodiscard]] double macs(std::vector<std::int64_t>& sample_shape) const override;

 private:
  at::Tensor tokens_;     // [tokens, W] f32
  at::Tensor positions_;  // [context, W] f32
  double dropout_;
};

/// A linear map over the last dimension, its bias optional.
class projection {
 public:
  projection(std::string name, std::int64_t in, std::int64_t out, double deviation, bool bias,
             const at::Generator& random);

  [[nodiscard]] at::Tensor operator()(const at::Tensor& input) const;
  [[nodiscard]] std::vector<named_tensor> parameters() const;
  [[nodiscard]] double weights() const { return static_cast<double>(weight_.numel()); }
  [[nodiscard]] const at::Tensor& weight() const { return weight_; }

 private:
  std::string name_;
  at::Tensor weight_;  // [out, in] f32
  std::shared_ptr<weight_copies> copies_ = std::make_shared<weight_copies>();
  at::Tensor bias_;  // [out] f32, or undefined
};

/// torch.nn.LayerNorm over the last dimension, eps 1e-5. [..., W], shape kept
class layer_norm final : public layer {
 public:
  layer_norm(std::string name, std::int64_t width);

  at::Tensor forward(const at::Tensor& input, bool training) override;
  [[nodiscard]] std::vector<named_tensor> parameters() const override {
    return {{name() + ".weight", weight_}, {name() + ".bias", bias_}};
  }
  [[nodiscard]] double macs(std::vector<std::int64_t>&) const override { return 0; }

 private:
  at::Tensor weight_;  // [W] f32
  at::Tensor bias_;    // [W] f32
};

/// x + attention(norm(x)): each position attends to itself and those before it.
class causal_attention final : public layer {
 public:
  /// `heads` divides `width`. `deviation`: of the weights that lead back into the residual.
  causal_attention(std::string name, std::int64_t width, std::int64_t heads, double deviation,
                   double dropout, const at::Generator& random);

  at::Tensor forward(const at::Tensor& input, bool training) override;
  [[nodiscard]] std::vector<named_tensor> parameters() const override;
  [[nodiscard]] double macs(std::vector<std::int64_t>& sample_shape) const override;

 private:
  layer_norm norm_;
  projection in_;   // W -> queries, keys, values
  projection out_;  // W -> W
  std::int64_t heads_;
  double dropout_;
};

/// x + W2 gelu(W1 norm(x)), four times as wide inside.
class feed_forward final : public layer {
 public:
  feed_forward(std::string name, std::int64_t width, double deviation, double dropout,
               const at::Generator& random);

  at::Tensor forward(const at::Tensor& input, bool training) override;
  [[nodiscard]] std::vector<named_tensor> parameters() const override;
  [[nodiscard]] double macs(std::vector<std::int64_t>& sample_shape) const override;

 private:
  layer_norm norm_;
  projection in_;
  projection out_;
  double dropout_;
};

/// Scores of the next token. [N, T, W] -> [N, T, tokens]. Tied to the parameter of the name given,
/// from which it should start; or with a weight of its own.
class token_scores final : public layer {
 public:
  token_scores(std::string name, std::int64_t width, std::int64_t tokens, std::string tied_to,
               const at::Generator& random);

  at::Tensor forward(const at::Tensor& input, bool /*training*/) override { return scores_(input); }
  [[nodiscard]] std::vector<named_tensor> parameters() const override {
    return scores_.parameters();
  }
  [[nodiscard]] std::vector<weight_tie> ties() const override;
  [[nodiscard]] double macs(std::vector<std::int64_t>& sample_shape) const override;

 private:
  projection scores_;
  std::string tied_to_;  // empty: to nothing
};

}  // namespace troupe::engine
