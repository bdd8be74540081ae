#include "engine/model/usual_times.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::engine {
namespace {

constexpr std::array<std::string_view, 10> names{"forward",
                                                 "backward",
                                                 "input gradient",
                                                 "weight gradients",
                                                 "weight gradients ahead of their turn",
                                                 "sum of gradients",
                                                 "end of the step",
                                                 "update",
                                                 "reading of samples",
                                                 "the start of work that it was given"};

bool is_of_microbatch(work_kind kind) {
  return kind <= work_kind::weight_gradient;
}

static_assert(names.size() == static_cast<std::size_t>(last_work_kind) + 1);

}  // namespace

std::string to_string(const work_item& what) {
  std::string text(names.at(static_cast<std::size_t>(what.kind)));
  if (is_of_microbatch(what.kind)) text += " of micro-batch " + std::to_string(what.microbatch);
  if (what.chunk > 0) text += " in chunk " + std::to_string(what.chunk);
  if (what.evaluation) return text + " of an evaluation";
  if (what.step > 0) text += ", step " + std::to_string(what.step);
  return text;
}

void usual_times::add(const work_item& what, double seconds) {
  auto& [times, used] = records_[key_of(what)];
  times.push_back(seconds);
  if (times.size() > window) times.pop_front();
  used = ++added_;
  if (records_.size() <= most_kinds) return;
  records_.erase(
      std::ranges::min_element(records_, {}, [](const auto& entry) { return entry.second.used; }));
}

std::optional<double> usual_times::median_of(const work_item& what) const {
  const auto found = records_.find(key_of(what));
  if (found == records_.end()) return std::nullopt;
  std::vector<double> sorted(found->second.seconds.begin(), found->second.seconds.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::ranges::nth_element(sorted, middle);
  return *middle;
}

double usual_times::longest() const {
  double longest = 0;
  for (const auto& [of, recent] : records_) {
    double first = 0, second = 0;
    for (const double each : recent.seconds) {
      if (each > first)
        second = std::exchange(first, each);
      else
        second = std::max(second, each);
    }
    longest = std::max(longest, second);
  }
  return longest;
}

}  // namespace troupe::engine
