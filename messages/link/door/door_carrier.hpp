#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "messages/link/door/address.hpp"
#include "messages/link/door/listener.hpp"
#include "messages/link/door/stream.hpp"
#include "messages/link/seal/records.hpp"
#include "messages/link/wire/carrier.hpp"
#include "messages/link/wire/connection.hpp"

namespace troupe::messages::door {

/// Carries a connection over the socket at which its processes met: the handshake as it is, and
/// everything after it in sealed records. The sealed tcp transport is this and nothing more; others
/// move frames in their own way and leave the rest to it. One thread.
class door_carrier : public carrier {
 public:
  /// Where the link's thread waits for sockets (epoll).
  struct waiting_room {
    int epoll = -1;
    std::uint64_t tag = 0;  ///< What epoll is to say for this one.
  };

  /// For a connection that this side makes; for one that came in.
  door_carrier(waiting_room where, const limits& bounds, door::address to);
  door_carrier(waiting_room where, const limits& bounds, visitor from);
  ~door_carrier() override;

  /// To be called before anything else; it outlives this object but for its destructor.
  void serve(connection& whom) { connection_ = &whom; }

  /// Reads and writes what can be. Returns whether anything moved.
  bool progress();
  /// The same, with what the socket is ready for; `ended`: the other side has closed it.
  bool progress(bool readable, bool writable, bool ended = false);
  /// Whether `progress` has something to do without news from the socket.
  [[nodiscard]] bool is_pending() const;

  void dial() override;
  void send(sending& what) override;
  void receive(receiving& what) override;
  void drop(void* offered) override;
  void hang_up() override;
  [[nodiscard]] bool keeps_order() const override { return true; }
  [[nodiscard]] std::shared_ptr<borrowed_memory> open_memory(const wire::memory_message& offered,
                                                             const descriptor& handed) override;
  /// The other side's process, where it is one of this machine; else 0.
  [[nodiscard]] std::uint64_t process() const { return process_; }
  [[nodiscard]] const std::string& host() const { return host_; }

 protected:
  [[nodiscard]] connection& whom() const { return *connection_; }
  [[nodiscard]] bool is_hung_up() const { return !stream_.is_open(); }

 private:
  struct body_state {
    std::uint64_t left = 0;     // bytes to come
    std::byte* to = nullptr;    // null: thrown away, or not yet known
    receiving* what = nullptr;  // null: not yet asked for, or thrown away
    bool is_offered = false;    // the connection has yet to say where it goes
    bool saw_end = false;       // of the stream, meanwhile
  };
  struct mark {
    std::uint64_t at = 0;  // in the stream
    sending* what = nullptr;
  };

  void watch();
  [[nodiscard]] bool awaits_place() const { return body_in_ && body_in_->is_offered; }
  bool wait_for_place(bool ended);
  void tune();
  [[nodiscard]] bool dialled();
  [[nodiscard]] bool has_output() const;
  void fail_dial(const error& why);
  bool read_some();
  void parse();
  bool parse_handshake();
  bool parse_record();
  bool open_body(record::head head, std::span<const std::byte> whole);
  bool open_part(record::head head, std::span<const std::byte> whole);
  void deliver();
  void deliver_chunk(const arrived_message& what);

  bool write_some();
  void stage();
  bool stage_next();
  void stage_plain(sending& what);
  void stage_message(sending& what);
  using parts = std::span<const std::span<const std::byte>>;
  void stage_part(record::kind what, parts of);
  void stage_body();
  void tell_written();

  const waiting_room where_;
  const limits& bounds_;
  const door::address to_;  // when this side connects
  std::string host_;
  bool is_local_ = false;  // over the loopback interface
  std::uint64_t process_ = 0;
  connection* connection_ = nullptr;

  stream stream_;
  bool dialling_ = false;
  std::optional<std::uint32_t> watched_;  // what epoll tells of
  bool readable_ = false;                 // the socket may have more than we took
  bool writable_ = true;
  bool is_deaf_ = false;  // what comes has to wait until the chunk before it has a place
  std::optional<record::cipher> sealer_;
  std::optional<record::cipher> opener_;

  std::deque<sending*> small_;  // not yet staged; these go before chunks
  std::deque<sending*> chunks_;
  sending* body_out_ = nullptr;  // its bytes follow
  std::uint64_t body_offset_ = 0;
  std::deque<mark> marks_;  // staged, and not yet with the system

  std::vector<std::byte> message_;  // as much as has come
  std::optional<body_state> body_in_;
};

}  // namespace troupe::messages::door
