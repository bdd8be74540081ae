#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/chaos/recovery/fault.hpp"
#include "tests/chaos/recovery/marks.hpp"
#include "tests/chaos/recovery/scene.hpp"
#include "tests/chaos/recovery/sequel.hpp"
#include "tests/memory_group.hpp"

namespace troupe::chaos {

/// Processes can be moved into it, and what they take from then on is bounded.
using tests::memory_group;
constexpr std::uint64_t most_taken = 48 << 20;  // bytes, by a process in a group

/// A small disk of its own, mounted for this process and those it starts; it goes with the object.
class small_disk {
 public:
  /// Whether one can be mounted. Gives this thread, and what it starts, mounts of their own.
  [[nodiscard]] static bool works();
  small_disk(std::filesystem::path where, std::size_t bytes);
  small_disk(const small_disk&) = delete;
  small_disk& operator=(const small_disk&) = delete;
  ~small_disk();
  void fill() const;
  void make_room() const;

 private:
  std::filesystem::path where_;
};

/// Whether a checkpoint is half written in this folder.
[[nodiscard]] bool is_writing_a_checkpoint(const std::filesystem::path& kept);

/// A run's weather, in a new file.
[[nodiscard]] std::shared_ptr<weather> make_weather(const std::filesystem::path& file);

/// Where a run keeps what its disturber uses.
struct storm_places {
  std::filesystem::path marks;
  std::filesystem::path disk;             ///< Its checkpoints are in "kept" on it.
  const small_disk* filled_up = nullptr;  ///< Null: it cannot be filled.
  const memory_group* group = nullptr;    ///< Null: no memory can be bounded.
  weather* outside = nullptr;             ///< Of all processes; never null.
  [[nodiscard]] std::filesystem::path kept() const { return disk / "kept"; }
};

/// Does to a run what a fault says, at its moment.
class striker {
 public:
  /// All of them outlive it. `steps`: of the run.
  striker(scene& run, const std::vector<std::string>& stages, const storm_places& places,
          std::uint64_t steps)
      : run_(run), stages_(stages), places_(places), steps_(steps) {}

  /// Waits for the moment; `patience` at most. None: it did not come.
  [[nodiscard]] std::optional<strike> perform(const fault& what, seconds patience);

 private:
  [[nodiscard]] std::vector<std::string> victims(const fault& what) const;
  [[nodiscard]] bool wait_for_begin(const fault& what, seconds patience);
  [[nodiscard]] bool wait_for_moment(const fault& what, strike& made, seconds patience);
  [[nodiscard]] std::optional<strike> order(const fault& what, strike made, seconds patience);
  [[nodiscard]] std::optional<strike> hinder_disk(const fault& what, strike made, seconds patience);
  void act(const fault& what, const std::vector<std::string>& on, strike& made);
  [[nodiscard]] bool wait_for_understudies();
  void pause(const fault& what, const std::vector<pid_t>& processes);
  void note(strike& made);
  [[nodiscard]] bool kill_another(const fault& what, strike& made, seconds patience);
  [[nodiscard]] marks* marks_of(const std::string& process);

  scene& run_;
  const std::vector<std::string>& stages_;
  const storm_places& places_;
  const std::uint64_t steps_;
  std::vector<std::pair<std::string, std::shared_ptr<marks>>> mapped_;
};

}  // namespace troupe::chaos
