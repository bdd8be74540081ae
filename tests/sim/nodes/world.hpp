#pragma once

#include <caf/actor_system.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/remote/node.hpp"
#include "actors/system.hpp"
#include "tests/sim/nodes/live_network.hpp"

namespace troupe::tests {

/// How long a node of a world may be silent: longer where sanitizers slow all threads down. In
/// peace it beats twenty times as often, or more.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr std::chrono::milliseconds silence{2000};
#else
inline constexpr std::chrono::milliseconds silence{400};
#endif

/// Longer than anything here may take: nothing waits for ever.
inline constexpr std::chrono::seconds patience{30};

/// What a seed draws.
class draws {
 public:
  explicit draws(std::uint64_t seed) : random_(seed) {}

  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  std::uint64_t from_to(std::uint64_t least, std::uint64_t most) {
    return least + below(most - least + 1);
  }
  bool one_in(std::uint64_t count) { return below(count) == 0; }
  template <class T>
  const T& one_of(const std::vector<T>& all) {
    return all[below(all.size())];
  }

 private:
  std::mt19937_64 random_;
};

/// Delays, repeats and sizes of pieces, which harm nobody.
[[nodiscard]] messages::simulated_options draw_network(draws& from, std::uint64_t seed);

/// What may befall a node.
enum class trouble : std::uint8_t {
  crash,
  stop,           ///< For longer than `silence`.
  hiccup,         ///< For so short a time that nobody may notice.
  parting,        ///< It is cut off from all others for longer than `silence`.
  short_parting,  ///< For as short a time as a hiccup.
  no_memory,      ///< Soon after, in whichever process.
};

struct fault {
  trouble what = trouble::crash;
  std::string whom;
  std::uint64_t frame = 1;  ///< When it has sent so many (live_network::when_sent).
  std::uint64_t block = 1;  ///< Without memory: which block after that is refused.

  /// Whether the others may count a node as lost for it.
  [[nodiscard]] bool takes_nodes() const {
    return what == trouble::crash || what == trouble::stop || what == trouble::parting;
  }
};
[[nodiscard]] std::string to_text(const std::vector<fault>& all);

/// One or two faults of nodes that in peace send so many frames.
[[nodiscard]] std::vector<fault> draw_faults(draws& from,
                                             const std::map<std::string, std::uint64_t>& sent);

/// A process of its own, but for sharing ours.
struct process {
  process(const std::string& name, live_network& network, const messages::limits& bounds);
  process(const process&) = delete;
  process& operator=(const process&) = delete;
  /// As a process ends: its actors first, of which its host ends those that it has built.
  ~process();

  /// This process's handle to what another one has published.
  template <class Handle>
  result<Handle> find(const process& other, const std::string& actor) {
    const auto there = node->join(other.node->address(), patience);
    if (!there) return tl::unexpected(there.error());
    const auto found = node->find(*there, actor, patience);
    if (!found) return tl::unexpected(found.error());
    return caf::actor_cast<Handle>(*found);
  }
  /// The nodes that it counts as lost, and why.
  [[nodiscard]] std::map<std::string, error> lost();
  /// Where it was told twice of one.
  [[nodiscard]] std::string contradiction();

  const std::string name;
  actors::system_config config;
  caf::actor_system system;
  std::unique_ptr<actors::node> node;
  caf::actor host;  ///< Ends at `shut_down`.

 private:
  std::mutex mutex_;
  std::map<std::string, error> lost_;
  std::string contradiction_;
};

/// Processes on one network, and what befalls them.
class world {
 public:
  world(const std::vector<std::string>& names, const messages::simulated_options& options);
  /// Ends all troubles, then all processes.
  ~world();

  [[nodiscard]] process& at(const std::string& name) { return *processes_.at(name); }
  [[nodiscard]] live_network& network() noexcept { return network_; }
  [[nodiscard]] std::vector<std::string> names() const;

  void plant(const std::vector<fault>& all);
  /// Nothing more of it comes, so that its outcome can be checked.
  void end_plans();
  /// The faults that happened of those, in order.
  [[nodiscard]] std::vector<fault> happened();

  /// Frames that each has sent so far.
  [[nodiscard]] std::map<std::string, std::uint64_t> sent();

  /// Whether everybody is of one mind about the dead: empty, or what is wrong.
  [[nodiscard]] std::string fault_of_losses();

 private:
  void befall(const fault& what);

  live_network network_;
  std::map<std::string, std::unique_ptr<process>> processes_;
  std::mutex mutex_;
  std::vector<fault> happened_;
};

/// What may be said of an end that some fault of these caused: empty, or what is wrong.
/// `may`: codes beside those of a lost node.
[[nodiscard]] std::string fault_of_error(const error& why, const std::vector<fault>& happened,
                                         const std::set<errc>& may = {});

/// Ends the program with what was under way when that takes too long.
class watchdog {
 public:
  explicit watchdog(std::string what);
  watchdog(const watchdog&) = delete;
  watchdog& operator=(const watchdog&) = delete;
  ~watchdog();

  void doing(const std::string& what);

 private:
  void watch();

  std::mutex mutex_;
  std::condition_variable ended_;
  std::string what_;
  std::string doing_ = "nothing yet";
  bool is_over_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace troupe::tests
