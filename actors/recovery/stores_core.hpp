#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace troupe::actors {

/// Which versions of a stage are on their way to its keepers: a pure state machine, which holds no
/// tensors. Each keeper gets one version at a time, in the order of their steps. A keeper that was
/// lost keeps what is due to it waiting until another one takes its place, which gets the last
/// versions again.
class stores_core {
 public:
  /// A keeper, and whether it is still the one that something was sent to.
  struct addressee {
    std::size_t place = 0;
    std::uint32_t replaced = 0;  ///< How often; what those before answer does not count.

    bool operator==(const addressee&) const = default;
  };

  /// Effect: store this version with that keeper; answer with `stored`.
  struct store {
    addressee to;
    std::uint64_t step = 0;

    bool operator==(const store&) const = default;
  };
  using effects = std::vector<store>;

  /// `remembered`: how many of the last versions a new keeper gets.
  explicit stores_core(std::size_t keepers = 0, std::size_t remembered = 0)
      : due_(keepers), remembered_(remembered) {}

  /// A version is being copied.
  void begin() { is_copied_ = false; }

  /// The copy is complete.
  [[nodiscard]] effects copied(std::uint64_t step) {
    is_copied_ = true;
    recent_.push_back(step);
    while (recent_.size() > remembered_) recent_.pop_front();
    effects out;
    for (std::size_t place = 0; place < due_.size(); ++place) add(place, {step}, out);
    return out;
  }

  /// The first of what was due to a keeper is there, whole.
  [[nodiscard]] effects stored(const addressee& by) {
    if (!is_current(by)) return {};
    auto& steps = due_[by.place].steps;
    steps.pop_front();
    if (steps.empty()) return {};
    return {{by, steps.front()}};
  }

  /// Another keeper is at this place, which has nothing.
  [[nodiscard]] effects replaced(std::size_t place) {
    due_[place] = {{}, due_[place].replaced + 1};
    effects out;
    add(place, recent_, out);
    return out;
  }

  /// A keeper is lost that no other one will replace: nothing is due to it any more.
  void left(std::size_t place) { due_[place] = {{}, due_[place].replaced + 1, /*has_left=*/true}; }

  [[nodiscard]] bool is_current(const addressee& whom) const {
    return due_[whom.place].replaced == whom.replaced;
  }

  /// The last version is with all keepers.
  [[nodiscard]] bool is_stored() const {
    return is_copied_ &&
           std::ranges::all_of(due_, [](const auto& each) { return each.steps.empty(); });
  }

  /// Whether nobody needs a version of this step any more.
  [[nodiscard]] bool is_over(std::uint64_t step) const {
    const auto has = [step](const auto& steps) {
      return std::ranges::find(steps, step) != steps.end();
    };
    return !has(recent_) &&
           std::ranges::none_of(due_, [&](const auto& each) { return has(each.steps); });
  }

 private:
  struct keeper {
    std::deque<std::uint64_t> steps = {};  // due; the first one is on its way
    std::uint32_t replaced = 0;
    bool has_left = false;
  };

  void add(std::size_t place, const std::deque<std::uint64_t>& steps, effects& out) {
    auto& [due, replaced, has_left] = due_[place];
    if (has_left) return;
    if (due.empty() && !steps.empty()) out.push_back({{place, replaced}, steps.front()});
    due.insert(due.end(), steps.begin(), steps.end());
  }

  std::vector<keeper> due_;
  std::size_t remembered_;
  bool is_copied_ = true;
  std::deque<std::uint64_t> recent_;
};

}  // namespace troupe::actors
