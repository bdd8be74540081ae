// card_nccl DEVICE RANKS [--fast] [--lose]: what NCCL does between processes that all use one GPU,
// which it takes for GPUs of different hosts by their NCCL_HOSTID, so that everything goes through
// sockets on loopback. Each rank compares the sums with the tree's, and fails where a bit differs
// (--fast: more than rounding explains), and the time of a sum of 100 MB is measured, with its
// rates by nccl-tests' formulas; with one rank, on the GPU alone. --lose: the last rank is killed
// within a sum; measured is how soon the others have given up once they are told. Prints one JSON
// object.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <future>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/torch_error.hpp"
#include "engine/collective/nccl/maker.hpp"
#include "engine/collective/port.hpp"
#include "engine/collective/tree.hpp"
#include "engine/device/device_streams.hpp"
#include "engine/device/open_device.hpp"
#include "tests/flags.hpp"

namespace {

using namespace troupe;
using clock_type = std::chrono::steady_clock;
using port_pointer = std::shared_ptr<engine::collective_port>;

struct wish {
  std::string device = "cuda:0";
  std::uint32_t ranks = 2;
  bool fast = false;
  bool lose = false;
};

/// One direction between two processes; lines of text.
class channel {
 public:
  channel() {
    if (pipe(ends_) != 0) throw std::runtime_error("no pipe");
  }
  void write_line(const std::string& text) const {
    const auto line = text + "\n";
    if (::write(ends_[1], line.data(), line.size()) < 0) std::_Exit(5);
  }
  /// This process writes nothing into it.
  void close_writer() const { ::close(ends_[1]); }
  /// Empty: nobody writes any more.
  [[nodiscard]] std::string read_line() const {
    std::string text;
    for (char next = 0; ::read(ends_[0], &next, 1) == 1 && next != '\n';) text += next;
    return text;
  }

 private:
  int ends_[2] = {};
};

/// Of one rank, with its parent.
struct channels {
  channel to, from;
};

template <class T>
T get(result<T> made) {
  if (!made) throw std::runtime_error(made.error().text);
  return std::move(*made);
}

void succeed(const result<void>& how) {
  if (!how) throw std::runtime_error(how.error().text);
}

result<void> wait_for(engine::collective_port& port, engine::collective_operation what) {
  std::promise<result<void>> over;
  port.submit({std::move(what)}, [&over](const result<void>& how) { over.set_value(how); });
  return over.get_future().get();
}

at::Tensor part_of(std::uint32_t rank, std::int64_t size) {
  auto random = at::make_generator<at::CPUGeneratorImpl>(rank + 7);
  return at::randn({size}, random);
}

/// What rounding explains of the sum of a few numbers.
constexpr double fast_tolerance = 1e-6;

/// Largest difference from the tree's sum, as a share of its largest entry; 0: no bit differs.
double compare_sums(const wish& how, engine::collective_port& port, c10::Device on) {
  double most = 0;
  for (const std::int64_t size : {1, 1000, 65536, 3'000'001}) {
    std::vector<at::Tensor> parts;
    for (std::uint32_t rank = 0; rank < how.ranks; ++rank) parts.push_back(part_of(rank, size));
    const auto mine = parts[port.rank()].to(on);
    const auto expected =
        engine::tree_sum(parts, [](const auto& a, const auto& b) { return a + b; });
    const auto sum = at::empty_like(mine);
    succeed(wait_for(port, {engine::collective::all_reduce, mine, sum}));
    const auto found = engine::to_host(sum);
    if (at::equal(found, expected)) continue;
    most = std::max(most, ((found - expected).abs().max() / expected.abs().max()).item<double>());
    if (!how.fast || most > fast_tolerance)
      throw std::runtime_error("a sum of " + std::to_string(size) + " numbers is not the tree's");
  }
  return most;
}

constexpr std::int64_t timed_numbers = 25'000'000;  // f32: 100 MB

/// GB/s by the formulas of nccl-tests.
struct bandwidth {
  double algorithm = 0;  ///< Bytes of a rank's tensor by the time of the sum.
  double bus = 0;        ///< What each rank has to send and to receive for it, by the same time.
};

bandwidth bandwidth_of(double seconds, std::uint32_t ranks) {
  const double algorithm = static_cast<double>(timed_numbers) * sizeof(float) / seconds / 1e9;
  return {algorithm, algorithm * 2 * (ranks - 1) / ranks};
}

/// Seconds of a sum of 100 MB, the median.
double time_sums(engine::collective_port& port, c10::Device on) {
  const auto mine = at::randn({timed_numbers}).to(on);
  const auto sum = at::empty_like(mine);
  std::vector<double> seconds;
  for (int round = 0; round < 7; ++round) {
    const auto begin = clock_type::now();
    succeed(wait_for(port, {engine::collective::all_reduce, mine, sum}));
    seconds.push_back(std::chrono::duration<double>(clock_type::now() - begin).count());
  }
  std::ranges::sort(seconds);
  return seconds[seconds.size() / 2];
}

port_pointer join(const wish& how, const engine::nccl::maker& by, std::uint32_t rank,
                  const channels& parent, c10::Device on) {
  if (rank == 0)
    parent.from.write_line(get(by.invite(how.ranks, engine::socket_reach::loopback, on)));
  const auto invited = parent.to.read_line();
  if (invited.empty()) throw std::runtime_error("there is no invitation");
  return get(by.join({.name = "ranks of one GPU",
                      .invitation = invited,
                      .rank = rank,
                      .ranks = how.ranks,
                      .on = on,
                      .order = how.fast ? engine::sum_order::fast : engine::sum_order::tree}));
}

/// The largest difference and the seconds of a sum; with --lose, seconds since the parent's word.
std::string act(const wish& how, engine::collective_port& port, const channels& parent,
                c10::Device on) {
  if (!how.lose) {
    const auto apart = compare_sums(how, port, on);
    char text[64];
    std::snprintf(text, sizeof text, "%.3g %.6f", apart, time_sums(port, on));
    return text;
  }
  const auto mine = at::randn({50'000'000}).to(on);
  const auto sum = at::empty_like(mine);
  succeed(wait_for(port, {engine::collective::all_reduce, mine, sum}));
  parent.from.write_line("summed");
  static_cast<void>(parent.to.read_line());  // all have
  std::promise<result<void>> over;
  if (port.rank() + 1 < port.ranks())
    port.submit({{engine::collective::all_reduce, mine, sum}},
                [&over](const result<void>& ended) { over.set_value(ended); });
  parent.from.write_line("in");
  if (port.rank() + 1 == port.ranks()) raise(SIGKILL);
  static_cast<void>(parent.to.read_line());
  const auto begin = clock_type::now();
  port.lose({errc::peer_lost, "the last rank was killed"});
  const auto end = over.get_future().get();
  if (end) throw std::runtime_error("the sum ended well without a rank");
  return std::to_string(std::chrono::duration<double>(clock_type::now() - begin).count());
}

[[noreturn]] void be_rank(const wish& how, std::uint32_t rank, const channels& parent) try {
  ::setenv("NCCL_HOSTID", ("troupe-" + std::to_string(rank)).c_str(), 1);
  if (const auto why = engine::open_device(how.device); !why.empty())
    throw std::runtime_error(how.device + ": " + why);
  const c10::Device on(how.device);
  const engine::nccl::maker by;
  std::string said;
  double closing = 0;
  {
    auto port = join(how, by, rank, parent, on);
    said = act(how, *port, parent, on);
    const auto begin = clock_type::now();
    port.reset();
    closing = std::chrono::duration<double>(clock_type::now() - begin).count();
  }
  parent.from.write_line(said + " " + std::to_string(closing));
  std::_Exit(0);
} catch (const std::exception& problem) {
  std::fprintf(stderr, "card_nccl, rank %u: %s\n", rank, engine::reason_of(problem).c_str());
  std::_Exit(1);
}

/// `said`: by each rank that has ended well.
void report(const wish& how, const std::vector<std::string>& said) {
  std::printf("{\"ranks\": %u, \"fast\": %s, \"lose\": %s, ", how.ranks,
              how.fast ? "true" : "false", how.lose ? "true" : "false");
  if (!how.lose) {
    double slowest = 0;
    for (const auto& line : said) {
      double apart = 0, seconds = 0;
      std::istringstream(line) >> apart >> seconds;
      slowest = std::max(slowest, seconds);
    }
    const auto rate = bandwidth_of(slowest, how.ranks);
    std::printf("\"algorithm_gb_per_s\": %.3f, \"bus_gb_per_s\": %.3f, ", rate.algorithm, rate.bus);
  }
  std::printf("\"said\": [");
  for (std::size_t i = 0; i < said.size(); ++i)
    std::printf("%s\"%s\"", i == 0 ? "" : ", ", said[i].c_str());
  std::printf("]}\n");
}

int run(const wish& how) {
  std::vector<channels> to(how.ranks);
  std::vector<pid_t> ranks;
  for (std::uint32_t rank = 0; rank < how.ranks; ++rank) {
    const auto child = fork();
    if (child == 0) {
      for (std::uint32_t other = 0; other < how.ranks; ++other)
        if (other != rank) to[other].from.close_writer();
      be_rank(how, rank, to[rank]);
    }
    ranks.push_back(child);
  }
  for (const auto& each : to) each.from.close_writer();
  const auto invitation = to.front().from.read_line();
  for (const auto& each : to) each.to.write_line(invitation);
  std::uint32_t good = 0;
  if (how.lose) {
    for (const auto& each : to) static_cast<void>(each.from.read_line());
    for (const auto& each : to) each.to.write_line("go on");
    for (const auto& each : to) static_cast<void>(each.from.read_line());
    int status = 0;
    waitpid(ranks.back(), &status, 0);
    for (const auto& each : to) each.to.write_line("lost");
    ranks.pop_back();
  }
  for (const auto rank : ranks) {
    int status = 0;
    waitpid(rank, &status, 0);
    if (status == 0) ++good;
  }
  if (good < ranks.size()) return 1;
  std::vector<std::string> said;
  for (std::size_t i = 0; i < ranks.size(); ++i) said.push_back(to[i].from.read_line());
  report(how, said);
  return 0;
}

}  // namespace

int main(int count, char** words) try {
  wish how;
  tests::flags line("What NCCL does between processes that use one GPU");
  line.text("device", how.device, "cuda:N");
  line.number("ranks", how.ranks, "Processes", 1, 8);
  line.flag("--fast", how.fast, "NCCL's own order of additions");
  line.flag("--lose", how.lose, "Kill the last rank within a sum");
  if (const auto end = line.read(count, words)) return *end;
  return run(how);
} catch (const std::exception& problem) {
  std::fprintf(stderr, "card_nccl: %s\n", problem.what());
  return 1;
}
