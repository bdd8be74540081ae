// What a UCX link does with a peer that speaks UCX but breaks our protocol: it closes that peer's
// connection, counts it, and harms nobody else.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <random>
#include <span>
#include <thread>

#include "link_fixture.hpp"
#include "messages/codec/codec.hpp"
#include "messages/link/session.hpp"
#include "messages/link/ucx_handles.hpp"

namespace troupe::messages::testing {
namespace {

using bytes_view = std::span<const std::byte>;

/// A bare UCX client, driven by the test's own thread.
class stranger {
 public:
  stranger(ucx_transport transport, const std::string& address, const cluster_secret& secret = {})
      : handshake_(handshake::role::connects, secret.bytes(), fresh()) {
    context_ = std::move(ucx::make_context({.transport = transport}).value());
    worker_ = std::move(ucx::make_worker(context_.get()).value());
    for (unsigned id = ucx::handshake_id; id <= ucx::bundle_id; ++id) {
      ucp_am_handler_param_t handler{};
      handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                           UCP_AM_HANDLER_PARAM_FIELD_ARG;
      handler.id = id;
      handler.arg = this;
      handler.cb = id == ucx::handshake_id ? hear : ignore;
      REQUIRE(ucp_worker_set_am_recv_handler(worker_.get(), &handler) == UCS_OK);
    }
    endpoints_.push_back(connect(transport, address));
  }

  /// Another connection to the same place, over which nothing is said.
  ucp_ep_h connect(ucx_transport transport, const std::string& address) {
    const ucx::address where = ucx::resolve(address, false).value();
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
    params.sockaddr = {where.get(), where.length};
    params.err_mode =
        transport == ucx_transport::tcp ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE;
    params.err_handler.cb = [](void*, ucp_ep_h, ucs_status_t) {};
    ucp_ep_h made = nullptr;
    REQUIRE(ucp_ep_create(worker_.get(), &params, &made) == UCS_OK);
    return made;
  }

  template <class Header>
  void say(unsigned id, const Header& header, bytes_view data = {}) {
    say(id, &header, sizeof(header), data);
  }

  void say(unsigned id, const void* header, std::size_t bytes, bytes_view data,
           unsigned how = UCP_AM_SEND_FLAG_EAGER) {
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_AM_SEND_FLAG_REPLY | how;
    void* const request =
        ucp_am_send_nbx(endpoints_.front(), id, header, bytes, data.data(), data.size(), &params);
    if (!UCS_PTR_IS_PTR(request)) return;
    while (ucp_request_check_status(request) == UCS_INPROGRESS) {
      ucp_worker_progress(worker_.get());
    }
    ucp_request_free(request);
  }

  ucx::handshake_message hello() const { return handshake_.hello(); }
  void say(const ucx::handshake_message& message) { say(ucx::handshake_id, message); }

  /// The next message of a handshake that comes.
  ucx::handshake_message hear_one() {
    REQUIRE(work_until([this] { return !heard_.empty(); }));
    const ucx::handshake_message out = heard_.front();
    heard_.pop_front();
    return out;
  }

  /// What the handshake says to the next message that comes.
  ucx::handshake_message answer() {
    const ucx::handshake_message theirs = hear_one();
    return handshake_.take(std::as_bytes(std::span(&theirs, 1))).value().value();
  }

  /// Becomes a peer. Returns all it said.
  std::vector<ucx::handshake_message> join() {
    std::vector<ucx::handshake_message> said = {hello()};
    say(said.back());
    for (int i = 0; i < 2; ++i) {
      said.push_back(answer());
      say(said.back());
    }
    return said;
  }

  session& keys() { return handshake_.keys(); }

  /// Seals and sends a frame's head.
  void say_frame(ucx::frame_prefix prefix, bytes_view data) {
    keys().sign(prefix, data.first(std::min<std::size_t>(prefix.header_bytes, data.size())));
    say(ucx::frame_id, prefix, data);
  }

  /// Seals and sends a bundle.
  void say_bundle(ucx::bundle_prefix prefix, bytes_view data) {
    keys().sign(prefix, data);
    say(ucx::bundle_id, prefix, data);
  }

  /// Lets UCX work until something holds; false when it does not in time.
  template <class Condition>
  bool work_until(Condition holds) {
    const auto start = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - start < bound) {
      if (holds()) return true;
      if (ucp_worker_progress(worker_.get()) == 0) std::this_thread::yield();
    }
    return false;
  }

  /// Lets UCX work until something has come into the mailbox.
  template <class T>
  T await(mailbox<T>& box) {
    REQUIRE(work_until([&] { return !box.stays_empty(1ms); }));
    return box.next();
  }

 private:
  static handshake::nonce fresh() {
    handshake::nonce out;
    fill_random(out);
    return out;
  }
  static ucs_status_t ignore(void*, const void*, std::size_t, void*, std::size_t,
                             const ucp_am_recv_param_t*) {
    return UCS_OK;
  }
  static ucs_status_t hear(void* self, const void* header, std::size_t bytes, void*, std::size_t,
                           const ucp_am_recv_param_t*) {
    ucx::handshake_message message;
    if (bytes != sizeof(message)) return UCS_OK;
    std::memcpy(&message, header, bytes);
    static_cast<stranger*>(self)->heard_.push_back(message);
    return UCS_OK;
  }

  handshake handshake_;
  std::deque<ucx::handshake_message> heard_;
  ucx::context context_;
  ucx::worker worker_;
  std::vector<ucp_ep_h> endpoints_;
};

template <class Backend>
constexpr ucx_transport transport_of =
    std::is_same_v<Backend, tcp_backend> ? ucx_transport::tcp : ucx_transport::shm;

/// Two connected nodes, and a counter of the server's to wait for.
template <class Backend>
struct target : pair_of_nodes<Backend> {
  explicit target(Backend with = {}) : pair_of_nodes<Backend>({}, std::move(with)) {}

  std::uint64_t refused(refusal why) { return this->server.wire->stats().refused(why); }

  /// The peers that were there before go on.
  void check_others() {
    CHECK(this->server.wire->stats().peers == 1);
    CHECK(this->client.send(this->to_server, with_bytes(7, 1 << 20)).has_value());
    CHECK(number_of(this->server.frames.next()) == 7);
    CHECK(this->client.downs.stays_empty(0ms));
  }
};

/// A frame's head, and what to seal it with, for a stranger to send.
struct head {
  explicit head(std::int64_t number) : data(encode(numbered(number)).value()) {
    prefix.lane = static_cast<std::uint8_t>(lane::data);
    prefix.header_bytes = static_cast<std::uint32_t>(data.size());
    prefix.chunk_bytes = ucx::least_chunk_bytes;
  }

  encoded_header data;
  ucx::frame_prefix prefix;
};

/// A bundle of frames with these numbers, the first of which is frame `sequence` of the data lane.
struct bundle_of {
  bundle_of(std::uint64_t sequence, const std::vector<std::int64_t>& numbers) {
    prefix.lane = static_cast<std::uint8_t>(lane::data);
    prefix.frames = static_cast<std::uint16_t>(numbers.size());
    prefix.sequence = sequence;
    for (const std::int64_t number : numbers) {
      const head one(number);
      const ucx::bundle_entry entry{one.prefix.header_bytes, 0, 0};
      const auto entry_bytes = std::as_bytes(std::span(&entry, 1));
      data.insert(data.end(), entry_bytes.begin(), entry_bytes.end());
      data.insert(data.end(), one.data.begin(), one.data.end());
    }
  }

  ucx::bundle_prefix prefix;
  std::vector<std::byte> data;
};

/// A TCP socket of a client that may say anything.
class raw_socket {
 public:
  explicit raw_socket(const std::string& address) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    const ucx::address where = ucx::resolve(address, false).value();
    REQUIRE(::connect(fd_, where.get(), where.length) == 0);
  }
  explicit raw_socket(int fd) : fd_(fd) {}
  raw_socket(raw_socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~raw_socket() {
    if (fd_ >= 0) ::close(fd_);
  }

  void say(bytes_view bytes) const { ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  /// Waits a moment for an answer.
  void hear() const {
    pollfd ready{fd_, POLLIN, 0};
    std::array<std::byte, 4096> bytes;
    if (::poll(&ready, 1, 200) > 0) ::recv(fd_, bytes.data(), bytes.size(), 0);
  }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_;
};

/// Passes bytes between clients and a server, and keeps what the first client said.
class relay {
 public:
  explicit relay(std::string to) : to_(std::move(to)), listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(any);
    REQUIRE(::bind(listener_.fd(), reinterpret_cast<sockaddr*>(&any), length) == 0);
    REQUIRE(::listen(listener_.fd(), 4) == 0);
    REQUIRE(::getsockname(listener_.fd(), reinterpret_cast<sockaddr*>(&any), &length) == 0);
    address_ = "127.0.0.1:" + std::to_string(ntohs(any.sin_port));
    thread_ = std::thread([this] { run(); });
  }
  ~relay() {
    ::shutdown(listener_.fd(), SHUT_RDWR);
    stop_ = true;
    thread_.join();
  }

  [[nodiscard]] const std::string& address() const { return address_; }
  /// Piece by piece, as the client sent it.
  std::vector<std::vector<std::byte>> recorded() {
    const std::lock_guard lock(mutex_);
    return recorded_;
  }

 private:
  void run() {
    const raw_socket client(::accept(listener_.fd(), nullptr, nullptr));
    if (client.fd() < 0) return;
    const raw_socket server(to_);
    std::array<pollfd, 2> ready = {{{client.fd(), POLLIN, 0}, {server.fd(), POLLIN, 0}}};
    while (!stop_) {
      ::poll(ready.data(), ready.size(), 20);
      for (std::size_t from = 0; from < 2; ++from) {
        if (ready[from].revents == 0) continue;
        std::array<std::byte, 4096> bytes;
        const auto count = ::recv(ready[from].fd, bytes.data(), bytes.size(), 0);
        if (count <= 0) return;
        const auto piece = bytes_view(bytes).first(static_cast<std::size_t>(count));
        ::send(ready[1 - from].fd, piece.data(), piece.size(), MSG_NOSIGNAL);
        const std::lock_guard lock(mutex_);
        if (from == 0) recorded_.emplace_back(piece.begin(), piece.end());
      }
    }
  }

  const std::string to_;
  const raw_socket listener_;
  std::string address_;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  std::vector<std::vector<std::byte>> recorded_;
  std::thread thread_;
};

}  // namespace

TEMPLATE_TEST_CASE("a peer that breaks the protocol loses its link and nobody else does", "[link]",
                   tcp_backend, shm_backend) {
  target<TestType> nodes;
  stranger them(transport_of<TestType>, nodes.address);
  them.join();
  const peer_id bad = them.await(nodes.server.ups);

  head one(1);
  them.say_frame(one.prefix, one.data);
  CHECK(number_of(them.await(nodes.server.frames)) == 1);  // so far it behaves
  ucx::frame_prefix prefix = one.prefix;
  prefix.sequence = 1;
  link_stats expected;
  expected.bad_frames = 1;

  SECTION("a prefix of another size") {
    them.say(ucx::frame_id, "short", 5, one.data);
  }
  SECTION("a prefix of another message") {
    prefix.id = ucx::chunk_id;
    them.say_frame(prefix, one.data);
  }
  SECTION("a prefix that nobody sealed") {
    prefix.seal.session = them.keys().id();
    them.say(ucx::frame_id, prefix, one.data);
    expected = {.bad_macs = 1};
  }
  SECTION("a header that was altered") {
    them.keys().sign(prefix, one.data);
    one.data.back() ^= std::byte{1};
    them.say(ucx::frame_id, prefix, one.data);
    expected = {.bad_macs = 1};
  }
  SECTION("a header longer than the message") {
    prefix.header_bytes += 8;
    them.say_frame(prefix, one.data);
  }
  SECTION("a number too far ahead") {
    prefix.sequence = 1 << 30;
    them.say_frame(prefix, one.data);
  }
  SECTION("bytes that do not add up") {
    prefix.inline_bytes = 1;
    them.say_frame(prefix, one.data);
  }
  SECTION("a header that is garbage") {
    them.say_frame(prefix, std::vector<std::byte>(one.data.size(), std::byte{0xA5}));
  }
  SECTION("a header beyond the limit") {
    const std::vector<std::byte> large(limits{}.header_bytes + 8);
    prefix.header_bytes = static_cast<std::uint32_t>(large.size());
    them.say_frame(prefix, large);
  }
  SECTION("a chunk of nothing") {
    ucx::chunk_prefix chunk{.lane = 1, .sequence = 1, .bytes = 8};
    them.keys().sign(chunk);
    them.say(ucx::chunk_id, chunk, bytes_view(one.data).first(8));
  }
  SECTION("a chunk that nobody sealed") {
    ucx::chunk_prefix chunk{.lane = 1, .sequence = 1, .bytes = 8};
    chunk.seal.session = them.keys().id();
    them.say(ucx::chunk_id, chunk, bytes_view(one.data).first(8));
    expected = {.bad_macs = 1};
  }
  SECTION("a frame by rendezvous") {
    them.say(ucx::frame_id, &prefix, sizeof(prefix), one.data, UCP_AM_SEND_FLAG_RNDV);
  }
  SECTION("a bundle that does not add up") {
    bundle_of two(1, {1, 2});
    two.prefix.frames = 3;
    them.say_bundle(two.prefix, two.data);
  }
  SECTION("a bundle that was altered") {
    bundle_of two(1, {1, 2});
    them.keys().sign(two.prefix, two.data);
    two.data.back() ^= std::byte{1};
    them.say(ucx::bundle_id, two.prefix, two.data);
    expected = {.bad_macs = 1};
  }
  SECTION("an unknown message") {
    them.say(77, "?", 1, {});
  }
  SECTION("a message far beyond the known ones") {
    them.say(65535, "?", 1, {});
  }
  SECTION("a second handshake") {
    them.say(them.hello());
  }
  SECTION("a farewell of another size") {
    them.say(ucx::farewell_id, "bye", 3, {});
  }
  SECTION("a farewell that nobody sealed") {
    ucx::farewell bye;
    bye.seal.session = them.keys().id();
    them.say(ucx::farewell_id, bye);
    expected = {.bad_macs = 1};
  }
  const auto [peer, why] = them.await(nodes.server.downs);
  CHECK(peer == bad);
  CHECK(why.code == errc::bad_frame);
  CHECK(nodes.server.wire->stats().bad_frames == expected.bad_frames);
  CHECK(nodes.server.wire->stats().bad_macs == expected.bad_macs);
  nodes.check_others();
}

TEMPLATE_TEST_CASE("what came before or belongs elsewhere is dropped and counted", "[link]",
                   tcp_backend, shm_backend) {
  target<TestType> nodes;
  stranger them(transport_of<TestType>, nodes.address);
  them.join();
  them.await(nodes.server.ups);
  head message(1);
  them.keys().sign(message.prefix, message.data);
  them.say(ucx::frame_id, message.prefix, message.data);
  CHECK(number_of(them.await(nodes.server.frames)) == 1);

  const auto stats = [&] { return nodes.server.wire->stats(); };
  them.say(ucx::frame_id, message.prefix, message.data);  // the same bytes again
  CHECK(them.work_until([&] { return stats().replayed_frames == 1; }));

  // Of a bundle, what is new is taken.
  const bundle_of known_and_new(0, {1, 2});
  them.say_bundle(known_and_new.prefix, known_and_new.data);
  CHECK(number_of(them.await(nodes.server.frames)) == 2);
  CHECK(stats().replayed_frames == 2);

  stranger later(transport_of<TestType>, nodes.address);
  later.join();
  later.await(nodes.server.ups);
  later.say(ucx::frame_id, message.prefix, message.data);  // of another session
  CHECK(later.work_until([&] { return stats().unknown_sessions == 1; }));

  // Both are still peers.
  for (stranger* each : {&them, &later}) {
    head next(3);
    next.prefix.sequence = each == &them ? 2 : 0;
    each->say_frame(next.prefix, next.data);
    CHECK(number_of(each->await(nodes.server.frames)) == 3);
  }
  CHECK(nodes.server.downs.stays_empty(0ms));
}

TEMPLATE_TEST_CASE("a stranger is refused by name and is never a peer", "[link]", tcp_backend,
                   shm_backend) {
  TestType backend;
  backend.options.secret = cluster_secret::random();
  target<TestType> nodes(backend);
  stranger them(transport_of<TestType>, nodes.address);
  refusal expected = refusal::malformed;
  ucx::handshake_message hello = them.hello();
  SECTION("another protocol") {
    hello.magic = 1;
    them.say(hello);
  }
  SECTION("a hello of another size") {
    them.say(ucx::handshake_id, &hello, 11, {});
  }
  SECTION("another version") {
    hello.protocol = 999;
    them.say(hello);
    expected = refusal::version;
  }
  SECTION("another secret") {
    them.say(hello);
    them.say(them.answer());
    expected = refusal::wrong_secret;
  }
  SECTION("a proof before the challenge") {
    hello.kind = static_cast<std::uint8_t>(ucx::handshake_kind::proof);
    them.say(hello);
    expected = refusal::out_of_order;
  }
  SECTION("a frame first") {
    const head message(1);
    them.say(ucx::frame_id, message.prefix, message.data);
    expected = refusal::out_of_order;
  }
  SECTION("a chunk first") {
    const std::vector<std::byte> data(1 << 16);
    const ucx::chunk_prefix chunk{.lane = 1, .bytes = data.size()};
    them.say(ucx::chunk_id, &chunk, sizeof(chunk), data);
    expected = refusal::out_of_order;
  }
  SECTION("a farewell first") {
    them.say(ucx::farewell_id, ucx::farewell{});
    expected = refusal::out_of_order;
  }
  SECTION("an unknown message first") {
    them.say(77, "?", 1, {});
    expected = refusal::out_of_order;
  }
  CHECK(them.work_until([&] { return nodes.refused(expected) == 1; }));
  const ucx::handshake_message told = them.hear_one();
  CHECK(told.kind == static_cast<std::uint8_t>(ucx::handshake_kind::refused));
  CHECK(told.reason == static_cast<std::uint8_t>(expected));
  CHECK(nodes.server.wire->stats().bad_frames == 0);
  CHECK(nodes.server.ups.stays_empty(10ms));
  nodes.check_others();
}

TEMPLATE_TEST_CASE("a handshake that was recorded is refused", "[link]", tcp_backend, shm_backend) {
  TestType backend;
  backend.options.secret = cluster_secret::random();
  target<TestType> nodes(backend);
  stranger honest(transport_of<TestType>, nodes.address, backend.options.secret);
  const auto recorded = honest.join();
  honest.await(nodes.server.ups);

  stranger replaying(transport_of<TestType>, nodes.address);
  replaying.say(recorded[0]);
  replaying.hear_one();
  replaying.say(recorded[1]);
  CHECK(replaying.work_until([&] { return nodes.refused(refusal::wrong_secret) == 1; }));
  CHECK(nodes.server.ups.stays_empty(10ms));
}

TEMPLATE_TEST_CASE("links with different secrets refuse each other by name", "[link]", tcp_backend,
                   shm_backend) {
  TestType backend;
  backend.options.secret = cluster_secret::random();
  target<TestType> nodes(backend);
  TestType others;
  SECTION("another secret") {
    others.options.secret = cluster_secret::random();
  }
  SECTION("none") {}
  node<TestType> outsider(others);
  const result<peer_id> peer = outsider.try_connect(nodes.address);
  REQUIRE_FALSE(peer);
  CHECK(peer.error().code == errc::not_admitted);
  CHECK(peer.error().text.find("secret") != std::string::npos);
  CHECK(outsider.wire->stats().refused(refusal::by_peer) == 1);
  CHECK(nodes.refused(refusal::wrong_secret) == 1);
  nodes.check_others();
}

TEMPLATE_TEST_CASE("handshakes are bounded in number and time", "[link]", tcp_backend,
                   shm_backend) {
  TestType backend;
  backend.options.handshakes = 50;
  backend.options.handshake_timeout = 300ms;
  target<TestType> nodes(backend);
  constexpr unsigned many = 200;
  stranger them(transport_of<TestType>, nodes.address);
  them.say(them.hello());  // and goes on no further
  for (unsigned i = 1; i < many; ++i) them.connect(transport_of<TestType>, nodes.address);
  const auto gone = [&] { return nodes.refused(refusal::too_slow); };
  CHECK(them.work_until([&] { return gone() + nodes.refused(refusal::too_many) == many; }));
  CHECK(gone() >= 1);
  CHECK(nodes.refused(refusal::too_many) > 0);
  CHECK(nodes.server.ups.stays_empty(0ms));
  nodes.check_others();
  node<TestType> late(nodes.backend);  // there is room again
  CHECK(late.try_connect(nodes.address));
}

TEST_CASE("links keep to loopback addresses unless they have a secret", "[link]") {
  const auto refused = make_ucx_link({.beyond_loopback = true}, {});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == errc::bad_config);
  tcp_backend backend;
  node<tcp_backend> here(backend);
  for (const char* address : {"0.0.0.0:0", "192.0.2.1:0", "[::]:0"}) {
    const auto listening = here.wire->listen(address);
    REQUIRE_FALSE(listening);
    CHECK(listening.error().code == errc::address_unavailable);
    CHECK(listening.error().text.find("loopback") != std::string::npos);
  }
  const auto peer = here.try_connect("192.0.2.1:7");
  REQUIRE_FALSE(peer);
  CHECK(peer.error().text.find("loopback") != std::string::npos);
}

TEST_CASE("bytes that are no UCX harm nobody", "[link]") {
  target<tcp_backend> nodes;
  constexpr unsigned seed = 5;
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::vector<raw_socket> open;
  for (int i = 0; i < 200; ++i) {
    std::vector<std::byte> bytes(random() % 300);
    for (std::byte& each : bytes) each = static_cast<std::byte>(random());
    raw_socket garbage(nodes.address);
    garbage.say(bytes);
    if (i % 2 == 0) open.push_back(std::move(garbage));
  }
  for (int i = 0; i < 200; ++i) open.emplace_back(nodes.address);  // that never say anything
  nodes.check_others();
  node<tcp_backend> late(nodes.backend);
  CHECK(late.try_connect(nodes.address));
}

TEST_CASE("a connection that was recorded leads nowhere when it is played again", "[link]") {
  tcp_backend backend;
  backend.options.secret = cluster_secret::random();
  backend.options.handshake_timeout = 300ms;
  target<tcp_backend> nodes(backend);
  std::vector<std::vector<std::byte>> recorded;
  {
    relay through(nodes.address);
    node<tcp_backend> honest(backend);
    REQUIRE(honest.try_connect(through.address()));
    nodes.server.ups.next();
    recorded = through.recorded();
  }
  nodes.server.downs.next();
  REQUIRE_FALSE(recorded.empty());
  for (const std::size_t cut : {std::size_t{1}, std::size_t{9}, recorded.front().size() / 2}) {
    const raw_socket truncated(nodes.address);
    truncated.say(bytes_view(recorded.front()).first(cut));
    nodes.check_others();
  }
  const raw_socket again(nodes.address);
  for (const std::vector<std::byte>& piece : recorded) {
    again.say(piece);
    again.hear();
  }
  nodes.check_others();
  CHECK(nodes.server.ups.stays_empty(500ms));
  nodes.check_others();
}

}  // namespace troupe::messages::testing
