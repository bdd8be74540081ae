#include "engine/slices/summed_file.hpp"

#include <algorithm>
#include <future>
#include <utility>

#include "engine/base/begin_work.hpp"
#include "engine/checksums/running_checksum.hpp"
#include "engine/state/mapped_file.hpp"
#include "engine/state/safetensors.hpp"

namespace troupe::engine {
namespace {

constexpr std::size_t header_blake2b_bytes = 32;
constexpr std::size_t tensor_blake2b_bytes = 16;
/// Summed up and written at once, while it is in the CPU's caches.
constexpr std::int64_t bytes_at_once = std::int64_t{1} << 20;

std::span<const std::byte> bytes_of(const at::Tensor& dense) {
  return {static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()};
}

/// The same tensors, of which `sums` sees each.
tensor_stream summed(const tensor_stream& from, std::map<std::string, running_checksum>& sums) {
  return {.forms = from.forms, .send = [&from, &sums](const tensor_stream::taker& take) {
            return from.send([&](const std::string& name, std::uint64_t first,
                                 const at::Tensor& run) -> result<void> {
              const auto flat = run.detach().cpu().resolve_neg().contiguous().view({-1});
              auto& sum =
                  sums.try_emplace(name, checksum_kind::xxh3, tensor_blake2b_bytes).first->second;
              const auto most = bytes_at_once / static_cast<std::int64_t>(flat.element_size());
              std::int64_t at = 0;
              do {
                const auto part = flat.narrow(0, at, std::min(most, flat.numel() - at));
                sum.add(bytes_of(part));
                if (auto taken = take(name, first + static_cast<std::uint64_t>(at), part); !taken)
                  return taken;
                at += part.numel();
              } while (at < flat.numel());
              return {};
            });
          }};
}

}  // namespace

result<file_sums> save_summed(const std::filesystem::path& file, const tensor_stream& tensors) {
  std::map<std::string, running_checksum> sums;
  if (auto saved = save_safetensors(file, summed(tensors, sums)); !saved)
    return tl::unexpected(saved.error());
  const auto written = tensor_reader::open(file);
  if (!written) return fail(errc::io_failed, written.error().text);
  auto header = header_sum_of(**written, checksum_kind::xxh3);
  if (!header) return fail(errc::io_failed, header.error().text);
  file_sums made{.bytes = (*written)->identity().bytes, .header = std::move(*header)};
  for (auto& [name, sum] : sums) made.tensors.emplace(name, sum.digits());
  return made;
}

result<void> add_summed(std::map<std::string, file_sums>& files,
                        const std::filesystem::path& folder, const std::string& name,
                        const tensor_stream& tensors) {
  if (tensors.forms.empty()) return {};
  auto sums = save_summed(folder / name, tensors);
  if (!sums) return tl::unexpected(sums.error());
  files.emplace(name, std::move(*sums));
  return {};
}

result<std::map<std::string, file_sums>> save_all_summed(
    const std::filesystem::path& folder, const std::map<std::string, tensor_stream>& files) {
  std::map<std::string, std::future<result<file_sums>>> under_way;
  for (const auto& [name, tensors] : files) {
    if (tensors.forms.empty()) continue;
    under_way.emplace(name, begin_work([&folder, &name, &tensors] {
                        return save_summed(folder / name, tensors);
                      }));
  }
  std::map<std::string, file_sums> made;
  for (auto& [name, done] : under_way) {
    auto sums = done.get();
    if (!sums) return tl::unexpected(sums.error());
    made.emplace(name, std::move(*sums));
  }
  return made;
}

result<std::string> header_sum_of(const tensor_reader& file, checksum_kind by) {
  const auto opened = open_to_read(file.file());
  if (!opened) return tl::unexpected(opened.error());
  const auto front = read_front(file.file(), *opened, file.data_begin());
  if (!front) return tl::unexpected(front.error());
  running_checksum sum(by, header_blake2b_bytes);
  sum.add(*front);
  return sum.digits();
}

result<std::string> tensor_sum_of(const tensor_reader& file, const safetensors_entry& tensor,
                                  checksum_kind by) {
  running_checksum sum(by, tensor_blake2b_bytes);
  const auto read = file.for_each_run(tensor, [&](const at::Tensor& run) {
    sum.add(bytes_of(run));
    return result<void>();
  });
  if (!read) return tl::unexpected(read.error());
  return sum.digits();
}

}  // namespace troupe::engine
