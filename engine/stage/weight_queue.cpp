#include "engine/stage/weight_queue.hpp"

#include <ATen/core/grad_mode.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <exception>

namespace troupe::engine {
namespace {

using namespace std::chrono_literals;

/// The least time to wait for a helper before its work is done again.
constexpr auto least_patience = 1ms;

constexpr int least_priority = 19;

/// Of this thread: a helper's time on the clock is mostly that without a core.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

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
  {
    const std::scoped_lock lock(mutex_);
    batches_.push_back(std::move(made));
  }
  if (helper_) helper_->post([this] { help(); });
}

void weight_queue::finish(const step_key& step, microbatch_id microbatch) {
  std::unique_lock lock(mutex_);
  if (batches_.empty() || batches_.front().of != key{step, microbatch}) return;
  for (auto& each : batches_.front().entries)
    if (each.state == progress::waiting) compute_here(lock, each);
  for (auto& each : batches_.front().entries) await(lock, each);
  batches_.pop_front();
  lock.unlock();
  if (helper_) helper_->post([this] { help(); });
}

std::vector<at::Tensor> weight_queue::compute(const std::vector<weight_task>& tasks) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  gradients.reserve(tasks.size());
  for (const auto& task : tasks) gradients.push_back(task.gradient());
  return gradients;
}

void weight_queue::add(std::unique_lock<std::mutex>& held, entry& of,
                       const std::vector<at::Tensor>& gradients) {
  const auto tasks = std::exchange(of.tasks, {});  // the activations are freed when it goes
  of.state = progress::adding;
  held.unlock();
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < gradients.size(); ++i) add_((*tasks)[i].weight, gradients[i]);
  held.lock();
  of.state = progress::done;
}

void weight_queue::compute_here(std::unique_lock<std::mutex>& held, entry& of) {
  const auto tasks = of.tasks;
  of.state = progress::adding;  // not the helper's any more
  held.unlock();
  const auto begin = clock::now();
  const auto gradients = compute(*tasks);
  held.lock();
  longest_ = std::max(longest_, clock::now() - begin);
  add(held, of, gradients);
}

void weight_queue::await(std::unique_lock<std::mutex>& held, entry& of) {
  const auto patience = std::max<clock::duration>(longest_, least_patience);
  changed_.wait_for(held, patience, [&] { return of.state != progress::at_helper; });
  if (of.state == progress::at_helper) outrun_ = true;
  if (of.state == progress::at_helper || of.state == progress::waiting)
    return compute_here(held, of);
  changed_.wait(held, [&] { return of.state == progress::done; });
}

weight_queue::entry* weight_queue::next_for_helper() {
  if (closing_) return nullptr;
  for (auto& [of, entries] : batches_) {
    const auto found = std::ranges::find_if(
        entries, [](const entry& each) { return each.state == progress::waiting && !each.threw; });
    if (found != entries.end()) return &*found;
    if (!std::ranges::all_of(entries, [](const entry& e) { return e.state == progress::done; }))
      return nullptr;  // a later micro-batch would be added before this one
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
      gradients = compute(*tasks);
    } catch (const std::exception&) {
      threw = true;  // the stage's thread computes it again, and throws where it is caught
    }
    tasks.reset();
    lock.lock();
    if (std::exchange(outrun_, false)) continue;  // `mine` may be gone
    if (threw) {
      mine->threw = true;
      mine->state = progress::waiting;
    } else {
      add(lock, *mine, gradients);
      helped_s_ += cpu_seconds() - begin;
    }
    changed_.notify_all();
  }
}

bool weight_queue::is_outrun() const {
  const std::scoped_lock lock(mutex_);
  return outrun_;
}

double weight_queue::take_helped_seconds() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(helped_s_, 0);
}

}  // namespace troupe::engine
