#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "apps/exit_codes.hpp"
#include "cluster/config/trainer_config.hpp"
#include "cluster/membership/run_guard.hpp"
#include "engine/state/save_anywhere.hpp"
#include "messages/error.hpp"

namespace troupe::apps {

/// Saves the weights of a run, as soon as no step follows: in the file of --save, or else beside
/// the file of --config (in the working directory, where there is none) or in the temporary folder.
/// Make it before anything else that takes descriptors. Used by one thread.
class run_saver {
 public:
  /// `config` and `stop` outlive it.
  run_saver(const cluster::trainer_config& config, cluster::interruption& stop);

  using reader = std::function<result<std::vector<engine::named_tensor>>()>;
  using printer = std::function<void(const std::string& line)>;

  /// Reads the weights and saves them, unless a run was interrupted before any step was applied to
  /// them; the file stays as it is then. `steps`: that are done. That no file can be written is no
  /// error, but told by `end`. Errors: those of `read`, and bad_data.
  [[nodiscard]] result<void> save(std::uint64_t steps, bool any_applied, const reader& read,
                                  const printer& print);

  /// Tries once more what found no place at all; the evaluation may have taken a while.
  [[nodiscard]] result<void> save_if_lost(const reader& read);

  /// How the run ends, once it has ended well.
  [[nodiscard]] run_end end() const;

 private:
  [[nodiscard]] result<void> write(const reader& read);

  const cluster::trainer_config& config_;
  cluster::interruption& stop_;
  engine::anywhere_saver saver_;
  int not_saved_ = 0;
  std::string why_not_saved_;
};

/// How a run is stopped, and what is saved of it. Stays where it is made.
struct run_control {
  cluster::interruption stop;
  run_saver saver;

  explicit run_control(const cluster::trainer_config& config) : saver(config, stop) {}
};

}  // namespace troupe::apps
