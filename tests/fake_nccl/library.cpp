// The NCCL of tests: the functions that we call, between processes over shared memory, where memory
// of a device is host memory. Strict about what NCCL forbids, so that a test sees it without a
// card.

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/fake_nccl/reduce.hpp"
#include "tests/fake_nccl/script.hpp"
#include "tests/fake_nccl/stream.hpp"
#include "tests/fake_nccl/transfer.hpp"
#include "tests/fake_nccl/world.hpp"

namespace troupe::tests::fake_nccl {
namespace {

using engine::nccl::communicator_handle;
using engine::nccl::configuration;
using engine::nccl::data_type;
using engine::nccl::reduction;
using engine::nccl::status;
using engine::nccl::unique_id;
using function = arguments::function;

thread_local int current_device = 0;
thread_local int group_depth = 0;

/// What all threads see of the library: the last error, and the handles that are in use.
std::mutex guard;
std::string last_error_text;
std::string sockets_found;

/// See fake_see_memory; null: operations use addresses as they are.
std::atomic<void* (*)(void*)> translation = nullptr;
std::atomic<void (*)(void*, const char*, const void*, const void*)> memory_watch = nullptr;

/// Where an operation finds the memory at an address.
template <class Pointer>
Pointer found_at(Pointer address) {
  auto* const translate = translation.load();
  return translate == nullptr ? address : translate(const_cast<void*>(address));
}

void set_last_error(const std::string& text) {
  const std::scoped_lock lock(guard);
  last_error_text = text;
}

status refuse(status code, const std::string& text) {
  set_last_error(text);
  return code;
}

std::string setting(const char* name) {
  const char* const value = std::getenv(name);
  return std::string(name) + " " + (value == nullptr ? "unset" : value);
}

/// As NCCL does once: what is set later comes too late.
void open_sockets() {
  const std::scoped_lock lock(guard);
  if (!sockets_found.empty()) return;
  sockets_found = setting("NCCL_SOCKET_IFNAME") + ", " + setting("NCCL_COMM_ID");
  if (const char* const log = std::getenv("FAKE_NCCL_LOG"))
    std::ofstream(log, std::ios::app) << sockets_found + "\n";
}

}  // namespace

/// What a handle stands for. Operations on streams hold it beyond the handle's end.
struct rank_state {
  rank_state(const unique_id& id, int rank, int ranks, int on)
      : in(id, rank, ranks, on), device(on) {}

  world in;
  const int device;
  std::atomic<status> state = status::in_progress;
  std::atomic<bool> joined = false;
  std::atomic<bool> closing = false;
  std::atomic<bool> stuck = false;
  std::atomic<bool> aborted = false;
  std::atomic<bool> in_call = false;
  std::atomic<int> polls_to_go = 0;         // what is called for takes a while to be on its stream
  std::vector<std::pair<bool, int>> unmet;  // sends or receives and peers, of its calling thread

  /// As NCCL connects two ranks: at their first transfer, once both have called it.
  bool is_connected() {
    std::erase_if(unmet, [this](const auto& one) { return in.is_met(one.first, one.second); });
    return unmet.empty();
  }
};

}  // namespace troupe::tests::fake_nccl

namespace troupe::engine::nccl {

struct communicator_handle {
  std::shared_ptr<tests::fake_nccl::rank_state> state;
};

}  // namespace troupe::engine::nccl

namespace troupe::tests::fake_nccl {
namespace {

std::set<communicator_handle*> live;

bool is_live(communicator_handle* handle, const char* name) {
  {
    const std::scoped_lock lock(guard);
    if (live.contains(handle)) return true;
  }
  note_wrong_use(std::string(name) + " with a communicator that is over");
  return false;
}

/// One call at a time for a communicator: NCCL's are not safe from two threads.
class in_call {
 public:
  in_call(rank_state& of, const char* name) : of_(of) {
    if (of_.in_call.exchange(true)) note_wrong_use(std::string(name) + " beside another call");
  }
  ~in_call() { of_.in_call = false; }

 private:
  rank_state& of_;
};

struct queued {
  std::shared_ptr<rank_state> rank;
  stream* on = nullptr;
  arguments what;
  std::optional<mishap> wrong;
};

thread_local std::vector<queued> grouped;

/// What goes wrong at a call that moves no data; nothing: goes on.
std::optional<status> suffer(const char* name, const std::shared_ptr<rank_state>& rank) {
  const auto wrong = count_call(name);
  if (!wrong) return std::nullopt;
  switch (wrong->what) {
    case mishap::kind::die:
      ::kill(::getpid(), SIGKILL);
      break;
    case mishap::kind::hang:
      hang();
      break;
    case mishap::kind::fail:
      return refuse(wrong->code, wrong->text);
    case mishap::kind::async:
      set_last_error(wrong->text);
      if (rank) rank->state = wrong->code;
      break;
    case mishap::kind::stuck:
      if (rank) rank->stuck = true;
      break;
    case mishap::kind::stall:
      break;
  }
  return std::nullopt;
}

/// The transfers of one group, as work of a stream.
class group_work {
 public:
  group_work(std::shared_ptr<rank_state> rank, const std::vector<queued>& parts)
      : rank_(std::move(rank)) {
    for (const queued& each : parts) {
      transfers_.push_back(make_transfer(rank_->in, each.what));
      if (!each.wrong) continue;
      stalls_ |= each.wrong->what == mishap::kind::stall;
      dies_ |= each.wrong->what == mishap::kind::die;
    }
  }

  bool operator()() {
    if (rank_->aborted) return true;
    look_for_deaths();
    if (stalls_ || !rank_->joined) return false;
    try {
      return step();
    } catch (const std::exception& wrong) {
      note_wrong_use(wrong.what());
      set_last_error(wrong.what());
      rank_->state = status::invalid_usage;
      stalls_ = true;
      return false;
    }
  }

 private:
  bool step() {
    std::set<std::string> busy;
    for (const auto& each : transfers_) {
      if (each->over() || busy.contains(each->lane)) continue;
      each->step();
      if (dies_ && each->begun()) ::kill(::getpid(), SIGKILL);
      if (!each->over()) busy.insert(each->lane);
    }
    return busy.empty();
  }

  void look_for_deaths() {
    static const bool sees = std::getenv("FAKE_NCCL_SEES_DEATHS") != nullptr;
    if (!sees || rank_->state == status::remote_error || rank_->in.dead() < 0) return;
    set_last_error("Connection closed by remote peer");
    rank_->state = status::remote_error;
  }

  std::shared_ptr<rank_state> rank_;
  std::vector<std::shared_ptr<transfer>> transfers_;
  bool stalls_ = false;
  bool dies_ = false;
};

/// Puts what a thread called since ncclGroupStart on its streams: all of one communicator here.
status launch() {
  const std::vector<queued> parts = std::exchange(grouped, {});
  if (parts.empty()) return status::success;
  const auto rank = parts.front().rank;
  rank->polls_to_go = 2;
  if (rank->state == status::success) rank->state = status::in_progress;
  for (const queued& each : parts) {
    const bool sends = each.what.what == function::send;
    if (!sends && each.what.what != function::receive) continue;
    rank->in.note_call(sends, each.what.peer);
    rank->unmet.emplace_back(sends, each.what.peer);
  }
  parts.front().on->post(group_work(rank, parts));
  return status::in_progress;
}

/// What NCCL refuses at once; empty: nothing.
status examine(const rank_state& rank, const arguments& what, const stream* on) {
  const bool reduces = what.what == function::all_reduce || what.what == function::reduce_scatter;
  const bool peer_known = what.peer >= 0 && what.peer < rank.in.ranks;
  if (rank.state != status::success)
    return refuse(status::invalid_argument,
                  "Attempt to use communicator before the previous operation returned ncclSuccess");
  if (on == nullptr || on->device != rank.device)
    return refuse(status::invalid_usage, "the stream is of another device");
  if (!peer_known || (reduces && !can_reduce(what.type)))
    return refuse(status::invalid_argument, "an argument is out of range");
  return status::success;
}

status operate(const char* name, communicator_handle* handle, void* on, const arguments& what) {
  if (!is_live(handle, name)) return status::invalid_argument;
  const auto rank = handle->state;
  const in_call now(*rank, name);
  const auto wrong = count_call(name);
  if (wrong && wrong->what == mishap::kind::hang) hang();
  if (wrong && wrong->what == mishap::kind::fail) return refuse(wrong->code, wrong->text);
  if (const status code = examine(*rank, what, static_cast<stream*>(on)); code != status::success)
    return code;
  if (wrong && wrong->what == mishap::kind::stuck) rank->stuck = true;
  if (auto* const used = memory_watch.load()) used(on, name, what.from, what.to);
  arguments seen = what;
  seen.from = found_at(what.from);
  seen.to = found_at(what.to);
  grouped.push_back({.rank = rank, .on = static_cast<stream*>(on), .what = seen, .wrong = wrong});
  if (wrong && wrong->what == mishap::kind::async) {
    set_last_error(wrong->text);
    rank->state = wrong->code;
  }
  return group_depth > 0 ? status::success : launch();
}

/// What has become of a communicator since the last look.
void advance(rank_state& rank) {
  if (rank.state != status::in_progress || rank.stuck) return;
  if (rank.closing) {
    if (rank.in.all_finalized()) rank.state = status::success;
  } else if (!rank.joined) {
    if (!rank.in.complete()) return;
    rank.joined = true;
    const int twin = rank.in.twin();
    if (twin >= 0)
      set_last_error("Duplicate GPU detected : rank " + std::to_string(rank.in.rank) +
                     " and rank " + std::to_string(twin) + " both on CUDA device " +
                     std::to_string(rank.device));
    rank.state = twin < 0 ? status::success : status::invalid_usage;
  } else if (--rank.polls_to_go <= 0 && rank.is_connected()) {
    rank.state = status::success;
  }
}

status leave(communicator_handle* handle) {
  {
    const std::scoped_lock lock(guard);
    live.erase(handle);
  }
  delete handle;
  return status::success;
}

}  // namespace
}  // namespace troupe::tests::fake_nccl

using namespace troupe::tests::fake_nccl;  // NOLINT: the functions below are C's

extern "C" {

status ncclGetVersion(int* version) {
  const char* const said = std::getenv("FAKE_NCCL_VERSION");
  *version = said == nullptr ? 22809 : std::atoi(said);
  return status::success;
}

status ncclGetUniqueId(unique_id* id) {
  open_sockets();
  if (const auto wrong = suffer("ncclGetUniqueId", nullptr)) return *wrong;
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->bytes, sizeof id->bytes, "/fake-nccl-%d-%ld", ::getpid(), now.tv_nsec);
  return status::success;
}

status ncclCommInitRankConfig(communicator_handle** made, int ranks, unique_id id, int rank,
                              configuration* how) {
  open_sockets();
  if (const auto wrong = suffer("ncclCommInitRankConfig", nullptr)) return *wrong;
  if (how->magic != 0xcafebeef || how->size < 24 || how->version < 21400 || how->blocking != 0)
    return refuse(status::invalid_argument,
                  "ncclConfig_t is not one of a non-blocking communicator");
  if (ranks < 1 || ranks > most_ranks || rank < 0 || rank >= ranks)
    return refuse(status::invalid_argument, "rank is out of range");
  auto* const handle = new communicator_handle;
  handle->state = std::make_shared<rank_state>(id, rank, ranks, current_device);
  {
    const std::scoped_lock lock(guard);
    live.insert(handle);
  }
  *made = handle;
  return status::in_progress;
}

status ncclCommGetAsyncError(communicator_handle* handle, status* state) {
  if (!is_live(handle, "ncclCommGetAsyncError")) return status::invalid_argument;
  rank_state& rank = *handle->state;
  const in_call now(rank, "ncclCommGetAsyncError");
  if (const auto wrong = suffer("ncclCommGetAsyncError", handle->state)) return *wrong;
  advance(rank);
  *state = rank.state;
  return status::success;
}

status ncclCommFinalize(communicator_handle* handle) {
  if (!is_live(handle, "ncclCommFinalize")) return status::invalid_argument;
  rank_state& rank = *handle->state;
  const in_call now(rank, "ncclCommFinalize");
  if (const auto wrong = suffer("ncclCommFinalize", handle->state)) return *wrong;
  rank.closing = true;
  rank.state = status::in_progress;
  rank.in.finalize();
  return status::in_progress;
}

status ncclCommDestroy(communicator_handle* handle) {
  if (!is_live(handle, "ncclCommDestroy")) return status::invalid_argument;
  if (const auto wrong = suffer("ncclCommDestroy", handle->state)) return *wrong;
  return leave(handle);
}

status ncclCommAbort(communicator_handle* handle) {
  if (!is_live(handle, "ncclCommAbort")) return status::invalid_argument;
  if (handle->state->in_call) note_wrong_use("ncclCommAbort beside another call");
  if (const auto wrong = suffer("ncclCommAbort", handle->state)) return *wrong;
  handle->state->aborted = true;
  return leave(handle);
}

status ncclAllReduce(const void* from, void* to, std::size_t count, data_type type, reduction by,
                     communicator_handle* handle, void* on) {
  return operate("ncclAllReduce", handle, on,
                 {.what = function::all_reduce,
                  .from = from,
                  .to = to,
                  .count = count,
                  .type = type,
                  .by = by});
}

status ncclReduceScatter(const void* from, void* to, std::size_t count, data_type type,
                         reduction by, communicator_handle* handle, void* on) {
  return operate("ncclReduceScatter", handle, on,
                 {.what = function::reduce_scatter,
                  .from = from,
                  .to = to,
                  .count = count,
                  .type = type,
                  .by = by});
}

#ifndef FAKE_NCCL_WITHOUT_ALL_GATHER
status ncclAllGather(const void* from, void* to, std::size_t count, data_type type,
                     communicator_handle* handle, void* on) {
  return operate(
      "ncclAllGather", handle, on,
      {.what = function::all_gather, .from = from, .to = to, .count = count, .type = type});
}
#endif

status ncclBroadcast(const void* from, void* to, std::size_t count, data_type type, int root,
                     communicator_handle* handle, void* on) {
  return operate("ncclBroadcast", handle, on,
                 {.what = function::broadcast,
                  .from = from,
                  .to = to,
                  .count = count,
                  .type = type,
                  .peer = root});
}

status ncclSend(const void* from, std::size_t count, data_type type, int peer,
                communicator_handle* handle, void* on) {
  return operate(
      "ncclSend", handle, on,
      {.what = function::send, .from = from, .count = count, .type = type, .peer = peer});
}

status ncclRecv(void* to, std::size_t count, data_type type, int peer, communicator_handle* handle,
                void* on) {
  return operate("ncclRecv", handle, on,
                 {.what = function::receive, .to = to, .count = count, .type = type, .peer = peer});
}

status ncclGroupStart() {
  if (const auto wrong = suffer("ncclGroupStart", nullptr)) return *wrong;
  ++group_depth;
  return status::success;
}

status ncclGroupEnd() {
  if (group_depth == 0) {
    note_wrong_use("ncclGroupEnd without ncclGroupStart");
    return status::invalid_usage;
  }
  const status code = --group_depth == 0 ? launch() : status::success;
  if (const auto wrong = suffer("ncclGroupEnd", nullptr)) return *wrong;
  return code;
}

const char* ncclGetErrorString(status code) {
  constexpr const char* names[] = {"no error",
                                   "unhandled cuda error",
                                   "unhandled system error",
                                   "internal error",
                                   "invalid argument",
                                   "invalid usage",
                                   "remote process exited or there was a network error",
                                   "NCCL operation in progress"};
  return names[static_cast<int>(code)];
}

const char* ncclGetLastError(communicator_handle* /*handle*/) {
  static thread_local std::string copy;
  const std::scoped_lock lock(guard);
  copy = last_error_text;
  return copy.c_str();
}

void fake_enter_device(int device) {
  current_device = device;
}

void* fake_make_stream(int device) {
  return new stream(device);
}

void fake_drop_stream(void* of) {
  delete static_cast<stream*>(of);
}

void fake_post(void* on, void (*work)(void*), void* argument) {
  static_cast<stream*>(on)->post([work, argument] {
    work(argument);
    return true;
  });
}

std::uint64_t fake_mark(void* of) {
  return static_cast<stream*>(of)->mark();
}

int fake_reached(void* of, std::uint64_t mark) {
  return static_cast<stream*>(of)->reached(mark) ? 1 : 0;
}

void fake_wait_for(void* of, void* other, std::uint64_t mark) {
  static_cast<stream*>(of)->post(
      [other, mark] { return static_cast<stream*>(other)->reached(mark); });
}

void fake_see_memory(void* (*translate)(void*),
                     void (*used)(void*, const char*, const void*, const void*)) {
  translation = translate;
  memory_watch = used;
}

void fake_release() {
  release_hangs();
}

const char* fake_wrong_uses() {
  return wrong_uses();
}

int fake_calls_of(const char* function) {
  return calls_of(function);
}

const char* fake_sockets() {
  static thread_local std::string copy;
  const std::scoped_lock lock(guard);
  copy = sockets_found;
  return copy.c_str();
}

}  // extern "C"
