#include "cluster/checkpoints/weights_digest.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace troupe::cluster {
namespace {

std::uint64_t mixed(std::uint64_t digest, std::uint64_t word) {
  constexpr std::uint64_t factor = 0x9e3779b97f4a7c15;
  return (std::rotl(digest, 5) ^ word) * factor;
}

}  // namespace

void weights_digest::take(part& into, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto count = std::min(into.waiting.size() - into.waits, bytes.size());
    std::memcpy(into.waiting.data() + into.waits, bytes.data(), count);
    into.waits += count;
    bytes = bytes.subspan(count);
    if (into.waits < into.waiting.size()) return;
    into.digest = mixed(into.digest, std::bit_cast<std::uint64_t>(into.waiting));
    into.waits = 0;
  }
}

std::uint64_t weights_digest::end_of(const part& whole) {
  std::uint64_t digest = whole.digest;
  for (std::size_t i = 0; i < whole.waits; ++i)
    digest = mixed(digest, std::to_integer<std::uint64_t>(whole.waiting[i]));
  return digest;
}

void weights_digest::add(const std::string& tensor, std::uint64_t first, const at::Tensor& run) {
  auto& whole = parts_[tensor];
  if (first == 0) {
    part of_name;
    take(of_name, std::as_bytes(std::span(tensor)));
    whole = {.digest = end_of(of_name)};
  }
  const auto dense = run.detach().cpu().resolve_neg().contiguous();
  take(whole, {static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()});
}

at::Tensor weights_digest::value() const {
  std::uint64_t sum = 0;  // in whatever order the tensors stand
  for (const auto& [tensor, whole] : parts_) sum += end_of(whole);
  return at::scalar_tensor(static_cast<std::int64_t>(sum), at::kLong);
}

engine::tensor_stream digested(const engine::tensor_stream& from, weights_digest& of) {
  return {.forms = from.forms, .send = [send = from.send, &of](const auto& take) {
            return send([&](const std::string& name, std::uint64_t first, const at::Tensor& run) {
              of.add(name, first, run);
              return take(name, first, run);
            });
          }};
}

engine::tensor_stream with_digest(engine::tensor_stream from, const weights_digest& digest) {
  const std::string name(weights_digest::name);
  from.forms.push_back({name, at::kLong, {}});
  from.send = [send = std::move(from.send), name,
               value = digest.value()](const engine::tensor_stream::taker& take) -> result<void> {
    return send(take).and_then([&] { return take(name, 0, value); });
  };
  return from;
}

}  // namespace troupe::cluster
