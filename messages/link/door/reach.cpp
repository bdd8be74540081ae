#include "messages/link/door/reach.hpp"

#include <fmt/format.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "messages/descriptor.hpp"
#include "messages/link/door/address.hpp"
#include "messages/link/door/listener.hpp"
#include "messages/link/seal/format.hpp"

namespace troupe::messages::door {
namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

/// Nothing wakes us when the other side's system acknowledges, so we look.
constexpr auto look_every = 1ms;

std::string within(clock::duration time) {
  return fmt::format("within {:.1f} s", std::chrono::duration<double>(time).count());
}

/// Of the bytes to be sent, those behind the first `sent`.
const char* knock_from(std::size_t sent) {
  static const std::vector<std::uint32_t> whole(knock_bytes / sizeof(wire::knock_magic),
                                                wire::knock_magic);
  return reinterpret_cast<const char*>(whole.data()) + sent;
}

/// An address that is tried, until it is known what is there.
class visit {
  using kind = obstacle::kind;

 public:
  explicit visit(const std::string& address) {
    auto dialled = resolve(address, false).and_then([](const auto& where) { return dial(where); });
    if (dialled)
      socket_ = std::move(*dialled);
    else
      end(obstacle{dialled.error().code == errc::timed_out ? kind::silence : kind::refusal,
                   dialled.error().text});
  }

  [[nodiscard]] bool is_over() const { return !socket_; }
  [[nodiscard]] bool is_knocking() const { return socket_ && is_connected_; }
  [[nodiscard]] pollfd awaited() const {
    const bool sends = !is_connected_ || sent_ < knock_bytes;
    return {socket_.get(), static_cast<short>(sends ? POLLIN | POLLOUT : POLLIN), 0};
  }

  void progress(short events) {
    if (is_knocking() && (events & ~POLLOUT) != 0) return end({});  // it has hung up
    if (!is_connected_ && events != 0) connect();
    if (is_knocking()) knock();
  }

  /// What has become of it when the time is over.
  std::optional<obstacle> take(std::chrono::milliseconds patience) {
    const auto knocked = clock::now() - connected_at_;
    if (socket_ && !is_connected_)
      end(obstacle{kind::silence, "no answer " + within(patience)});
    else if (socket_ && knocked >= least_knock)
      end(obstacle{kind::swallowing, fmt::format("none of {} KiB was acknowledged {}",
                                                 knock_bytes >> 10, within(knocked))});
    return std::move(found_);
  }

 private:
  void connect() {
    if (auto stands = check_dialled(socket_.get()); !stands)
      return end(obstacle{kind::refusal, stands.error().text});
    is_connected_ = true;
    connected_at_ = clock::now();
  }

  void knock() {
    while (sent_ < knock_bytes) {
      const auto count =
          ::send(socket_.get(), knock_from(sent_), knock_bytes - sent_, MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return end({});  // it has hung up
      if (count < 0) break;
      sent_ += static_cast<std::size_t>(count);
    }
    int unacknowledged = 0;
    if (::ioctl(socket_.get(), SIOCOUTQ, &unacknowledged) != 0 ||
        static_cast<std::size_t>(unacknowledged) < sent_)
      end({});
  }

  void end(std::optional<obstacle> found) {
    found_ = std::move(found);
    socket_.reset();
  }

  descriptor socket_;
  bool is_connected_ = false;
  clock::time_point connected_at_{};
  std::size_t sent_ = 0;
  std::optional<obstacle> found_;
};

/// Waits until there is something to do for one of them, and does it.
void look(std::vector<visit>& visits, std::chrono::milliseconds most) {
  std::vector<pollfd> waiting;
  std::vector<visit*> whose;
  for (auto& each : visits) {
    if (each.is_over()) continue;
    waiting.push_back(each.awaited());
    whose.push_back(&each);
    if (each.is_knocking()) most = std::min<std::chrono::milliseconds>(most, look_every);
  }
  static_cast<void>(::poll(waiting.data(), waiting.size(), static_cast<int>(most.count())));
  for (std::size_t i = 0; i < whose.size(); ++i) whose[i]->progress(waiting[i].revents);
}

}  // namespace

std::vector<std::optional<obstacle>> reach(const std::vector<std::string>& addresses,
                                           std::chrono::milliseconds patience) {
  const auto end = clock::now() + patience;
  std::vector<visit> visits(addresses.begin(), addresses.end());
  for (bool is_last = false; !is_last && !std::ranges::all_of(visits, &visit::is_over);) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - clock::now());
    is_last = left <= 0ms;
    look(visits, std::max(left, 0ms));
  }
  std::vector<std::optional<obstacle>> out;
  for (auto& each : visits) out.push_back(each.take(patience));
  return out;
}

}  // namespace troupe::messages::door
