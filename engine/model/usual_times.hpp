#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

namespace troupe::engine {

/// What a thread that computes for a stage may be doing.
enum class work_kind : std::uint8_t {
  forward,
  backward,
  input_gradient,
  weight_gradient,
  weight_gradient_ahead,  ///< Before its turn, in a gap of the plan.
  gradient_sum,           ///< The end of a step's arithmetic.
  step_end,               ///< Running statistics are kept, or put back.
  update,
  read,   ///< Samples, where the thread reads its own.
  start,  ///< Of work that it was given.
};
inline constexpr work_kind last_work_kind = work_kind::start;

/// One piece of work. `microbatch` and `chunk` are of forwards and backwards only.
struct work_item {
  work_kind kind = work_kind::forward;
  bool evaluation = false;
  std::uint64_t step = 0;  ///< The number of the update that it is for.
  std::uint32_t microbatch = 0;
  std::uint32_t chunk = 0;
  std::uint64_t size = 0;  ///< Of what comes in: elements, bytes. Another size is new work.

  bool operator==(const work_item&) const = default;
};

/// "forward of micro-batch 3, step 17"
[[nodiscard]] std::string to_string(const work_item& what);

/// How long each kind of work has taken lately. Pure: no clock. Robust: one time in a window,
/// however long, moves neither figure. Memory is bounded, whatever the number of shapes.
class usual_times {
 public:
  static constexpr std::size_t window = 16;      ///< Times that are kept of a kind of work.
  static constexpr std::size_t most_kinds = 64;  ///< Then the one unused for longest is forgotten.

  void add(const work_item& what, double seconds);

  /// The median for work of this kind and shape, in seconds; nullopt: there was none before.
  [[nodiscard]] std::optional<double> median_of(const work_item& what) const;

  /// The longest of all kinds of work, but for one exception each: the first is one, for instance.
  /// Kinds of work depend on each other: a weight gradient takes no time where it was computed
  /// ahead.
  [[nodiscard]] double longest() const;

 private:
  struct key {
    work_kind kind;
    bool evaluation;
    std::uint32_t chunk;
    std::uint64_t size;
    auto operator<=>(const key&) const = default;
  };
  struct record {
    std::deque<double> seconds = {};
    std::uint64_t used = 0;
  };

  static key key_of(const work_item& what) {
    return {what.kind, what.evaluation, what.chunk, what.size};
  }

  std::map<key, record> records_;
  std::uint64_t added_ = 0;
};

}  // namespace troupe::engine
