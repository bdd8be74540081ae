#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace troupe::actors {

/// What a keeper is sent of a version.
enum class version_form : std::uint8_t {
  state,   ///< All of it.
  update,  ///< What made it of the version before: the keeper computes it.
};

/// A version that was made of the one before by one update or none, and what either form of it
/// takes.
struct version_choice {
  std::uint64_t after = 0;  ///< Step of the version before.
  std::uint64_t state_bytes = 0;
  std::uint64_t update_bytes = 0;
};

/// In which form each keeper of a stage is sent versions: a pure state machine, which holds no
/// tensors. A keeper gets an update if it borrows none of the stage's memory, has the version
/// before, and would get more bytes otherwise; it gets the state first, after any doubt, and always
/// where its CPU might compute other bits.
class version_forms_core {
 public:
  /// `is_repeatable`: every CPU computes the same bits.
  explicit version_forms_core(std::size_t keepers = 0, bool is_repeatable = false)
      : keepers_(keepers), is_repeatable_(is_repeatable) {}

  /// The keeper at this place shares no memory with the stage.
  void is_apart(std::size_t place) { keepers_.at(place).is_apart = true; }

  /// Another keeper is at this place, of which nothing is known.
  void replaced(std::size_t place) { keepers_.at(place) = {}; }

  /// It has a version, whichever form it was sent.
  void stored(std::size_t place, std::uint64_t step) { keepers_.at(place).last = step; }

  /// It did not take an update, and gets the state of that version; `for_good`: of all others too.
  void refused(std::size_t place, bool for_good) {
    auto& at = keepers_.at(place);
    at.last.reset();
    at.is_doubtful = at.is_doubtful || for_good;
  }

  /// Whether some keeper may be sent updates, so that what they need is worth keeping.
  [[nodiscard]] bool wants_updates() const {
    for (std::size_t place = 0; place < keepers_.size(); ++place)
      if (may_have_updates(place)) return true;
    return false;
  }

  [[nodiscard]] version_form choose(std::size_t place, const version_choice& of) const {
    const bool is_update = may_have_updates(place) && keepers_[place].last == of.after &&
                           of.update_bytes < of.state_bytes;
    return is_update ? version_form::update : version_form::state;
  }

  [[nodiscard]] bool may_have_updates(std::size_t place) const {
    const auto& at = keepers_.at(place);
    return is_repeatable_ && at.is_apart && !at.is_doubtful;
  }

 private:
  struct keeper {
    bool is_apart = false;
    bool is_doubtful = false;                // it has computed other bits, or cannot compute
    std::optional<std::uint64_t> last = {};  // the newest version that it has
  };

  std::vector<keeper> keepers_;
  bool is_repeatable_;
};

}  // namespace troupe::actors
