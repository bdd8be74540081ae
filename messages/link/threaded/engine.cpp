#include "messages/link/threaded/engine.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "messages/base/log.hpp"
#include "messages/link/meeting_place.hpp"
#include "messages/link/ucx/carrier.hpp"
#include "messages/link/ucx/handles.hpp"

namespace troupe::messages {
namespace {

using namespace std::chrono_literals;

/// Strangers taken in, in one turn.
constexpr int most_accepted = 32;
/// While frames pass through UCX, the doors are looked at so often.
constexpr auto door_pause = 100us;

}  // namespace

result<std::unique_ptr<engine>> engine::make(const link_options& options,
                                             const std::optional<link_options>& inside,
                                             link_events events, link_counters& counters,
                                             std::shared_ptr<shared_memory> memory,
                                             std::shared_ptr<return_desk> desk, int wake_fd) {
  std::unique_ptr<engine> out(
      new engine(options, inside, std::move(events), counters, std::move(memory), std::move(desk)));
  if (auto started = out->start(wake_fd); !started)
    return tl::unexpected(std::move(started.error()));
  return out;
}

// Only what is met over shared memory is lent any.
engine::entrance::entrance(engine& of, const link_options& how,
                           std::shared_ptr<shared_memory> memory,
                           const std::shared_ptr<return_desk>& desk)
    : options(how),
      shared{options,
             of.pool_,
             of.counters_,
             of.events_,
             of.attention_,
             how.transport == link_transport::shm ? std::move(memory) : nullptr,
             desk,
             [&of] { return of.make_share(); },
             record::faster_cipher()} {}

engine::engine(const link_options& options, const std::optional<link_options>& inside,
               link_events events, link_counters& counters, std::shared_ptr<shared_memory> memory,
               std::shared_ptr<return_desk> desk)
    : options_(options),
      counters_(counters),
      events_(std::move(events)),
      pool_(options.pool_bytes),
      outside_(*this, options, memory, desk),
      inside_(inside ? std::make_unique<entrance>(*this, *inside, std::move(memory), desk)
                     : nullptr) {}

engine::~engine() {
  outside_.listener.reset();
  if (inside_) inside_->listener.reset();
  for (auto& [id, each] : peers_) each.core->cancel();
  events_.tell();
  peers_.clear();
  events_.tell();
}

result<void> engine::start(int wake_fd) {
  epoll_ = descriptor(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_)
    return fail(errc::io_failed, fmt::format("cannot make an epoll: {}", std::strerror(errno)));
  wake_fd_ = wake_fd;
  if (auto watched = watch(wake_fd, wake_tag); !watched) return watched;
  if (auto opened = open_ucx(outside_); !opened || !inside_) return opened;
  return open_ucx(*inside_);
}

result<void> engine::open_ucx(entrance& at) {
  if (at.options.transport == link_transport::tcp) return {};
  auto made = ucx::library::open(at.options);
  if (!made) return tl::unexpected(std::move(made.error()));
  at.ucx = std::move(*made);
  return {};
}

key_share engine::make_share() const {
  std::array<std::byte, 64> random;
  fill_random(random);
  const key_share out = key_share::make(options_.secret.bytes(), random);
  wipe(random);
  return out;
}

key_share engine::share_to_show(clock::time_point now) {
  key_share out = shown_.at(now, [this] { return make_share(); });
  fill_random(out.salt);
  return out;
}

result<std::string> engine::listen(const std::optional<door::address>& where,
                                   const std::string& text) {
  if (auto opened = open(
          outside_, where ? door::listener::open(*where, text) : door::listener::open_private(),
          outside_tag);
      !opened) {
    return tl::unexpected(std::move(opened.error()));
  }
  is_screened_ = false;  // the new one is not
  meeting_place met{.outside = outside_.listener->text()};
  if (inside_ && !this_machine().empty()) {
    if (!inside_->listener)
      if (auto opened = open(*inside_, door::listener::open_private(), inside_tag); !opened)
        return tl::unexpected(std::move(opened.error()));
    met.inside = inside_->listener->text();
    met.machine = this_machine();
  }
  return met.text();
}

result<void> engine::open(entrance& at, result<door::listener> door, std::uint64_t tag) {
  if (!door) return tl::unexpected(std::move(door.error()));
  if (auto watched = watch(door->fd(), tag); !watched) return watched;
  at.listener.emplace(std::move(*door));  // epoll forgets the one before, which is closed
  return {};
}

result<void> engine::watch(int what, std::uint64_t tag) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = tag;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, what, &event) == 0) return {};
  return fail(errc::io_failed, fmt::format("cannot wait for peers: {}", std::strerror(errno)));
}

template <class From>
engine::peer& engine::add_peer(entrance& at, std::string name, connection::role mine, From from) {
  const peer_id id{next_peer_ + (&at == inside_.get() ? 1 : 0)};
  next_peer_ += 2;
  const door::door_carrier::waiting_room where{epoll_.get(), id.value};
  peer& out = peers_[id.value];
  if (at.ucx) {
    auto made =
        std::make_unique<ucx::ucx_carrier>(where, at.options, std::move(from), at.ucx->context());
    out.over_ucx = made.get();
    out.by = std::move(made);
  } else {
    out.by = std::make_unique<door::door_carrier>(where, at.options.bounds, std::move(from));
  }
  out.core = std::make_unique<connection>(id, std::move(name), mine, *out.by, at.shared);
  out.by->serve(*out.core);
  ++living_;
  return out;
}

void engine::accept_waiting(entrance& at, clock::time_point now) {
  for (int taken = 0; at.listener && taken < most_accepted; ++taken) {
    auto who = at.listener->accept();
    if (!who) return;
    take_in(at, std::move(*who), now);
  }
}

void engine::take_in(entrance& at, door::visitor who, clock::time_point now) {
  if (who.is_other_user) {
    ++counters_.refused(refusal::other_user);
    return;
  }
  if (living_ - strangers_ >= options_.peers) {
    ++counters_.refused(refusal::too_many);
    return alarm_.refused(now);
  }
  if (strangers_ >= options_.handshakes) push_out_stranger();
  std::string name = who.name;
  peer& added = add_peer(at, std::move(name), connection::role::accepts, std::move(who));
  added.core->accept(now + options_.handshake_timeout, share_to_show(now));
  ++strangers_;
  added.is_stranger = true;
  lobby_.enter(added.core->id(), added.by->host());
  deadline_ = std::min(deadline_, added.core->deadline());
}

void engine::push_out_stranger() {
  const auto who = lobby_.next_out();
  if (!who) return;
  lobby_.leave(*who);
  peers_.at(who->value).core->make_room();
}

void engine::mind_strangers(clock::time_point now) {
  alarm_.expire(now);
  if (alarm_.is_raised() == is_screened_ || !outside_.listener) return;
  is_screened_ = alarm_.is_raised();
  const bool works = outside_.listener->screen(is_screened_);
  if (!works || std::exchange(has_warned_, true)) return;
  log::warning(
      fmt::format("many strangers come to {}: from now on the system drops what does not "
                  "begin as a peer does, for {} s each time",
                  outside_.listener->text(), door::alarm::life.count()));
}

void engine::connect(const door::address& where, std::string name,
                     std::chrono::milliseconds timeout, link::connected done) {
  if (living_ - strangers_ >= options_.peers)
    return refuse(std::move(done),
                  {errc::address_unavailable,
                   fmt::format("cannot connect to {}: limit peers is {}", name, options_.peers)});
  auto& at = inside_ && where.is_unix() ? *inside_ : outside_;
  peer& added = add_peer(at, std::move(name), connection::role::connects, where);
  added.core->connect(clock::now() + timeout, std::move(done));
  deadline_ = std::min(deadline_, added.core->deadline());
}

void engine::send(peer_id to, std::shared_ptr<outgoing> frame) {
  const auto found = peers_.find(to.value);
  if (found != peers_.end() && found->second.core->is_up())
    return found->second.core->send(std::move(frame));
  counters_.take_in_flight(frame->tensor_bytes);
  refuse(std::move(frame->done), {errc::peer_lost, fmt::format("no peer {} any more", to.value)});
}

void engine::refuse(link::completion done, error why) {
  events_.completed(std::move(done), tl::unexpected(std::move(why)));
}

void engine::refuse(link::connected done, error why) {
  events_.connected(std::move(done), tl::unexpected(std::move(why)));
}

void engine::close(peer_id which, error reason) {
  const auto found = peers_.find(which.value);
  if (found == peers_.end()) return;
  connection& core = *found->second.core;
  core.close(std::move(reason), clock::now());
  core.want_attention();
  deadline_ = std::min(deadline_, core.deadline());
}

void engine::give_back(peer_id to, std::uint64_t loan) {
  const auto found = peers_.find(to.value);
  if (found != peers_.end()) found->second.core->give_back(loan);
}

bool engine::poll(clock::time_point now) {
  bool worked = let_all_act(now);  // what was commanded goes out before we look for what came in
  worked |= events_.tell();        // buffers that come back now are still in the cache
  worked |= progress_ucx();
  if (!by_ucx_ || now >= look_at_) worked |= look_at_doors(now);
  shown_.expire(now);
  if (now >= sweep_at_) sweep(now);
  if (now >= deadline_) wake_expired(now);
  worked |= let_all_act(now);
  mind_strangers(now);
  worked |= events_.tell();
  return worked;
}

bool engine::look_at_doors(clock::time_point now, int milliseconds) {
  std::array<epoll_event, 64> ready;
  const int count =
      ::epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), milliseconds);
  if (milliseconds != 0) now = clock::now();
  look_at_ = now + door_pause;
  bool worked = false;
  for (int i = 0; i < count; ++i) {
    const epoll_event& one = ready[static_cast<std::size_t>(i)];
    worked |= take_news(one.data.u64, one.events, now);
  }
  return worked;
}

/// `events`: what epoll says of what has this tag. Returns whether there is work in it.
bool engine::take_news(std::uint64_t tag, std::uint32_t events, clock::time_point now) {
  if (tag == wake_tag) {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto read_bytes = ::read(wake_fd_, &count, sizeof(count));
    return false;  // commands are looked for anyway
  }
  if (tag < first_peer) return accept_waiting(tag == inside_tag ? *inside_ : outside_, now), false;
  const auto found = peers_.find(tag & ~ucx::ucx_carrier::worker_tag);
  if (found == peers_.end()) return false;
  peer& which = found->second;
  if (found->first != tag) return which.over_ucx != nullptr && which.over_ucx->take_news();
  // The socket may tell of the peer's end, which comes after what it sent by way of UCX.
  if (which.over_ucx != nullptr) which.over_ucx->catch_up();
  tell_carrier(which, events);
  return !which.is_stranger;  // nobody polls for what a stranger says next
}

/// epoll counts in milliseconds, so what is less is slept beside it.
bool engine::wait(clock::duration longest) {
  if (longest == clock::duration::max()) return look_at_doors({}, -1);
  if (const auto whole = std::chrono::floor<std::chrono::milliseconds>(longest); whole > 0ms)
    return look_at_doors({}, static_cast<int>(std::min<std::int64_t>(whole.count(), 1'000'000)));
  pollfd news = {epoll_.get(), POLLIN, 0};
  const timespec limit = {0, std::chrono::nanoseconds(longest).count()};
  return ::ppoll(&news, 1, &limit, nullptr) > 0 && look_at_doors(clock::now());
}

/// `events`: what epoll says of its socket.
void engine::tell_carrier(peer& which, std::uint32_t events) {
  const bool readable = (events & ~std::uint32_t{EPOLLOUT}) != 0;
  try {
    static_cast<void>(which.by->progress(readable, (events & EPOLLOUT) != 0,
                                         (events & (EPOLLHUP | EPOLLERR)) != 0));
  } catch (const std::bad_alloc&) {
    which.core->break_off({errc::io_failed, "no memory for a message"});
  }
  if (which.by->is_pending()) which.core->want_attention();
}

bool engine::let_all_act(clock::time_point now) {
  // A peer that wants more attention waits for its next turn: others and the wire come first.
  due_.swap(attention_);
  bool worked = false;
  for (connection* const each : due_) worked |= let_act(*each, now);
  due_.clear();
  return worked;
}

/// Returns whether it was a peer's, and no stranger's.
bool engine::let_act(connection& core, clock::time_point now) {
  const auto entry = peers_.find(core.id().value);
  peer& which = entry->second;
  const bool is_known = !which.is_stranger;
  try {
    core.act(now);
  } catch (const std::bad_alloc&) {
    core.break_off({errc::io_failed, "no memory for a tensor that came"});
  }
  if (!core.is_gone()) tell_carrier(which, 0);
  deadline_ = std::min(deadline_, core.deadline());
  if (which.is_stranger && !core.is_stranger()) {
    which.is_stranger = false;
    --strangers_;
    lobby_.leave(core.id());
    if (core.keys() == nullptr) alarm_.refused(now);
  }
  if (!core.is_gone()) return is_known;
  if (!std::exchange(which.is_counted_out, true)) --living_;
  if (is_released(which)) {
    peers_.erase(entry);
  } else if (sweep_at_ == clock::time_point::max()) {
    sweep_pause_ = 1ms;
    sweep_at_ = now + sweep_pause_;
  }
  return is_known;
}

bool engine::is_released(const peer& which) {
  return which.core->is_released() && (which.over_ucx == nullptr || which.over_ucx->is_released());
}

/// Peers that are gone may keep tensors of ours until their process has ended: which is soon, or
/// perhaps never, so we look ever less often.
void engine::sweep(clock::time_point now) {
  bool keeps = false;
  std::erase_if(peers_, [&keeps](const auto& each) {
    if (!each.second.core->is_gone()) return false;
    const bool is_over = is_released(each.second);
    keeps |= !is_over;
    return is_over;
  });
  sweep_pause_ = std::min<clock::duration>(2 * sweep_pause_, 1s);
  sweep_at_ = keeps ? now + sweep_pause_ : clock::time_point::max();
}

bool engine::progress_ucx() {
  by_ucx_ = false;
  if (!outside_.ucx && !inside_) return false;
  bool worked = false;
  for (auto& [id, each] : peers_) {
    if (each.over_ucx == nullptr) continue;
    worked |= each.over_ucx->progress_ucx();
    by_ucx_ |= each.over_ucx->uses_ucx();
  }
  return worked;
}

void engine::wake_expired(clock::time_point now) {
  deadline_ = clock::time_point::max();
  for (auto& [id, each] : peers_) {
    if (now >= each.core->deadline())
      each.core->want_attention();
    else
      deadline_ = std::min(deadline_, each.core->deadline());
  }
}

bool engine::arm() {
  if (!attention_.empty()) return false;
  if (!outside_.ucx && !inside_) return true;
  return std::ranges::all_of(peers_, [](auto& each) {
    return each.second.over_ucx == nullptr || each.second.over_ucx->arm();
  });
}

}  // namespace troupe::messages
