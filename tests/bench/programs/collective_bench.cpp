// Measures what replicas of a stage do in a step: two processes of this machine sum up gradients of
// the same parameters, by the messages and cores that a stage uses. Beside it, over shared memory,
// the rate of the memory, which both use at once; and over tcp, sealed or trusted, the rate of the
// link, on which both send at once.
//
//   collective_bench [--only shm,tcp,trusted] [--megabytes N] [--rounds N] [--json]

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <caf/all.hpp>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "actors/futures/requester.hpp"
#include "actors/messages/stage.hpp"
#include "actors/step_end/replica_sum.hpp"
#include "actors/system.hpp"
#include "actors/wire/lendable.hpp"
#include "engine/collective/tree.hpp"
#include "engine/stage/work_thread.hpp"
#include "tests/bench/programs/figures.hpp"
#include "tests/bench/programs/ucx_node.hpp"
#include "tests/flags.hpp"

namespace troupe::bench {

/// What the measured processes are told to do; each answers when it is done.
enum class deed : std::uint8_t { prepare, reduce, check, add, copy, exchange };

struct deed_order {
  deed what = deed::prepare;
  std::uint64_t step = 0;
  bool lends = false;  // from `prepare` on: the gradients and their sums

  static void fields(auto& self, auto& f) { f(self.what, self.step, self.lends); }
};

struct deed_done {
  std::string failure;  // empty: none

  static void fields(auto& self, auto& f) { f(self.failure); }
};

/// The other rank.
struct partner {
  caf::strong_actor_ptr who;

  static void fields(auto& self, auto& f) { f(self.who); }
};

}  // namespace troupe::bench

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::bench::deed_order)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::bench::deed_done)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::bench::partner)

namespace {

using namespace troupe;
using namespace troupe::bench;
using namespace std::chrono_literals;
using actors::replica_gradients;

constexpr auto patience = 60s;
constexpr std::int64_t parameter_floats = 250'000;  // 1 MB each
constexpr std::uint64_t warm_up = 3;  // rounds until pools are warm and memory is mapped
const engine::step_key no_step{};     // of what an exchange sends

struct options {
  std::vector<std::string> only{"shm", "tcp", "trusted"};
  std::uint32_t megabytes = 100;
  std::uint32_t rounds = 15;
  bool json = false;
};

messages::link_transport transport_of(const std::string& link) {
  if (link == "shm") return messages::link_transport::shm;
  return link == "tcp" ? messages::link_transport::tcp : messages::link_transport::trusted;
}

[[noreturn]] void die(const std::string& text) {
  std::fprintf(stderr, "collective_bench: %s\n", text.c_str());
  std::_Exit(1);
}

/// One rank: the part of a stage's actor that sums over replicas.
struct rank_state {
  std::uint32_t rank = 0;
  std::uint32_t parameters = 0;
  std::shared_ptr<messages::shared_memory> memory;
  bool lends = false;
  caf::actor other;
  actors::replica_sum replicas;
  engine::step_gradients gradients;
  at::Tensor source, target;  // [bytes / 2] f32, what the memory's rate is measured with
  std::unique_ptr<engine::work_thread> adding;
  std::vector<replica_gradients> loads;  // that the other rank sends in an exchange
  bool is_exchanging = false;
  caf::response_promise answer;
};
using rank_pointer = caf::stateful_actor<rank_state>*;

engine::step_key key_of(std::uint64_t step) {
  return {.epoch = {1}, .step = {step}};
}

std::vector<at::Tensor> tensors_of(engine::step_gradients gradients) {
  std::vector<at::Tensor> all;
  for (auto& each : gradients) all.push_back(std::move(each).value());
  return all;
}

/// To the other rank: an own part, or the sum of an own bucket.
void send_gradients(rank_pointer self, const engine::step_key& key, std::size_t bucket, bool summed,
                    engine::step_gradients gradients) {
  self->send(self->state.other, replica_gradients{.step = key,
                                                  .bucket = static_cast<std::uint32_t>(bucket),
                                                  .from = self->state.rank,
                                                  .summed = summed,
                                                  .gradients = tensors_of(std::move(gradients))});
}

/// Where a rank's gradients and sums are to lie; null: where tensors always do.
std::shared_ptr<messages::shared_memory> lendable_of(const rank_state& state) {
  return state.lends ? state.memory : nullptr;
}

void perform(rank_pointer self, const engine::send_part& what) {
  auto& replicas = self->state.replicas;
  send_gradients(self, what.key, what.bucket, false, replicas.take_own(what.key, what.bucket));
}

void perform(rank_pointer self, const engine::add_parts& what) {
  auto& state = self->state;
  state.adding->post([parts = state.replicas.take_parts(what.key, what.bucket), what,
                      memory = lendable_of(state),
                      to = caf::actor_cast<caf::actor>(self)]() mutable {
    const at::NoGradGuard no_grad;
    const actors::lendable_tensors lendable(memory);
    actors::replicas_added message{.step = what.key,
                                   .bucket = static_cast<std::uint32_t>(what.bucket)};
    message.sums = engine::tree_sum(std::move(parts), engine::add_each);
    caf::anon_send(to, std::move(message));
  });
}

void perform(rank_pointer self, const engine::send_sum& what) {
  const auto& replicas = self->state.replicas;
  send_gradients(self, what.key, what.bucket, true, replicas.sums_of(what.key, what.bucket, true));
}

void perform(rank_pointer /*self*/, const engine::sum_bucket& /*what*/) {
  die("a sum by a collective, which this measures nothing of");
}

void perform(rank_pointer self, const engine::send_rest& what) {
  self->send(
      self->state.other,
      actors::replica_statistics{
          .step = what.key, .from = self->state.rank, .statistics = {engine::step_statistics{}}});
}

void perform(rank_pointer self, const engine::all_reduced& what) {
  auto& state = self->state;
  state.gradients = state.replicas.take(what.key).gradients;
  state.answer.deliver(deed_done{});
}

void follow(rank_pointer self, const result<engine::all_reduce_effects>& effects) {
  if (!effects) die(effects.error().text);
  for (const auto& effect : *effects)
    std::visit([self](const auto& each) { perform(self, each); }, effect);
}

void end_exchange(rank_state& state) {
  if (!state.is_exchanging || state.loads.size() < state.replicas.core.buckets().size()) return;
  state.is_exchanging = false;
  state.loads.clear();
  state.answer.deliver(deed_done{});
}

void arrived(rank_pointer self, const replica_gradients& from) {
  auto& replicas = self->state.replicas;
  if (const auto fits = replicas.check(from); !fits) die(fits.error().text);
  if (from.step == no_step) {
    self->state.loads.push_back(from);
    return end_exchange(self->state);
  }
  const auto effects = from.summed ? replicas.core.sum_arrived(from.step, from.bucket, from.from)
                                   : replicas.core.part_arrived(from.step, from.bucket, from.from);
  if (effects) replicas.keep(from);
  follow(self, effects);
}

/// The gradients of a step, as a backward leaves them: new tensors, each touched.
void prepare(rank_state& state) {
  const actors::lendable_tensors lendable(lendable_of(state));
  state.gradients.assign(state.parameters, std::nullopt);
  for (std::uint32_t i = 0; i < state.parameters; ++i)
    state.gradients[i] =
        at::full({parameter_floats}, static_cast<double>(i + 1 + state.rank), at::kFloat);
}

std::string check(const rank_state& state) {
  for (std::uint32_t i = 0; i < state.parameters; ++i) {
    const auto& sum = state.gradients[i];
    if (!sum || !sum->eq(static_cast<double>(2 * i + 3)).all().item<bool>())
      return "rank " + std::to_string(state.rank) + " has a wrong sum of parameter " +
             std::to_string(i);
  }
  return {};
}

deed_done obey(rank_pointer self, const deed_order& order) {
  auto& state = self->state;
  const auto half = state.source.numel() / 2;
  switch (order.what) {
    case deed::prepare:
      state.lends = order.lends;
      prepare(state);
      break;
    case deed::check:
      return {check(state)};
    case deed::add: {
      const auto out = state.target.narrow(0, 0, half);
      const at::NoGradGuard no_grad;
      at::add_out(const_cast<at::Tensor&>(out), state.source.narrow(0, 0, half),
                  state.source.narrow(0, half, half));
      break;
    }
    case deed::copy:
      state.target.copy_(state.source);
      break;
    case deed::reduce:
    case deed::exchange:
      break;  // answered later
  }
  return {};
}

void reduce(rank_pointer self, const engine::step_key& key) {
  auto& state = self->state;
  state.replicas.keep_rest(key, std::exchange(state.gradients, {}), {engine::step_statistics{}});
  follow(self, state.replicas.core.complete(key));
}

/// Sends all buckets at once, until the other rank's are here. In a sum too each rank sends each
/// bucket once: as its part where the other rank owns it, else as the sum.
void exchange(rank_pointer self) {
  auto& state = self->state;
  const auto gradients = std::exchange(state.gradients, {});
  const auto& buckets = state.replicas.core.buckets();
  for (std::size_t at = 0; at < buckets.size(); ++at) {
    engine::step_gradients load;
    for (const auto i : buckets[at].parameters) load.push_back(gradients.at(i));
    send_gradients(self, no_step, at, false, std::move(load));
  }
  state.is_exchanging = true;
  end_exchange(state);
}

caf::behavior summing(rank_pointer self, std::uint32_t rank, std::uint32_t parameters,
                      std::shared_ptr<messages::shared_memory> memory) {
  auto& state = self->state;
  state.rank = rank;
  state.parameters = parameters;
  state.memory = std::move(memory);
  state.adding = std::make_unique<engine::work_thread>("sum", 1);
  state.source = at::full({parameter_floats * parameters}, 1, at::kFloat);
  state.target = at::full({parameter_floats * parameters}, 0, at::kFloat);
  std::vector<engine::named_tensor> shapes;
  for (std::uint32_t i = 0; i < parameters; ++i)
    shapes.push_back({std::to_string(i), at::empty({parameter_floats}, at::kFloat)});
  // Whom a stage knows by its group is known by `partner` here.
  actors::replica_group group{.stages = {nullptr, nullptr}, .own = rank, .logical = 1};
  state.replicas = actors::replica_sum(group, std::move(shapes), 1);
  return {
      [self](const partner& other) {
        self->state.other = caf::actor_cast<caf::actor>(other.who);
        return deed_done{};
      },
      [self](const deed_order& order) -> caf::result<deed_done> {
        if (order.what != deed::reduce && order.what != deed::exchange) return obey(self, order);
        self->state.answer = self->make_response_promise();
        order.what == deed::reduce ? reduce(self, key_of(order.step)) : exchange(self);
        return caf::delegated<deed_done>();
      },
      [self](const replica_gradients& from) { arrived(self, from); },
      [self](const actors::replica_statistics& from) {
        self->state.replicas.keep(from);
        follow(self, self->state.replicas.core.rest_arrived(from.step, from.from));
      },
      [self](const actors::replicas_added& what) {
        self->state.replicas.keep_own_sum(what.step, what.bucket, what.sums);
        follow(self, self->state.replicas.core.own_added(what.step, what.bucket));
      },
  };
}

actors::message_registry make_types() {
  actors::message_registry types;
  types.add(actors::stage_messages{});
  types.add<deed_order>("deed_order");
  types.add<deed_done>("deed_done");
  types.add<partner>("partner");
  return types;
}

caf::actor spawn_rank(caf::actor_system& system, actors::node& node, const options& chosen,
                      std::uint32_t rank) {
  return system.spawn(summing, rank, chosen.megabytes, node.memory());
}

/// The other process: rank 1, until rank 0's leaves.
void serve(const options& chosen, messages::link_transport transport, int address_fd) {
  const auto types = make_types();
  actors::system_config config;
  caf::actor_system system(config);
  std::promise<void> ended;
  auto made =
      start_node(system, types, transport,
                 {.name = "rank-1", .on_node_down = [&](auto&, auto&) { ended.set_value(); }});
  if (!made) die(made.error().text);
  auto& node = **made;
  const auto rank = spawn_rank(system, node, chosen, 1);
  node.publish("rank", caf::actor_cast<caf::strong_actor_ptr>(rank));
  if (write(address_fd, node.address().c_str(), node.address().size() + 1) < 0)
    die("cannot write to a pipe");
  ended.get_future().wait();
  caf::anon_send_exit(rank, caf::exit_reason::user_shutdown);
}

/// Both ranks, from the first one's process.
class both_ranks {
 public:
  both_ranks(caf::actor_system& system, actors::node& node, caf::actor own, caf::actor other)
      : ask_(system, [&node](const caf::node_id& id) { return node.name_of(id); }),
        ranks_{std::move(own), std::move(other)} {
    for (std::size_t i = 0; i < 2; ++i)
      expect(ask_.request<deed_done>(
          ranks_[i], partner{caf::actor_cast<caf::strong_actor_ptr>(ranks_[1 - i])}, patience));
  }

  /// Seconds until both have done it.
  double run(const deed_order& order) {
    const stopwatch watch;
    auto one = ask_.request<deed_done>(ranks_[0], order, patience);
    auto other = ask_.request<deed_done>(ranks_[1], order, patience);
    expect(std::move(one));
    expect(std::move(other));
    return watch.seconds();
  }

 private:
  template <class Future>
  static void expect(Future asked) {
    const auto answer = asked.get();
    if (!answer) die(answer.error().text);
    if (!answer->failure.empty()) die(answer->failure);
  }

  actors::requester ask_;
  caf::actor ranks_[2];
};

/// Seconds of one sum. Its outcome is checked once pools are warm.
double sum_once(both_ranks& ranks, std::uint64_t step, bool lends) {
  ranks.run({deed::prepare, step, lends});
  const auto seconds = ranks.run({deed::reduce, step, lends});
  ranks.run({deed::check, step, lends});
  return seconds;
}

/// The kinds in turn, so that what disturbs the machine disturbs all.
void measure_memory(const figures& out, const options& chosen, both_ranks& ranks) {
  std::vector<double> sums, copied, adds, copies;
  for (std::uint64_t round = 0; round < chosen.rounds; ++round) {
    const auto sum = sum_once(ranks, 2 * round + 1, true);
    const auto of_copies = sum_once(ranks, 2 * round + 2, false);
    const auto add = ranks.run({deed::add});
    const auto copy = ranks.run({deed::copy});
    if (round < warm_up) continue;
    sums.push_back(sum);
    copied.push_back(of_copies);
    adds.push_back(add);
    copies.push_back(copy);
  }
  const auto bytes = chosen.megabytes * 1e6;
  const auto add = quantile(adds, 0.5);
  out.add("all_reduce", quantile(sums, 0.5) * 1e3, "ms");
  out.add("all_reduce.copied", quantile(copied, 0.5) * 1e3, "ms");
  out.add("memory.add", add * 1e3, "ms");
  out.add("memory.add_rate", 3 * bytes / add / 1e6, "MB/s");
  out.add("memory.copy_rate", 4 * bytes / quantile(copies, 0.5) / 1e6, "MB/s");
  out.add("all_reduce_over_memory", quantile(sums, 0.5) / add, "x");
  out.add("all_reduce.copied_over_memory", quantile(copied, 0.5) / add, "x");
}

/// The sum and what the link moves in both directions at once, in turn.
void measure_link(const figures& out, const options& chosen, const std::string& link,
                  both_ranks& ranks) {
  std::vector<double> sums, loads;
  for (std::uint64_t round = 0; round < chosen.rounds; ++round) {
    const auto sum = sum_once(ranks, round + 1, false);
    ranks.run({deed::prepare});
    const auto exchanged = ranks.run({deed::exchange});
    if (round < warm_up) continue;
    sums.push_back(sum);
    loads.push_back(exchanged);
  }
  const auto sum = quantile(sums, 0.5);
  const auto alone = quantile(loads, 0.5);
  out.add("all_reduce." + link, sum * 1e3, "ms");
  out.add("link." + link + "_rate", 2 * chosen.megabytes * 1e6 / alone / 1e6, "MB/s");
  out.add("all_reduce." + link + "_of_link", 100 * alone / sum, "%");
}

/// The first process: rank 0, which orders and measures.
void lead(const options& chosen, const std::string& link, int address_fd) {
  char address[64] = {};
  if (read(address_fd, address, sizeof(address)) <= 0) die("the other process did not start");
  const auto types = make_types();
  actors::system_config config;
  caf::actor_system system(config);
  const auto made = start_node(system, types, transport_of(link), {.name = "rank-0"});
  if (!made) die(made.error().text);
  auto& node = **made;
  if (const auto joined = node.join(address, 5s); !joined) die(joined.error().text);
  const auto found = node.find("rank-1", "rank", 5s);
  if (!found) die(found.error().text);
  const auto own = spawn_rank(system, node, chosen, 0);
  both_ranks ranks(system, node, own, caf::actor_cast<caf::actor>(*found));
  const figures out(chosen.json);
  link == "shm" ? measure_memory(out, chosen, ranks) : measure_link(out, chosen, link, ranks);
  caf::anon_send_exit(own, caf::exit_reason::user_shutdown);
}

/// This process starts neither UCX nor CAF, and no arithmetic: their threads do not survive a fork.
template <class Work>
pid_t start(Work work) {
  const pid_t child = fork();
  if (child < 0) die("cannot fork");
  if (child > 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // As a stage's threads have it. Helpers of the arithmetic that prepares and checks would spin on,
  // beside the sum. Before the fork it would start LibTorch's pool of threads, which the first
  // thread to look replaces in the new process, while others find none.
  at::set_num_threads(1);
  work();
  std::_Exit(0);
}

bool ends_well(pid_t child) {
  int status = 0;
  return waitpid(child, &status, 0) == child && status == 0;
}

/// Both ranks, each in a process of its own. False where one failed, which has said why.
bool bench_link(const options& chosen, const std::string& link) {
  int ends[2];
  if (pipe(ends) != 0) die("cannot make a pipe");
  const pid_t other = start([&] { serve(chosen, transport_of(link), ends[1]); });
  close(ends[1]);
  const pid_t first = start([&] { lead(chosen, link, ends[0]); });
  close(ends[0]);
  if (!ends_well(first)) return kill(other, SIGKILL), false;
  return ends_well(other);
}

}  // namespace

int main(int argc, char** argv) {
  troupe::tests::flags line("Measures sums over two replicas of a stage in two processes");
  options chosen;
  line.texts("--only", chosen.only, "Links to measure", chosen.only);
  line.number("--megabytes", chosen.megabytes, "Gradients of each, in 10^6 bytes", 8, 2'000);
  line.number("--rounds", chosen.rounds, "Sums; the first three are not counted", 6, 1'000);
  line.flag("--json", chosen.json, "One JSON object a line");
  if (const auto end = line.read(argc, argv)) return *end;
  for (const auto& link : chosen.only)
    if (!bench_link(chosen, link)) return 1;
  return 0;
}
