#include "cluster/checkpoints/unfinite_value.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>

namespace troupe::cluster {

result<std::string_view> unfinite_value(const engine::tensor_reader& file,
                                        const engine::safetensors_entry& tensor) {
  if (!c10::isFloatingType(tensor.type)) return "";
  std::string_view found;
  const auto read = file.for_each_run(tensor, [&](const at::Tensor& run) {
    if (found == "NaN" || at::isfinite(run).all().item<bool>()) return result<void>();
    found = at::isnan(run).any().item<bool>() ? "NaN" : "infinity";
    return result<void>();
  });
  if (!read) return tl::unexpected(read.error());
  return found;
}

}  // namespace troupe::cluster
