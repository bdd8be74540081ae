// Measures a parameter server of two shard processes over UCX: what its push_pull makes of the
// link's bandwidth, measured in the same processes with the same messages, and updates a second.
//
//   parameter_server_bench [--only shm,tcp] [--settings async_160KB,..] [--rounds N] [--json]

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <caf/all.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/messages/parameter_server/worker.hpp"
#include "actors/parameter_server/client.hpp"
#include "actors/parameter_server/coordinator_actor.hpp"
#include "actors/parameter_server/shard_actor.hpp"
#include "actors/protocol.hpp"
#include "actors/system.hpp"
#include "actors/wire/lendable.hpp"
#include "tests/bench/programs/figures.hpp"
#include "tests/bench/programs/ucx_node.hpp"
#include "tests/flags.hpp"

namespace {

using namespace troupe;
using namespace troupe::actors;
using namespace troupe::bench;
using namespace std::chrono_literals;

constexpr auto patience = 120s;
constexpr std::uint32_t shards = 2;
constexpr std::uint32_t most_workers = 8;
constexpr std::int64_t row_width = 64;

struct options {
  std::vector<std::string> only{"shm", "tcp"};
  std::vector<std::string> settings;  // none: all
  int rounds = 10;
  bool json = false;

  [[nodiscard]] bool wants(const std::string& setting) const {
    return settings.empty() || std::ranges::find(settings, setting) != settings.end();
  }
};

[[noreturn]] void die(const std::string& text) {
  std::fprintf(stderr, "parameter_server_bench: %s\n", text.c_str());
  std::_Exit(1);
}

/// A model and how it is served.
struct setting {
  std::string name;
  std::int64_t tensors = 0;
  std::int64_t elements = 0;  // of each tensor
  engine::server_mode mode = engine::server_mode::synchronous;
  std::uint32_t workers = 2;
  std::int64_t touched = 0;  // rows of `row_width` that a gradient has; 0: it is dense

  [[nodiscard]] double bytes() const {
    return 4.0 * static_cast<double>(tensors) * static_cast<double>(elements);
  }
  [[nodiscard]] std::vector<std::int64_t> shape() const {
    if (touched == 0) return {elements};
    return {elements / row_width, row_width};
  }
};

constexpr auto together = engine::server_mode::synchronous;
constexpr auto apart = engine::server_mode::asynchronous;

const std::vector<setting> settings{{"sync_100MB", 50, 500'000, together, 2},
                                    {"async_100MB", 50, 500'000, apart, 2},
                                    {"sync_160KB", 40, 1'000, together, 2},
                                    {"async_160KB", 40, 1'000, apart, 2},
                                    {"sync_wide", 2, 100'000 * row_width, together, 2, 1'000},
                                    {"async_wide", 2, 100'000 * row_width, apart, 2, 1'000},
                                    {"async_160KB_8_workers", 40, 1'000, apart, 8}};

/// What the processes share: they begin and end phases together.
struct meeting {
  pthread_barrier_t barrier;

  static meeting* make(unsigned count) {
    void* const memory =
        mmap(nullptr, sizeof(meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) die("no shared memory");
    auto* const made = static_cast<meeting*>(memory);
    pthread_barrierattr_t shared;
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&made->barrier, &shared, count);
    return made;
  }
  void wait() { pthread_barrier_wait(&barrier); }
};

struct process {
  process(const std::string& name, messages::link_transport transport) : system(config) {
    (void)at::get_num_threads();
    at::set_num_threads(1);
    add_protocol(types);
    auto made = start_node(system, types, transport, {.name = name});
    if (!made) die(made.error().text);
    node = std::move(*made);
    ask.emplace(system, [this](const caf::node_id& id) { return node->name_of(id); });
  }

  caf::strong_actor_ptr find(const std::string& at, const std::string& actor) {
    const auto other = node->join(at, 30s);
    if (!other) die(other.error().text);
    const auto found = node->find(*other, actor, 30s);
    if (!found) die(found.error().text);
    return *found;
  }

  message_registry types;
  system_config config;
  caf::actor_system system;
  std::unique_ptr<actors::node> node;
  std::optional<requester> ask;
};

std::vector<engine::owned_parameter> parameters_of(const setting& what) {
  std::vector<engine::owned_parameter> all;
  for (std::int64_t i = 0; i < what.tensors; ++i)
    all.push_back({std::to_string(i), at::zeros(what.shape()), what.touched > 0});
  return all;
}

/// Takes and gives what a shard would, and does nothing with it: the link alone.
struct mirror_state {
  engine::tensor_batch values;
};
caf::behavior mirror(caf::stateful_actor<mirror_state>* self, const engine::tensor_batch& values) {
  self->state.values = values;
  return {[self](const push_gradients& in) {
    return gradients_pushed{in.what.base, in.what.base, self->state.values};
  }};
}

shard_actor spawn_shard_of(process& here, const setting& what, std::uint32_t number) {
  const auto sgd = *optimizers::built_in().find("sgd");
  auto parts = engine::spread_parameters(parameters_of(what), shards);
  const lendable_tensors lendable(here.node->memory());
  return spawn_shard(
      here.system, {.name = "shard-" + std::to_string(number),
                    .store = std::make_unique<engine::parameter_store>(
                        std::move(parts[number]), sgd, *optimizers::complete(sgd, {{"lr", 0.001}})),
                    .memory = here.node->memory()});
}

/// Serves one shard of every setting until it is killed; the first one the coordinators too.
[[noreturn]] void serve(messages::link_transport transport, std::uint32_t number,
                        const std::string& other, int out) {
  process here("shard-" + std::to_string(number), transport);
  for (const auto& each : settings) {
    const auto shard = spawn_shard_of(here, each, number);
    here.node->publish(each.name, caf::actor_cast<caf::strong_actor_ptr>(shard));
    if (number > 0) continue;
    const auto second = caf::actor_cast<shard_actor>(here.find(other, each.name));
    const coordinator_parts parts{{shard, second}, each.mode, 1'000'000, each.workers};
    here.node->publish(each.name + ".coordinator", caf::actor_cast<caf::strong_actor_ptr>(
                                                       spawn_coordinator(here.system, parts)));
  }
  engine::batch_builder half(at::kFloat);
  const auto& first = settings.front();
  for (std::uint32_t i = 0; i < first.tensors / shards; ++i)
    half.add(i, {}, at::zeros({first.elements}));
  here.node->publish(
      "mirror", caf::actor_cast<caf::strong_actor_ptr>(here.system.spawn(mirror, half.take())));
  if (write(out, here.node->address().c_str(), here.node->address().size() + 1) < 0)
    die("cannot write to a pipe");
  while (true) pause();
}

at::Tensor gradient_of(const setting& what) {
  if (what.touched == 0) return at::full(what.shape(), 0.5, at::kFloat);
  const auto rows = at::randint(what.shape().front(), {1, what.touched}, at::kLong);
  const auto values = at::full({what.touched, row_width}, 0.5, at::kFloat);
  return at::sparse_coo_tensor(rows, values, what.shape());
}

std::vector<engine::named_tensor> gradients_of(const setting& what,
                                               std::shared_ptr<messages::shared_memory> memory) {
  const lendable_tensors lendable(std::move(memory));
  std::vector<engine::named_tensor> all;
  for (std::int64_t i = 0; i < what.tensors; ++i)
    all.push_back({std::to_string(i), gradient_of(what)});
  return all;
}

class worker {
 public:
  worker(messages::link_transport transport, std::uint32_t rank,
         const std::vector<std::string>& addresses, const options& chosen, meeting& all)
      : here_("worker-" + std::to_string(rank), transport),
        rank_(rank),
        addresses_(addresses),
        chosen_(chosen),
        all_(all) {}

  /// The link and push_pull in turn, so that noise falls on both.
  void compare_with_link(const figures& out, const std::string& link) {
    const auto& what = settings.front();
    if (rank_ >= what.workers) return wait_out(2 * chosen_.rounds);
    std::vector<caf::actor> mirrors;
    for (const auto& at : addresses_)
      mirrors.push_back(caf::actor_cast<caf::actor>(here_.find(at, "mirror")));
    engine::batch_builder half(at::kFloat);
    for (std::uint32_t i = 0; i < what.tensors / shards; ++i)
      half.add(i, {}, at::full({what.elements}, 0.5, at::kFloat));
    const push_gradients load{.what = {}, .gradients = half.take(), .pull = true};
    const auto client = join(what);
    const auto gradients = gradients_of(what, here_.node->memory());
    std::vector<double> bare;
    std::vector<double> served;
    for (int i = 0; i < chosen_.rounds; ++i) {
      all_.wait();
      bare.push_back(seconds_of(3, [&] { exchange(mirrors, load); }));
      all_.wait();
      served.push_back(seconds_of(3, [&] { push_pull(*client, gradients); }));
    }
    if (rank_ > 0) return;
    const double bytes = 2 * what.bytes() * what.workers;
    const double of_link = bytes / quantile(bare, 0.5) / 1e6;
    const double of_server = bytes / quantile(served, 0.5) / 1e6;
    out.add(link + ".link_rate", of_link, "MB/s");
    out.add(link + ".push_pull_rate", of_server, "MB/s");
    out.add(link + ".push_pull_of_link", 100 * of_server / of_link, "%");
    out.add(link + "." + what.name + "_updates", 1 / quantile(served, 0.5), "1/s");
  }

  void count_updates(const figures& out, const std::string& link, const setting& what) {
    if (rank_ >= what.workers) return wait_out(2);
    const auto client = join(what);
    const auto gradients = gradients_of(what, here_.node->memory());
    const bool large = what.touched == 0 && what.bytes() > 1e6;
    const int count = (large ? 2 : 200) * chosen_.rounds;
    for (int i = 0; i < 3; ++i) push_pull(*client, gradients);
    all_.wait();
    const stopwatch watch;
    for (int i = 0; i < count; ++i) push_pull(*client, gradients);
    all_.wait();
    const double updates =
        (what.mode == together ? 1.0 : static_cast<double>(what.workers)) * count;
    if (rank_ == 0) out.add(link + "." + what.name + "_updates", updates / watch.seconds(), "1/s");
  }

 private:
  void wait_out(int times) {
    for (int i = 0; i < times; ++i) all_.wait();
  }

  template <class Call>
  static double seconds_of(int times, Call call) {
    call();  // pools are warm, buffers there
    const stopwatch watch;
    for (int i = 0; i < times; ++i) call();
    return watch.seconds() / times;
  }

  std::unique_ptr<parameter_client> join(const setting& what) {
    const auto coordinator = caf::actor_cast<coordinator_actor>(
        here_.find(addresses_.front(), what.name + ".coordinator"));
    auto made = parameter_client::join(
        here_.system, *here_.ask, coordinator,
        {.rank = rank_, .deadline = patience, .memory = here_.node->memory()});
    if (!made) die(made.error().text);
    if (const auto first = (*made)->refresh().get(); !first) die(first.error().text);
    return std::move(*made);
  }

  void exchange(const std::vector<caf::actor>& mirrors, const push_gradients& load) {
    std::vector<future<gradients_pushed>> asked;
    for (const auto& each : mirrors)
      asked.push_back(here_.ask->request<gradients_pushed>(each, load, patience));
    for (const auto& each : asked)
      if (const auto answer = each.get(); !answer) die(answer.error().text);
  }

  static void push_pull(parameter_client& client,
                        const std::vector<engine::named_tensor>& gradients) {
    if (const auto fresh = client.push_pull(gradients).get(); !fresh) die(fresh.error().text);
  }

  process here_;
  const std::uint32_t rank_;
  const std::vector<std::string> addresses_;
  const options& chosen_;
  meeting& all_;
};

template <class Work>
pid_t start(Work work) {
  std::fflush(stdout);
  const pid_t child = fork();  // before UCX and CAF start: their threads do not survive a fork
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  work();
  std::_Exit(0);
}

std::pair<pid_t, std::string> start_shard(messages::link_transport transport, std::uint32_t number,
                                          const std::string& other) {
  int ends[2];
  if (pipe(ends) != 0) die("cannot make a pipe");
  const pid_t child = start([&] { serve(transport, number, other, ends[1]); });
  close(ends[1]);
  char address[64] = {};
  if (read(ends[0], address, sizeof(address)) <= 0) die("a shard did not start");
  close(ends[0]);
  return {child, address};
}

void bench_link(const figures& out, const options& chosen, const std::string& link,
                messages::link_transport transport) {
  auto* const all = meeting::make(most_workers);
  const auto [second, second_address] = start_shard(transport, 1, "");
  const auto [first, first_address] = start_shard(transport, 0, second_address);
  const std::vector<std::string> addresses{first_address, second_address};
  std::vector<pid_t> workers;
  for (std::uint32_t rank = 0; rank < most_workers; ++rank) {
    workers.push_back(start([&, rank] {
      worker me(transport, rank, addresses, chosen, *all);
      for (const auto& each : settings) {
        if (!chosen.wants(each.name)) continue;
        &each == &settings.front() ? me.compare_with_link(out, link)
                                   : me.count_updates(out, link, each);
      }
      all->wait();
    }));
  }
  bool failed = false;
  for (const auto each : workers) {
    int status = 0;
    waitpid(each, &status, 0);
    failed = failed || status != 0;
  }
  for (const auto each : {first, second}) kill(each, SIGKILL);
  for (const auto each : {first, second}) waitpid(each, nullptr, 0);
  if (failed) die("a worker failed");
}

}  // namespace

int main(int argc, char** argv) {
  troupe::tests::flags line("Measures a parameter server");
  options chosen;
  line.texts("--only", chosen.only, "Links to measure", chosen.only);
  std::vector<std::string> names;
  for (const auto& each : settings) names.push_back(each.name);
  line.texts("--settings", chosen.settings, "Models to serve", names);
  line.number("--rounds", chosen.rounds, "How often", 1, 1'000'000);
  line.flag("--json", chosen.json, "One JSON object a line");
  if (const auto end = line.read(argc, argv)) return *end;
  const figures out(chosen.json);
  for (const auto& link : chosen.only)
    bench_link(out, chosen, link,
               link == "shm" ? messages::link_transport::shm : messages::link_transport::tcp);
  return 0;
}
