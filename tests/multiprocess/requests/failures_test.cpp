// What fails in another process comes back to whoever asked, as an error that says what has failed,
// and both processes go on.

#include <ATen/ops/add.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "actors/base/errors.hpp"
#include "actors/futures/pool.hpp"
#include "actors/futures/requester.hpp"
#include "actors/remote/functions.hpp"
#include "actors/remote/node.hpp"
#include "actors/system.hpp"
#include "messages/descriptor.hpp"
#include "messages/link/link_options.hpp"
#include "tests/forked_member.hpp"
#include "tests/refusal.hpp"

namespace {

using namespace troupe;
using namespace std::chrono_literals;
using tests::patience;

constexpr messages::limits low{.tensor_bytes = 4000};

result<std::unique_ptr<actors::node>> start(caf::actor_system& system,
                                            const actors::message_registry& types,
                                            const std::string& name,
                                            const messages::limits& bounds) {
  return actors::node::start(system, types, {.name = name}, [&](messages::link_events events) {
    return messages::make_link({.transport = messages::link_transport::tcp, .bounds = bounds},
                               std::move(events));
  });
}

/// Doubles numbers, counts the numbers of tensors, never answers `true`, throws at doubles, and
/// ends at floats.
caf::behavior answerer(caf::event_based_actor* self) {
  self->set_exception_handler([](const std::exception_ptr&) { return caf::sec::runtime_error; });
  return {[](std::int64_t number) { return 2 * number; },
          [](const at::Tensor& given) { return given.numel(); },
          [self](bool) { return self->make_response_promise<std::int64_t>(); },
          [](double) -> std::int64_t { throw std::runtime_error("thrown"); },
          [self](float) { self->quit(caf::exit_reason::user_shutdown); }};
}

/// The other process: says where it listens.
[[noreturn]] void serve(int out) {
  const actors::message_registry types;
  actors::system_config config;
  caf::actor_system system(config);
  const auto made = start(system, types, "child", low);
  if (!made) std::_Exit(9);
  const auto& node = *made;
  for (const std::string name : {"answerer", "thrower", "ender"})
    node->publish(name, caf::actor_cast<caf::strong_actor_ptr>(system.spawn(answerer)));
  actors::pool work({.threads = 1});
  actors::function_registry functions;
  functions.add("sum", [](const at::Tensor& x, const at::Tensor& y) { return at::add(x, y); });
  const auto host = actors::function_host::make(system, functions, work);
  node->publish(actors::function_host_name, host);
  tests::child::say(out, node->address());
  while (true) pause();
}

/// A node of this process that has joined the other one.
struct asker {
  asker(const std::string& name, const std::string& address, const messages::limits& bounds) {
    auto made = start(system, types, name, bounds);
    REQUIRE(made);
    node = std::move(*made);
    ask.emplace(system, [this](const caf::node_id& id) { return node->name_of(id); });
    REQUIRE(node->join(address, patience) == "child");
  }
  ~asker() { ask.reset(); }

  caf::actor find(const std::string& name) {
    const auto found = node->find("child", name, patience);
    REQUIRE(found);
    return caf::actor_cast<caf::actor>(*found);
  }
  template <class Message>
  result<std::int64_t> answer_of(const caf::actor& who, Message message,
                                 std::chrono::nanoseconds deadline = patience) {
    return ask->request<std::int64_t>(who, std::move(message), deadline).get();
  }

  actors::message_registry types;
  actors::system_config config;
  caf::actor_system system{config};
  std::unique_ptr<actors::node> node;
  std::optional<actors::requester> ask;
};

/// Sends bytes that no peer begins with, and waits until the other side has closed the connection.
void send_garbage(const std::string& address) {
  const descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval longest{.tv_sec = 20, .tv_usec = 0};
  REQUIRE(::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &longest, sizeof(longest)) == 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port =
      htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0);
  const std::string garbage(std::size_t{64} << 10, '\xff');
  static_cast<void>(::send(socket.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL));
  std::array<char, 256> heard{};
  ssize_t got = 0;
  while ((got = ::recv(socket.get(), heard.data(), heard.size(), 0)) > 0) continue;
  CHECK((got == 0 || errno == ECONNRESET));
}

}  // namespace

TEST_CASE("What fails in another process comes back by name, and both processes go on") {
  const tests::child process([](int /*in*/, int out) { serve(out); });
  const auto address = process.hear();
  asker here("near", address, low);
  const auto target = here.find("answerer");
  CHECK(here.answer_of(target, std::int64_t{21}) == 42);

  check_refused(here.answer_of(target, true, 50ms), errc::timed_out, "node 'child'");
  CHECK(error_of(here.answer_of(target, std::uint64_t{1})).code == errc::unknown_message);
  const auto nobody = caf::actor_cast<caf::actor>(here.node->resolve({"child", address, 424242}));
  check_refused(here.answer_of(nobody, std::int64_t{1}), errc::unknown_target, "424242");
  check_refused(here.answer_of(target, at::zeros({1001})), errc::bad_frame,
                "limit tensor_bytes is 4000");
  CHECK(here.answer_of(target, at::zeros({1000})) == 1000);

  CHECK(error_of(here.answer_of(here.find("thrower"), 1.5)).code == errc::handler_failed);
  const auto ender = here.find("ender");
  const auto owed = here.ask->request<std::int64_t>(ender, true, patience);
  caf::anon_send(ender, 1.0F);
  CHECK(error_of(owed.get()).code == errc::unknown_target);
  CHECK(error_of(here.answer_of(ender, std::int64_t{1})).code == errc::unknown_target);

  const auto far = actors::remote_pool::at(*here.node, "child", *here.ask, patience);
  REQUIRE(far);
  const auto forked =
      actors::fork_on<at::Tensor>(*far, "sum", at::ones({2}), at::ones({3})).get(patience);
  check_refused(forked, errc::handler_failed, "size");

  CHECK(here.answer_of(target, std::int64_t{21}) == 42);
}

TEST_CASE("A process that sends another one garbage, or too much, is cut off, and no other is") {
  const tests::child process([](int /*in*/, int out) { serve(out); });
  const auto address = process.hear();
  asker honest("honest", address, low);
  asker excessive("excessive", address, {});
  const auto target = honest.find("answerer");
  CHECK(error_of(excessive.answer_of(excessive.find("answerer"), at::zeros({1001}))).code ==
        errc::peer_lost);
  send_garbage(address);
  CHECK(honest.answer_of(target, std::int64_t{21}) == 42);
}
