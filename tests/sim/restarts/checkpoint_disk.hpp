#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "cluster/recovery/checkpoint_write_core.hpp"
#include "tests/sim/simulated_disk.hpp"

namespace troupe::tests {

/// What a checkpoint has of a run in which numbers stand for tensors.
struct saved_numbers {
  std::uint64_t step = 0;
  std::vector<std::uint64_t> weights = {};  ///< By stage.
  bool is_evaluated = false;                ///< The evaluation after this step was reported.
};

/// The checkpoints of a run on a simulated disk, as cluster/checkpoints has them in a folder: each
/// is written under a name that nobody has used, with a manifest that says what its files are.
class checkpoint_disk {
 public:
  /// What is done to the disk, one thing after the other: power may be lost between two. They are
  /// of this object, which stays where it is until they are done.
  using operations = std::deque<std::function<void()>>;
  using effect = cluster::checkpoint_write_core::effect;

  /// `syncs`: false, to see that it is noticed where nothing is synced.
  explicit checkpoint_disk(bool syncs = true);

  /// For another trainer: what can be seen now can be seen after a loss of power too.
  void open();

  /// Begins a checkpoint. Returns the number of this attempt, which is not 0 and no other one's.
  [[nodiscard]] std::uint64_t begin(std::uint64_t step);
  /// How a stage writes its file, where that attempt has its files.
  [[nodiscard]] operations slice_of(std::uint64_t attempt, std::uint32_t stage,
                                    std::uint64_t weights);
  /// What the manifest of that attempt is to say, as the stages have told it.
  void describe(std::uint64_t attempt, const std::map<std::uint32_t, std::uint64_t>& weights,
                bool is_evaluated);
  /// How an effect of the core is performed; empty where there is nothing to do.
  [[nodiscard]] operations operations_of(effect what, std::uint64_t attempt);

  /// Of the checkpoints that can be seen; the newest first.
  [[nodiscard]] std::vector<std::uint64_t> steps() const;
  /// Nothing: it is not whole, or has a file of another attempt.
  [[nodiscard]] std::optional<saved_numbers> read(std::uint64_t step) const;

  /// Whether bytes were written that are not synced yet.
  [[nodiscard]] bool is_amid_write() const { return unsynced_ > 0; }

  /// Returns how many files are torn of a checkpoint that was being written.
  std::size_t lose_power(std::mt19937_64& random);

 private:
  using folder_id = simulated_disk::folder_id;

  struct attempt_files {
    std::uint64_t step = 0;
    std::string name;  // until it has a checkpoint's
    folder_id folder = 0;
    std::map<std::uint32_t, std::uint64_t> weights = {};  // by stage
    bool is_evaluated = false;
    std::vector<std::string> old = {};  // checkpoints that are removed with it
  };

  [[nodiscard]] operations file(folder_id in, const std::string& name, const std::string& text);
  [[nodiscard]] operations removal_of(const std::string& name);
  [[nodiscard]] operations for_each_old(const attempt_files& of, effect what);
  [[nodiscard]] std::vector<std::string> older_than_kept(std::uint64_t newest) const;
  void remove_half_written();
  void sync(folder_id folder);

  bool syncs_;
  simulated_disk disk_;
  folder_id run_;
  std::map<std::uint64_t, attempt_files> attempts_;
  std::size_t unsynced_ = 0;  // files of the last attempt
};

}  // namespace troupe::tests
