#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "actors/messages/judge.hpp"
#include "messages/base/error.hpp"
#include "optimizers/loss_scaler.hpp"

namespace troupe::actors {

/// By what a judge decides.
struct judge_rules {
  std::size_t stages = 1;
  bool skip = false;  ///< A step that is not finite is left out; else it ends the run.
  /// Where the scale follows the gradients: one that they may have overflowed with falls, and the
  /// step is left out whatever `skip` says.
  std::optional<optimizers::loss_scaler> scaler = {};
};

/// Decides what becomes of steps, and the loss scale: a pure state machine.
class judge_core {
 public:
  static constexpr std::size_t max_open = 64;  ///< Steps that not all stages have asked about.

  explicit judge_core(judge_rules rules = {})
      : rules_(std::move(rules)), last_(std::max<std::size_t>(rules_.stages, 1)) {}

  /// What one stage found. The verdict once all have asked; where several found something, the one
  /// nearest to the loss is named. Steps end in their order, since each stage asks in that order.
  /// Errors: bad_frame for a place out of range or too many open steps; stale for a stage that asks
  /// again, or about a step before its last one.
  [[nodiscard]] result<std::optional<verdict>> hear(const ask_verdict& asked);

  [[nodiscard]] loss_scale_now scale() const noexcept;

 private:
  struct finding {
    std::string bad;
    bool of_loss = false;
  };
  /// A step that not all stages have asked about.
  struct open_case {
    std::size_t heard = 0;
    std::map<std::uint32_t, finding> bad;  // by place
  };

  [[nodiscard]] verdict decide(const open_case& of);
  [[nodiscard]] verdict refuse(std::string bad) const;

  judge_rules rules_;
  std::vector<std::optional<engine::step_key>> last_;  // that each place asked about
  std::map<engine::step_key, open_case> cases_;
};

}  // namespace troupe::actors
