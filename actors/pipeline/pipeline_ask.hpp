#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "actors/base/deadlines.hpp"
#include "actors/futures/requester.hpp"
#include "actors/messages/common.hpp"
#include "actors/pipeline/pipeline.hpp"

/// For the pipeline's own sources alone.
namespace troupe::actors {

/// What the stages answer to the steps under way. The feeder ends when a batch cannot be sent: no
/// step that waits for it can complete. Neither can a step that waits for a lost stage, even if
/// that has answered, since its neighbours may not have received all that it sent. Any thread.
class pipeline::open_steps {
 public:
  void add(const step_answers& step) {
    const std::scoped_lock lock(mutex_);
    if (fed_up_) return static_cast<void>(step.state()->settle_error(*fed_up_));
    if (!thrown_.empty())
      return static_cast<void>(step.state()->settle_error(thrown_.begin()->second));
    std::erase_if(open_, [](const auto& each) { return each.ready(); });
    open_.push_back(step);
  }

  /// There are new feeders: only an end that is told with the number returned here counts from now
  /// on.
  std::uint64_t next_feeders() {
    const std::scoped_lock lock(mutex_);
    fed_up_.reset();
    return ++feeders_;
  }

  void feeder_ended(std::uint64_t which, const error& why) {
    const std::scoped_lock lock(mutex_);
    if (feeders_ != which) return;
    fed_up_ = why;
    fail_all(why);
  }

  /// Another stage has this place: only a loss that is told with the number returned here counts
  /// from now on.
  std::uint64_t watch(std::size_t place) {
    const std::scoped_lock lock(mutex_);
    thrown_.erase(place);
    return ++watched_[place];
  }

  /// That number now.
  [[nodiscard]] std::uint64_t watched(std::size_t place) {
    const std::scoped_lock lock(mutex_);
    return watched_[place];
  }

  void stage_lost(std::size_t place, std::uint64_t which, const error& why) {
    const std::scoped_lock lock(mutex_);
    if (watched_[place] == which) fail_all(why);
  }

  /// The stage's arithmetic has thrown, so it answers no step any more.
  void stage_threw(std::size_t place, std::uint64_t which, const error& why) {
    const std::scoped_lock lock(mutex_);
    if (watched_[place] != which) return;
    thrown_.emplace(place, why);
    fail_all(why);
  }

 private:
  void fail_all(const error& why) {
    for (const auto& each : open_) each.state()->settle_error(why);
  }

  std::mutex mutex_;
  std::vector<step_answers> open_;
  std::optional<error> fed_up_;
  std::uint64_t feeders_ = 0;  // which are there now
  std::map<std::size_t, std::uint64_t> watched_;
  std::map<std::size_t, error> thrown_;  // by place, of who is there now
};

template <class Answer, class Actor, class Request>
result<Answer> pipeline::ask(const Actor& whom, Request request) {
  return ask_->request<Answer>(whom, std::move(request), usual_deadlines.transfer).get();
}

template <class Actor, class Request>
future<acknowledged> pipeline::tell(const Actor& whom, Request request) {
  return ask_->request<acknowledged>(whom, std::move(request), usual_deadlines.transfer);
}

}  // namespace troupe::actors
