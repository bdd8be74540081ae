#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/collective/nccl/api.hpp"
#include "engine/collective/nccl/call_watch.hpp"
#include "engine/collective/nccl/device.hpp"
#include "engine/collective/nccl/operation.hpp"
#include "engine/collective/nccl/sockets.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine::nccl {

/// What rank 0 makes and hands to the others over a channel of their own: who holds it may join.
struct invitation {
  unique_id id{};
  int version = 0;  ///< Of rank 0's NCCL.
  int ranks = 0;
};

/// Makes one, which opens a socket of NCCL's. Errors: transport_missing where NCCL finds no network
/// interface, and as claim_sockets; handler_failed.
[[nodiscard]] result<invitation> invite(const api& library, int ranks,
                                        reach sockets = reach::loopback);

/// How long a communicator waits, each for one thing.
struct patience {
  std::chrono::milliseconds join{60'000};        ///< For all ranks to come.
  std::chrono::milliseconds operation{600'000};  ///< From the call of a group to its end.
  /// For an abort, for the close, and for any call into NCCL that is meant to return at once. Past
  /// it the process ends.
  std::chrono::milliseconds call{10'000};
};

/// What a communicator is made from.
struct terms {
  std::string name;  ///< For messages: "replicas of stage 2".
  std::shared_ptr<const api> library;
  invitation invited;
  int rank = 0;
  std::shared_ptr<device> on;
  reach sockets = reach::loopback;  ///< Claimed before it joins: see claim_sockets.
  patience waits = {};
  /// Told, on a thread of the watch, that a call into NCCL does not return: the last line of this
  /// process. Empty: logs the line and ends the process with code 1.
  std::function<void(const std::string& line)> hung = {};
};

/// What runs on the communicator's stream behind what came before it: operations that progress
/// together, or kernels.
struct stream_step {
  std::vector<operation> group = {};
  std::function<void()> kernels = {};  ///< Gives the device work on its current stream.
};

/// One rank of an NCCL communicator. Owns a thread that alone calls NCCL and the device, and a
/// watch over that thread. Groups run in the order in which they were submitted; all ranks submit
/// the same ones in the same order. After the first failure it aborts itself, and whatever is or
/// will be submitted fails with the same error. The destructor ends what was submitted, each wait
/// bounded.
class communicator {
 public:
  using done = std::function<void(const result<void>&)>;
  using started = std::function<void()>;

  /// Begins to join; `joined` is told how that went. All callbacks run on the owner thread, must
  /// not block or throw, and may submit. Throws std::system_error where no thread can be started.
  communicator(terms how, done joined);
  communicator(const communicator&) = delete;
  communicator& operator=(const communicator&) = delete;
  ~communicator();

  /// From any thread, at once. The operations of a group progress together. They wait for what the
  /// calling thread's current stream has been given before, and `ended` is told when the device has
  /// done them, or why they failed: bad_config (an operation that cannot be), peer_lost, timed_out,
  /// handler_failed, cancelled. What the operations keep is held until then. `begun`, if any, is
  /// called before, once the device has been given them all; not at all where that fails.
  void submit(std::vector<operation> group, done ended, started begun = {});

  /// The same of several steps, one after the other, of which no other submission comes between. An
  /// error is what `ended` is told, in its turn.
  void submit(result<std::vector<stream_step>> steps, done ended, started begun = {});

  /// From any thread: a rank is lost, or the run gives up. Aborts this rank's communicator; `why`
  /// is what all that is under way fails with. Only the first call counts.
  void lose(error why);

 private:
  using clock = std::chrono::steady_clock;
  struct request {
    std::vector<stream_step> steps;
    done ended;
    std::unique_ptr<mark> ready;  // what it waits for on the device
    std::optional<error> refused = std::nullopt;
    started begun = {};
  };
  struct flight {
    request of;
    std::unique_ptr<mark> end;
    clock::time_point due;
  };

  void run(const done& joined);
  result<void> join();
  result<void> await_end(const char* what, clock::time_point due);
  void serve();
  std::optional<request> next();
  void start(request asked);
  result<void> issue(const request& asked, clock::time_point due);
  result<void> issue(const std::vector<operation>& group, clock::time_point due);
  status call(const operation& one);
  status cause_of(status refusal);
  result<void> poll();
  void land(result<void> how);
  void finish();
  void break_off(error why);
  std::optional<error> loss();
  template <class Body>
  auto guard(const char* name, const Body& body);
  error failure(const char* what, status code) const;
  std::string whoami() const;
  void report_hang(const char* name, clock::duration since) const;

  const terms how_;
  communicator_handle* handle_ = nullptr;  // the owner thread's, as all up to mutex_
  std::optional<error> broken_;
  std::deque<flight> flights_;
  std::chrono::microseconds nap_{50};
  std::mutex mutex_;
  std::condition_variable woken_;
  std::deque<request> asked_;
  std::optional<error> lost_;
  bool closing_ = false;
  call_watch watch_;
  std::thread thread_;
};

}  // namespace troupe::engine::nccl
