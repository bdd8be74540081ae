#include <algorithm>

#include "tests/sim/replay_company.hpp"

// The data that a stage's process reads: orders for batches travel there, and from there the
// micro-batches. Where that process is lost another one reads them, with feeders that have sent
// nothing yet, for the steps that are done again.

namespace troupe::tests {

using namespace engine;

void replay_company::open_feeders() {
  feeder_nodes_.push_back(options_.data_at ? holder(*options_.data_at) : trainer());
  feeders_.assign(options_.replicas,
                  {credited_queue(options_.credits), credited_queue(options_.credits)});
  fed_starts_ = starts_;
}

/// One that was taken for lost and lives feeds until others are opened.
bool replay_company::is_feeder_there(std::uint32_t start) const {
  return start + 1 == feeder_nodes_.size() && lives(feeder_nodes_[start]);
}

bool replay_company::is_gone(const process_id& actor) {
  if (actor.stage < stages_) return at(actor) == nullptr;
  return options_.data_at && actor.stage == stages_ && !is_feeder_there(actor.start);
}

/// Orders to read arrive in their order, unless the reader is lost before.
void replay_company::deliver(const step_key& key, const std::function<void()>& delivered) {
  const auto start = static_cast<std::uint32_t>(feeder_nodes_.size() - 1);
  const auto offer = [this, start, key, delivered] {
    if (!is_feeder_there(start)) return;
    for (std::uint32_t replica = 0; replica < options_.replicas; ++replica)
      for (std::uint32_t i = 0; i < options_.training.microbatches; ++i) {
        feed(replica, edge::input, feeders_[replica][0].offer({key, {i}}, true));
        feed(replica, edge::target, feeders_[replica][1].offer({key, {i}}, true));
      }
    if (delivered)
      after(a_delay(),
            [this, start, delivered] { carry(feeder_nodes_[start], trainer(), delivered); });
  };
  if (!options_.data_at) return offer();
  told_data_ = std::max(told_data_ + 1, now_ + a_delay());
  agenda_.emplace(told_data_,
                  [this, start, offer] { carry(trainer(), feeder_nodes_[start], offer); });
}

/// Whether it has the first or the last slice of the model.
bool replay_company::is_end(std::uint32_t place) const {
  return slice_beside(place, 0).stage == place ||
         slice_beside(place, layout_.virtual_stages() - 1).stage == place;
}

}  // namespace troupe::tests
