// A network cable between two network namespaces that is as slow, as long and as bad as it is told.
//
//   long_cable --end PID:NAME --end PID:NAME [--gbits G] [--ms D] [--loss SHARE] [--seed S]
//
// Each end is a new Ethernet device of that name in the namespace of that process. Frames travel
// each way one after the other at the rate, arrive so much later, and are lost with that
// probability or where more than a buffer of them waits, as in a router. It says "is up" when both
// devices are there, and lasts until it is killed. Needs root.

#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/flags.hpp"

namespace {

using steady = std::chrono::steady_clock;
using seconds = std::chrono::duration<double>;

constexpr std::size_t largest_frame = 1 << 16;
constexpr std::size_t most_waiting = 8 << 20;  // bytes: what 1 Gbit/s brings in 64 ms

struct cable {
  std::vector<std::string> ends;
  double gbits = 0;  // each way; 0: as fast as frames come
  double ms = 0;     // one way
  double loss = 0;
  std::uint64_t seed = 1;
};

[[noreturn]] void die(const std::string& text) {
  std::fprintf(stderr, "long_cable: %s\n", text.c_str());
  std::exit(2);
}

[[noreturn]] void die_of(const std::string& what) {
  die(what + ": " + std::strerror(errno));
}

/// A new Ethernet device of the namespace; `end` is PID:NAME.
int open_end(const std::string& end) {
  const auto colon = end.find(':');
  if (colon == std::string::npos) die("an end is PID:NAME, not " + end);
  const auto name = end.substr(colon + 1);
  const std::string where = "/proc/" + end.substr(0, colon) + "/ns/net";
  const int space = open(where.c_str(), O_RDONLY | O_CLOEXEC);
  if (space < 0 || setns(space, CLONE_NEWNET) != 0) die_of(where);
  close(space);
  const int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (device < 0) die_of("/dev/net/tun");
  ifreq wish{};
  wish.ifr_flags = IFF_TAP | IFF_NO_PI;
  if (name.empty() || name.size() >= sizeof(wish.ifr_name)) die("a device cannot be named " + name);
  std::memcpy(wish.ifr_name, name.data(), name.size());
  if (ioctl(device, TUNSETIFF, &wish) != 0) die_of(name);
  return device;
}

/// Frames on their way from one end to the other.
class direction {
 public:
  direction(int from, int to, const cable& of, std::uint64_t seed)
      : from_(from), to_(to), of_(of), random_(seed) {}

  void take_in() {
    while (true) {
      const auto size = read(from_, buffer_.data(), buffer_.size());
      if (size < 0 && errno == EINTR) continue;
      if (size <= 0) return;
      accept(static_cast<std::size_t>(size));
    }
  }

  /// Gives out what has arrived; returns when the next frame will.
  std::optional<steady::time_point> give_out(steady::time_point now) {
    while (!frames_.empty() && frames_.front().arrival <= now) {
      const auto& bytes = frames_.front().bytes;
      // A device that takes no frame now loses it, as a full receiver does.
      [[maybe_unused]] const auto written = write(to_, bytes.data(), bytes.size());
      waiting_ -= bytes.size();
      frames_.pop_front();
    }
    if (frames_.empty()) return std::nullopt;
    return frames_.front().arrival;
  }

 private:
  struct frame {
    steady::time_point arrival;
    std::vector<char> bytes;
  };

  void accept(std::size_t size) {
    const auto now = steady::now();
    if (waiting_ + size > most_waiting) return;
    free_at_ = std::max(free_at_, now);
    if (of_.gbits > 0)
      free_at_ += std::chrono::duration_cast<steady::duration>(
          seconds(8 * static_cast<double>(size) / (of_.gbits * 1e9)));
    if (std::uniform_real_distribution<>()(random_) < of_.loss) return;
    const auto delay = std::chrono::duration_cast<steady::duration>(seconds(of_.ms / 1000));
    frames_.push_back({free_at_ + delay, {buffer_.begin(), buffer_.begin() + size}});
    waiting_ += size;
  }

  int from_, to_;
  const cable& of_;
  std::mt19937_64 random_;
  std::array<char, largest_frame> buffer_{};
  std::deque<frame> frames_;
  std::size_t waiting_ = 0;
  steady::time_point free_at_;
};

[[noreturn]] void carry(const cable& of) {
  const int left = open_end(of.ends[0]), right = open_end(of.ends[1]);
  direction there(left, right, of, of.seed), back(right, left, of, of.seed + 1);
  std::puts("is up");
  std::fflush(stdout);
  std::array<pollfd, 2> both{{{left, POLLIN, 0}, {right, POLLIN, 0}}};
  while (true) {
    const auto now = steady::now();
    const auto one = there.give_out(now), other = back.give_out(now);
    auto next = one && other ? std::min(*one, *other) : one ? *one : other.value_or(now);
    const auto rest = std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::max(next - steady::now(), steady::duration::zero()));
    const timespec patience{rest.count() / 1'000'000'000, rest.count() % 1'000'000'000};
    if (ppoll(both.data(), both.size(), one || other ? &patience : nullptr, nullptr) < 0 &&
        errno != EINTR)
      die_of("poll");
    there.take_in();
    back.take_in();
  }
}

}  // namespace

int main(int argc, char** argv) {
  cable of;
  troupe::tests::flags line("A slow, long, bad cable between two network namespaces");
  line.repeated("--end", of.ends, "PID:NAME, twice", 2);
  line.number("--gbits", of.gbits, "1e9 bits a second each way; 0: no bound", 0);
  line.number("--ms", of.ms, "Milliseconds that a frame travels", 0);
  line.number("--loss", of.loss, "Share of the frames that is lost", 0, 1);
  line.number("--seed", of.seed, "Of what is lost", 0);
  if (const auto end = line.read(argc, argv)) return *end;
  carry(of);
}
