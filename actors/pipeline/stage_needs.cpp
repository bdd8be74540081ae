#include "actors/pipeline/stage_needs.hpp"

#include <ATen/ops/ones.h>

#include <algorithm>
#include <iterator>

#include "engine/collective/buckets.hpp"
#include "engine/model/model.hpp"
#include "messages/base/format.hpp"

namespace troupe::actors {
namespace {

std::string free_text(const engine::free_memory& room, const std::string& host) {
  const auto limit = static_cast<double>(room.group_limit_bytes);
  return "host " + host + " has " + in_mebi(free_bytes(room)) + " free" +
         (limit > 0 ? " within the limit of the control group, " + in_mebi(limit) : "");
}

}  // namespace

std::string in_mebi(double bytes) {
  return format("%.0f MiB", bytes / (1 << 20));
}

result<std::uint64_t> tensors_a_parameter(const optimizers::optimizer& entry,
                                          const optimizers::options& chosen) {
  std::vector<at::Tensor> parameters{at::ones({2, 3})};
  optimizers::state kept;
  if (auto done = entry.step(parameters, {at::ones({2, 3})}, kept, chosen, 1); !done)
    return tl::unexpected(done.error());
  std::uint64_t count = 0;
  for (const auto& [name, tensors] : kept)
    for (const auto& each : tensors)
      if (each.defined() && each.numel() == parameters.front().numel()) ++count;
  return count;
}

std::vector<std::uint64_t> share_bytes(const std::vector<engine::named_tensor>& parameters,
                                       std::uint32_t shares) {
  std::vector<std::uint64_t> bytes;
  bytes.reserve(parameters.size());
  for (const auto& each : parameters) bytes.push_back(each.tensor.nbytes());
  const auto owners = engine::owners_of(bytes, shares);
  std::vector<std::uint64_t> has(shares);
  for (std::size_t i = 0; i < bytes.size(); ++i) has.at(owners[i]) += bytes[i];
  return has;
}

std::uint64_t largest_share_bytes(const std::vector<engine::named_tensor>& parameters,
                                  std::uint32_t shares) {
  return std::ranges::max(share_bytes(parameters, shares));
}

std::uint64_t least_training_bytes(const engine::model& described,
                                   const std::vector<engine::layer_range>& slices,
                                   std::uint64_t kept, std::uint32_t shares) {
  std::uint64_t sum = 0;
  std::vector<engine::named_tensor> parameters;
  for (const auto& [first, last] : slices)
    for (auto i = first; i < last && i < described.size(); ++i) {
      sum += engine::bytes_of(described[i]->buffers());
      std::ranges::move(described[i]->parameters(), std::back_inserter(parameters));
    }
  return sum + engine::bytes_of(parameters) * 2 + largest_share_bytes(parameters, shares) * kept;
}

result<void> check_room(const std::string& what, double needed_bytes,
                        const engine::free_memory& room, const std::string& host) {
  if (needed_bytes <= free_bytes(room)) return {};
  return fail(errc::bad_config,
              what + " " + in_mebi(needed_bytes) + ", but " + free_text(room, host) +
                  "; cut the model into more stages, put fewer on this host, take an optimizer "
                  "with less state" +
                  (room.group_limit_bytes > 0 ? ", or raise the limit" : ""));
}

std::string predicted_lack(const std::string& what, double predicted_bytes,
                           const engine::free_memory& room, const std::string& host) {
  if (predicted_bytes <= free_bytes(room)) return "";
  return what + " " + in_mebi(predicted_bytes) + " with activations, but " + free_text(room, host) +
         "; take smaller micro-batches (more of them: --micro-batches), recompute activations "
         "(--recompute), or put fewer stages there" +
         (room.group_limit_bytes > 0 ? ", or raise the limit" : "");
}

double free_bytes(const engine::free_memory& room) noexcept {
  return static_cast<double>(room.bytes) + static_cast<double>(room.swap_bytes);
}

}  // namespace troupe::actors
