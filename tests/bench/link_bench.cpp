// Measures a UCX link between two processes of this machine, or UCX without our link: round trips
// of 8 bytes and the one-way rate of large tensors.
//
//   link_bench [--raw] [--only shm,tcp] [--mebibytes 1,8,64] [--json]
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <semaphore>
#include <string>
#include <vector>

#include "messages/link/link_options.hpp"
#include "tests/bench/figures.hpp"
#include "tests/bench/raw_ucx.hpp"

namespace {

using namespace troupe;
using namespace troupe::bench;
using namespace troupe::messages;
using namespace std::chrono_literals;

[[noreturn]] void die(const std::string& text) {
  std::fprintf(stderr, "link_bench: %s\n", text.c_str());
  std::_Exit(1);
}

frame tensor_frame(const std::byte* data, std::size_t bytes, frame_kind kind) {
  frame out;
  out.kind = kind;
  wire_tensor tensor;
  tensor.descriptor = {dtype::u8, {static_cast<std::int64_t>(bytes)}, {1}, {}};
  tensor.bytes = {const_cast<std::byte*>(data), bytes, nullptr};
  out.tensors.push_back(std::move(tensor));
  return out;
}

using tell_address = std::function<void(const std::string&)>;

/// Answers requests with what they carry and messages with nothing.
void serve(link_transport transport, const tell_address& tell) {
  std::binary_semaphore ended(0);
  std::unique_ptr<messages::link> server;
  link_events events;
  events.on_frame = [&](peer_id peer, frame message) {
    if (message.kind != frame_kind::request) return;
    message.kind = frame_kind::response;
    server->send(peer, std::move(message), {});
  };
  events.on_peer_down = [&](peer_id, const error&) { ended.release(); };
  auto made = make_link({.transport = transport}, std::move(events));
  if (!made) die(made.error().text);
  server = std::move(*made);
  const auto bound = server->listen("");
  if (!bound) die(bound.error().text);
  tell(*bound);
  ended.acquire();
}

class client {
 public:
  client(link_transport transport, const std::string& address) {
    link_events events;
    events.on_frame = [this](peer_id, const frame&) { on_answer(); };
    auto made = make_link({.transport = transport}, std::move(events));
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
    const stopwatch watch;
    ping();
    done_.acquire();
    return watch.seconds() / count * 1e6;
  }

  /// Microseconds of a round trip, each started by a thread that is woken for it.
  double woken_round_trip_us(int count) {
    const stopwatch watch;
    for (int i = 0; i < count; ++i) {
      left_ = 1;
      ping();
      done_.acquire();
    }
    return watch.seconds() / count * 1e6;
  }

  /// MB/s of `count` tensors sent one after another, until the last is delivered.
  double megabytes_per_second(std::size_t bytes, int count) {
    const tensor_bytes data(bytes, std::byte{1});
    const stopwatch watch;
    for (int i = 0; i < count; ++i) {
      link_->send(peer_, tensor_frame(data.data(), bytes, frame_kind::message), {});
    }
    left_ = 1;
    ping();  // answered when all before it have been released
    done_.acquire();
    return static_cast<double>(bytes) * count / watch.seconds() / 1e6;
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

/// The median of five.
template <class Measure>
double median(Measure measure) {
  std::vector<double> values;
  values.reserve(5);
  for (int i = 0; i < 5; ++i) values.push_back(measure());
  return quantile(values, 0.5);
}

/// Gives the address at which `serve`, in a process of its own, listens, and waits for its end.
class server_process {
 public:
  explicit server_process(const std::function<void(const tell_address&)>& serve) {
    int pipe_fds[2];
    if (pipe(pipe_fds) != 0) die("cannot make a pipe");
    std::fflush(stdout);
    child_ = fork();  // before UCX starts: its state does not survive a fork
    if (child_ == 0) {
      serve([&](const std::string& address) {
        if (write(pipe_fds[1], address.c_str(), address.size() + 1) < 0) die("cannot write");
      });
      std::_Exit(0);
    }
    char address[64] = {};
    if (read(pipe_fds[0], address, sizeof(address)) <= 0) die("the server did not start");
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    address_ = address;
  }
  server_process(const server_process&) = delete;
  server_process& operator=(const server_process&) = delete;
  ~server_process() {
    int status = 0;
    waitpid(child_, &status, 0);
    if (status != 0) die("the server failed");
  }

  [[nodiscard]] const std::string& address() const { return address_; }

 private:
  pid_t child_ = 0;
  std::string address_;
};

/// The figures that both have.
template <class Client>
void bench(Client& to, const figures& out, const std::string& name, const std::vector<int>& sizes) {
  to.round_trip_us(200);
  out.add(name + ".rtt_8B_p50", median([&] { return to.round_trip_us(2000); }), "us");
  for (const int mebibytes : sizes) {
    const std::size_t bytes = static_cast<std::size_t>(mebibytes) << 20;
    const int count = std::max(8, 256 / mebibytes);
    to.megabytes_per_second(bytes, count);
    out.add(name + ".tensor_" + std::to_string(mebibytes) + "MiB_rate",
            median([&] { return to.megabytes_per_second(bytes, count); }), "MB/s");
  }
}

void bench_link(const figures& out, const std::string& name, link_transport transport,
                const std::vector<int>& sizes) {
  const server_process server([&](const auto& tell) { serve(transport, tell); });
  client to(transport, server.address());
  bench(to, out, name, sizes);
  out.add(name + ".rtt_8B_woken_p50", median([&] { return to.woken_round_trip_us(1000); }), "us");
}

void bench_raw(const figures& out, const std::string& name, link_transport transport,
               const std::vector<int>& sizes) {
  const server_process server([&](const auto& tell) { raw_ucx(transport).serve(tell); });
  raw_ucx to(transport);
  to.connect(server.address());
  bench(to, out, name, sizes);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures a UCX link");
  bool raw = false;
  bool json = false;
  std::vector<std::string> only{"shm", "tcp"};
  std::vector<int> sizes{1, 8, 64};
  app.add_flag("--raw", raw, "Measure UCX without our link");
  app.add_flag("--json", json, "One JSON object a line");
  app.add_option("--only", only, "Which transports")
      ->delimiter(',')
      ->check(CLI::IsMember({"shm", "tcp"}));
  app.add_option("--mebibytes", sizes, "Sizes of tensors")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  CLI11_PARSE(app, argc, argv);
  for (const std::string& name : only) {
    const auto transport = name == "shm" ? link_transport::shm : link_transport::tcp;
    (raw ? bench_raw : bench_link)(figures(json), name, transport, sizes);
  }
  return 0;
}
