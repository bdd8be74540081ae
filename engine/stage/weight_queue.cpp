#include "engine/stage/weight_queue.hpp"

#include <ATen/core/grad_mode.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

#include "engine/model/activity.hpp"

namespace troupe::engine {
namespace {

using namespace std::chrono_literals;

/// The least time to wait for a helper before its work is done again.
constexpr auto least_patience = 1ms;

/// Micro-batches whose gradients a helper may keep until their turn.
constexpr std::size_t most_ahead = 2;

constexpr int least_priority = 19;

/// Of this thread: a helper's time on the clock is mostly that without a core.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

bool weight_queue::batch::done() const {
  return std::ranges::all_of(
      entries, [](auto state) { return state == progress::done; }, &entry::state);
}

weight_queue::weight_queue(adder add, bool helped) : add_(std::move(add)) {
  if (!helped) return;
  // As many intra-op threads as the stage's: their number may decide how sums are rounded.
  helper_ = std::make_unique<work_thread>("troupe-helper", 1);
  helper_->post([] {
    // On Linux this thread's alone. May fail where priorities are forbidden: it then takes turns.
    static_cast<void>(setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), least_priority));
  });
}

weight_queue::~weight_queue() {
  const std::scoped_lock lock(mutex_);
  closing_ = true;
}

void weight_queue::put(const step_key& step, microbatch_id microbatch,
                       std::vector<weight_task> tasks) {
  if (tasks.empty()) return;
  std::vector<std::vector<weight_task>> by_weight;
  for (auto& task : tasks) {
    const auto same = std::ranges::find_if(
        by_weight, [&](const auto& of) { return of.front().weight.is_same(task.weight); });
    if (same != by_weight.end())
      same->push_back(std::move(task));
    else
      by_weight.emplace_back().push_back(std::move(task));
  }
  batch made{{step, microbatch}, {}};
  for (auto& of : by_weight)
    made.entries.push_back({std::make_shared<const std::vector<weight_task>>(std::move(of))});
  const std::scoped_lock lock(mutex_);
  batches_.push_back(std::move(made));
  ask_for_help();
}

void weight_queue::finish(const step_key& step, microbatch_id microbatch) {
  std::unique_lock lock(mutex_);
  const key wanted{step, microbatch};
  if (batches_.empty() || batches_.front().of != wanted) {
    if (std::ranges::find(batches_, wanted, &batch::of) == batches_.end()) return;
    throw std::logic_error("weight gradients of a micro-batch before those of an earlier one");
  }
  for (auto& each : batches_.front().entries) {
    if (each.failure) std::rethrow_exception(each.failure);
    if (each.state != progress::at_helper && each.state != progress::done)
      add_gradients_of(lock, wanted, each);
  }
  for (auto& each : batches_.front().entries) {
    if (each.state == progress::done) continue;
    const auto is_back = [&] { return each.state != progress::at_helper; };
    if (!changed_.wait_for(lock, std::max<clock::duration>(last_, least_patience), is_back))
      outrun_ = true;
    add_gradients_of(lock, wanted, each);
  }
  batches_.pop_front();
  ask_for_help();
}

void weight_queue::add_gradients_of(std::unique_lock<std::mutex>& held, const key& whose,
                                    entry& of) {
  auto tasks = std::exchange(of.tasks, {});
  auto gradients = std::exchange(of.gradients, {});
  const bool computed = of.state == progress::computed;
  of.state = progress::done;
  held.unlock();
  note_parameter(of.weight);
  const auto begin = clock::now();
  gradients.resize(tasks->size());
  for (std::size_t i = 0; i < tasks->size(); ++i)
    add_(whose.first, whose.second, tasks->at(i), std::move(gradients[i]));
  if (!computed) last_ = clock::now() - begin;
  tasks.reset();  // frees the activations before others are kept waiting
  held.lock();
}

bool weight_queue::work_ahead() {
  std::unique_lock lock(mutex_);
  const auto earliest = std::ranges::find(batches_, false, &batch::done);
  if (earliest == batches_.end() || earliest->entries.size() < least_weights) return false;
  const auto found = std::ranges::find_if(earliest->entries, [](const entry& each) {
    return each.state == progress::waiting || each.state == progress::computed;
  });
  if (found == earliest->entries.end()) return false;
  const auto begin = clock::now();
  try {
    add_gradients_of(lock, earliest->of, *found);
  } catch (const std::exception&) {  // not done again: some of it may have been added
    lock.lock();
    found->failure = std::current_exception();
  }
  ahead_s_ += std::chrono::duration<double>(clock::now() - begin).count();
  return true;
}

void weight_queue::ask_for_help() {
  if (helper_ && !std::exchange(asked_, true)) helper_->post([this] { help(); });
}

weight_queue::entry* weight_queue::next_for_helper() {
  if (closing_) return nullptr;
  std::size_t ahead = 0;
  for (auto& of : batches_) {
    if (of.done()) continue;
    const auto found = std::ranges::find_if(of.entries, [](const entry& each) {
      return each.state == progress::waiting && !each.threw;
    });
    if (found != of.entries.end()) return &*found;
    if (++ahead == most_ahead) break;
  }
  return nullptr;
}

void weight_queue::help() {
  std::unique_lock lock(mutex_);
  while (entry* const mine = next_for_helper()) {
    auto tasks = mine->tasks;
    mine->state = progress::at_helper;
    lock.unlock();
    const double begin = cpu_seconds();
    std::vector<at::Tensor> gradients;
    bool threw = false;
    try {
      const at::NoGradGuard no_grad;
      for (const auto& task : *tasks) gradients.push_back(task.gradient());
    } catch (const std::exception&) {
      gradients.clear();
      threw = true;  // the stage's thread computes it again, and throws where it is caught
    }
    const double took = cpu_seconds() - begin;
    tasks.reset();
    lock.lock();
    if (std::exchange(outrun_, false)) continue;  // `mine` may be gone
    mine->threw = threw;
    mine->state = threw ? progress::waiting : progress::computed;
    mine->gradients = std::move(gradients);
    ahead_s_ += threw ? 0 : took;
    changed_.notify_all();
  }
  asked_ = false;
}

bool weight_queue::is_outrun() const {
  const std::scoped_lock lock(mutex_);
  return outrun_;
}

double weight_queue::take_seconds_ahead() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(ahead_s_, 0);
}

}  // namespace troupe::engine
