#include "engine/step/credits.hpp"

#include <algorithm>
#include <iterator>
#include <string>

namespace troupe::engine {

std::string to_string(const step_key& key) {
  return "step " + std::to_string(key.step.value) + " of epoch " + std::to_string(key.epoch.value);
}

std::vector<edge_place> credited_queue::offer(const edge_place& what, bool is_logged) {
  held_.push_back(what);
  if (is_logged) log_.push_back(what);
  return release();
}

result<std::vector<edge_place>> credited_queue::credited(const edge_place& what) {
  if (sent_.erase(what) == 1) return release();
  const auto text = "a credit for micro-batch " + std::to_string(what.microbatch.value) + " of " +
                    to_string(what.key);
  if (what.key.epoch < epoch_)
    return fail(errc::stale,
                text + ", which is over: epoch " + std::to_string(epoch_.value) + " has begun");
  return fail(errc::bad_frame, text + ", which is not under way");
}

void credited_queue::start_epoch(epoch_id epoch) {
  epoch_ = epoch;
  sent_.clear();
  held_.clear();
  log_.clear();
  is_paused_ = false;
}

void credited_queue::start_over(const step_key& from) {
  sent_.clear();
  held_.clear();
  std::ranges::copy_if(log_, std::back_inserter(held_),
                       [&](const edge_place& what) { return what.key >= from; });
  is_paused_ = true;
}

std::vector<edge_place> credited_queue::resume() {
  is_paused_ = false;
  return release();
}

void credited_queue::forget_before(const step_key& first) {
  while (!log_.empty() && log_.front().key < first) log_.pop_front();
}

void credited_queue::forget(const step_key& key) {
  std::erase_if(log_, [&](const edge_place& what) { return what.key == key; });
}

bool credited_queue::holds(const edge_place& what) const {
  return std::ranges::find(held_, what) != held_.end();
}

std::vector<edge_place> credited_queue::release() {
  std::vector<edge_place> due;
  for (; !is_paused_ && !held_.empty() && sent_.size() < credits_; held_.pop_front()) {
    sent_.insert(held_.front());
    due.push_back(held_.front());
  }
  return due;
}

}  // namespace troupe::engine
