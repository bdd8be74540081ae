#include "actors/stage/edges/ucx_port.hpp"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <utility>

#include "messages/base/log.hpp"

namespace troupe::actors {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::microseconds shortest_nap = 5us, longest_nap = 50us;

/// What an operation moves, where this end may do it. Errors: bad_config.
result<at::Tensor> moved_by(const engine::collective_operation& one, std::uint32_t rank) {
  if (auto sound = engine::check(one, rank, 2); !sound) return tl::unexpected(sound.error());
  const auto allowed = rank == 0 ? engine::collective::send : engine::collective::receive;
  if (one.what != allowed)
    return fail(errc::bad_config, "UCX moves tensors from rank 0 to rank 1, and does nothing else");
  return rank == 0 ? one.from : one.to;
}

/// Where it lies.
held_memory hold_itself(const at::Tensor& whose, bool /*is_written*/) {
  const auto kept = std::make_shared<at::Tensor>(whose);
  return {kept, kept->data_ptr()};
}

/// Keeps for ever what UCX may still write to, where leak checkers see that it is kept.
void keep_for_ever(auto channel, auto requests) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::pair<decltype(channel), decltype(requests)>>;
  const std::scoped_lock lock(mutex);
  kept.emplace_back(std::move(channel), std::move(requests));
}

}  // namespace

result<std::shared_ptr<ucx_port>> ucx_port::open(ucx_terms how) {
  auto port = std::make_shared<ucx_port>(std::move(how));
  if (port->broken_) return tl::unexpected(*port->broken_);
  return port;
}

ucx_port::ucx_port(ucx_terms how) : how_(std::move(how)), name_(how_.name) {
  if (!how_.hold) how_.hold = hold_itself;
  std::promise<result<std::vector<std::byte>>> promised;
  auto opened = promised.get_future();
  thread_ = std::thread([this, &promised] { run(std::move(promised)); });
  pthread_setname_np(thread_.native_handle(), "ucx edge");
  if (auto address = opened.get()) address_ = std::move(*address);
}

ucx_port::~ucx_port() {
  {
    const std::scoped_lock lock(mutex_);
    closing_ = true;
  }
  woken_.notify_one();
  thread_.join();
}

void ucx_port::submit(std::vector<engine::collective_operation> group, done ended, started begun) {
  auto asked = std::make_unique<request>();
  asked->ended = std::move(ended);
  asked->begun = std::move(begun);
  asked->due = clock::now() + how_.waits.operation;
  for (const auto& each : group) {
    auto tensor = moved_by(each, rank());
    if (tensor)
      asked->tensors.push_back(std::move(*tensor));
    else if (!asked->fault)
      asked->fault = std::move(tensor.error());
  }
  if (!asked->fault && how_.on) {
    if (auto ready = how_.on->mark_callers())
      asked->ready = std::move(*ready);
    else
      asked->fault = error_about(name_, ready.error());
  }
  {
    const std::scoped_lock lock(mutex_);
    asked_.push_back(std::move(asked));
  }
  woken_.notify_one();
}

void ucx_port::lose(error why) {
  {
    const std::scoped_lock lock(mutex_);
    if (lost_) return;
    lost_ = std::move(why);
  }
  woken_.notify_one();
}

result<std::vector<std::byte>> ucx_port::open_channel() {
  if (how_.on)
    if (auto entered = how_.on->enter(); !entered) return tl::unexpected(entered.error());
  auto made = how_.channel ? how_.channel()
                           : messages::ucx::memory_channel::make(how_.library, how_.memory);
  if (!made) return tl::unexpected(made.error());
  if (!how_.sender.empty())
    if (auto reached = (*made)->reach(how_.sender); !reached)
      return tl::unexpected(reached.error());
  channel_ = std::move(*made);
  return channel_->address();
}

void ucx_port::run(std::promise<result<std::vector<std::byte>>> opened) {
  prctl(PR_SET_TIMERSLACK, 1'000UL);  // ns: the naps below are short ones
  auto made = open_channel();
  if (!made) broken_ = made.error();
  opened.set_value(std::move(made));
  while (await_work()) turn();
  give_up();
}

/// False once the port is closed. Sleeps until there is work, and naps while UCX has some.
bool ucx_port::await_work() {
  std::unique_lock lock(mutex_);
  const bool is_idle = waiting_.empty() && under_way_.empty() && abandoned_.empty();
  const auto woken = [this] { return closing_ || !asked_.empty() || (lost_ && !broken_); };
  if (is_idle) {
    woken_.wait(lock, woken);
    nap_ = {};
  } else if (nap_ > 0us) {
    woken_.wait_for(lock, nap_, woken);
  }
  if (closing_) return false;
  std::ranges::move(asked_, std::back_inserter(waiting_));
  asked_.clear();
  if (lost_ && !broken_) {
    const auto why = *lost_;
    lock.unlock();
    break_off(why);
  }
  return true;
}

void ucx_port::turn() {
  const auto before = std::pair(waiting_.size(), under_way_.size());
  if (channel_) channel_->progress();
  if (!broken_)
    if (const auto sound = channel_->is_reached(); !sound)
      break_off(error_about(name_, sound.error()));
  while (!waiting_.empty()) {
    const auto due = may_start(*waiting_.front());
    if (due && !*due) break;
    if (!due && (broken_ || due.error().code != errc::bad_config)) {
      break_off(due.error());
      break;
    }
    auto next = std::move(waiting_.front());
    waiting_.pop_front();
    if (due)
      start(std::move(next));
    else
      next->ended(tl::unexpected(due.error()));
  }
  land();
  check_deadlines();
  if (broken_ && (!channel_ || channel_->receiving() == 0)) {
    channel_.reset();
    abandoned_.clear();
  }
  const bool has_moved = before != std::pair(waiting_.size(), under_way_.size());
  nap_ = has_moved ? 0us : std::clamp(2 * nap_, shortest_nap, longest_nap);
}

/// False: not yet. Errors: why it never will.
result<bool> ucx_port::may_start(const request& next) {
  if (broken_) return tl::unexpected(*broken_);
  if (next.fault) return tl::unexpected(*next.fault);
  auto reached = channel_->is_reached();
  if (reached && *reached && next.ready) reached = next.ready->reached();
  if (!reached) return tl::unexpected(error_about(name_, reached.error()));
  return reached;
}

void ucx_port::start(std::unique_ptr<request> next) {
  auto& own = *under_way_.emplace_back(std::move(next));
  own.left = own.tensors.size();
  const auto one_less = [&own](const result<void>& how) {
    --own.left;
    if (!how && !own.fault) own.fault = how.error();
  };
  const bool receives = rank() == 1;
  for (const auto& each : own.tensors) own.held.push_back(how_.hold(each, receives));
  for (std::size_t i = 0; i < own.tensors.size(); ++i) {
    const auto bytes = own.tensors[i].nbytes();
    if (receives)
      channel_->receive(own.held[i].get(), bytes, one_less);
    else
      channel_->send(own.held[i].get(), bytes, one_less);
  }
  if (own.begun && !own.fault) own.begun();
}

void ucx_port::land() {
  while (!under_way_.empty() && under_way_.front()->left == 0) {
    if (const auto why = under_way_.front()->fault) return break_off(error_about(name_, *why));
    const auto landed = std::move(under_way_.front());
    under_way_.pop_front();
    landed->held.clear();
    landed->ended({});
  }
}

void ucx_port::check_deadlines() {
  if (broken_ || (waiting_.empty() && under_way_.empty())) return;
  const auto& oldest = under_way_.empty() ? *waiting_.front() : *under_way_.front();
  const auto now = clock::now();
  if (const auto reached = channel_->is_reached(); reached && !*reached) {
    if (now > oldest.due - how_.waits.operation + how_.waits.join)
      break_off({errc::timed_out, name_ + ": the other stage has not come"});
  } else if (now > oldest.due) {
    break_off({errc::timed_out, name_ + ": a tensor is not there after " +
                                    std::to_string(how_.waits.operation.count()) + " ms"});
  }
}

void ucx_port::break_off(const error& why) {
  broken_ = why;
  for (auto* const some : {&under_way_, &waiting_})
    while (!some->empty()) {
      auto given_up = std::move(some->front());
      some->pop_front();
      given_up->ended(tl::unexpected(why));
      given_up->ended = {};
      abandoned_.push_back(std::move(given_up));
    }
  if (channel_) channel_->cancel_receives();
}

/// What UCX copies into memory of this process has to end before that memory is another's.
void ucx_port::give_up() {
  {
    const std::scoped_lock lock(mutex_);
    std::ranges::move(asked_, std::back_inserter(waiting_));
    asked_.clear();
  }
  if (!waiting_.empty() || !under_way_.empty())
    break_off(broken_.value_or(error{errc::cancelled, name_ + ": the port was given up"}));
  if (!channel_) return;
  const auto end = clock::now() + how_.waits.copies;
  while (channel_->receiving() > 0 && clock::now() < end) {
    channel_->progress();
    std::this_thread::sleep_for(longest_nap);
  }
  if (channel_->receiving() == 0) return channel_.reset();
  log::warning(name_ + ": UCX has not ended a copy; the memory that it goes to is not used again");
  keep_for_ever(std::move(channel_), std::move(abandoned_));
}

}  // namespace troupe::actors
