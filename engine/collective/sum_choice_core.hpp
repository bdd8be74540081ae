#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/collective/reach.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// How the replicas of a stage sum their gradients.
enum class replica_sum_way : std::uint8_t {
  links,    ///< By messages over links, in the order of the tree.
  ordered,  ///< By a collective library of their devices, in the same order.
  fast,     ///< By that library, in its own order: no bits are promised.
};

/// What a replica of a stage says of itself.
struct sum_offer {
  std::string stage;         ///< "stage-1 of replica 0"
  std::string library;       ///< "NCCL 2.28.9"; empty: there is none for its device.
  std::string why_not;       ///< Where there is none.
  std::string device;        ///< "cuda:0"
  std::string machine;       ///< The same for all processes of one; empty: unknown.
  std::string network = {};  ///< The same for processes that share a loopback; empty: unknown.
  /// Where the library's sockets are in its process, and stay; empty: that is to be decided.
  std::optional<socket_reach> sockets = {};
};

/// What is wished for.
struct sum_wish {
  bool fast = false;
  bool network_is_trusted = false;  ///< By whoever declared it so.
};

/// One decision, and why.
struct sum_choice {
  replica_sum_way way = replica_sum_way::links;
  std::string why;  ///< "by NCCL 2.28.9", "over links (the stage computes on the CPU)"
  /// Of a library: `network` where loopback does not join all replicas, or a process of one has its
  /// sockets there already. Both are only on a trusted network.
  socket_reach sockets = socket_reach::loopback;
};

/// How the replicas of one stage sum, given what each says. Errors: version_mismatch, where they
/// have different versions.
[[nodiscard]] result<sum_choice> choose_sum(const std::vector<sum_offer>& replicas,
                                            const sum_wish& wish);

/// Whether the library can move what two stages in different processes send each other, and what
/// its sockets use then. Errors, which name a stage and say what to do: transport_missing,
/// version_mismatch, bad_config.
[[nodiscard]] result<socket_reach> reach_between(const sum_offer& one, const sum_offer& other,
                                                 bool network_is_trusted);

/// Whether UCX can move what two stages in different processes send each other. Errors, likewise.
[[nodiscard]] result<void> check_copies_between(const sum_offer& one, const sum_offer& other);

/// What the library's sockets may use in all processes of a run whose stages sum so. One process
/// may have several stages, so the stage that needs the network decides for all.
[[nodiscard]] socket_reach sockets_for(const std::vector<sum_choice>& stages);

/// One line for the start of a run, of what was chosen for each stage.
[[nodiscard]] std::string to_line(const std::vector<sum_choice>& stages);

}  // namespace troupe::engine
