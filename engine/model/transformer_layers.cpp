#include "engine/model/transformer_layers.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <iterator>
#include <utility>

#include "engine/autograd/pass.hpp"
#include "engine/operators/linear.hpp"

namespace troupe::engine {
namespace {

constexpr double usual_deviation = 0.02;
constexpr double norm_eps = 1e-5;

at::Tensor normal_weight(at::IntArrayRef shape, double deviation, const at::Generator& random) {
  const c10::NoGradGuard no_grad;
  return at::empty(shape, at::kFloat).normal_(0, deviation, random).requires_grad_();
}

/// torch.nn.Dropout, but for where its mask comes from.
at::Tensor drop(const at::Tensor& x, double share, const std::string& layer, bool training) {
  if (!training || share == 0) return x;
  const double kept = 1 - share;
  at::Tensor mask;
  {
    const c10::NoGradGuard no_grad;
    mask = at::empty_like(x).bernoulli_(kept, random_for(layer, x.device())).div_(kept);
  }
  return x * mask;
}

std::int64_t positions_of(const layer& of, const std::vector<std::int64_t>& sample_shape,
                          std::size_t dimensions) {
  TORCH_CHECK_VALUE(sample_shape.size() == dimensions, of.name(), " takes samples of ", dimensions,
                    " dimensions, not ", at::IntArrayRef(sample_shape));
  return sample_shape.front();
}

std::vector<named_tensor> join(std::vector<std::vector<named_tensor>> parts) {
  std::vector<named_tensor> all;
  for (auto& part : parts) std::move(part.begin(), part.end(), std::back_inserter(all));
  return all;
}

}  // namespace

token_embedding::token_embedding(std::string name, std::int64_t tokens, std::int64_t context,
                                 std::int64_t width, double dropout, const at::Generator& random)
    : layer(std::move(name)),
      tokens_(normal_weight({tokens, width}, usual_deviation, random)),
      positions_(normal_weight({context, width}, usual_deviation, random)),
      dropout_(dropout) {}

at::Tensor token_embedding::forward(const at::Tensor& input, bool training) {
  const auto length = input.size(1);
  TORCH_CHECK_VALUE(length <= positions_.size(0), name(), " takes at most ", positions_.size(0),
                    " tokens, not ", length);
  const auto x = at::embedding(tokens_, input) + positions_.narrow(0, 0, length);
  return drop(x, dropout_, name(), training);
}

std::vector<named_tensor> token_embedding::parameters() const {
  return {{name() + ".tokens", tokens_}, {name() + ".positions", positions_}};
}

double token_embedding::macs(std::vector<std::int64_t>& sample_shape) const {
  sample_shape = {positions_of(*this, sample_shape, 1), tokens_.size(1)};
  return 0;
}

projection::projection(std::string name, std::int64_t in, std::int64_t out, double deviation,
                       bool bias, const at::Generator& random)
    : name_(std::move(name)), weight_(normal_weight({out, in}, deviation, random)) {
  if (bias) bias_ = at::zeros({out}, at::kFloat).requires_grad_();
}

at::Tensor projection::operator()(const at::Tensor& input) const {
  return linear_map(input, weight_, bias_, copies_);
}

std::vector<named_tensor> projection::parameters() const {
  std::vector<named_tensor> all{{name_ + ".weight", weight_}};
  if (bias_.defined()) all.push_back({name_ + ".bias", bias_});
  return all;
}

layer_norm::layer_norm(std::string name, std::int64_t width)
    : layer(std::move(name)),
      weight_(at::ones({width}, at::kFloat).requires_grad_()),
      bias_(at::zeros({width}, at::kFloat).requires_grad_()) {}

at::Tensor layer_norm::forward(const at::Tensor& input, bool /*training*/) {
  return at::layer_norm(input, weight_.sizes(), weight_, bias_, norm_eps);
}

causal_attention::causal_attention(std::string name, std::int64_t width, std::int64_t heads,
                                   double deviation, double dropout, const at::Generator& random)
    : layer(std::move(name)),
      norm_(this->name() + ".norm", width),
      in_(this->name() + ".in", width, 3 * width, usual_deviation, true, random),
      out_(this->name() + ".out", width, width, deviation, true, random),
      heads_(heads),
      dropout_(dropout) {}

at::Tensor causal_attention::forward(const at::Tensor& input, bool training) {
  const auto [samples, length, width] =
      std::tuple(input.size(0), input.size(1), input.size(2));  // [N, T, W]
  const auto parts = in_(norm_.forward(input, training))
                         .view({samples, length, 3, heads_, width / heads_})
                         .permute({2, 0, 3, 1, 4})
                         .unbind();  // 3 times [N, heads, T, W / heads]
  const auto mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {},
                                                      /*dropout_p=*/0, /*is_causal=*/true);
  const auto joined = mixed.transpose(1, 2).reshape({samples, length, width});
  return input + drop(out_(joined), dropout_, name(), training);
}

std::vector<named_tensor> causal_attention::parameters() const {
  return join({norm_.parameters(), in_.parameters(), out_.parameters()});
}

double causal_attention::macs(std::vector<std::int64_t>& sample_shape) const {
  const auto length = static_cast<double>(positions_of(*this, sample_shape, 2));
  const auto width = static_cast<double>(sample_shape[1]);
  return length * (in_.weights() + out_.weights()) + 2 * length * length * width;
}

feed_forward::feed_forward(std::string name, std::int64_t width, double deviation, double dropout,
                           const at::Generator& random)
    : layer(std::move(name)),
      norm_(this->name() + ".norm", width),
      in_(this->name() + ".in", width, 4 * width, usual_deviation, true, random),
      out_(this->name() + ".out", 4 * width, width, deviation, true, random),
      dropout_(dropout) {}

at::Tensor feed_forward::forward(const at::Tensor& input, bool training) {
  const auto inside = at::gelu(in_(norm_.forward(input, training)));
  return input + drop(out_(inside), dropout_, name(), training);
}

std::vector<named_tensor> feed_forward::parameters() const {
  return join({norm_.parameters(), in_.parameters(), out_.parameters()});
}

double feed_forward::macs(std::vector<std::int64_t>& sample_shape) const {
  return static_cast<double>(positions_of(*this, sample_shape, 2)) *
         (in_.weights() + out_.weights());
}

token_scores::token_scores(std::string name, std::int64_t width, std::int64_t tokens,
                           std::string tied_to, const at::Generator& random)
    : layer(std::move(name)),
      scores_(this->name(), width, tokens, usual_deviation, false, random),
      tied_to_(std::move(tied_to)) {}

std::vector<weight_tie> token_scores::ties() const {
  if (tied_to_.empty()) return {};
  return {{tied_to_, name() + ".weight"}};
}

double token_scores::macs(std::vector<std::int64_t>& sample_shape) const {
  const auto length = positions_of(*this, sample_shape, 2);
  sample_shape = {length, scores_.weight().size(0)};
  return static_cast<double>(length) * scores_.weights();
}

}  // namespace troupe::engine
