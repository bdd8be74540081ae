#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "actors/messages/declaration.hpp"
#include "actors/transfer/piece.hpp"

/// From a stage to a keeper that shares no memory with it: instead of a version, what makes it of
/// the one before.
namespace troupe::actors {

/// Asks a keeper in whose memory it keeps versions.
struct describe_keeper {
  static constexpr auto declared = travels("describe_keeper");
};

struct keeper_described {
  static constexpr auto declared = travels("keeper_described");

  std::string machine = {};  // see messages::this_machine
  std::int64_t process = 0;  // its number there

  static void fields(auto& self, auto& f) { f(self.machine, self.process); }
};

/// What an update was computed with, beside tensors: all that optimizers::step_groups is told.
struct update_terms {
  std::string optimizer = {};                  // a name in the registry
  std::map<std::string, double> options = {};  // complete
  std::vector<std::string> groups = {};        // see optimizers::parse_group
  double learning_rate = 0;
  double scale = 1;          // the gradients are multiplied by it
  std::uint64_t number = 0;  // of the optimizer's updates

  static void fields(auto& self, auto& f) {
    f(self.optimizer, self.options, self.groups, self.learning_rate, self.scale, self.number);
  }
};

/// A piece of what made a stage's version of an earlier one, which the keeper has: gradients under
/// gradient_name (see actors/recovery/repeated_update.hpp), and under their own names what no
/// update of these computes: buffers, and parameters that other replicas have updated. Once the
/// last piece is there the keeper computes the version, and keeps it if it has the digest.
struct store_update {
  static constexpr auto declared = travels("store_update");
  static constexpr bool tensors_are_only_read = true;

  std::uint32_t stage = 0;        // as of store_version
  std::uint64_t step = 0;         // the same
  std::uint32_t incarnation = 0;  // the same
  std::uint64_t after = 0;        // the earlier version's step
  update_terms terms = {};        // not used where there are no gradients
  std::uint64_t digest = 0;       // of the version, see digest_of
  tensor_piece piece = {};

  static void fields(auto& self, auto& f) {
    f(self.stage, self.step, self.incarnation, self.after, self.terms, self.digest, self.piece);
  }
};

using mirror_messages = message_list<describe_keeper, keeper_described, store_update>;

}  // namespace troupe::actors
