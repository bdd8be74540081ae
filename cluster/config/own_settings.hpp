#pragma once

#include <any>
#include <map>
#include <typeindex>

namespace troupe::cluster {

/// The settings that a program has beside the common ones: one value of each of its types, which
/// are copyable, comparable and default-constructed to their defaults. A value type itself.
class own_settings {
 public:
  /// The settings of a type; its defaults if nobody has set them.
  template <class Settings>
  [[nodiscard]] Settings& of() {
    entry& found = entries_[typeid(Settings)];
    if (!found.value.has_value()) found = {Settings{}, same<Settings>};
    return *std::any_cast<Settings>(&found.value);
  }
  template <class Settings>
  [[nodiscard]] Settings of() const {
    const auto found = entries_.find(typeid(Settings));
    return found == entries_.end() ? Settings{} : std::any_cast<Settings>(found->second.value);
  }

  /// What nobody has set equals its defaults.
  bool operator==(const own_settings& other) const {
    return includes(other) && other.includes(*this);
  }

 private:
  using comparison = bool (*)(const std::any& value, const std::any* other);
  struct entry {
    std::any value;
    comparison is_same = nullptr;
  };

  template <class Settings>
  static bool same(const std::any& value, const std::any* other) {
    const auto* const mine = std::any_cast<Settings>(&value);
    return other == nullptr ? *mine == Settings{} : *mine == *std::any_cast<Settings>(other);
  }

  [[nodiscard]] bool includes(const own_settings& other) const {
    for (const auto& [type, theirs] : other.entries_) {
      const auto found = entries_.find(type);
      const bool is_set = found != entries_.end();
      if (!theirs.is_same(theirs.value, is_set ? &found->second.value : nullptr)) return false;
    }
    return true;
  }

  std::map<std::type_index, entry> entries_;
};

}  // namespace troupe::cluster
