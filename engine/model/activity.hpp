#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/model/layer.hpp"
#include "engine/model/usual_times.hpp"

namespace troupe::engine {

/// What a thread is doing, published for others without a lock: they can read it whatever the
/// thread hangs in. One thread writes, through an `activity_scope`; any thread reads.
class activity {
 public:
  using clock = std::chrono::steady_clock;

  struct snapshot {
    std::uint64_t count = 0;          ///< Begins and ends so far; the same: still the same work.
    bool has_work = false;            ///< It was given work, and has not begun it.
    std::optional<work_item> doing;   ///< Nothing: it waits for work.
    std::optional<std::uint32_t> at;  ///< Where in it: see `name_of`.
    std::optional<double> median_s;   ///< Of the same work before; nothing: this is the first.
    double longest_s = 0;             ///< See usual_times::longest.
  };

  /// `chunks`: the slices of the model that the thread works on; null none. Their layers and
  /// parameters are the places where it can be.
  explicit activity(const std::vector<const model*>& chunks = {});

  /// For whoever gives the thread work, before it can begin.
  void give() { given_.fetch_add(1, std::memory_order_relaxed); }

  /// For the one thread. `take`: it begins on what it was given.
  void take() { taken_.fetch_add(1, std::memory_order_relaxed); }
  void begin(const work_item& what, clock::time_point now);
  /// A layer, or a parameter by its tensor's implementation; others are passed over.
  void enter(const void* place);
  void end(clock::time_point now);
  /// The work was not done: its time is not recorded.
  void withdraw() { publish(false, item_); }

  /// For any thread. Nothing: it was being written again and again; ask later.
  [[nodiscard]] std::optional<snapshot> read() const;

  /// "layer layer3.0", "parameter layer3.0.conv2.weight"
  [[nodiscard]] const std::string& name_of(std::uint32_t place) const { return names_.at(place); }

 private:
  static constexpr std::uint32_t nowhere = ~0U;
  enum word : std::uint8_t { kind, step, microbatch, chunk, size, words };

  void publish(bool busy, const work_item& what);

  std::vector<std::string> names_;
  std::unordered_map<const void*, std::uint32_t> places_;

  // The writer's own.
  usual_times times_;
  work_item item_;
  clock::time_point begun_;

  // Odd while the words are being written. A word that is newer than the version first read shows
  // in the version read last, for words are released after the odd version.
  std::atomic<std::uint64_t> version_ = 0;
  std::array<std::atomic<std::uint64_t>, words> words_ = {};
  std::atomic<std::uint64_t> given_ = 0, taken_ = 0;
  std::atomic<bool> busy_ = false;
  std::atomic<double> median_ = -1;  // below 0: none
  std::atomic<double> longest_ = 0;
  std::atomic<std::uint32_t> at_ = nowhere;
};

/// While one lives, its thread is doing this piece of work, and the layers that it runs report
/// their names. One at a time on a thread.
class activity_scope {
 public:
  activity_scope(activity& of, const work_item& what);
  activity_scope(const activity_scope&) = delete;
  activity_scope& operator=(const activity_scope&) = delete;
  ~activity_scope();

  /// The work was not done: see activity::withdraw.
  void withdraw() { withdrawn_ = true; }

 private:
  activity& of_;
  bool withdrawn_ = false;
};

/// The thread that calls is at this layer, or at this parameter, if it is in an activity_scope.
void note_layer(const layer& which);
void note_parameter(const at::Tensor& which);

/// From here on, when the gradient of `output` is there, the backward is at `which`, which gave it.
/// Only in an activity_scope, and where autograd records.
void note_backward(const at::Tensor& output, const layer& which);

}  // namespace troupe::engine
