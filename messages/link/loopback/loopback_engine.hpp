#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "messages/codec/codec.hpp"
#include "messages/link/listeners.hpp"
#include "messages/link/loopback/loopback.hpp"
#include "messages/link/wire/event_queue.hpp"

namespace troupe::messages {

/// What a loopback link's own thread and the links of its peers share. Any thread. No two locks are
/// held at once but in `join`, and none while calling strangers.
class loopback_engine : public std::enable_shared_from_this<loopback_engine> {
 public:
  loopback_engine(link_events events, limits bounds)
      : events_(std::move(events)), bounds_(bounds) {}

  /// Connects two links; both are told. False if one of them has ended.
  static bool join(const std::shared_ptr<loopback_engine>& from,
                   const std::shared_ptr<loopback_engine>& to, link::connected done);

  void send(peer_id to, frame message, link::completion done);
  void close(peer_id which, const error& reason);
  void refuse(link::connected done, error why);
  void post(std::function<void()> what);

  /// Delivers until `stop`, then completes what is in flight.
  void run();
  void stop();

  [[nodiscard]] const link_counters& counters() const { return counters_; }

 private:
  struct peer {
    std::weak_ptr<loopback_engine> other;
    peer_id id_there;
    bool closing = false;
  };
  struct pending_send {
    peer_id to;
    std::uint64_t bytes = 0;
    link::completion done;
  };
  struct up {
    peer_id which;
  };
  struct arrival {
    peer_id from;
    encoded_header header;
    std::vector<wire_tensor> tensors;
    std::weak_ptr<loopback_engine> sender;
    std::uint64_t ticket = 0;  // of the sender's pending send
  };
  struct farewell {  // the peer closes
    peer_id from;
    error reason;
  };
  struct down {
    peer_id which;
    error why;
  };
  template <class T>
  struct outcome {
    std::function<void(result<T>)> done;
    result<T> how;
  };
  using completed = outcome<void>;
  using connected = outcome<peer_id>;
  using posted = std::function<void()>;
  using item = std::variant<up, arrival, farewell, down, completed, connected, posted>;

  // Called by other links' threads:
  bool deposit(arrival what, bool control);
  bool say_farewell(farewell what);
  void delivered(std::uint64_t ticket, std::uint64_t bytes);
  void lose(peer_id which, const error& why) { remove(which, why); }

  std::optional<item> take();
  void tell(up& what);
  void tell(arrival& what);
  void tell(farewell& what);
  void tell(down& what);
  template <class T>
  void tell(outcome<T>& what) {
    if (what.done) what.done(std::move(what.how));
  }
  void tell(posted& what) { what(); }
  void drop(peer_id which, const error& why);
  std::optional<peer> remove(peer_id which, const error& why);
  void cancel_all();
  void put(std::deque<item>& queue, item what);

  const link_events events_;
  const limits bounds_;
  link_counters counters_;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopped_ = false;
  std::uint64_t next_peer_ = 1;
  std::uint64_t next_ticket_ = 1;
  std::map<std::uint64_t, peer> peers_;
  std::map<std::uint64_t, pending_send> sends_;  // by ticket
  std::deque<item> urgent_;    // control frames and all that must come before data
  std::deque<item> ordinary_;  // data frames, and what must come after them
};

/// The listeners of a network.
class loopback_network::state {
 public:
  result<std::string> add(const std::string& address,
                          const std::shared_ptr<loopback_engine>& engine) {
    const std::lock_guard lock(mutex_);
    return listeners_.add(address, engine);
  }
  void remove(const std::string& address) {
    const std::lock_guard lock(mutex_);
    listeners_.remove(address);
  }
  std::shared_ptr<loopback_engine> find(const std::string& address) {
    const std::lock_guard lock(mutex_);
    return listeners_.find(address);
  }

 private:
  std::mutex mutex_;
  listeners<loopback_engine> listeners_;
};

}  // namespace troupe::messages
