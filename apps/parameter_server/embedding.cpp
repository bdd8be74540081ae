#include "apps/parameter_server/embedding.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <utility>

namespace troupe::apps {

constexpr double deviation = 0.05;

embeddings::embeddings(std::string name, std::int64_t fields, std::int64_t rows, std::int64_t width,
                       const at::Generator& random)
    : layer(std::move(name)) {
  const c10::NoGradGuard no_grad;
  for (std::int64_t i = 0; i < fields; ++i)
    tables_.push_back(
        at::empty({rows, width}, at::kFloat).normal_(0, deviation, random).requires_grad_());
}

at::Tensor embeddings::forward(const at::Tensor& input, bool /*training*/) {
  std::vector<at::Tensor> parts;
  for (std::size_t i = 0; i < tables_.size(); ++i)
    parts.push_back(at::embedding(tables_[i], input.select(1, static_cast<std::int64_t>(i)),
                                  /*padding_idx=*/-1, /*scale_grad_by_freq=*/false,
                                  /*sparse=*/true));
  return at::cat(parts, 1);
}

std::vector<engine::named_tensor> embeddings::parameters() const {
  std::vector<engine::named_tensor> all;
  for (std::size_t i = 0; i < tables_.size(); ++i)
    all.push_back({name() + "." + std::to_string(i) + ".weight", tables_[i]});
  return all;
}

double embeddings::macs(std::vector<std::int64_t>& sample_shape) const {
  sample_shape = {static_cast<std::int64_t>(tables_.size()) * tables_.front().size(1)};
  return 0;
}

}  // namespace troupe::apps
