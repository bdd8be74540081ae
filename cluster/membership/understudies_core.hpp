#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace troupe::cluster {

/// Nodes beside those of a run's stages, which wait to take the place of one that is lost: when one
/// is started, which of them takes which place, and which are of no use any more. Pure.
class understudies_core {
 public:
  /// One, and where it is to run.
  struct start {
    std::string name;
    std::string host;
  };

  /// What it is to the understudies that a node is lost.
  enum class loss {
    of_another,  ///< It was none of them, or has taken a place.
    known,
    fresh,
  };

  /// No other one is started once so many in a row were lost before they took a place.
  static constexpr std::size_t most_in_vain = 3;

  /// `most`: how many are to wait.
  explicit understudies_core(std::size_t most) : most_(most) {}

  /// Whether it is the name of one, in any run.
  [[nodiscard]] static bool is_one(const std::string& name) { return name.starts_with(prefix); }

  /// The next one to start where one is missing, on each of these hosts in turn. It waits from now
  /// on: it may be lost before whoever starts it says so.
  [[nodiscard]] std::optional<start> next_start(const std::vector<std::string>& hosts) {
    if (waiting_.size() >= most_ || !goes_on()) return std::nullopt;
    const auto& host = hosts.at(started_ % hosts.size());
    ++started_;
    waiting_.push_back({prefix + std::to_string(started_), host});
    return waiting_.back();
  }

  /// It was started, perhaps on another host.
  void started(const std::string& name, const std::string& host) {
    if (const auto found = find(name); found != waiting_.end()) found->host = host;
  }

  /// It could not be started, and no other one is tried.
  void not_started(const std::string& name) {
    std::erase_if(waiting_, [&](const start& each) { return each.name == name; });
    stop();
  }

  /// No other one is started from now on, as at the end of a run.
  void stop() noexcept { in_vain_ = most_in_vain; }

  /// Whether others are started for those that are lost.
  [[nodiscard]] bool goes_on() const noexcept { return in_vain_ < most_in_vain; }

  /// All that wait, or are on their way.
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& each : waiting_) all.push_back(each.name);
    return all;
  }

  /// One that waits no longer, for the place of a node that was on this host: one that is there,
  /// else one on another host. `later`: the hosts of the places that are filled after this one, and
  /// whose own understudies are left to them.
  [[nodiscard]] std::optional<std::string> take(const std::string& host,
                                                std::vector<std::string> later) {
    auto chosen = std::ranges::find(waiting_, host, &start::host);
    for (auto each = waiting_.begin(); chosen == waiting_.end() && each != waiting_.end(); ++each) {
      const auto place = std::ranges::find(later, each->host);
      if (place == later.end())
        chosen = each;
      else
        later.erase(place);
    }
    if (chosen == waiting_.end()) return std::nullopt;
    auto name = std::move(chosen->name);
    waiting_.erase(chosen);
    in_vain_ = 0;
    return name;
  }

  /// Whether there are enough on other hosts for so many places on this one.
  [[nodiscard]] bool suffice_beside(const std::string& host, std::size_t places) const {
    const auto is_elsewhere = [&](const start& each) { return each.host != host; };
    return std::cmp_greater_equal(std::ranges::count_if(waiting_, is_elsewhere), places);
  }

  /// A node is lost, or counts as lost: it takes no place any more.
  [[nodiscard]] loss lost(const std::string& name) {
    const auto found = find(name);
    if (found == waiting_.end()) return lost_.contains(name) ? loss::known : loss::of_another;
    waiting_.erase(found);
    lost_.insert(name);
    not_ended_.insert(name);
    ++in_vain_;
    return loss::fresh;
  }

  /// A process has ended. Whether it was one of those that are lost, which is to be given up then.
  [[nodiscard]] bool ended(const std::string& name) { return not_ended_.erase(name) > 0; }

 private:
  static constexpr const char* prefix = "understudy-";

  [[nodiscard]] std::vector<start>::iterator find(const std::string& name) {
    return std::ranges::find(waiting_, name, &start::name);
  }

  std::size_t most_;
  std::size_t started_ = 0;
  std::vector<start> waiting_;
  std::set<std::string> lost_;       // ever: an end may be seen before the loss is told
  std::set<std::string> not_ended_;  // of these
  std::size_t in_vain_ = 0;          // lost in a row
};

}  // namespace troupe::cluster
