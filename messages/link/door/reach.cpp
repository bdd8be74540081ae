#include "messages/link/door/reach.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <cerrno>
#include <cstddef>

#include "messages/descriptor.hpp"
#include "messages/link/door/address.hpp"
#include "messages/link/door/listener.hpp"

namespace troupe::messages::door {
namespace {

using clock = std::chrono::steady_clock;

result<descriptor> dial_at(const std::string& text) {
  auto where = resolve(text, false);
  return where ? dial(*where) : tl::unexpected(where.error());
}

/// Waits until one of the sockets is connected or failed; false: none was in time.
bool wait_for_some(std::vector<pollfd>& waiting, clock::time_point end) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - clock::now()).count();
    const int count = ::poll(waiting.data(), waiting.size(), left > 0 ? static_cast<int>(left) : 0);
    if (count > 0) return true;
    if (count == 0 || errno != EINTR) return false;
  }
}

}  // namespace

std::vector<result<void>> reach(const std::vector<std::string>& addresses,
                                std::chrono::milliseconds patience) {
  const auto end = clock::now() + patience;
  std::vector<result<void>> out(addresses.size());
  std::vector<descriptor> sockets(addresses.size());
  std::vector<pollfd> waiting;
  std::vector<std::size_t> whose;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    if (auto dialled = dial_at(addresses[i])) {
      sockets[i] = std::move(*dialled);
      waiting.push_back({sockets[i].get(), POLLOUT, 0});
      whose.push_back(i);
    } else {
      out[i] = tl::unexpected(dialled.error());
    }
  }
  while (!waiting.empty() && wait_for_some(waiting, end)) {
    for (std::size_t i = waiting.size(); i-- > 0;) {
      if (waiting[i].revents == 0) continue;
      out[whose[i]] = check_dialled(waiting[i].fd);
      waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(i));
      whose.erase(whose.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  const auto silence =
      fmt::format("no answer within {:.1f} s", std::chrono::duration<double>(patience).count());
  for (const auto i : whose) out[i] = fail(errc::timed_out, silence);
  return out;
}

}  // namespace troupe::messages::door
