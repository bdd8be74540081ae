// One rank of the tests of NCCL: nccl_rank LIBRARY RANK RANKS SCENARIO. A socket to each other rank
// is open under first_socket + that rank; its end tells of that rank's death, as links do.

#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/collective/nccl/communicator.hpp"
#include "tests/fake_nccl/device.hpp"
#include "tests/multiprocess/nccl/conformance.hpp"
#include "tests/multiprocess/nccl/rank_group.hpp"

namespace {

namespace nccl = troupe::engine::nccl;
namespace fake = troupe::tests::fake_nccl;
using troupe::errc;
using troupe::result;
using troupe::tests::first_socket;

constexpr int failed = 1;  // what the communicator does is wrong, or there is none
constexpr int told = 3;    // an operation failed, and the rank has said how

struct place {
  int rank;
  int ranks;
};

/// Milliseconds of the clock that all processes share.
double now_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

/// Rank 0 makes the invitation and hands it to the others.
nccl::invitation invite_all(const nccl::api& library, place at) {
  nccl::invitation shared;
  if (at.rank != 0) {
    if (::read(first_socket, &shared, sizeof shared) != sizeof shared) std::exit(failed);
    return shared;
  }
  const auto made = nccl::invite(library, at.ranks);
  if (!made) {
    std::printf("%s\n", made.error().text.c_str());
    std::exit(failed);
  }
  // A rank that is gone by now is lost, and the watch says so.
  for (int other = 1; other < at.ranks; ++other)
    static_cast<void>(::send(first_socket + other, &*made, sizeof *made, MSG_NOSIGNAL));
  return *made;
}

/// Tells the communicator of each rank whose socket ends, as the links of a node do.
class death_watch {
 public:
  death_watch(nccl::communicator& of, place at) : thread_([this, &of, at] { watch(of, at); }) {}
  death_watch(const death_watch&) = delete;
  death_watch& operator=(const death_watch&) = delete;
  ~death_watch() {
    stopping_ = true;
    thread_.join();
  }

 private:
  void watch(nccl::communicator& of, place at) {
    std::vector<pollfd> ends;
    for (int other = 0; other < at.ranks; ++other)
      if (other != at.rank)
        ends.push_back({.fd = first_socket + other, .events = POLLIN | POLLHUP, .revents = 0});
    while (!stopping_) {
      if (::poll(ends.data(), ends.size(), 20) <= 0) continue;
      for (pollfd& each : ends) {
        if (each.revents == 0) continue;
        of.lose({errc::peer_lost, "rank " + std::to_string(each.fd - first_socket) + " is lost"});
        each.fd = -1;
      }
    }
  }

  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

int tell(const result<void>& how) {
  if (how) return 0;
  std::printf("%.3f %d %s\n", now_ms(), static_cast<int>(how.error().code),
              how.error().text.c_str());
  return told;
}

/// 4 MiB sums until one fails; at most so many.
int reduce_until_failure(nccl::communicator& on, int most) {
  const auto memory = std::make_shared<std::vector<float>>(1 << 20, 1.0F);
  for (int i = 0; i < most; ++i) {
    const auto how = troupe::tests::run_group(on, {{.what = nccl::action::all_reduce,
                                                    .from = memory->data(),
                                                    .to = memory->data(),
                                                    .count = memory->size(),
                                                    .keep = {memory}}});
    if (!how) return tell(how);
  }
  return 0;
}

/// Makes invitations by sockets of the reaches that the scenario names, and tells of each what NCCL
/// has found, or why there is none.
int claim(const nccl::api& library, const fake::controls& controls, const std::string& scenario) {
  std::istringstream words(scenario);
  std::string word;
  words >> word;
  while (words >> word) {
    const auto wanted = word == "network" ? nccl::reach::network : nccl::reach::loopback;
    const auto made = nccl::invite(library, 2, wanted);
    std::printf("%s\n", made ? controls.sockets() : made.error().text.c_str());
  }
  return 0;
}

int run(nccl::communicator& on, place at, const std::string& scenario) {
  if (scenario == "reduce") return reduce_until_failure(on, 1000);
  const auto wrong = troupe::tests::check_conformance(on, at.rank, at.ranks);
  for (const auto& line : wrong) std::printf("%s\n", line.c_str());
  return wrong.empty() ? 0 : failed;
}

}  // namespace

int main(int count, char** words) {
  if (count != 5) return failed;
  ::alarm(100);  // whatever hangs, ends
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const place at{.rank = std::atoi(words[2]), .ranks = std::atoi(words[3])};
  const std::string scenario = words[4];
  const auto library = nccl::load({.named = words[1]});
  if (!library) {
    std::printf("%s\n", library.error().text.c_str());
    return failed;
  }
  const fake::controls controls(words[1]);
  if (scenario.starts_with("claim ")) return claim(**library, controls, scenario);
  std::promise<result<void>> joined;
  int code = 0;
  {
    nccl::communicator own({.name = "replicas of stage 0",
                            .library = *library,
                            .invited = invite_all(**library, at),
                            .rank = at.rank,
                            .on = std::make_shared<fake::device>(controls, at.rank),
                            .waits = {.call = std::chrono::seconds(2)}},
                           [&joined](const result<void>& how) { joined.set_value(how); });
    // The watch goes first: a rank that closes is not lost.
    const auto watch = scenario == "unwatched" ? nullptr : std::make_unique<death_watch>(own, at);
    const auto how = joined.get_future().get();
    code = how ? run(own, at, scenario == "unwatched" ? "reduce" : scenario) : tell(how);
  }
  if (std::strlen(controls.wrong_uses()) != 0) return failed;
  return code;
}
