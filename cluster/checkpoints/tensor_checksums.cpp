#include "cluster/checkpoints/tensor_checksums.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>

#include <span>
#include <utility>

namespace troupe::cluster {
namespace {

void add_to(running_digest& digest, const at::Tensor& run) {
  const auto dense = run.detach().cpu().resolve_neg().contiguous();
  digest.add({static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()});
}

}  // namespace

void tensor_checksums::add(const std::string& tensor, std::uint64_t first, const at::Tensor& run) {
  if (first == 0) tensors_.insert_or_assign(tensor, running_digest(bytes));
  add_to(tensors_.at(tensor), run);
}

std::map<std::string, std::string> tensor_checksums::digits() {
  std::map<std::string, std::string> all;
  for (auto& [name, digest] : tensors_) all.emplace(name, digest.digits());
  return all;
}

engine::tensor_stream checksummed(engine::tensor_stream from, tensor_checksums& of) {
  return {.forms = std::move(from.forms),
          .send = [send = std::move(from.send), &of](const auto& take) {
            return send([&](const std::string& name, std::uint64_t first, const at::Tensor& run) {
              of.add(name, first, run);
              return take(name, first, run);
            });
          }};
}

result<std::string> checksum_of(const engine::tensor_reader& file,
                                const engine::safetensors_entry& tensor) {
  running_digest digest(tensor_checksums::bytes);
  const auto read = file.for_each_run(tensor, [&](const at::Tensor& run) {
    add_to(digest, run);
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
