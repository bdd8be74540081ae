#pragma once

#include <cstdint>
#include <string>
#include <vector>

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
  std::string stage;    ///< "stage-1 of replica 0"
  std::string library;  ///< "NCCL 2.28.9"; empty: there is none for its device.
  std::string why_not;  ///< Where there is none.
  std::string device;   ///< "cuda:0"
  std::string machine;  ///< The same for all processes of one; empty: unknown.
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
};

/// How the replicas of one stage sum, given what each says. Errors: version_mismatch, where they
/// have different versions.
[[nodiscard]] result<sum_choice> choose_sum(const std::vector<sum_offer>& replicas,
                                            const sum_wish& wish);

/// One line for the start of a run, of what was chosen for each stage.
[[nodiscard]] std::string to_line(const std::vector<sum_choice>& stages);

}  // namespace troupe::engine
