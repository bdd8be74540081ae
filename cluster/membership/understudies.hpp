#pragma once

#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cluster/membership/node_launcher.hpp"
#include "cluster/membership/understudies_core.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// The understudies of a run: their processes run, and have loaded their libraries. Used by one
/// thread, but for `lost`.
class understudies {
 public:
  /// `launcher` outlives it. `most`: how many are to wait.
  understudies(node_launcher& launcher, std::size_t most) : launcher_(launcher), core_(most) {}

  /// Starts those that are missing (see understudies_core). Does not wait until they have joined.
  /// Errors: those of node_launcher.
  [[nodiscard]] result<void> fill(const std::vector<std::string>& hosts,
                                  const std::string& trainer_address);

  /// All that wait, or are on their way.
  [[nodiscard]] std::vector<std::string> names() const;

  /// See understudies_core.
  [[nodiscard]] std::optional<std::string> take(const std::string& host,
                                                const std::vector<std::string>& later);

  /// See understudies_core. From any thread.
  [[nodiscard]] bool suffice_beside(const std::string& host, std::size_t places) const;

  /// A node is lost, which is said once. False: it was none of them, or was taken; else the caller
  /// has its process killed. From any thread.
  bool lost(const std::string& name);

  /// No other one is started from now on, and a loss is told so. From any thread.
  void stop();

  /// Gives up those of the lost that have ended. The others are not waited for: they have nothing
  /// of the run, and a launcher may give up a whole host where one process does not end.
  [[nodiscard]] result<void> bury();

 private:
  node_launcher& launcher_;
  mutable std::mutex mutex_;
  understudies_core core_;  // guarded
};

}  // namespace troupe::cluster
