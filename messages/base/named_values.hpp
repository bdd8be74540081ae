#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

/// Values that users call by a name: what a registry is made of. `main` fills one and passes it in.
template <class T>
class named_values {
 public:
  /// Adds a value, or replaces the one of that name in its place.
  void add(std::string name, T value) {
    const auto found = std::ranges::find(entries_, name, &entry::first);
    if (found == entries_.end())
      entries_.emplace_back(std::move(name), std::move(value));
    else
      found->second = std::move(value);
  }

  /// Null: there is none of that name.
  [[nodiscard]] const T* find(std::string_view name) const noexcept {
    const auto found = std::ranges::find(entries_, name, &entry::first);
    return found == entries_.end() ? nullptr : &found->second;
  }

  /// In the order in which they were added. They live as long as the registry.
  [[nodiscard]] std::vector<std::string_view> names() const {
    std::vector<std::string_view> all;
    all.reserve(entries_.size());
    for (const auto& [name, value] : entries_) all.push_back(name);
    return all;
  }

  [[nodiscard]] auto begin() const noexcept { return entries_.begin(); }
  [[nodiscard]] auto end() const noexcept { return entries_.end(); }

 private:
  using entry = std::pair<std::string, T>;
  std::vector<entry> entries_;
};

}  // namespace troupe
