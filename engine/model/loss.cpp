#include "engine/model/loss.hpp"

#include <ATen/ops/argmax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/sum.h>

namespace troupe::engine {

at::Tensor mean_loss(loss_kind kind, const at::Tensor& logits, const at::Tensor& labels) {
  const auto scores = logits.to(at::kFloat).flatten(0, -2);  // [N, K] f32
  const auto right = labels.flatten();                       // [N] i64
  if (kind == loss_kind::cross_entropy) return at::cross_entropy_loss(scores, right);
  return at::mse_loss(scores, at::one_hot(right, scores.size(1)).to(at::kFloat));
}

std::int64_t count_correct(const at::Tensor& logits, const at::Tensor& labels) {
  return at::argmax(logits, -1).eq(labels).sum().item<std::int64_t>();
}

}  // namespace troupe::engine
