#include "engine/collective/port.hpp"

#include "messages/base/format.hpp"

namespace troupe::engine {
namespace {

bool has_peer(collective what) {
  return what == collective::send || what == collective::receive || what == collective::broadcast ||
         what == collective::reduce;
}

bool needs_from(const collective_operation& one, std::uint32_t rank) {
  return one.what != collective::receive && (one.what != collective::broadcast || one.peer == rank);
}

bool needs_to(const collective_operation& one, std::uint32_t rank) {
  return one.what != collective::send && (one.what != collective::reduce || one.peer == rank);
}

std::string fault_of(const collective_operation& one, std::uint32_t rank, std::uint32_t ranks) {
  if (has_peer(one.what) && one.peer >= ranks)
    return format("rank %u is none of the %u ranks", one.peer, ranks);
  const bool to_one = one.what == collective::send || one.what == collective::receive;
  if (to_one && one.peer == rank) return "a rank sends nothing to itself";
  if (needs_from(one, rank) && !one.from.defined()) return "it has no tensor to read from";
  if (needs_to(one, rank) && !one.to.defined()) return "it has no tensor to write to";
  for (const auto* each : {&one.from, &one.to}) {
    if (!each->defined()) continue;
    if (!each->is_non_overlapping_and_dense()) return "a tensor has gaps; make it contiguous first";
    if (each->is_neg()) return "a tensor is a lazy negative; resolve it first";
  }
  return size_fault(one.what, one.from, one.to, ranks);
}

}  // namespace

std::string size_fault(collective what, const at::Tensor& from, const at::Tensor& to,
                       std::uint32_t ranks) {
  if (!from.defined() || !to.defined()) return {};
  if (from.scalar_type() != to.scalar_type()) return "its two tensors differ in dtype";
  const auto given = what == collective::all_gather ? from.numel() * ranks : from.numel();
  const auto written = what == collective::reduce_scatter ? to.numel() * ranks : to.numel();
  if (given == written) return {};
  return format("%lld elements are given and %lld written, for %u ranks",
                static_cast<long long>(from.numel()), static_cast<long long>(to.numel()), ranks);
}

result<void> check(const collective_operation& one, std::uint32_t rank, std::uint32_t ranks) {
  const auto fault = fault_of(one, rank, ranks);
  if (fault.empty()) return {};
  return fail(errc::bad_config, std::string(name_of(one.what)) + ": " + fault);
}

}  // namespace troupe::engine
