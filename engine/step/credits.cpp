#include "engine/step/credits.hpp"

#include <string>

namespace troupe::engine {

std::string to_string(const step_key& key) {
  return "step " + std::to_string(key.step.value) + " of epoch " + std::to_string(key.epoch.value);
}

result<void> credit_window::credited(const edge_place& what) {
  if (spent_.erase(what) == 1) return {};
  const auto text = "a credit for micro-batch " + std::to_string(what.microbatch.value) + " of " +
                    to_string(what.key);
  if (what.key.epoch < epoch_)
    return fail(errc::stale,
                text + ", which is over: epoch " + std::to_string(epoch_.value) + " has begun");
  return fail(errc::bad_frame, text + ", which is not under way");
}

void credit_window::start_epoch(epoch_id epoch) {
  epoch_ = epoch;
  spent_.clear();
}

std::vector<edge_place> credited_queue::offer(const edge_place& what) {
  held_.push_back(what);
  return release();
}

result<std::vector<edge_place>> credited_queue::credited(const edge_place& what) {
  if (auto good = window_.credited(what); !good) return tl::unexpected(good.error());
  return release();
}

void credited_queue::start_epoch(epoch_id epoch) {
  window_.start_epoch(epoch);
  held_.clear();
}

std::vector<edge_place> credited_queue::release() {
  std::vector<edge_place> due;
  for (; !held_.empty() && window_.open(); held_.pop_front()) {
    window_.spend(held_.front());
    due.push_back(held_.front());
  }
  return due;
}

}  // namespace troupe::engine
