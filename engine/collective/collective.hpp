#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace troupe::engine {

/// What all ranks of a group do together, or two of them.
enum class collective : std::uint8_t {
  send,            ///< `from` to rank `peer`.
  receive,         ///< `to` from rank `peer`.
  broadcast,       ///< `from` of rank `peer` to `to` of all.
  reduce,          ///< The sum of all ranks' `from` to `to` of rank `peer`.
  all_reduce,      ///< The sum of all ranks' `from` to `to` of all.
  reduce_scatter,  ///< Block r of that sum to `to` of rank r.
  all_gather,      ///< All ranks' `from`, one after the other, to `to` of all.
};

/// "all-reduce"
[[nodiscard]] constexpr std::string_view name_of(collective what) noexcept {
  constexpr std::string_view names[] = {"send",       "receive",        "broadcast", "reduce",
                                        "all-reduce", "reduce-scatter", "all-gather"};
  return names[static_cast<std::size_t>(what)];
}

}  // namespace troupe::engine
