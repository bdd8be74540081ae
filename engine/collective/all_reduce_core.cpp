#include "engine/collective/all_reduce_core.hpp"

#include <algorithm>

namespace troupe::engine {
namespace {

std::string in_words(const char* what, std::size_t bucket, const step_key& key) {
  return std::string(what) + " of bucket " + std::to_string(bucket) + " of " + to_string(key);
}

std::string of_replica(std::uint32_t rank) {
  return " of replica " + std::to_string(rank);
}

error gone(std::uint32_t rank) {
  return {errc::peer_lost, "replica " + std::to_string(rank) +
                               " of it is gone: gradients cannot be summed without it"};
}

}  // namespace

result<all_reduce_core::open_step*> all_reduce_core::open(const step_key& key,
                                                          const std::string& what) {
  if (lost_) return tl::unexpected(gone(*lost_));
  if (last_ && key <= *last_) return fail(errc::stale, what + ", which is over");
  if (!open_.contains(key) && open_.size() >= std::max(max_open, steps_again_))
    return fail(errc::bad_frame, what + ": too many steps wait for other replicas");
  auto& step = open_[key];
  step.buckets.resize(buckets_.size());
  return &step;
}

result<all_reduce_core::open_step*> all_reduce_core::hear(const step_key& key, std::uint32_t from,
                                                          const std::string& what) {
  if (from >= ranks_ || from == rank_)
    return fail(errc::bad_frame,
                what + ": that is none of the other " + std::to_string(ranks_ - 1) + " replicas");
  return open(key, what);
}

result<void> all_reduce_core::check_bucket(std::size_t bucket, std::uint32_t owner,
                                           const std::string& what) const {
  if (bucket >= buckets_.size())
    return fail(errc::bad_frame,
                what + ": there are " + std::to_string(buckets_.size()) + " buckets");
  if (buckets_[bucket].owner != owner)
    return fail(errc::bad_frame,
                what + ": that one belongs to replica " + std::to_string(buckets_[bucket].owner));
  return {};
}

result<all_reduce_effects> all_reduce_core::ready(const step_key& key, std::size_t bucket) {
  const auto what = in_words("the gradients", bucket, key);
  if (bucket >= buckets_.size())
    return fail(errc::bad_frame,
                what + ": there are " + std::to_string(buckets_.size()) + " buckets");
  const auto step = open(key, what);
  if (!step) return tl::unexpected(step.error());
  auto& mine = (*step)->buckets[bucket];
  if (mine.ready) return fail(errc::bad_frame, what + " are final twice");
  mine.ready = true;
  all_reduce_effects effects;
  leave(key, **step, effects);
  return effects;
}

result<all_reduce_effects> all_reduce_core::complete(const step_key& key) {
  const auto what = "a reduction of " + to_string(key);
  const auto step = open(key, what);
  if (!step) return tl::unexpected(step.error());
  if ((*step)->complete) return fail(errc::bad_frame, what + " is complete twice");
  (*step)->complete = true;
  for (auto& each : (*step)->buckets) each.ready = true;
  all_reduce_effects effects;
  if (ranks_ > 1) effects.emplace_back(send_rest{key});
  leave(key, **step, effects);
  end(key, **step, effects);
  return effects;
}

result<all_reduce_effects> all_reduce_core::part_arrived(const step_key& key, std::size_t bucket,
                                                         std::uint32_t from) {
  const auto what = in_words("the part", bucket, key) + of_replica(from);
  if (way_ == bucket_way::whole)
    return fail(errc::bad_frame, what + ": the replicas sum by a collective");
  if (auto mine = check_bucket(bucket, rank_, what); !mine) return tl::unexpected(mine.error());
  if (again_.erase({from, key, bucket}) > 0) return part_repeated(key, bucket, from);
  const auto step = hear(key, from, what);
  if (!step) return tl::unexpected(step.error());
  if (!(*step)->buckets[bucket].parts.insert(from).second)
    return fail(errc::bad_frame, what + " came twice");
  all_reduce_effects effects;
  gather(key, **step, bucket, effects);
  return effects;
}

result<all_reduce_effects> all_reduce_core::own_added(const step_key& key, std::size_t bucket) {
  const auto found = open_.find(key);
  if (found == open_.end() || bucket >= buckets_.size() ||
      !found->second.buckets.at(bucket).adding || found->second.buckets[bucket].done)
    return fail(errc::bad_frame, in_words("the own sum", bucket, key) + " is not due");
  auto& step = found->second;
  step.buckets[bucket].done = true;
  ++step.done;
  all_reduce_effects effects;
  if (ranks_ > 1) give_sum(key, bucket, effects);
  end(key, step, effects);
  return effects;
}

result<all_reduce_effects> all_reduce_core::sum_arrived(const step_key& key, std::size_t bucket,
                                                        std::uint32_t from) {
  const auto what = in_words("the sum", bucket, key) + of_replica(from);
  if (way_ == bucket_way::whole)
    return fail(errc::bad_frame, what + ": the replicas sum by a collective");
  if (from >= ranks_ || from == rank_)
    return fail(errc::bad_frame,
                what + ": that is none of the other " + std::to_string(ranks_ - 1) + " replicas");
  if (auto theirs = check_bucket(bucket, from, what); !theirs)
    return tl::unexpected(theirs.error());
  if (again_.erase({from, key, bucket}) > 0) return all_reduce_effects{};
  if (last_ && key <= *last_) return fail(errc::stale, what + ", which is over");
  const auto found = open_.find(key);
  if (found == open_.end() || !found->second.buckets[bucket].left)
    return fail(errc::bad_frame, what + " came before the own part had left");
  auto& step = found->second;
  if (step.buckets[bucket].done) return fail(errc::bad_frame, what + " came twice");
  return bucket_done(key, step, bucket);
}

result<all_reduce_effects> all_reduce_core::summed(const step_key& key, std::size_t bucket) {
  const auto found = open_.find(key);
  if (way_ != bucket_way::whole || found == open_.end() || bucket >= buckets_.size() ||
      !found->second.buckets.at(bucket).left || found->second.buckets[bucket].done)
    return fail(errc::bad_frame, in_words("the sum", bucket, key) + " is not due");
  return bucket_done(key, found->second, bucket);
}

all_reduce_effects all_reduce_core::bucket_done(const step_key& key, open_step& step,
                                                std::size_t bucket) {
  step.buckets[bucket].done = true;
  ++step.done;
  step.in_flight_bytes -= buckets_[bucket].bytes;
  all_reduce_effects effects;
  leave(key, step, effects);
  end(key, step, effects);
  return effects;
}

result<all_reduce_effects> all_reduce_core::rest_arrived(const step_key& key, std::uint32_t from) {
  const auto what = "the rest of " + to_string(key) + of_replica(from);
  if (again_.erase({from, key, rest_of_step()}) > 0) return all_reduce_effects{};
  const auto step = hear(key, from, what);
  if (!step) return tl::unexpected(step.error());
  if (!(*step)->rest.insert(from).second) return fail(errc::bad_frame, what + " came twice");
  all_reduce_effects effects;
  end(key, **step, effects);
  return effects;
}

result<void> all_reduce_core::lost(std::uint32_t rank) {
  lost_ = rank;
  if (open_.empty()) return {};
  return tl::unexpected(gone(rank));
}

void all_reduce_core::leave(const step_key& key, open_step& step, all_reduce_effects& effects) {
  for (; step.next < buckets_.size() && step.buckets[step.next].ready; ++step.next) {
    const auto at = step.next;
    const auto& [owner, parameters, bytes] = buckets_[at];
    if (owner != rank_ || way_ == bucket_way::whole) {
      if (step.in_flight_bytes > 0 && step.in_flight_bytes + bytes > most_in_flight_bytes_) return;
      step.in_flight_bytes += bytes;
      if (way_ == bucket_way::whole)
        effects.emplace_back(sum_bucket{key, at});
      else
        effects.emplace_back(send_part{key, at});
    }
    step.buckets[at].left = true;
    if (way_ == bucket_way::parts) gather(key, step, at, effects);
  }
}

void all_reduce_core::gather(const step_key& key, open_step& step, std::size_t bucket,
                             all_reduce_effects& effects) const {
  auto& mine = step.buckets[bucket];
  if (buckets_[bucket].owner != rank_ || !mine.left || mine.adding ||
      mine.parts.size() + 1 < ranks_)
    return;
  mine.adding = true;
  effects.emplace_back(add_parts{key, bucket});
}

void all_reduce_core::end(const step_key& key, const open_step& step, all_reduce_effects& effects) {
  if (!step.complete || step.done < buckets_.size() || step.rest.size() + 1 < ranks_) return;
  effects.emplace_back(all_reduced{key});
  last_ = key;
  open_.erase(key);
  if (steps_again_ > 0) past_.insert(key);
}

void all_reduce_core::start_over(std::uint32_t rank, const step_key& from) {
  std::erase_if(again_, [rank](const auto& each) { return std::get<0>(each) == rank; });
  for (auto key = past_.lower_bound(from); key != past_.end(); ++key) {
    for (std::size_t at = 0; at < buckets_.size(); ++at)
      if (const auto owner = buckets_.at(at).owner; owner == rank_ || owner == rank)
        again_.emplace(rank, *key, at);
    again_.emplace(rank, *key, rest_of_step());
  }
  for (auto open = open_.lower_bound(from); open != open_.end(); ++open) {
    const auto& [key, step] = *open;
    for (std::size_t at = 0; at < buckets_.size(); ++at)
      if (step.buckets[at].parts.contains(rank) ||
          (buckets_[at].owner == rank && step.buckets[at].done))
        again_.emplace(rank, key, at);
    if (step.rest.contains(rank)) again_.emplace(rank, key, rest_of_step());
  }
}

/// A rank that does a step again gets the sum once it has sent its part, as the first time.
all_reduce_effects all_reduce_core::part_repeated(const step_key& key, std::size_t bucket,
                                                  std::uint32_t from) const {
  const auto found = open_.find(key);
  if (found != open_.end() && !found->second.buckets[bucket].done) return {};
  return {send_sum{key, bucket, from}};
}

/// Not to a rank that has not sent its part again.
void all_reduce_core::give_sum(const step_key& key, std::size_t bucket,
                               all_reduce_effects& effects) const {
  const auto waits = [&](std::uint32_t rank) { return !is_repeat(key, bucket, rank); };
  std::vector<std::uint32_t> others;
  for (std::uint32_t rank = 0; rank < ranks_; ++rank)
    if (rank != rank_) others.push_back(rank);
  if (std::ranges::all_of(others, waits))
    return static_cast<void>(effects.emplace_back(send_sum{key, bucket}));
  for (const auto rank : others)
    if (waits(rank)) effects.emplace_back(send_sum{key, bucket, rank});
}

}  // namespace troupe::engine
