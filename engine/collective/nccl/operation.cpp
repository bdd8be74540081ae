#include "engine/collective/nccl/operation.hpp"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "messages/base/format.hpp"

namespace troupe::engine::nccl {
namespace {

std::string_view name_of(data_type type) {
  constexpr std::string_view names[] = {"int8",   "uint8",   "int32",   "uint32",  "int64",
                                        "uint64", "float16", "float32", "float64", "bfloat16"};
  return names[static_cast<std::size_t>(type)];
}

std::string describe(const operation& one) {
  return format("%s of %zu %s", name_of(one.what).data(), one.count, name_of(one.type).data());
}

/// Empty: nothing is wrong with it.
std::string fault_of(const operation& one, int rank, int ranks) {
  const bool sends =
      one.what != action::receive && (one.what != action::broadcast || one.peer == rank);
  const bool to_one = one.what == action::send || one.what == action::receive;
  if (to_one || one.what == action::broadcast) {
    if (one.peer < 0 || one.peer >= ranks)
      return format("rank %d is none of the %d ranks", one.peer, ranks);
    if (to_one && one.peer == rank) return "a rank sends nothing to itself";
  }
  if (one.count != 0 && sends && one.from == nullptr) return "it has no memory to read from";
  if (one.count != 0 && one.what != action::send && one.to == nullptr)
    return "it has no memory to write to";
  return {};
}

bool contains(const std::string& text, std::string_view part) {
  const auto same = [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) ==
           std::tolower(static_cast<unsigned char>(b));
  };
  return !std::ranges::search(text, part, same).empty();
}

/// What the user can do, where NCCL's words are known.
std::string_view advice_for(const std::string& said) {
  if (contains(said, "duplicate gpu"))
    return "; two ranks use the same GPU: there are more ranks than GPUs, so take fewer replicas "
           "or give each rank a GPU of its own";
  if (contains(said, "interface found") || contains(said, "no interface"))
    return "; name a network interface that is up in NCCL_SOCKET_IFNAME";
  if (contains(said, "out of memory"))
    return "; the GPU has no memory left for NCCL's buffers: take a smaller micro-batch, or "
           "recompute activations (pipeline.recompute)";
  if (contains(said, "driver version is insufficient") || contains(said, "no cuda-capable device"))
    return "; install or update the NVIDIA driver, or set device = \"cpu\"";
  return {};
}

}  // namespace

result<void> check(const std::vector<operation>& group, int rank, int ranks) {
  if (group.empty()) return fail(errc::bad_config, "NCCL: a group without operations");
  for (const operation& one : group)
    if (const auto fault = fault_of(one, rank, ranks); !fault.empty())
      return fail(errc::bad_config, "NCCL: " + describe(one) + ": " + fault);
  return {};
}

std::string describe(const std::vector<operation>& group) {
  if (group.empty()) return "nothing";
  return describe(group.front()) +
         (group.size() > 1 ? format(" and %zu more", group.size() - 1) : "");
}

error explain(const std::string& what, status code, const std::string& reason,
              const std::string& said) {
  const bool no_interface = contains(said, "interface");
  const bool lost = code == status::remote_error ||
                    (code == status::system_error && contains(said, "connection"));
  const errc kind = lost           ? errc::peer_lost
                    : no_interface ? errc::transport_missing
                                   : errc::handler_failed;
  std::string text = what + ": " + reason;
  if (!said.empty()) text += " (" + said + ")";
  return {kind, text + std::string(advice_for(said))};
}

}  // namespace troupe::engine::nccl
