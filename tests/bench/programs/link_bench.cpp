// Measures a link between two processes of this machine, or what there is without our link: round
// trips of 8 bytes and the one-way rate of large tensors.
//
//   link_bench [--raw | --socket] [--only shm,tcp] [--mebibytes 1,8,64] [--json]
//   link_bench --listen ADDRESS         between machines: this one prints where it listens,
//   link_bench --to ADDRESS [--json]    this one measures sealed tcp there
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <semaphore>
#include <string>
#include <vector>

#include "messages/link/link_options.hpp"
#include "tests/bench/programs/figures.hpp"
#include "tests/bench/programs/raw_sealed.hpp"
#include "tests/bench/programs/raw_ucx.hpp"
#include "tests/flags.hpp"

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

/// Of a link inside this machine, or to another one.
link_options options_for(link_transport transport, bool beyond_loopback) {
  static constexpr std::array<std::byte, cluster_secret::least_bytes> known{};  // nothing to guard
  link_options out{.transport = transport};
  out.beyond_loopback = beyond_loopback;
  if (beyond_loopback) out.secret = cluster_secret(known);
  return out;
}

/// Answers requests with what they carry and messages with nothing, until the client leaves.
void serve(const link_options& options, const std::string& address, const tell_address& tell) {
  std::binary_semaphore ended(0);
  std::unique_ptr<messages::link> server;
  link_events events;
  events.on_frame = [&](peer_id peer, frame message) {
    if (message.kind != frame_kind::request) return;
    message.kind = frame_kind::response;
    server->send(peer, std::move(message), {});
  };
  events.on_peer_down = [&](peer_id, const error&) { ended.release(); };
  auto made = make_link(options, std::move(events));
  if (!made) die(made.error().text);
  server = std::move(*made);
  const auto bound = server->listen(address);
  if (!bound) die(bound.error().text);
  tell(*bound);
  ended.acquire();
}

class client {
 public:
  client(const link_options& options, const std::string& address) {
    link_events events;
    events.on_frame = [this](peer_id, const frame&) { on_answer(); };
    auto made = make_link(options, std::move(events));
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
  const link_options options = options_for(transport, false);
  const server_process server([&](const auto& tell) { serve(options, "", tell); });
  client to(options, server.address());
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

/// Prints where it listens, and serves one client.
void serve_elsewhere(const std::string& address) {
  serve(options_for(link_transport::tcp, true), address, [](const std::string& bound) {
    std::printf("%s\n", bound.c_str());
    std::fflush(stdout);
  });
}

void bench_elsewhere(const figures& out, const std::string& address,
                     const std::vector<int>& sizes) {
  client to(options_for(link_transport::tcp, true), address);
  bench(to, out, "tcp", sizes);
}

void bench_socket(const figures& out, const std::vector<int>& sizes) {
  const server_process server([&](const auto& tell) { raw_sealed().serve(tell); });
  raw_sealed to;
  to.connect(server.address());
  bench(to, out, "tcp", sizes);
}

}  // namespace

int main(int argc, char** argv) {
  troupe::tests::flags line("Measures a link");
  bool raw = false;
  bool socket = false;
  bool json = false;
  std::string listen_at, connect_to;
  std::vector<std::string> only{"shm", "tcp"};
  std::vector<int> sizes{1, 8, 64};
  line.flag("--raw", raw, "Measure UCX without our link");
  line.flag("--socket", socket, "Measure a TCP socket and a cipher without our link", "--raw");
  line.text("--listen", listen_at, "Serve a client of another machine");
  line.text("--to", connect_to, "Measure sealed tcp to another machine");
  line.flag("--json", json, "One JSON object a line");
  line.texts("--only", only, "Which transports", {"shm", "tcp"});
  line.numbers("--mebibytes", sizes, "Sizes of tensors", 1, 1024);
  if (const auto end = line.read(argc, argv)) return *end;
  if (!listen_at.empty()) return serve_elsewhere(listen_at), 0;
  if (!connect_to.empty()) return bench_elsewhere(figures(json), connect_to, sizes), 0;
  if (socket) return bench_socket(figures(json), sizes), 0;
  for (const std::string& name : only) {
    const auto transport = name == "shm" ? link_transport::shm : link_transport::tcp;
    (raw ? bench_raw : bench_link)(figures(json), name, transport, sizes);
  }
  return 0;
}
