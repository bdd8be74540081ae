#pragma once

#include <cstddef>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cluster/membership/node_launcher.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Nodes beside those of a run's stages, which have joined it and wait to take the place of one
/// that is lost: their processes run, and have loaded their libraries. Used by one thread, but for
/// `lost` and `goes_on`.
class understudies {
 public:
  /// `launcher` outlives it. `most`: how many are to wait.
  understudies(node_launcher& launcher, std::size_t most) : launcher_(launcher), most_(most) {}

  /// Whether it is the name of one, in any run.
  [[nodiscard]] static bool is_one(const std::string& name);

  /// Starts those that are missing, on each of these hosts in turn; none any more once
  /// `most_in_vain` in a row were lost before they took a place, or one could not be started. Does
  /// not wait until they have joined. Errors: those of node_launcher.
  [[nodiscard]] result<void> fill(const std::vector<std::string>& hosts,
                                  const std::string& trainer_address);

  /// All that wait, or are on their way.
  [[nodiscard]] std::vector<std::string> names() const;

  /// One of them, which waits no longer: on this host where there is one, else on another.
  [[nodiscard]] std::optional<std::string> take(const std::string& host);

  static constexpr std::size_t most_in_vain = 3;

  /// A node is lost. False: it was none of them, or was taken; else the caller has its process
  /// killed. From any thread.
  bool lost(const std::string& name);

  /// Whether others are started for those that are lost. From any thread.
  [[nodiscard]] bool goes_on() const;

  /// Gives up those of the lost that have ended. The others are not waited for: they have nothing
  /// of the run, and a launcher may give up a whole host where one process does not end.
  [[nodiscard]] result<void> bury();

 private:
  node_launcher& launcher_;
  const std::size_t most_;
  std::size_t started_ = 0;
  mutable std::mutex mutex_;
  std::vector<std::string> waiting_;  // guarded
  std::vector<std::string> lost_;     // guarded; not known to have ended
  std::set<std::string> once_lost_;   // guarded; their ends may be seen before their losses
  std::size_t in_vain_ = 0;           // guarded; lost in a row
};

}  // namespace troupe::cluster
