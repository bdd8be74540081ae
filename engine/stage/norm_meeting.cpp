#include "engine/stage/norm_meeting.hpp"

#include <stdexcept>
#include <utility>

namespace troupe::engine {

norm_part norm_meeting::wait(const std::function<void()>& ask) {
  {
    const std::scoped_lock lock(mutex_);
    sum_.reset();
    if (failure_) throw std::runtime_error(failure_->text);
  }
  ask();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return sum_ || failure_; });
  if (failure_) throw std::runtime_error(failure_->text);
  return *std::exchange(sum_, std::nullopt);
}

void norm_meeting::answer(norm_part sum) {
  {
    const std::scoped_lock lock(mutex_);
    sum_ = std::move(sum);
  }
  changed_.notify_one();
}

void norm_meeting::fail(const error& why) {
  {
    const std::scoped_lock lock(mutex_);
    if (!failure_) failure_ = why;
  }
  changed_.notify_one();
}

}  // namespace troupe::engine
