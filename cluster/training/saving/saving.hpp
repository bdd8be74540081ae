#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cluster/checkpoints/weights_digest.hpp"
#include "cluster/config/config_tables.hpp"
#include "cluster/membership/run_guard.hpp"
#include "cluster/training/saving/exit_codes.hpp"
#include "engine/state/save_anywhere.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// What is saved of a run, and how it is read.
struct saved_parts {
  std::function<result<engine::tensor_stream>()> weights;
  /// What stands in the file beside them: the optimizers' state. Left out: there is none.
  std::function<result<engine::tensor_stream>()> state = {};
};

/// Saves the weights of a run, as soon as no step follows: in the file of --save, or else beside
/// the file of --config (in the working directory, where there is none) or in the temporary folder;
/// and then the optimizers' state, if it is wanted, beside the weights (state_file_of), or
/// else in the same places. Make it before anything else that takes descriptors. Used by one
/// thread.
class run_saver {
 public:
  /// `train` and `stop` outlive it. `config_files`: what --config named.
  run_saver(const train_config& train, const std::vector<std::filesystem::path>& config_files,
            interruption& stop);

  using printer = std::function<void(const std::string& line)>;

  /// Saves the weights as they are read, and then the state, unless a run was interrupted before
  /// any step was applied to them; the files stay as they are then. `steps`: that are done. That no
  /// file can be written is no error, but told by `end`. Errors: those of reading, and bad_data.
  [[nodiscard]] result<void> save(std::uint64_t steps, bool any_applied, const saved_parts& parts,
                                  const printer& print);

  /// Tries once more what found no place at all; the evaluation may have taken a while.
  [[nodiscard]] result<void> save_if_lost(const saved_parts& parts);

  /// How the run ends, once it has ended well.
  [[nodiscard]] run_end end() const;

 private:
  [[nodiscard]] result<void> write(const saved_parts& parts);
  [[nodiscard]] result<void> write_weights(const saved_parts& parts);
  [[nodiscard]] result<void> write_state(const saved_parts& parts);
  /// Sums up what became of both.
  void sum_up(bool has_state);

  const train_config& train_;
  interruption& stop_;
  engine::anywhere_saver saver_;
  std::optional<engine::saved_file> weights_;  // none: they are nowhere
  std::optional<engine::saved_file> state_;
  weights_digest digest_;    // of the weights that are saved
  std::string why_nowhere_;  // of the one of both that is
  int not_saved_ = 0;
  std::string why_not_saved_;
};

/// How a run is stopped, and what is saved of it. Stays where it is made.
struct run_control {
  interruption stop;
  run_saver saver;

  /// As those of run_saver.
  run_control(const train_config& train, const std::vector<std::filesystem::path>& config_files)
      : saver(train, config_files, stop) {}
};

}  // namespace troupe::cluster
