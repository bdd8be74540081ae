#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cluster/membership/understudies_core.hpp"

namespace troupe::tests {

/// A run's understudies: their processes, what the trainer and the launcher know of these, and the
/// core that decides. What it decides is compared with what must hold.
class simulated_understudies {
 public:
  /// What has a place now.
  struct successor {
    std::string name;
    std::string host;
    bool has_ended = false;  ///< Nobody has noticed.
  };

  explicit simulated_understudies(std::size_t most) : most_(most), core_(most) {}

  /// Starts those that are missing on these hosts, or on the first that is left instead of a lost
  /// one. `is_refused`: the launcher cannot start any.
  void fill(const std::vector<std::string>& hosts, const std::vector<std::string>& left,
            bool is_refused);

  /// Who waits, as far as the trainer knows, on that host or on any.
  [[nodiscard]] std::vector<std::string> waiting(
      const std::optional<std::string>& host = std::nullopt) const;

  /// A process ends; `is_told`: the launcher sees that at once.
  void end(const std::string& name, bool is_told);
  /// The launcher sees who has ended on a host that it has given up.
  void give_up_host(const std::string& host);
  /// The trainer loses sight of one, which may live.
  void miss(const std::string& name);

  /// For a lost node that was on this host. `later`: see the core.
  [[nodiscard]] std::optional<successor> take(const std::string& host,
                                              const std::vector<std::string>& later);

  /// What went wrong first, or "".
  [[nodiscard]] const std::string& fault() const noexcept { return fault_; }

 private:
  struct process {
    std::string host;
    bool has_ended = false, is_end_told = false, is_missed = false, has_place = false;
    bool is_given_up = false;
  };

  void fault(const std::string& what);
  void look_for_ends();
  void bury();
  [[nodiscard]] bool is_spare_on(const std::string& host,
                                 const std::vector<std::string>& later) const;
  void check_none_left(const std::string& host, const std::vector<std::string>& later);

  std::size_t most_;
  cluster::understudies_core core_;
  std::map<std::string, process> all_;  // ever
  std::size_t in_vain_ = 0;
  std::string fault_;
};

}  // namespace troupe::tests
