#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "actors/remote/node.hpp"
#include "messages/link/simulated/simulated.hpp"

namespace troupe::tests {

/// A simulated network under nodes that live in real time. It has one thread, in which everything
/// of it happens when its clock, which is the machine's, says so; links hand their calls over to
/// that thread. So the draws (delays, losses, repeats) are the seed's, but how many of them come
/// before a certain frame depends on how the nodes' own threads run.
///
/// Nodes' ticks come from its clock too (`timekeeper_of`), all in one moment: so that a node beats,
/// is heard and is decided on in one thread, and none is ever taken for silent because a thread got
/// no processor. What a node posts to its link runs in the order of its calls to it.
///
/// Safe from any thread. Outlives its links.
class live_network {
 public:
  /// Between two ticks of a node.
  static constexpr std::chrono::milliseconds beat{20};

  explicit live_network(const messages::simulated_options& options);
  live_network(const live_network&) = delete;
  live_network& operator=(const live_network&) = delete;
  ~live_network();

  /// Makes the link of the node of this name.
  [[nodiscard]] actors::link_factory link_of(const std::string& name, messages::limits bounds = {});

  /// Keeps the time of the node of this name, once it has its link.
  [[nodiscard]] actors::timekeeper timekeeper_of(const std::string& name);

  /// Frames that the node has sent so far, without heartbeats, which are a matter of time.
  [[nodiscard]] std::uint64_t sent_by(const std::string& name);

  /// Has `what` called, in the network's thread, when the node has sent so many of these frames.
  void when_sent(const std::string& name, std::uint64_t frames, std::function<void()> what);

  /// Nothing of that comes any more that has not come.
  void forget_plans();

  // What befalls nodes. In the network's thread.

  /// The others see its connections break; it sees all of them break, and can make no more, so that
  /// what it had under way ends and it can be cleared away.
  void crash(const std::string& name);
  /// The node neither hears nor says anything for so long; then it goes on where it was.
  void pause(const std::string& name, std::chrono::nanoseconds how_long);
  /// Nothing passes between these nodes and the others for so long.
  void part(const std::vector<std::string>& side, std::chrono::nanoseconds how_long);

  /// Ends pauses and partitions.
  void relieve();

 private:
  class place;
  class live_link;

  void run();
  void advance();
  void tick();
  void post(std::function<void()> call);
  /// Has it called in the network's thread and waits for that.
  void do_there(const std::function<void()>& what);
  [[nodiscard]] std::chrono::nanoseconds elapsed() const;
  [[nodiscard]] place& at(const std::string& name);

  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();

  // The thread's own.
  messages::simulated_network network_;
  std::map<std::string, std::shared_ptr<place>> places_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::function<void()>> calls_;
  bool ended_ = false;
  std::thread thread_;  // it uses all of the above
};

}  // namespace troupe::tests
