#pragma once

#include <map>
#include <string>

#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Where a run's settings were given, for what shows itself to be wrong only when they are used. It
/// says nothing about what a run does: any two compare equal.
class setting_places {
 public:
  setting_places() = default;
  /// By option name ("data.source"): how an error about it begins ("run.toml:4:10: data.source").
  explicit setting_places(std::map<std::string, std::string> given) : given_(std::move(given)) {}

  /// How an error about a setting begins; where nobody gave it, its name.
  [[nodiscard]] std::string of(const std::string& name) const {
    const auto found = given_.find(name);
    return found == given_.end() ? name : found->second;
  }

  /// The first of two settings that was given; where neither was, the first.
  [[nodiscard]] std::string of(const std::string& name, const std::string& other) const {
    return of(given_.contains(name) || !given_.contains(other) ? name : other);
  }

  /// The same error, beginning with where its setting was given.
  [[nodiscard]] error blame(const std::string& name, const error& why) const {
    return error_about(of(name), why);
  }

  bool operator==(const setting_places&) const { return true; }

 private:
  std::map<std::string, std::string> given_;
};

}  // namespace troupe::cluster
