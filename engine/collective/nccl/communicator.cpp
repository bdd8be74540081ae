#include "engine/collective/nccl/communicator.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "messages/base/format.hpp"
#include "messages/base/log.hpp"

namespace troupe::engine::nccl {
namespace {

using namespace std::chrono_literals;

/// How often a wait looks again: soon at first, then less often.
constexpr std::chrono::microseconds first_nap = 50us;
constexpr std::chrono::microseconds longest_nap = 1ms;

double seconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

std::string last_words(const api& library, communicator_handle* handle) {
  const char* const said = library.last_error(handle);
  std::string text = said == nullptr ? "" : said;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::ranges::replace(text, '\n', ' ');
  return text;
}

result<void> check(const std::vector<stream_step>& steps, int rank, int ranks) {
  for (const auto& each : steps)
    if (!each.kernels)
      if (auto sound = check(each.group, rank, ranks); !sound) return sound;
  return {};
}

std::string describe(const std::vector<stream_step>& steps) {
  for (const auto& each : steps)
    if (!each.group.empty()) return describe(each.group);
  return "kernels";
}

/// Looks a few times within the limit, so that a hang is seen soon after it.
std::chrono::milliseconds look_each(std::chrono::milliseconds limit) {
  return std::clamp(limit / 8, 5ms, 250ms);
}

}  // namespace

result<invitation> invite(const api& library, int ranks, reach sockets) {
  if (auto claimed = claim_sockets(sockets); !claimed) return tl::unexpected(claimed.error());
  invitation made{.id = {}, .version = library.version, .ranks = ranks};
  const status code = library.get_unique_id(&made.id);
  if (code == status::success) return made;
  return tl::unexpected(explain("NCCL cannot begin a communicator", code,
                                library.error_string(code), last_words(library, nullptr)));
}

communicator::communicator(terms how, done joined)
    : how_(std::move(how)),
      watch_(look_each(how_.waits.call),
             [this](const char* name, clock::duration since) { report_hang(name, since); }),
      thread_([this, joined = std::move(joined)] { run(joined); }) {
  pthread_setname_np(thread_.native_handle(), "nccl");
}

communicator::~communicator() {
  {
    const std::scoped_lock lock(mutex_);
    closing_ = true;
  }
  woken_.notify_one();
  thread_.join();
}

void communicator::submit(std::vector<operation> group, done ended, started begun) {
  std::vector<stream_step> steps;
  steps.push_back({.group = std::move(group)});
  submit(std::move(steps), std::move(ended), std::move(begun));
}

void communicator::submit(result<std::vector<stream_step>> steps, done ended, started begun) {
  request asked{.steps = {}, .ended = std::move(ended), .ready = nullptr};
  asked.begun = std::move(begun);
  auto sound = steps.and_then([this](const std::vector<stream_step>& all) {
    return check(all, how_.rank, how_.invited.ranks);
  });
  if (steps) asked.steps = std::move(*steps);
  if (!sound) {
    asked.refused = std::move(sound.error());
  } else if (auto ready = how_.on->mark_callers()) {
    asked.ready = std::move(*ready);
  } else {
    asked.refused = std::move(ready.error());
  }
  {
    const std::scoped_lock lock(mutex_);
    asked_.push_back(std::move(asked));
  }
  woken_.notify_one();
}

void communicator::lose(error why) {
  {
    const std::scoped_lock lock(mutex_);
    if (lost_) return;
    lost_ = std::move(why);
  }
  woken_.notify_one();
}

void communicator::run(const done& joined) {
  auto ready = join();
  if (!ready) break_off(ready.error());
  joined(ready);
  serve();
  finish();
}

/// Calls NCCL or the device under the watch.
template <class Body>
auto communicator::guard(const char* name, const Body& body) {
  return watch_.guard(name, how_.waits.call, body);
}

std::string communicator::whoami() const {
  return format("%s, rank %d of %d", how_.name.c_str(), how_.rank, how_.invited.ranks);
}

error communicator::failure(const char* what, status code) const {
  return explain("NCCL (" + whoami() + "): " + what, code, how_.library->error_string(code),
                 last_words(*how_.library, handle_));
}

void communicator::report_hang(const char* name, clock::duration since) const {
  const std::string line = format(
      "NCCL (%s): %s has not returned for %.1f s; its device cannot be used any more, so "
      "this process ends",
      whoami().c_str(), name, seconds(since));
  if (how_.hung) return how_.hung(line);
  log::error(line);
  std::_Exit(EXIT_FAILURE);
}

result<void> communicator::join() {
  const api& library = *how_.library;
  if (library.version != how_.invited.version)
    return fail(errc::version_mismatch,
                format("NCCL (%s): this rank has NCCL %s and rank 0 has %s; install the same on "
                       "all machines",
                       whoami().c_str(), version_text(library.version).c_str(),
                       version_text(how_.invited.version).c_str()));
  if (auto claimed = claim_sockets(how_.sockets); !claimed) return claimed;
  if (auto entered = guard("entering the device", [&] { return how_.on->enter(); }); !entered)
    return entered;
  configuration wanted;
  const auto due = clock::now() + how_.waits.join;
  const status code = guard("ncclCommInitRankConfig", [&] {
    return library.init_rank(&handle_, how_.invited.ranks, how_.invited.id, how_.rank, &wanted);
  });
  if (code != status::success && code != status::in_progress)
    return tl::unexpected(failure("joining", code));
  return await_end("joining", due);
}

/// Waits until the communicator has done what it was called for. Errors: timed_out, what NCCL says,
/// or why the ranks are lost.
result<void> communicator::await_end(const char* what, clock::time_point due) {
  for (auto nap = first_nap;; nap = std::min(nap * 2, longest_nap)) {
    status state = status::success;
    const status asked =
        guard("ncclCommGetAsyncError", [&] { return how_.library->async_error(handle_, &state); });
    if (asked != status::success) return tl::unexpected(failure(what, asked));
    if (state == status::success) return {};
    if (state != status::in_progress) return tl::unexpected(failure(what, state));
    if (clock::now() >= due)
      return fail(errc::timed_out, "NCCL (" + whoami() + "): " + what +
                                       " takes longer than its deadline: another rank is missing "
                                       "or stuck");
    std::unique_lock lock(mutex_);
    woken_.wait_for(lock, nap, [this] { return lost_.has_value(); });
    if (lost_) return tl::unexpected(*lost_);
  }
}

/// Until closed and done.
void communicator::serve() {
  for (;;) {
    if (!broken_)
      if (auto why = loss()) break_off(std::move(*why));
    if (auto asked = next()) {
      start(std::move(*asked));
      continue;
    }
    if (!broken_)
      if (auto sound = poll(); !sound) break_off(sound.error());
    std::unique_lock lock(mutex_);
    if (!asked_.empty()) continue;
    if (closing_ && flights_.empty()) return;
    const auto called = [this] { return !asked_.empty() || closing_ || (lost_ && !broken_); };
    if (flights_.empty()) {
      woken_.wait(lock, called);
    } else {
      woken_.wait_for(lock, nap_, [&] { return !asked_.empty() || (lost_ && !broken_); });
      nap_ = std::min(nap_ * 2, longest_nap);
    }
  }
}

std::optional<communicator::request> communicator::next() {
  const std::scoped_lock lock(mutex_);
  if (asked_.empty()) return std::nullopt;
  request first = std::move(asked_.front());
  asked_.pop_front();
  return first;
}

std::optional<error> communicator::loss() {
  const std::scoped_lock lock(mutex_);
  return lost_;
}

void communicator::start(request asked) {
  if (asked.refused || broken_) {
    const error why = asked.refused ? *asked.refused : *broken_;
    asked.steps.clear();  // released before `ended` is called
    return asked.ended(tl::unexpected(why));
  }
  const auto due = clock::now() + how_.waits.operation;
  auto issued = issue(asked, due);
  result<std::unique_ptr<mark>> end;
  if (issued) end = guard("marking the stream", [&] { return how_.on->mark_own(); });
  // Even what failed may be on the stream by now: it is held until the abort is over.
  flights_.push_back({.of = std::move(asked), .end = nullptr, .due = due});
  nap_ = first_nap;
  if (!issued) return break_off(std::move(issued.error()));
  if (!end) return break_off(std::move(end.error()));
  flights_.back().end = std::move(*end);
  if (const auto& begun = flights_.back().of.begun) begun();
}

result<void> communicator::issue(const request& asked, clock::time_point due) {
  if (auto waits = guard("waiting on the stream", [&] { return how_.on->wait_for(*asked.ready); });
      !waits)
    return waits;
  for (const auto& step : asked.steps) {
    auto given = step.kernels
                     ? guard("giving the device work", [&] { return how_.on->run(step.kernels); })
                     : issue(step.group, due);
    if (!given) return given;
  }
  return {};
}

result<void> communicator::issue(const std::vector<operation>& group, clock::time_point due) {
  const std::string what = describe(group);
  status code = guard("ncclGroupStart", [&] { return how_.library->group_start(); });
  if (code != status::success) return tl::unexpected(failure("a group's begin", code));
  for (const operation& one : group) {
    code = guard("an operation of NCCL", [&] { return call(one); });
    if (code != status::success && code != status::in_progress) break;
  }
  const status ended = guard("ncclGroupEnd", [&] { return how_.library->group_end(); });
  if (code == status::success || code == status::in_progress) code = ended;
  if (code != status::success && code != status::in_progress)
    return tl::unexpected(failure(what.c_str(), cause_of(code)));
  return await_end(what.c_str(), due);
}

/// Why a call was refused: what NCCL had noticed before it, a lost peer above all, if anything.
status communicator::cause_of(status refusal) {
  status state = status::success;
  const status asked =
      guard("ncclCommGetAsyncError", [&] { return how_.library->async_error(handle_, &state); });
  const bool noticed =
      asked == status::success && state != status::success && state != status::in_progress;
  return noticed ? state : refusal;
}

status communicator::call(const operation& one) {
  const api& nccl = *how_.library;
  const stream_handle stream = how_.on->stream();
  switch (one.what) {
    case action::send:
      return nccl.send(one.from, one.count, one.type, one.peer, handle_, stream);
    case action::receive:
      return nccl.receive(one.to, one.count, one.type, one.peer, handle_, stream);
    case action::all_reduce:
      return nccl.all_reduce(one.from, one.to, one.count, one.type, one.by, handle_, stream);
    case action::reduce_scatter:
      return nccl.reduce_scatter(one.from, one.to, one.count, one.type, one.by, handle_, stream);
    case action::all_gather:
      return nccl.all_gather(one.from, one.to, one.count, one.type, handle_, stream);
    case action::broadcast:
      return nccl.broadcast(one.from, one.to, one.count, one.type, one.peer, handle_, stream);
    case action::reduce:
      break;
  }
  return status::invalid_argument;
}

/// Looks at what is under way. Errors: what ends the communicator.
result<void> communicator::poll() {
  while (!flights_.empty()) {
    auto over = guard("asking the stream", [&] { return flights_.front().end->reached(); });
    if (!over) return tl::unexpected(std::move(over.error()));
    if (!*over) break;
    land({});
  }
  if (flights_.empty()) return {};
  const std::string what = describe(flights_.front().of.steps);
  status state = status::success;
  const status asked =
      guard("ncclCommGetAsyncError", [&] { return how_.library->async_error(handle_, &state); });
  if (asked != status::success) return tl::unexpected(failure(what.c_str(), asked));
  if (state != status::success && state != status::in_progress)
    return tl::unexpected(failure(what.c_str(), state));
  if (clock::now() < flights_.front().due) return {};
  return fail(errc::timed_out,
              format("NCCL (%s): %s is not done after %.1f s: another rank is missing or stuck",
                     whoami().c_str(), what.c_str(), seconds(how_.waits.operation)));
}

/// The oldest that is under way has ended.
void communicator::land(result<void> how) {
  flight oldest = std::move(flights_.front());
  flights_.pop_front();
  nap_ = first_nap;
  oldest.of.steps.clear();  // releases what was kept, before `ended` is called
  oldest.of.ended(how);
}

/// Aborts this rank's communicator, waits until the device has let go of what was under way, and
/// fails everything. The one limit is for all of it.
void communicator::break_off(error why) {
  broken_ = std::move(why);
  guard("ncclCommAbort", [this] {
    if (handle_ != nullptr) how_.library->abort(std::exchange(handle_, nullptr));
    for (flight& each : flights_) {
      if (each.end == nullptr) each.end = how_.on->mark_own().value_or(nullptr);
      // A device that answers with an error does nothing any more.
      while (each.end != nullptr && !each.end->reached().value_or(true))
        std::this_thread::sleep_for(longest_nap);
    }
  });
  while (!flights_.empty()) land(tl::unexpected(*broken_));
}

/// Closes a communicator that is whole: all ranks do so.
void communicator::finish() {
  if (handle_ == nullptr) return;
  const status code = guard("ncclCommFinalize", [&] { return how_.library->finalize(handle_); });
  const auto due = clock::now() + how_.waits.call;
  const bool ended = (code == status::success || code == status::in_progress) &&
                     await_end("closing", due).has_value();
  guard("ncclCommDestroy",
        [&] { return ended ? how_.library->destroy(handle_) : how_.library->abort(handle_); });
  handle_ = nullptr;
}

}  // namespace troupe::engine::nccl
