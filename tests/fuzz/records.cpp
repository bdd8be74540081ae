// What comes through a door: bytes before the handshake is done, and after it records, sealed as
// they must be or not, with any messages in them. Drives the carrier and the connection that ship.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "messages/codec/codec.hpp"
#include "messages/link/door/door_carrier.hpp"
#include "messages/link/wire/connection.hpp"
#include "tests/fuzz/target.hpp"

namespace troupe::fuzz {
namespace {

using namespace messages;
using clock = connection::clock;

/// Always the same one for the same filler.
key_share share_of(std::byte filler) {
  std::array<std::byte, 64> random;
  random.fill(filler);
  return key_share::make({}, random);
}

const key_share& ours() {
  static const key_share made = share_of(std::byte{1});
  return made;
}

template <class T>
std::string raw(const T& value) {
  return text_of(std::as_bytes(std::span(&value, 1)));
}

/// What the other side says to us until it has proved itself, and the keys of that.
struct proved {
  proved() {
    handshake accepting(handshake::role::accepts, ours());
    handshake connecting(handshake::role::connects, share_of(std::byte{2}));
    wire::handshake_message last = connecting.hello();
    for (int i = 0; i < 4; ++i) {
      if (i % 2 == 0) said += raw(last);
      const auto answer = (i % 2 == 0 ? accepting : connecting).take(bytes_of(raw(last)));
      require(answer.has_value(), "an honest handshake goes through");
      if (*answer) last = **answer;
    }
    keys = connecting.keys();
  }

  std::string said;
  connection_keys keys;
};

const proved& recorded() {
  static const proved made;
  return made;
}

/// The side that accepts, with a socket into it.
class door_side {
 public:
  door_side() {
    std::array<int, 2> ends{};
    require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) == 0,
            "there are sockets");
    far_ = descriptor(ends[0]);
    by_.emplace(door::door_carrier::waiting_room{epoll(), 1}, options_.bounds,
                door::visitor{descriptor(ends[1]), "a stranger", "here", 0, false});
    core_.emplace(peer_id{1}, "a stranger", connection::role::accepts, *by_, shared_);
    by_->serve(*core_);
    core_->accept(now_ + std::chrono::seconds(5), ours());
  }
  ~door_side() {
    core_->cancel();
    events_.tell();
    require(counters_.peers == 0, "a peer that is gone is not counted");
  }
  door_side(const door_side&) = delete;
  door_side& operator=(const door_side&) = delete;

  void hear(std::string_view bytes) {
    while (!bytes.empty()) {
      const auto sent = ::send(far_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent > 0) bytes.remove_prefix(static_cast<std::size_t>(sent));
      if (!work() && sent <= 0) return;  // it takes no more
    }
    while (work()) {
    }
  }
  void end() {
    far_.reset();
    for (int i = 0; i < 4; ++i) work();
  }

  int ups = 0;
  int downs = 0;
  int frames = 0;

  [[nodiscard]] std::uint64_t bad() const { return counters_.bad_macs + counters_.bad_frames; }
  [[nodiscard]] bool is_done() const { return core_->is_gone(); }

 private:
  static int epoll() {
    static const descriptor made(::epoll_create1(EPOLL_CLOEXEC));
    return made.get();
  }

  link_events listen() {
    link_events out;
    out.on_peer_up = [this](peer_id) { ++ups; };
    out.on_frame = [this](peer_id, const frame& message) {
      ++frames;
      require(ups == 1 && downs == 0, "frames come between up and down");
      for (const wire_tensor& each : message.tensors) {
        require(each.bytes.bytes == 0 || each.bytes.data != nullptr, "a tensor has its bytes");
        require(!each.bytes.read_only, "nothing is borrowed through a door alone");
      }
    };
    out.on_peer_down = [this](peer_id, const error& why) {
      ++downs;
      require(ups == 1 && downs == 1 && !why.text.empty(), "down is told once, after up");
    };
    return out;
  }

  /// One turn of the link's thread; what we say is thrown away.
  bool work() {
    std::array<char, 4096> waste;
    while (far_ && ::recv(far_.get(), waste.data(), waste.size(), 0) > 0) {
    }
    bool moved = !core_->is_gone() && by_->progress(true, true);
    std::vector<connection*> due;
    due.swap(attention_);
    for (connection* const each : due) each->act(now_);
    if (!due.empty() && !core_->is_gone()) moved |= by_->progress(false, false);
    return (moved | events_.tell()) && !core_->is_gone();
  }

  static link_options small() {
    link_options out;
    out.bounds.header_bytes = 4096;
    out.bounds.tensor_bytes = 1 << 20;
    out.bounds.held_bytes = 1 << 16;
    return out;
  }

  const link_options options_ = small();
  buffer_pool pool_{1 << 20};
  link_counters counters_;
  event_queue events_{listen()};
  std::vector<connection*> attention_;
  const connection_shared shared_{options_,
                                  pool_,
                                  counters_,
                                  events_,
                                  attention_,
                                  nullptr,
                                  std::make_shared<return_desk>([](peer_id, std::uint64_t) {}),
                                  [] { return ours(); }};
  const clock::time_point now_ = clock::now();
  descriptor far_;
  std::optional<door::door_carrier> by_;
  std::optional<connection> core_;
};

/// Says what a script has the other side say.
class speaker {
 public:
  explicit speaker(door_side& to) : to_(to) {
    const connection_keys& keys = recorded().keys;
    seals_ = std::make_unique<session>(keys.session, keys.signing, keys.verifying);
    cipher_ = std::make_unique<record::cipher>(keys.sending, record::cipher::use::seals);
  }

  // A script: bytes as they are (0); a record (1); a message of one record (2), and the same with
  // its header sealed, over all its data (3) or what is before its last bytes (4).
  void step(reader& in) {
    const std::size_t kind = in.number() % 5;
    if (kind == 0) return to_.hear(text_of(in.bytes(in.number(2))));
    if (kind == 1) {
      const auto what = static_cast<record::kind>(1 + in.number() % 3);
      return say(what, text_of(in.bytes(in.number(2) % (record::most_bytes + 1))));
    }
    std::string header = text_of(in.bytes(in.number()));
    const std::string data = text_of(in.bytes(in.number(2)));
    const std::size_t open = kind == 4 ? in.number(2) : 0;
    if (kind > 2) sign(header, data.substr(0, data.size() - std::min(open, data.size())));
    const auto length = static_cast<std::uint32_t>(header.size());
    say(record::kind::last, (raw(length) + header + data).substr(0, record::most_bytes));
  }

 private:
  void say(record::kind what, const std::string& content) {
    std::vector<std::byte> whole(content.size() + record::overhead_bytes);
    cipher_->seal(what, bytes_of(content), whole.data());
    to_.hear(text_of(whole));
  }

  void sign(std::string& header, const std::string& data) {
    switch (header.size()) {
      case sizeof(wire::frame_prefix):  // and those of chunks and memory
        return sign_as<wire::frame_prefix>(header, data);
      case sizeof(wire::bundle_prefix):
        return sign_as<wire::bundle_prefix>(header, data);
      case sizeof(wire::returns_prefix):  // and that of addresses
        return sign_as<wire::returns_prefix>(header, data);
      case sizeof(wire::farewell):
        return sign_as<wire::farewell>(header, data);
      default:
        return;
    }
  }
  template <class Header>
  void sign_as(std::string& header, const std::string& data) {
    Header out;
    std::memcpy(&out, header.data(), sizeof(out));
    seals_->sign(out, bytes_of(data));
    std::memcpy(header.data(), &out, sizeof(out));
  }

  door_side& to_;
  std::unique_ptr<session> seals_;
  std::unique_ptr<record::cipher> cipher_;
};

template <class Header>
std::string message(const Header& header, const std::string& data = "", std::size_t open = 0) {
  const std::string kind = open > 0 ? "\4" : "\3";
  std::string out = kind + static_cast<char>(sizeof(header)) + raw(header) +
                    raw(static_cast<std::uint16_t>(data.size())) + data;
  if (open > 0) out += raw(static_cast<std::uint16_t>(open));
  return out;
}

std::string body(std::size_t bytes) {
  return "\1\2" + raw(static_cast<std::uint16_t>(bytes)) + std::string(bytes, 'b');
}

/// A frame with a tensor that comes with it and one that comes after it.
std::string frame_and_chunk() {
  constexpr std::size_t large = 9000;
  static std::array<std::byte, large> storage;
  frame said;
  for (const std::size_t bytes : {std::size_t{100}, large}) {
    said.tensors.push_back({{dtype::u8, {static_cast<std::int64_t>(bytes)}, {1}, {}},
                            {storage.data(), bytes, nullptr}});
  }
  const auto header = encode(said).value();
  const wire::frame_prefix prefix{.lane = static_cast<std::uint8_t>(said.lane),
                                  .header_bytes = static_cast<std::uint32_t>(header.size()),
                                  .inline_max = 8192,
                                  .inline_bytes = 100,
                                  .chunk_bytes = wire::least_chunk_bytes};
  const wire::chunk_prefix chunk{.lane = prefix.lane, .tensor = 1, .bytes = large};
  return message(prefix, text_of(header) + std::string(100, 't'), 100) + message(chunk) +
         body(large);
}

}  // namespace

// The first byte says whether the other side has proved itself; then a script, or bytes.
std::vector<std::string> seeds() {
  const std::string up = "\1" + message(wire::address_prefix{});
  return {
      std::string(1, '\0') + recorded().said,
      std::string(1, '\0') + recorded().said.substr(0, 100),
      up + frame_and_chunk(),
      up + message(wire::farewell{}, "enough said"),
      up + message(wire::memory_message{.kind = 1}) + message(wire::memory_message{.kind = 2}),
      up + message(wire::returns_prefix{}, std::string(16, 'r')) + std::string("\0\5\0hello", 8),
      up + "\1" + std::string(1, '\0') + std::string("\4\0more", 6) + frame_and_chunk()};
}

void run(std::span<const std::byte> input) {
  reader in(input);
  door_side side;
  if (in.number() % 2 == 0) {
    side.hear(text_of(in.bytes(input.size())));
    require(side.ups == 0, "nobody is up who has sealed nothing");
    return side.end();
  }
  side.hear(recorded().said);
  require(!side.is_done(), "an honest handshake goes through");
  speaker says(side);
  while (!in.empty() && !side.is_done()) {
    says.step(in);
    if (side.bad() > 0) require(side.downs == side.ups, "who breaks the protocol is down");
  }
  side.end();
  require(side.ups <= 1 && side.downs == side.ups, "who leaves is down");
}

}  // namespace troupe::fuzz
