#include "cluster/checkpoints/tensor_checksums.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>

#include "cluster/launch/file_digest.hpp"

namespace troupe::cluster {
namespace {

constexpr std::size_t tensor_checksum_bytes = 16;

}  // namespace

result<std::string> checksum_of(const engine::tensor_reader& file,
                                const engine::safetensors_entry& tensor) {
  running_digest digest(tensor_checksum_bytes);
  const auto read = file.for_each_run(tensor, [&](const at::Tensor& run) {
    digest.add({static_cast<const std::byte*>(run.const_data_ptr()), run.nbytes()});
    return result<void>();
  });
  if (!read) return tl::unexpected(read.error());
  return digest.digits();
}

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
