// Measures the UCX links between two processes of this machine: round trips of 8 bytes and one-way
// bandwidth of large tensors. Prints one JSON line per figure.
//
//   link_bench [tcp|shm]...
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <semaphore>
#include <string>
#include <vector>

#include "messages/link/ucx_link.hpp"

namespace {

using namespace troupe;
using namespace troupe::messages;
using namespace std::chrono_literals;
using clock_type = std::chrono::steady_clock;

[[noreturn]] void die(const std::string& text) {
  std::fprintf(stderr, "link_bench: %s\n", text.c_str());
  std::_Exit(1);
}

double seconds_since(clock_type::time_point start) {
  return std::chrono::duration<double>(clock_type::now() - start).count();
}

frame tensor_frame(std::byte* data, std::size_t bytes, frame_kind kind) {
  frame out;
  out.kind = kind;
  wire_tensor tensor;
  tensor.descriptor = {dtype::u8, {static_cast<std::int64_t>(bytes)}, {1}, {}};
  tensor.bytes = {data, bytes, nullptr};
  out.tensors.push_back(std::move(tensor));
  return out;
}

/// Answers requests with what they carry and messages with nothing.
int serve(ucx_transport transport, int address_fd) {
  std::binary_semaphore ended(0);
  std::unique_ptr<messages::link> server;
  link_events events;
  events.on_frame = [&](peer_id peer, frame message) {
    if (message.kind != frame_kind::request) return;
    message.kind = frame_kind::response;
    server->send(peer, std::move(message), {});
  };
  events.on_peer_down = [&](peer_id, const error&) { ended.release(); };
  auto made = make_ucx_link({.transport = transport}, std::move(events));
  if (!made) die(made.error().text);
  server = std::move(*made);
  const auto bound = server->listen("127.0.0.1:0");
  if (!bound) die(bound.error().text);
  if (write(address_fd, bound->c_str(), bound->size() + 1) < 0) die("cannot write to a pipe");
  ended.acquire();
  return 0;
}

class client {
 public:
  client(ucx_transport transport, const std::string& address) {
    link_events events;
    events.on_frame = [this](peer_id, const frame&) { on_answer(); };
    auto made = make_ucx_link({.transport = transport}, std::move(events));
    if (!made) die(made.error().text);
    link_ = std::move(*made);
    link_->connect(address, 5s, [this](const result<peer_id>& peer) {
      if (!peer) die(peer.error().text);
      peer_ = *peer;
      done_.release();
    });
    done_.acquire();
  }

  /// Microseconds of a round trip, each started by the thread that hears of the one before.
  double round_trip_us(int count) {
    left_ = count;
    const auto start = clock_type::now();
    ping();
    done_.acquire();
    return seconds_since(start) / count * 1e6;
  }

  /// Microseconds of a round trip, each started by a thread that is woken for it.
  double woken_round_trip_us(int count) {
    const auto start = clock_type::now();
    for (int i = 0; i < count; ++i) {
      left_ = 1;
      ping();
      done_.acquire();
    }
    return seconds_since(start) / count * 1e6;
  }

  /// MB/s of `count` tensors sent one after another, until the last is delivered.
  double megabytes_per_second(std::size_t bytes, int count) {
    std::vector<std::byte> data(bytes, std::byte{1});
    const auto start = clock_type::now();
    for (int i = 0; i < count; ++i) {
      link_->send(peer_, tensor_frame(data.data(), bytes, frame_kind::message), {});
    }
    left_ = 1;
    ping();  // answered when all before it have been released
    done_.acquire();
    return static_cast<double>(bytes) * count / seconds_since(start) / 1e6;
  }

 private:
  void ping() { link_->send(peer_, tensor_frame(small_, sizeof(small_), frame_kind::request), {}); }

  void on_answer() {
    if (--left_ > 0) {
      ping();
    } else {
      done_.release();
    }
  }

  std::byte small_[8] = {};
  std::atomic<int> left_ = 0;
  std::binary_semaphore done_{0};
  peer_id peer_;
  std::unique_ptr<messages::link> link_;
};

template <class Measure>
double median(Measure measure) {
  std::vector<double> values;
  values.reserve(5);
  for (int i = 0; i < 5; ++i) values.push_back(measure());
  std::ranges::nth_element(values, values.begin() + 2);
  return values[2];
}

void bench(const char* name, ucx_transport transport) {
  int pipe_fds[2];
  if (pipe(pipe_fds) != 0) die("cannot make a pipe");
  std::fflush(stdout);
  const pid_t child = fork();  // before UCX starts: its state does not survive a fork
  if (child == 0) std::_Exit(serve(transport, pipe_fds[1]));
  char address[64] = {};
  if (read(pipe_fds[0], address, sizeof(address)) <= 0) die("the server did not start");
  close(pipe_fds[0]);
  close(pipe_fds[1]);
  {
    client to(transport, address);
    to.round_trip_us(200);
    std::printf("{\"link\": \"%s\", \"what\": \"rtt_8B_us\", \"value\": %.1f}\n", name,
                median([&] { return to.round_trip_us(2000); }));
    std::printf("{\"link\": \"%s\", \"what\": \"rtt_8B_woken_us\", \"value\": %.1f}\n", name,
                median([&] { return to.woken_round_trip_us(1000); }));
    for (const int mebibytes : {1, 8, 64}) {
      const std::size_t bytes = static_cast<std::size_t>(mebibytes) << 20;
      const int count = std::max(4, 128 / mebibytes);
      to.megabytes_per_second(bytes, count);
      std::printf("{\"link\": \"%s\", \"what\": \"one_way_%dMiB_MB_per_s\", \"value\": %.0f}\n",
                  name, mebibytes, median([&] { return to.megabytes_per_second(bytes, count); }));
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0) die("the server failed");
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> wanted(argv + 1, argv + argc);
  const auto asked = [&](const char* name) {
    return wanted.empty() || std::ranges::find(wanted, name) != wanted.end();
  };
  if (asked("tcp")) bench("tcp", ucx_transport::tcp);
  if (asked("shm")) bench("shm", ucx_transport::shm);
  return 0;
}
