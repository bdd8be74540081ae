#include "engine/model/activity.hpp"

#include <ATen/core/grad_mode.h>

namespace troupe::engine {
namespace {

thread_local activity* activity_of_thread = nullptr;

/// Writes last microseconds; a reader that meets so many is not served this time.
constexpr int most_tries = 64;

}  // namespace

activity::activity(const std::vector<const model*>& chunks) {
  const auto add = [this](const void* place, const std::string& name) {
    if (places_.emplace(place, names_.size()).second) names_.push_back(name);
  };
  for (const auto* layers : chunks)
    for (const auto& each : *layers) {
      add(each.get(), "layer " + each->name());
      for (const auto& [name, tensor] : each->parameters())
        add(tensor.unsafeGetTensorImpl(), "parameter " + name);
    }
}

void activity::publish(bool busy, const work_item& what) {
  const auto median = busy ? times_.median_of(what) : std::nullopt;
  const double longest = times_.longest();
  const auto version = version_.load(std::memory_order_relaxed);
  version_.store(version + 1, std::memory_order_relaxed);
  const auto put = [](auto& to, auto value) { to.store(value, std::memory_order_release); };
  put(words_[kind], static_cast<std::uint64_t>(what.kind) << 1 | (what.evaluation ? 1U : 0U));
  put(words_[step], what.step);
  put(words_[microbatch], what.microbatch);
  put(words_[chunk], what.chunk);
  put(words_[size], what.size);
  put(busy_, busy);
  put(median_, median.value_or(-1));
  put(longest_, longest);
  put(at_, nowhere);
  version_.store(version + 2, std::memory_order_release);
}

void activity::begin(const work_item& what, clock::time_point now) {
  item_ = what;
  begun_ = now;
  publish(true, what);
}

void activity::enter(const void* place) {
  if (const auto found = places_.find(place); found != places_.end())
    at_.store(found->second, std::memory_order_release);
}

void activity::end(clock::time_point now) {
  times_.add(item_, std::chrono::duration<double>(now - begun_).count());
  publish(false, item_);
}

std::optional<activity::snapshot> activity::read() const {
  const auto get = [](const auto& from) { return from.load(std::memory_order_acquire); };
  for (int tries = 0; tries < most_tries; ++tries) {
    const auto version = get(version_);
    if (version % 2 != 0) continue;
    snapshot seen{.count = version / 2, .doing = {}, .at = {}, .median_s = {}};
    const auto first = get(words_[kind]);
    const work_item item{.kind = static_cast<work_kind>(first >> 1),
                         .evaluation = (first & 1U) != 0,
                         .step = get(words_[step]),
                         .microbatch = static_cast<std::uint32_t>(get(words_[microbatch])),
                         .chunk = static_cast<std::uint32_t>(get(words_[chunk])),
                         .size = get(words_[size])};
    if (get(busy_)) seen.doing = item;
    if (const double median = get(median_); median >= 0) seen.median_s = median;
    seen.longest_s = get(longest_);
    seen.has_work = get(given_) != get(taken_);
    if (const auto at = get(at_); at != nowhere) seen.at = at;
    if (get(version_) == version) return seen;
  }
  return std::nullopt;
}

activity_scope::activity_scope(activity& of, const work_item& what) : of_(of) {
  of_.begin(what, activity::clock::now());
  activity_of_thread = &of_;
}

activity_scope::~activity_scope() {
  activity_of_thread = nullptr;
  if (withdrawn_)
    of_.withdraw();
  else
    of_.end(activity::clock::now());
}

void note_layer(const layer& which) {
  if (activity_of_thread) activity_of_thread->enter(&which);
}

void note_parameter(const at::Tensor& which) {
  if (activity_of_thread) activity_of_thread->enter(which.unsafeGetTensorImpl());
}

void note_backward(const at::Tensor& output, const layer& which) {
  if (!activity_of_thread || !at::GradMode::is_enabled() || !output.requires_grad()) return;
  output.register_hook([of = &which](const at::Tensor&) { note_layer(*of); });
}

}  // namespace troupe::engine
