#include "engine/stage/norm_lanes.hpp"

#include <stdexcept>
#include <utility>

namespace troupe::engine {

/// What a batch norm of one lane sees.
class norm_lanes::lane final : public norm_sums {
 public:
  lane(norm_lanes& all, std::size_t index) : all_(all), index_(index) {}
  [[nodiscard]] norm_part sum(norm_sum what, norm_part own) override {
    return all_.sum(index_, what, std::move(own));
  }
  [[nodiscard]] bool counts() const override { return (*all_.tasks_)[index_].counts; }

 private:
  norm_lanes& all_;
  std::size_t index_;
};

norm_lanes::norm_lanes(std::string name, std::size_t most, int intra_op_threads) : most_(most) {
  for (std::size_t i = 1; i < most; ++i)
    others_.push_back(std::make_unique<work_thread>(name, intra_op_threads));
}

norm_lanes::~norm_lanes() = default;

void norm_lanes::run(const std::vector<lane_task>& tasks, const norm_exchange& exchange) {
  if (tasks.empty() || tasks.size() > most_)
    throw std::logic_error("more micro-batches at once than there are lanes for");
  tasks_ = &tasks;
  exchange_ = &exchange;
  turn_ = given_ = ended_ = made_ = 0;
  over_.assign(tasks.size(), false);
  parts_.assign(most_, std::nullopt);
  failure_ = nullptr;
  for (std::size_t i = 1; i < tasks.size(); ++i) others_[i - 1]->post([this, i] { run_lane(i); });
  run_lane(0);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_ == tasks.size(); });
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void norm_lanes::run_lane(std::size_t index) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return turn_ == index; });
  }
  std::exception_ptr thrown;
  try {
    lane own(*this, index);
    const norm_sums_scope scope(&own);
    (*tasks_)[index].run();
  } catch (...) {
    thrown = std::current_exception();
  }
  const std::scoped_lock lock(mutex_);
  if (thrown && !failure_) failure_ = thrown;
  over_[index] = true;
  ++ended_;
  pass_on(index);
  changed_.notify_all();
}

/// To the next lane that has not ended, in turn.
void norm_lanes::pass_on(std::size_t index) {
  for (std::size_t i = 1; i <= over_.size(); ++i) {
    turn_ = (index + i) % over_.size();
    if (!over_[turn_]) return;
  }
}

std::exception_ptr norm_lanes::mismatch() const {
  return std::make_exception_ptr(
      std::logic_error("micro-batches that are normalized together come to different sums"));
}

/// All lanes have come to the same sum.
void norm_lanes::complete(norm_sum what, std::unique_lock<std::mutex>& held) {
  given_ = 0;
  auto own = merge_all(what, std::exchange(parts_, std::vector<std::optional<norm_part>>(most_)));
  held.unlock();  // nobody else's turn
  std::exception_ptr thrown;
  norm_part all;
  try {
    all = (*exchange_)(what, std::move(*own));
  } catch (...) {
    thrown = std::current_exception();
  }
  held.lock();
  sum_ = std::move(all);
  ++made_;
  if (thrown && !failure_) failure_ = thrown;
}

norm_part norm_lanes::sum(std::size_t index, norm_sum what, norm_part own) {
  std::unique_lock lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  const auto wanted = made_ + 1;
  parts_[(*tasks_)[index].logical] = std::move(own);
  ++given_;
  if (ended_ > 0) failure_ = mismatch();
  if (given_ == tasks_->size()) complete(what, lock);
  if (tasks_->size() > 1) {
    pass_on(index);
    changed_.notify_all();
    changed_.wait(lock, [&] { return turn_ == index; });
  }
  if (failure_) std::rethrow_exception(failure_);
  if (made_ != wanted) {
    failure_ = mismatch();
    std::rethrow_exception(failure_);
  }
  return sum_;
}

}  // namespace troupe::engine
