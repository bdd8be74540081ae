#include "socket_link.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "messages/base/ids.hpp"
#include "messages/descriptor.hpp"
#include "socket_peer.hpp"

namespace own {
namespace {

using troupe::descriptor;
using troupe::errc;
using troupe::error;
using troupe::fail;
using troupe::peer_id;
using troupe::result;
using clock = std::chrono::steady_clock;

constexpr std::string_view here = "127.0.0.1:";
constexpr auto linger = std::chrono::seconds(2);  // for a peer to answer a farewell

result<sockaddr_in> address_of(const std::string& text) {
  std::uint16_t port = 0;
  const char* const end = text.data() + text.size();
  const bool is_here = text.starts_with(here);
  const auto [stop, wrong] = std::from_chars(is_here ? text.data() + here.size() : end, end, port);
  if (wrong != std::errc() || stop != end)
    return fail(errc::address_unavailable, "'" + text + "' is no address of this transport; " +
                                               "write " + std::string(here) + "PORT");
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_port = htons(port);
  out.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return out;
}

std::string text_of(const sockaddr_in& address) {
  return std::string(here) + std::to_string(ntohs(address.sin_port));
}

const sockaddr* plain(const sockaddr_in& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

tl::unexpected<error> unavailable(const std::string& address) {
  return fail(errc::address_unavailable, address + ": " + std::strerror(errno));
}

/// `how`: further flags of the socket.
descriptor make_socket(int how = 0) {
  return descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | how, 0));
}

void hurry(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/// Connects; inside a machine that takes no time unless the listener has too many waiting.
result<descriptor> dial(const std::string& text, std::chrono::milliseconds timeout) {
  const auto address = address_of(text);
  if (!address) return tl::unexpected(address.error());
  auto made = make_socket();
  const timeval limit{timeout.count() / 1000, timeout.count() % 1000 * 1000};
  ::setsockopt(made.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  if (::connect(made.get(), plain(*address), sizeof *address) != 0) {
    if (errno != EINPROGRESS) return unavailable(text);
    return fail(errc::timed_out,
                text + ": no answer within " + std::to_string(timeout.count()) + " ms");
  }
  hurry(made.get());
  return made;
}

class socket_link final : public messages::link {
 public:
  socket_link(messages::link_events events, messages::limits bounds, descriptor wake)
      : events_(std::move(events)),
        bounds_(bounds),
        wake_(std::move(wake)),
        thread_([this] { run(); }) {}

  ~socket_link() override {
    stopped_ = true;
    wake_up();
    thread_.join();
  }

  [[nodiscard]] result<std::string> listen(const std::string& text) override {
    const auto address = address_of(text.empty() ? std::string(here) + "0" : text);
    if (!address) return tl::unexpected(address.error());
    const auto made = std::make_shared<descriptor>(make_socket(SOCK_NONBLOCK));
    const int on = 1;
    ::setsockopt(made->get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (::bind(made->get(), plain(*address), sizeof *address) != 0 ||
        ::listen(made->get(), SOMAXCONN) != 0)
      return unavailable(text_of(*address));
    sockaddr_in bound{};
    socklen_t size = sizeof bound;
    ::getsockname(made->get(), reinterpret_cast<sockaddr*>(&bound), &size);
    // Whoever connects once this returns is met there, and not where it was.
    std::promise<void> moved;
    give({[&] {
            listener_ = std::move(*made);
            moved.set_value();
          },
          {}});
    moved.get_future().wait();
    return text_of(bound);
  }

  void connect(const std::string& address, std::chrono::milliseconds timeout,
               connected done) override {
    const auto made = std::make_shared<result<descriptor>>(dial(address, timeout));
    give({[this, made, address, done] {
            if (*made)
              tell(done, result<peer_id>(take_in(std::move(**made), address)));
            else
              tell(done, result<peer_id>(tl::unexpected(made->error())));
          },
          [done] { tell(done, result<peer_id>(tl::unexpected(cancelled()))); }});
  }

  void send(peer_id to, messages::frame message, completion done) override {
    const auto what = std::make_shared<messages::frame>(std::move(message));
    give({[this, to, what, done] { begin_send(to, std::move(*what), done); },
          [done] { tell(done, result<void>(tl::unexpected(cancelled()))); }});
  }

  void close(peer_id which, error reason) override {
    give({[this, which, reason] { begin_close(which, reason); }, {}});
  }

  void post(std::function<void()> what) override { give({std::move(what), {}}); }

  [[nodiscard]] messages::link_stats stats() const override {
    const std::lock_guard lock(stats_mutex_);
    return stats_;
  }

 private:
  /// What another thread wants of the link's; `drop` instead, where the link ends first.
  struct order {
    std::function<void()> run;
    std::function<void()> drop;
  };
  enum class state { up, closing, leaving };  // leaving: its owner has been told that it is down
  struct member {
    std::unique_ptr<socket_peer> wire;
    state at = state::up;
    error reason = {};  // of our own close
    clock::time_point deadline = clock::time_point::max();
  };

  static error cancelled() { return {errc::cancelled, "the link was destroyed"}; }

  template <class Done, class Outcome>
  static void tell(const Done& done, Outcome how) {
    if (done) done(std::move(how));
  }

  template <class Change>
  void count(const Change& change) {
    const std::lock_guard lock(stats_mutex_);
    change(stats_);
  }

  void wake_up() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
  }

  void give(order what) {
    {
      const std::lock_guard lock(orders_mutex_);
      orders_.push_back(std::move(what));
    }
    wake_up();
  }

  // All that follows is the link's thread.

  void run() {
    while (!stopped_) {
      run_orders();
      if (!stopped_) wait();
      expire();
    }
    for (auto& [id, who] : members_) fail_sends(*who.wire, cancelled());
    run_orders();  // those too that came of it
    members_.clear();
  }

  void run_orders() {
    std::deque<order> all;
    {
      const std::lock_guard lock(orders_mutex_);
      all.swap(orders_);
    }
    for (const auto& each : all) {
      if (!stopped_)
        each.run();
      else if (each.drop)
        each.drop();
    }
  }

  /// Until a socket is ready or another thread wants something.
  void wait() {
    std::vector<pollfd> ready{{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    std::vector<std::uint64_t> ids;
    auto until = clock::time_point::max();
    for (const auto& [id, who] : members_) {
      const int events = POLLIN | (who.wire->has_output() ? POLLOUT : 0);
      ready.push_back({who.wire->socket(), static_cast<short>(events), 0});
      ids.push_back(id);
      until = std::min(until, who.deadline);
    }
    if (::poll(ready.data(), ready.size(), milliseconds_to(until)) <= 0) return;
    if (ready[0].revents != 0) {
      std::uint64_t calls = 0;
      [[maybe_unused]] const auto taken = ::read(wake_.get(), &calls, sizeof calls);
    }
    if (ready[1].revents != 0) accept_waiting();
    for (std::size_t i = 0; i < ids.size(); ++i) serve(ids[i], ready[i + 2].revents);
  }

  static int milliseconds_to(clock::time_point when) {
    if (when == clock::time_point::max()) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(when - clock::now());
    return static_cast<int>(std::max<std::int64_t>(0, left.count()));
  }

  void accept_waiting() {
    sockaddr_in from{};
    socklen_t size = sizeof from;
    descriptor made(
        ::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&from), &size, SOCK_CLOEXEC));
    if (!made) return;
    hurry(made.get());
    take_in(std::move(made), text_of(from));
  }

  peer_id take_in(descriptor socket, const std::string& name) {
    const peer_id id{++last_peer_};
    members_[id.value].wire = std::make_unique<socket_peer>(std::move(socket), name, bounds_);
    count([](auto& all) { ++all.peers; });
    events_.on_peer_up(id);
    return id;
  }

  void serve(std::uint64_t id, int events) {
    // What has come first: a farewell says more than a socket that takes nothing.
    if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) read_from(id);
    const auto found = members_.find(id);
    if (found == members_.end() || (events & POLLOUT) == 0) return;
    auto& who = found->second;
    auto out = who.wire->write();
    for (const auto& each : out.written) {
      const auto bytes = each->header.size() + each->tensor_bytes();
      count([&](auto& all) {
        ++all.frames_sent;
        all.bytes_sent += bytes;
        all.bytes_in_flight -= each->tensor_bytes();
      });
      tell(each->done, result<void>());
    }
    const bool waits_for_answer = who.at != state::up && who.wire->has_said_farewell();
    if (waits_for_answer && who.deadline == clock::time_point::max())
      who.deadline = clock::now() + linger;
    if (out.is_broken) read_from(id);  // and else poll says that it has ended
  }

  void read_from(std::uint64_t id) {
    auto& who = members_.at(id);
    if (who.at == state::leaving) {
      if (who.wire->discard()) members_.erase(id);
      return;
    }
    auto got = who.wire->read();
    for (auto& each : got.frames) {
      count([&](auto& all) {
        ++all.frames_received;
        all.bytes_received += each.bytes;
      });
      events_.on_frame(peer_id{id}, std::move(each.message));
    }
    const std::string name = "peer " + who.wire->name();
    if (got.fault)
      turn_down(id, *got.fault);
    else if (got.farewell)
      end(id, {errc::peer_lost, name + " closed the link: " + *got.farewell});
    else if (got.has_ended)
      end(id, {errc::peer_lost, name + " is gone: its socket was closed"});
  }

  void begin_send(peer_id to, messages::frame message, const completion& done) {
    const auto found = members_.find(to.value);
    if (found == members_.end() || found->second.at != state::up)
      return tell(done, result<void>(fail(errc::peer_lost, "peer " + std::to_string(to.value) +
                                                               " is not connected")));
    auto header = messages::encode(message, bounds_);
    if (!header) return tell(done, result<void>(tl::unexpected(header.error())));
    auto what = std::make_shared<outgoing_frame>(std::move(*header), std::move(message), done);
    count([&](auto& all) { all.bytes_in_flight += what->tensor_bytes(); });
    found->second.wire->add(std::move(what));
  }

  void begin_close(peer_id which, const error& reason) {
    const auto found = members_.find(which.value);
    if (found == members_.end() || found->second.at == state::leaving) return;
    if (reason.code == errc::peer_lost || reason.code == errc::timed_out)
      return end(which.value, reason);
    if (found->second.at == state::closing) return;
    found->second.at = state::closing;
    found->second.reason = reason;
    found->second.wire->say_farewell(reason.text);
  }

  /// It broke the protocol: it is told, and what it still sends is thrown away until it has gone.
  void turn_down(std::uint64_t id, const error& why) {
    auto& who = members_.at(id);
    count([](auto& all) { ++all.bad_frames; });
    fail_sends(*who.wire, {errc::peer_lost, why.text});
    tell_down(id, who.at == state::closing ? who.reason : why);
    if (who.at == state::up) who.wire->say_farewell(why.text);
    who.at = state::leaving;
    who.deadline = clock::now() + linger;
  }

  void end(std::uint64_t id, const error& why) {
    auto gone = members_.extract(id);
    const auto& who = gone.mapped();
    fail_sends(*who.wire, why);
    if (who.at != state::leaving) tell_down(id, who.at == state::closing ? who.reason : why);
  }

  void tell_down(std::uint64_t id, const error& why) {
    count([](auto& all) { --all.peers; });
    events_.on_peer_down(peer_id{id}, why);
  }

  void fail_sends(socket_peer& of, const error& why) {
    for (const auto& each : of.take_unwritten()) {
      count([&](auto& all) { all.bytes_in_flight -= each->tensor_bytes(); });
      tell(each->done, result<void>(tl::unexpected(why)));
    }
  }

  void expire() {
    std::vector<std::uint64_t> late;
    for (const auto& [id, who] : members_)
      if (who.deadline <= clock::now()) late.push_back(id);
    for (const auto id : late) end(id, {errc::timed_out, "no answer to a farewell"});
  }

  const messages::link_events events_;
  const messages::limits bounds_;
  const descriptor wake_;
  std::atomic<bool> stopped_ = false;
  mutable std::mutex stats_mutex_;
  messages::link_stats stats_;
  std::mutex orders_mutex_;
  std::deque<order> orders_;
  descriptor listener_;
  std::map<std::uint64_t, member> members_;
  std::uint64_t last_peer_ = 0;
  std::thread thread_;  // last: it uses all of these
};

}  // namespace

result<std::unique_ptr<messages::link>> make_socket_link(messages::link_events events,
                                                         messages::limits bounds) {
  descriptor wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return fail(errc::io_failed, std::string("eventfd: ") + std::strerror(errno));
  return std::make_unique<socket_link>(std::move(events), bounds, std::move(wake));
}

}  // namespace own
