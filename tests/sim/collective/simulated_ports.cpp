#include "tests/sim/collective/simulated_ports.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>

#include <condition_variable>
#include <deque>
#include <optional>
#include <random>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/collective/tree.hpp"

namespace troupe::tests {
namespace {

using engine::collective;
using engine::collective_operation;
using engine::collective_port;
using clock_type = std::chrono::steady_clock;

/// What a message belongs to: for all ranks the group and the place in it; between two ranks the
/// number of what one sent the other.
struct channel {
  bool to_one = false;
  std::uint64_t number = 0;
  std::size_t place = 0;

  auto operator<=>(const channel&) const = default;
};

struct message {
  std::uint32_t from = 0, to = 0;
  channel on;
  at::Tensor data;  // a copy
};

at::Tensor flat(const at::Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1});
}

at::Tensor block(const at::Tensor& whole, std::uint32_t which, std::uint32_t ranks) {
  const auto each = whole.numel() / ranks;
  return flat(whole).narrow(0, each * which, each);
}

/// An operation of one rank under way.
struct running {
  collective_operation what;
  channel on;
  bool has_sent = false;
  bool is_over = false;
};

struct group {
  std::vector<collective_operation> asked;
  collective_port::done ended;
  clock_type::time_point due;
  std::optional<error> refused = std::nullopt;
  std::vector<running> operations = {};
  bool begun = false;
  collective_port::started told_of_begin = {};
};

/// What one rank knows.
struct member {
  std::deque<group> groups;  // the first is under way
  std::map<std::pair<channel, std::uint32_t>, at::Tensor> inbox;
  std::uint64_t groups_begun = 0;
  std::map<std::uint32_t, std::uint64_t> sent, received;  // by rank, between two
  std::optional<error> lost, broken;
  bool dead = false;
};

}  // namespace

/// All ranks of a group. Its thread takes one turn after the other; what a turn does is drawn.
class simulated_world {
 public:
  simulated_world(std::uint32_t ranks, simulated_terms how)
      : how_(how), draw_(how.seed), members_(ranks), thread_([this] { run(); }) {}
  simulated_world(const simulated_world&) = delete;
  simulated_world& operator=(const simulated_world&) = delete;
  ~simulated_world() {
    {
      const std::scoped_lock lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  [[nodiscard]] std::uint32_t ranks() const { return static_cast<std::uint32_t>(members_.size()); }

  void submit(std::uint32_t rank, std::vector<collective_operation> asked,
              collective_port::done ended, collective_port::started begun) {
    group made{.asked = {}, .ended = std::move(ended), .due = clock_type::now() + how_.deadline};
    made.told_of_begin = std::move(begun);
    for (const auto& each : asked)
      if (auto sound = engine::check(each, rank, ranks()); !sound && !made.refused)
        made.refused = sound.error();
    if (!made.refused) made.asked = std::move(asked);
    change([&] { members_[rank].groups.push_back(std::move(made)); });
  }
  void lose(std::uint32_t rank, error why) {
    change([&] {
      if (!members_[rank].lost) members_[rank].lost = std::move(why);
    });
  }
  void kill(std::uint32_t rank) {
    change([&] { members_[rank].dead = true; });
  }
  /// Until its end no callback of the rank is under way any more.
  void leave(std::uint32_t rank) {
    lose(rank, {errc::cancelled, "the communicator was given up"});
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [&] { return members_[rank].groups.empty() || members_[rank].dead; });
  }
  [[nodiscard]] std::uint64_t messages() {
    const std::scoped_lock lock(mutex_);
    return arrived_;
  }

 private:
  template <class Body>
  void change(const Body& body) {
    {
      const std::scoped_lock lock(mutex_);
      body();
    }
    changed_.notify_all();
  }

  void run() {
    const at::NoGradGuard unrecorded;
    std::unique_lock lock(mutex_);
    while (!closing_)
      if (!turn(lock)) changed_.wait_for(lock, std::chrono::milliseconds(5));
  }

  /// One message arrives, or one rank gets on. False: nothing can be done.
  bool turn(std::unique_lock<std::mutex>& lock) {
    const auto choices = under_way_.size() + members_.size();
    const auto first = std::uniform_int_distribution<std::size_t>(0, choices - 1)(draw_);
    for (std::size_t i = 0; i < choices; ++i) {
      const auto choice = (first + i) % choices;
      if (choice < under_way_.size()) {
        arrive(choice);
        return true;
      }
      if (get_on(static_cast<std::uint32_t>(choice - under_way_.size()), lock)) return true;
    }
    return false;
  }

  void arrive(std::size_t which) {
    auto one = std::move(under_way_[which]);
    under_way_.erase(under_way_.begin() + static_cast<std::ptrdiff_t>(which));
    ++arrived_;
    if (!members_[one.from].dead) members_[one.to].inbox[{one.on, one.from}] = std::move(one.data);
  }

  bool get_on(std::uint32_t rank, std::unique_lock<std::mutex>& lock) {
    auto& self = members_[rank];
    if (self.dead || self.groups.empty()) return false;
    auto& oldest = self.groups.front();
    if (self.lost && !self.broken) self.broken = self.lost;
    if (!self.broken && !oldest.refused && clock_type::now() > oldest.due)
      self.broken = error{errc::timed_out, "a group of rank " + std::to_string(rank) +
                                               " is not done in time: another rank is missing"};
    if (oldest.refused) return end(rank, tl::unexpected(*oldest.refused), lock);
    if (self.broken) return end(rank, tl::unexpected(*self.broken), lock);
    if (!std::exchange(oldest.begun, true)) begin(self, oldest, lock);
    bool did_some = false;
    bool all = true;
    for (auto& each : oldest.operations) {
      did_some |= advance(rank, each);
      all &= each.is_over;
    }
    return all ? end(rank, {}, lock) : did_some;
  }

  void begin(member& self, group& oldest, std::unique_lock<std::mutex>& lock) {
    const auto number = self.groups_begun++;
    for (std::size_t i = 0; i < oldest.asked.size(); ++i) {
      const auto& what = oldest.asked[i];
      channel on{.number = number, .place = i};
      if (what.what == collective::send) on = {true, self.sent[what.peer]++, 0};
      if (what.what == collective::receive) on = {true, self.received[what.peer]++, 0};
      oldest.operations.push_back({what, on});
    }
    if (!oldest.told_of_begin) return;
    lock.unlock();
    oldest.told_of_begin();
    lock.lock();
  }

  bool end(std::uint32_t rank, const result<void>& how, std::unique_lock<std::mutex>& lock) {
    auto over = std::move(members_[rank].groups.front());
    const auto ended = std::move(over.ended);
    over = {};  // lets go of its tensors
    members_[rank].groups.front().due = clock_type::time_point::max();
    lock.unlock();
    ended(how);
    lock.lock();
    members_[rank].groups.pop_front();
    idle_.notify_all();
    return true;
  }

  void send(std::uint32_t from, std::uint32_t to, const channel& on, const at::Tensor& data) {
    under_way_.push_back({from, to, on, flat(data).clone()});
  }

  void send_all(std::uint32_t rank, const running& one) {
    const auto& [what, from, to, peer] = one.what;
    for (std::uint32_t other = 0; other < ranks(); ++other) {
      if (other == rank) continue;
      const bool to_peer = what == collective::send || what == collective::reduce;
      if (to_peer && other != peer) continue;
      if (what == collective::receive || (what == collective::broadcast && rank != peer)) continue;
      send(rank, other, one.on,
           what == collective::reduce_scatter ? block(from, other, ranks()) : from);
    }
  }

  /// Which ranks' messages an operation waits for.
  [[nodiscard]] std::vector<std::uint32_t> awaited(std::uint32_t rank, const running& one) const {
    const auto& [what, from, to, peer] = one.what;
    if (what == collective::send) return {};
    const bool from_one = what == collective::receive || what == collective::broadcast;
    if (from_one) return peer == rank ? std::vector<std::uint32_t>() : std::vector{peer};
    std::vector<std::uint32_t> all;
    if (what == collective::reduce && peer != rank) return all;
    for (std::uint32_t other = 0; other < ranks(); ++other)
      if (other != rank) all.push_back(other);
    return all;
  }

  bool advance(std::uint32_t rank, running& one) {
    if (one.is_over) return false;
    if (!one.has_sent) {
      one.has_sent = true;
      send_all(rank, one);
      return true;
    }
    auto& inbox = members_[rank].inbox;
    const auto from = awaited(rank, one);
    for (const auto other : from)
      if (!inbox.contains({one.on, other})) return false;
    std::vector<at::Tensor> parts(ranks());
    for (const auto other : from) {
      const auto found = inbox.find({one.on, other});
      parts[other] = std::move(found->second);
      inbox.erase(found);
    }
    write(rank, one.what, std::move(parts));
    one.is_over = true;
    return true;
  }

  /// `parts`: what other ranks sent, by rank.
  void write(std::uint32_t rank, const collective_operation& one, std::vector<at::Tensor> parts) {
    const auto& [what, from, to, peer] = one;
    if (what == collective::send || (what == collective::reduce && rank != peer)) return;
    if (what == collective::receive) return void(flat(to).copy_(parts[peer]));
    if (what == collective::broadcast)
      return void(flat(to).copy_(rank == peer ? flat(from).clone() : parts[peer]));
    parts[rank] = (what == collective::reduce_scatter ? block(from, rank, ranks()) : flat(from));
    if (what == collective::all_gather) {
      for (std::uint32_t other = 0; other < ranks(); ++other)
        block(to, other, ranks()).copy_(parts[other]);
      return;
    }
    flat(to).copy_(engine::tree_sum(std::move(parts), [](const auto& left, const auto& right) {
      return at::add(left, right);
    }));
  }

  const simulated_terms how_;
  std::mt19937_64 draw_;  // as all below, under the mutex
  std::mutex mutex_;
  std::condition_variable changed_, idle_;
  std::vector<member> members_;
  std::vector<message> under_way_;
  std::uint64_t arrived_ = 0;
  bool closing_ = false;
  std::thread thread_;
};

namespace {

class simulated_port final : public collective_port {
 public:
  simulated_port(std::shared_ptr<simulated_world> in, std::uint32_t rank)
      : in_(std::move(in)), rank_(rank) {}
  simulated_port(const simulated_port&) = delete;
  simulated_port& operator=(const simulated_port&) = delete;
  ~simulated_port() override { in_->leave(rank_); }

  [[nodiscard]] std::uint32_t rank() const noexcept override { return rank_; }
  [[nodiscard]] std::uint32_t ranks() const noexcept override { return in_->ranks(); }
  using collective_port::submit;
  void submit(std::vector<collective_operation> group, done ended, started begun) override {
    in_->submit(rank_, std::move(group), std::move(ended), std::move(begun));
  }
  void lose(error why) override { in_->lose(rank_, std::move(why)); }

 private:
  const std::shared_ptr<simulated_world> in_;
  const std::uint32_t rank_;
};

}  // namespace

result<std::string> simulated_maker::library_for(c10::Device on) const {
  if (on.is_cpu()) return "the simulation of tests";
  return fail(errc::transport_missing, "the simulation of tests knows the CPU only");
}

result<std::string> simulated_maker::invite(std::uint32_t ranks, engine::socket_reach /*sockets*/,
                                            c10::Device /*on*/) const {
  const std::scoped_lock lock(mutex_);
  const auto name = "world-" + std::to_string(worlds_.size());
  auto terms = how_;
  terms.seed += worlds_.size();
  worlds_[name] = std::make_shared<simulated_world>(ranks, terms);
  return name;
}

result<std::shared_ptr<collective_port>> simulated_maker::join(
    const engine::collective_place& place) const {
  const std::scoped_lock lock(mutex_);
  const auto found = worlds_.find(place.invitation);
  if (found == worlds_.end()) return fail(errc::bad_frame, "no such group: " + place.invitation);
  return std::make_shared<simulated_port>(found->second, place.rank);
}

void simulated_maker::kill(const std::string& invitation, std::uint32_t rank) const {
  const std::scoped_lock lock(mutex_);
  worlds_.at(invitation)->kill(rank);
}

std::uint64_t simulated_maker::messages() const {
  const std::scoped_lock lock(mutex_);
  std::uint64_t all = 0;
  for (const auto& [name, world] : worlds_) all += world->messages();
  return all;
}

}  // namespace troupe::tests
