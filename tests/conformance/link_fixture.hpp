#pragma once

#include <algorithm>
#include <catch2/catch_message.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <chrono>
#include <concepts>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "messages/link/link.hpp"
#include "messages/link/link_options.hpp"
#include "messages/link/loopback/loopback.hpp"
#include "messages/link/simulated/simulated.hpp"
#include "tests/package/socket_link.hpp"

namespace troupe::messages::testing {

using namespace std::chrono_literals;

/// How long a test waits for an event that must come.
inline constexpr auto bound = 20s;

// The backends the suite runs against: each makes links that can reach each other.

struct loopback_backend {
  loopback_network network;

  std::unique_ptr<messages::link> make(link_events events, limits bounds = {}) {
    return std::move(make_loopback_link(network, std::move(events), bounds).value());
  }
};

template <link_transport Transport>
struct process_backend {
  link_options options = {};

  std::unique_ptr<messages::link> make(link_events events, limits bounds = {}) {
    link_options chosen = options;
    chosen.transport = Transport;
    chosen.bounds = bounds;
    auto made = make_link(std::move(chosen), std::move(events));
    if (!made) throw std::runtime_error(made.error().text);
    return std::move(*made);
  }
};
using tcp_backend = process_backend<link_transport::tcp>;
using shm_backend = process_backend<link_transport::shm>;
using trusted_backend = process_backend<link_transport::trusted>;
/// tcp, and as all are on this machine, its second door.
struct inside_backend : tcp_backend {
  inside_backend() { options.has_inside_door = true; }
};

/// A transport of a user's own, which knows public headers alone.
struct own_backend {
  std::unique_ptr<messages::link> make(link_events events, limits bounds = {}) {
    return std::move(::own::make_socket_link(std::move(events), bounds).value());
  }
};

/// The simulated network that this thread steps while it waits for something; null where links have
/// threads of their own.
inline thread_local simulated_network* stepped = nullptr;

/// Steps that network until `done()`, or until nothing is left to happen.
template <class Done>
void step_until(Done done) {
  while (!done() && stepped->step()) {
  }
}

/// Whether the environment asks for what takes long (TROUPE_LONG=1).
inline bool takes_long() {
  const char* const wish = std::getenv("TROUPE_LONG");
  return wish != nullptr && std::string(wish) == "1";
}

/// How many files this process has open.
inline std::size_t open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

/// A network that depends on the seed: `Seed`, or TROUPE_SEED where the environment has it.
template <std::uint64_t Seed>
struct simulated_backend {
  const std::uint64_t seed = [] {
    const char* const one = std::getenv("TROUPE_SEED");
    return one == nullptr ? Seed : std::stoull(one);
  }();
  const Catch::ScopedMessage replay{
      Catch::MessageBuilder("INFO", CATCH_INTERNAL_LINEINFO, Catch::ResultWas::Info)
      << "TROUPE_SEED=" << seed << " replays it"};
  simulated_network network{{.seed = seed,
                             .most_delay = std::chrono::microseconds{seed % 2 == 0 ? 20 : 2000},
                             .chunk_bytes = std::uint64_t{64} << (10 + 3 * (seed % 3))}};

  simulated_backend() { stepped = &network; }
  simulated_backend(const simulated_backend&) = delete;
  simulated_backend& operator=(const simulated_backend&) = delete;
  ~simulated_backend() { stepped = nullptr; }

  std::unique_ptr<messages::link> make(link_events events, limits bounds = {}) {
    return std::move(make_simulated_link(network, std::move(events), bounds).value());
  }
};

/// A test of the suite: `TestType` is the backend.
#define LINK_TEST(title)                                                                   \
  TEMPLATE_TEST_CASE(title, "[link]", loopback_backend, simulated_backend<1>,              \
                     simulated_backend<2>, simulated_backend<3>, tcp_backend, shm_backend, \
                     trusted_backend, inside_backend, own_backend)

/// One where several threads act at once, so not for the simulated link.
#define THREADED_LINK_TEST(title)                                                                  \
  TEMPLATE_TEST_CASE(title, "[link]", loopback_backend, tcp_backend, shm_backend, trusted_backend, \
                     inside_backend, own_backend)

// Frames

inline std::vector<std::int64_t> dense_strides(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;)
    strides[i - 1] = strides[i] * std::max<std::int64_t>(shape[i], 1);
  return strides;
}

/// A tensor of bytes that differ along it and with `seed`.
inline wire_tensor byte_tensor(std::size_t bytes, unsigned seed) {
  auto owner = std::make_shared<std::vector<std::byte>>(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    (*owner)[i] = static_cast<std::byte>(i * 31 + (i >> 12) + seed);
  wire_tensor out;
  out.descriptor = {dtype::u8, {static_cast<std::int64_t>(bytes)}, {1}, {}};
  out.bytes = {owner->data(), bytes, owner};
  return out;
}

inline bool holds(const wire_tensor& tensor, std::size_t bytes, unsigned seed) {
  const wire_tensor expected = byte_tensor(bytes, seed);
  return tensor.descriptor == expected.descriptor && tensor.bytes.bytes == bytes &&
         (bytes == 0 || std::memcmp(tensor.bytes.data, expected.bytes.data, bytes) == 0);
}

inline frame numbered(std::int64_t number, lane on = lane::data) {
  frame out;
  out.lane = on;
  out.body.push_back({"number", {value{number}}});
  return out;
}

inline std::int64_t number_of(const frame& message) {
  return std::get<std::int64_t>(message.body.at(0).fields.at(0).of);
}

inline frame with_bytes(std::int64_t number, std::size_t bytes) {
  frame out = numbered(number);
  out.tensors.push_back(byte_tensor(bytes, static_cast<unsigned>(number)));
  return out;
}

/// Things that happen on one thread and are awaited on another.
template <class T>
class mailbox {
 public:
  void put(T item) {
    const std::lock_guard lock(mutex_);
    items_.push_back(std::move(item));
    changed_.notify_all();
  }

  /// The next item; throws when none comes in time.
  T next(std::chrono::milliseconds limit = bound) {
    if (stepped) step_until([this] { return !items_.empty(); });
    std::unique_lock lock(mutex_);
    if (stepped) limit = 0ms;
    if (!changed_.wait_for(lock, limit, [this] { return !items_.empty(); }))
      throw std::runtime_error("an event did not come in time");
    T out = std::move(items_.front());
    items_.pop_front();
    return out;
  }

  /// Whether nothing comes for a while: for what must not happen.
  bool stays_empty(std::chrono::milliseconds time) {
    if (stepped) {
      step_until([] { return false; });
      time = 0ms;
    }
    std::unique_lock lock(mutex_);
    return !changed_.wait_for(lock, time, [this] { return !items_.empty(); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<T> items_;
};

/// The completions of many sends: how often each was called and with what. They may come when this
/// is gone, as where a test fails meanwhile.
class completions {
 public:
  explicit completions(std::size_t count) : seen_(std::make_shared<record>(count)) {}

  messages::link::completion at(std::integral auto number) {
    return [seen = seen_, index = static_cast<std::size_t>(number)](const result<void>& how) {
      const std::lock_guard lock(seen->mutex);
      ++seen->calls[index];
      if (!how) seen->codes[index] = how.error().code;
      seen->changed.notify_all();
    };
  }

  bool all_once(std::chrono::milliseconds limit = bound) {
    const auto& calls = seen_->calls;
    const auto all = [&] { return std::ranges::all_of(calls, [](int each) { return each > 0; }); };
    if (stepped && limit > 0ms) step_until(all);
    std::unique_lock lock(seen_->mutex);
    if (!stepped) seen_->changed.wait_for(lock, limit, all);
    return std::ranges::all_of(calls, [](int each) { return each == 1; });
  }

  std::size_t failed() {
    const std::lock_guard lock(seen_->mutex);
    return static_cast<std::size_t>(
        std::ranges::count_if(seen_->codes, [](const auto& code) { return code.has_value(); }));
  }

  /// Whether those that failed did so with this code.
  bool failed_only_with(errc code) {
    const std::lock_guard lock(seen_->mutex);
    return std::ranges::all_of(seen_->codes, [&](const auto& c) { return !c || *c == code; });
  }

 private:
  struct record {
    explicit record(std::size_t count) : calls(count), codes(count) {}

    std::mutex mutex;
    std::condition_variable changed;
    std::vector<int> calls;
    std::vector<std::optional<errc>> codes;
  };
  const std::shared_ptr<record> seen_;
};

/// A link and what it tells.
template <class Backend>
class node {
 public:
  explicit node(Backend& backend, limits bounds = {}) {
    link_events events;
    events.on_peer_up = [this](peer_id peer) { ups.put(peer); };
    events.on_frame = [this](peer_id peer, frame message) {
      if (const auto reaction = current_reaction()) reaction(peer, message);
      frames.put(std::move(message));
    };
    events.on_peer_down = [this](peer_id peer, error why) { downs.put({peer, std::move(why)}); };
    wire = backend.make(std::move(events), bounds);
  }

  result<peer_id> try_connect(const std::string& address, std::chrono::milliseconds timeout = 5s) {
    const auto answer = std::make_shared<mailbox<result<peer_id>>>();
    wire->connect(address, timeout,
                  [answer](result<peer_id> peer) { answer->put(std::move(peer)); });
    return answer->next();
  }

  /// What to do with frames, on the link's thread, before they can be awaited in `frames`.
  void react(std::function<void(peer_id, const frame&)> reaction) {
    const std::lock_guard lock(mutex_);
    reaction_ = std::move(reaction);
  }

  /// Sends and waits for the completion.
  result<void> send(peer_id peer, frame message) {
    const auto answer = std::make_shared<mailbox<result<void>>>();
    wire->send(peer, std::move(message),
               [answer](result<void> how) { answer->put(std::move(how)); });
    return answer->next();
  }

 private:
  std::function<void(peer_id, const frame&)> current_reaction() {
    const std::lock_guard lock(mutex_);
    return reaction_;
  }

  std::mutex mutex_;
  std::function<void(peer_id, const frame&)> reaction_;

 public:
  mailbox<peer_id> ups;
  mailbox<frame> frames;
  mailbox<std::pair<peer_id, error>> downs;
  std::unique_ptr<messages::link> wire;  // last: its thread uses the rest
};

/// Two connected nodes.
template <class Backend>
struct pair_of_nodes {
  explicit pair_of_nodes(limits server_bounds = {}) : server(backend, server_bounds) { connect(); }
  pair_of_nodes(limits server_bounds, Backend with)
      : backend(std::move(with)), server(backend, server_bounds) {
    connect();
  }

  Backend backend;
  node<Backend> server;
  node<Backend> client{backend};
  std::string address;
  peer_id to_server;  // as the client calls it
  peer_id to_client;

 private:
  void connect() {
    address = server.wire->listen("").value();
    to_server = client.try_connect(address).value();
    to_client = server.ups.next();
    client.ups.next();
  }
};

}  // namespace troupe::messages::testing
