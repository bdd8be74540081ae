#pragma once

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "link_fixture.hpp"
#include "messages/codec/codec.hpp"
#include "messages/link/seal/handshake.hpp"
#include "messages/link/seal/records.hpp"
#include "messages/link/seal/session.hpp"
#include "plain_socket.hpp"
#include "ucx_side.hpp"

namespace troupe::messages::testing {

template <class Backend>
constexpr link_transport transport_of =
    std::is_same_v<Backend, tcp_backend> ? link_transport::tcp : link_transport::shm;

/// The bytes of an object on the wire.
template <class T>
bytes_view bytes_of(const T& object) {
  return std::as_bytes(std::span(&object, 1));
}

/// One end of a door, driven by the test's own thread: it knows the protocol and need not keep to
/// it. Over shared memory it has a worker of UCX, with which it hears and may speak.
class stranger {
 public:
  stranger(link_transport transport, const std::string& address, const cluster_secret& secret = {})
      : stranger(transport, plain_socket(address), handshake::role::connects, secret) {}
  /// The end of a connection that stands.
  stranger(link_transport transport, plain_socket socket, handshake::role mine,
           const cluster_secret& secret = {})
      : transport_(transport),
        socket_(std::move(socket)),
        handshake_(std::make_unique<handshake>(mine, share_of(secret))) {}
  stranger(stranger&&) = delete;

  // Before the keys
  [[nodiscard]] wire::handshake_message hello() const { return handshake_->hello(); }
  void say(const wire::handshake_message& message) { socket_.say(bytes_of(message)); }
  bool say_bytes(bytes_view bytes) { return socket_.say(bytes); }

  /// The next message of a handshake that comes.
  wire::handshake_message hear_one() {
    wire::handshake_message out;
    REQUIRE(work_until([&] { return input_.size() >= sizeof(out); }));
    std::memcpy(&out, input_.data(), sizeof(out));
    input_.erase(input_.begin(), input_.begin() + sizeof(out));
    return out;
  }

  /// What the handshake says to a message, if anything.
  std::optional<wire::handshake_message> take(const wire::handshake_message& theirs) {
    auto said = handshake_->take(bytes_of(theirs)).value();
    if (handshake_->done()) {
      const connection_keys& keys = handshake_->keys();
      seals_ = std::make_unique<session>(keys.session, keys.signing, keys.verifying);
      sealer_ =
          std::make_unique<record::cipher>(keys.sending, record::cipher::use::seals, keys.cipher);
      opener_ =
          std::make_unique<record::cipher>(keys.receiving, record::cipher::use::opens, keys.cipher);
    }
    return said;
  }
  wire::handshake_message answer() { return take(hear_one()).value(); }

  /// Proves itself; nothing is sealed yet. Returns all it said.
  std::vector<wire::handshake_message> prove() {
    std::vector<wire::handshake_message> said = {hello()};
    say(said.back());
    said.push_back(answer());
    say(said.back());
    REQUIRE_FALSE(take(hear_one()).has_value());
    return said;
  }

  /// Becomes a peer.
  std::vector<wire::handshake_message> join() {
    auto said = prove();
    if (transport_ == link_transport::shm)
      ucx_ = std::make_unique<ucx_side>(
          [this](unsigned id, bytes_view header, bytes_view data) { note(id, header, data); });
    say_address(ucx_ ? ucx_->address() : std::vector<std::byte>());
    REQUIRE(work_until([this] { return their_address_.has_value(); }));
    if (!ucx_) return said;
    // A peer that is told a UCX address answers with its own.
    REQUIRE(work_until([this] { return their_address_->size() > ucx_side::sample_bytes; }));
    ucx_->reach(*their_address_);
    return said;
  }

  // Sealed
  session& keys() { return *seals_; }

  /// The next record, sealed and not sent.
  std::vector<std::byte> sealed(record::kind what, bytes_view content) {
    std::vector<std::byte> out(content.size() + record::overhead_bytes);
    sealer_->seal(what, content, out.data());
    return out;
  }
  bool say_record(record::kind what, bytes_view content) {
    return socket_.say(sealed(what, content));
  }

  /// What the records of a message have in them.
  static std::vector<std::byte> message_of(bytes_view header, bytes_view data) {
    const auto header_bytes = static_cast<std::uint32_t>(header.size());
    const bytes_view length = bytes_of(header_bytes);
    std::vector<std::byte> out(length.begin(), length.end());
    out.insert(out.end(), header.begin(), header.end());
    out.insert(out.end(), data.begin(), data.end());
    return out;
  }

  /// Says a message as its header says that it is, through the door or by way of UCX.
  void say_message(bytes_view header, bytes_view data = {}, int handed = -1) {
    const auto id = static_cast<unsigned>(header.front());
    if (speaks_ucx) return ucx_->say(id, header, data);
    const std::vector<std::byte> content = message_of(header, data);
    bytes_view left = content;
    std::vector<std::byte> all;
    do {
      const auto part = left.first(std::min(left.size(), record::most_bytes));
      left = left.subspan(part.size());
      const auto one = sealed(left.empty() ? record::kind::last : record::kind::more, part);
      all.insert(all.end(), one.begin(), one.end());
    } while (!left.empty());
    socket_.say(all, handed);
  }
  template <class Header>
  void say(const Header& header, bytes_view data) {
    say_message(bytes_of(header), data);
  }
  template <class Header>
  void seal_and_say(Header header, bytes_view covered, bytes_view data) {
    keys().sign(header, covered);
    say(header, data);
  }

  void say_address(bytes_view address) { seal_and_say(wire::address_prefix{}, address, address); }
  /// A frame's head.
  void say_frame(const wire::frame_prefix& prefix, bytes_view data) {
    const std::size_t covered = prefix.header_bytes + prefix.loans * sizeof(wire::loan);
    seal_and_say(prefix, data.first(std::min(covered, data.size())), data);
  }
  void say_bundle(const wire::bundle_prefix& prefix, bytes_view data) {
    seal_and_say(prefix, data, data);
  }
  /// Announces a chunk; its bytes are said apart.
  void say_chunk(const wire::chunk_prefix& prefix) { seal_and_say(prefix, {}, {}); }
  void say_memory(wire::memory_message message, int handed = -1) {
    keys().sign(message);
    say_message(bytes_of(message), {}, handed);
  }
  void say_returns(const std::vector<std::uint64_t>& loans) {
    const auto data = std::as_bytes(std::span(loans));
    seal_and_say(wire::returns_prefix{}, data, data);
  }

  // What it hears
  std::vector<wire::loan> hear_loans() {
    REQUIRE(work_until([this] { return !lent_.empty(); }));
    return std::exchange(lent_, {});
  }
  std::vector<std::uint64_t> hear_returns() {
    REQUIRE(work_until([this] { return !returned_.empty(); }));
    return std::exchange(returned_, {});
  }
  /// The next record as it came.
  std::vector<std::byte> hear_record() {
    REQUIRE(work_until([this] { return !records_.empty(); }));
    return std::exchange(records_, {}).front();
  }
  /// The reason with which the other side has closed, as it said it.
  [[nodiscard]] const std::string& farewell() const { return farewell_; }
  [[nodiscard]] bool is_over() const { return socket_.is_over(); }
  [[nodiscard]] ucx_side& ucx() { return *ucx_; }
  [[nodiscard]] int fd() const { return socket_.fd(); }
  void leave() { socket_.close(); }

  /// Listens until something holds; false when it does not in time.
  template <class Condition>
  bool work_until(Condition holds) {
    const auto start = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - start < bound) {
      if (holds()) return true;
      work();
    }
    return holds();
  }
  /// Listens until something has come into the mailbox.
  template <class T>
  T await(mailbox<T>& box) {
    REQUIRE(work_until([&] { return !box.stays_empty(1ms); }));
    return box.next();
  }

  bool speaks_ucx = false;  ///< Say messages by way of UCX.

 private:
  static key_share share_of(const cluster_secret& secret) {
    std::array<std::byte, 64> random;
    fill_random(random);
    return key_share::make(secret.bytes(), random);
  }

  void work() {
    if (ucx_ && ucx_->work()) return;
    socket_.hear(input_, 1);
    while (opener_ && take_record()) {
    }
  }

  bool take_record() {
    if (input_.size() < record::overhead_bytes || refuses_in_plain()) return false;
    const auto head = record::read_head(std::span(input_).first<record::head_bytes>()).value();
    const std::size_t bytes = head.bytes + record::overhead_bytes;
    if (input_.size() < bytes) return false;
    records_.emplace_back(input_.begin(), input_.begin() + static_cast<std::ptrdiff_t>(bytes));
    std::vector<std::byte> content(head.bytes);
    REQUIRE(opener_->open(records_.back(), content.data()));
    input_.erase(input_.begin(), input_.begin() + static_cast<std::ptrdiff_t>(bytes));
    if (head.what == record::kind::body) return true;
    message_.insert(message_.end(), content.begin(), content.end());
    if (head.what == record::kind::last) take_message(std::exchange(message_, {}));
    return true;
  }

  /// Who was not convinced refuses without keys, whatever keys this side has.
  [[nodiscard]] bool refuses_in_plain() const {
    return std::memcmp(input_.data(), &wire::wire_magic, sizeof(wire::wire_magic)) == 0;
  }

  void take_message(const std::vector<std::byte>& message) {
    std::uint32_t header_bytes = 0;
    std::memcpy(&header_bytes, message.data(), sizeof(header_bytes));
    const auto rest = bytes_view(message).subspan(sizeof(header_bytes));
    note(static_cast<unsigned>(rest.front()), rest.first(header_bytes), rest.subspan(header_bytes));
  }

  void note(unsigned id, bytes_view header, bytes_view data) {
    const auto text = [&] {
      return std::string(reinterpret_cast<const char*>(data.data()), data.size());
    };
    if (id == wire::address_id) their_address_.emplace(data.begin(), data.end());
    if (id == wire::farewell_id) farewell_ = text();
    if (id == wire::frame_id) {
      wire::frame_prefix prefix;
      std::memcpy(&prefix, header.data(), sizeof(prefix));
      append(lent_, data.subspan(prefix.header_bytes, prefix.loans * sizeof(wire::loan)));
    }
    if (id == wire::returns_id) append(returned_, data);
  }

  template <class T>
  static void append(std::vector<T>& to, bytes_view data) {
    const std::size_t before = to.size();
    to.resize(before + data.size() / sizeof(T));
    std::memcpy(to.data() + before, data.data(), data.size());
  }

  const link_transport transport_;
  plain_socket socket_;
  std::unique_ptr<handshake> handshake_;
  std::unique_ptr<session> seals_;
  std::unique_ptr<record::cipher> sealer_;
  std::unique_ptr<record::cipher> opener_;
  std::vector<std::byte> input_;
  std::vector<std::byte> message_;
  std::vector<std::vector<std::byte>> records_;
  std::optional<std::vector<std::byte>> their_address_;
  std::string farewell_;
  std::vector<wire::loan> lent_;
  std::vector<std::uint64_t> returned_;
  std::unique_ptr<ucx_side> ucx_;
};

}  // namespace troupe::messages::testing
