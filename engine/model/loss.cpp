#include "engine/model/loss.hpp"

#include <ATen/ops/argmax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/sum.h>

#include "engine/operators/cross_entropy.hpp"
#include "messages/base/near_miss.hpp"

namespace troupe::engine {
namespace {

/// [N, K] f32
at::Tensor rows_of(const at::Tensor& outputs) {
  return outputs.to(at::kFloat).flatten(0, -2);
}

}  // namespace

at::Tensor cross_entropy_loss(const at::Tensor& logits, const at::Tensor& labels) {
  const bool on_device = !logits.is_cpu() && at::isReducedFloatingType(logits.scalar_type());
  if (on_device) return mean_cross_entropy(logits.flatten(0, -2), labels.flatten());
  return at::cross_entropy_loss(rows_of(logits), labels.flatten());
}

at::Tensor mse_loss(const at::Tensor& scores, const at::Tensor& labels) {
  const auto rows = rows_of(scores);
  return at::mse_loss(rows, at::one_hot(labels.flatten(), rows.size(1)).to(at::kFloat));
}

loss_registry built_in_losses() {
  loss_registry made;
  made.add("cross-entropy", cross_entropy_loss);
  made.add("mse", mse_loss);
  return made;
}

result<loss_function> find_loss(const loss_registry& known, const std::string& name) {
  if (const auto* found = known.find(name)) return *found;
  return fail(errc::bad_config, "unknown loss '" + name + "'; known: " + join(known.names()));
}

at::Tensor rows_correct(const at::Tensor& logits, const at::Tensor& labels) {
  return at::argmax(logits, -1).eq(labels).sum();
}

}  // namespace troupe::engine
