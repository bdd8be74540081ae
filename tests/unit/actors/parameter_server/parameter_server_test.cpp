// A parameter server of actors in one process: the same bits as one process training alone, every
// gradient once or refused, and typed errors.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <latch>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "actors/messages/parameter_server/coordinator.hpp"
#include "actors/messages/parameter_server/worker.hpp"
#include "actors/parameter_server/client.hpp"
#include "actors/parameter_server/coordinator_actor.hpp"
#include "actors/parameter_server/shard_actor.hpp"
#include "actors/system.hpp"
#include "engine/model/blocks.hpp"
#include "engine/model/model.hpp"
#include "engine/stage/stage_module.hpp"
#include "tests/refusal.hpp"

namespace {

using namespace troupe;
using namespace troupe::actors;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
using gradients = std::vector<engine::named_tensor>;

constexpr auto patience = 60s;

struct server_settings {
  std::uint32_t shards = 2;
  engine::server_mode mode = engine::server_mode::synchronous;
  std::uint64_t staleness = 0;
  std::uint32_t workers = 1;
  optimizers::options options = {{"lr", 1.0}};
};

class server {
 public:
  /// `last_shard`: the optimizer of the last shard, where it is to be another.
  server(std::vector<engine::owned_parameter> parameters, const server_settings& how,
         const std::optional<optimizers::optimizer>& last_shard = {})
      : system_(config_), ask_(system_) {
    const auto sgd = *optimizers::built_in().find("sgd");
    const auto options = *optimizers::complete(sgd, how.options);
    for (auto& part : engine::spread_parameters(std::move(parameters), how.shards)) {
      const auto name = "shard-" + std::to_string(shards_.size());
      const bool is_last = shards_.size() + 1 == how.shards;
      shards_.push_back(spawn_shard(
          system_,
          {name, std::make_unique<engine::parameter_store>(
                     std::move(part), is_last ? last_shard.value_or(sgd) : sgd, options)}));
    }
    coordinator_ = spawn_coordinator(system_, {shards_, how.mode, how.staleness, how.workers});
  }
  ~server() {
    for (const auto& shard : shards_) caf::anon_send_exit(shard, caf::exit_reason::user_shutdown);
    caf::anon_send_exit(coordinator_, caf::exit_reason::user_shutdown);
  }

  std::unique_ptr<parameter_client> join(std::uint32_t rank, bool bf16 = false) {
    auto made = parameter_client::join(
        system_, ask_, coordinator_, {.rank = rank, .bf16_gradients = bf16, .deadline = patience});
    if (!made) throw std::runtime_error(made.error().text);
    return std::move(*made);
  }
  coordinator_report report() {
    return *ask_.request<coordinator_report>(coordinator_, read_coordinator{}, patience).get();
  }

  requester& ask() { return ask_; }
  const shard_actor& shard(std::size_t i) const { return shards_.at(i); }
  const coordinator_actor& coordinator() const { return coordinator_; }
  caf::actor_system& system() { return system_; }

 private:
  system_config config_;
  caf::actor_system system_;
  requester ask_;
  std::vector<shard_actor> shards_;
  coordinator_actor coordinator_;
};

engine::model small_model() {
  const auto random = at::detail::createCPUGenerator(/*seed=*/4);
  engine::model layers;
  layers.push_back(std::make_unique<engine::linear>("one", 40, 600, random));
  layers.push_back(std::make_unique<engine::relu>("relu"));
  layers.push_back(std::make_unique<engine::linear>("two", 600, 10, random));
  return layers;
}

/// A worker's gradients of one step over its own samples.
gradients gradients_of(engine::stage_module& module, std::uint64_t step, std::uint32_t rank) {
  (void)at::get_num_threads();
  at::set_num_threads(1);  // products of matrices have other bits on more
  const auto random = at::detail::createCPUGenerator(step * 100 + rank);
  const auto images = at::randn({8, 40}, random);
  const auto labels = at::randint(0, 10, {8}, random, at::kLong);
  const engine::step_key key{{}, {step}};
  module.forward(key, engine::step_kind::training, {}, images, labels, 8);
  module.backward_input(key, {}, {});
  module.backward_weights(key, {});
  gradients named;
  const auto taken = module.take_gradients();
  for (std::size_t i = 0; i < taken.size(); ++i)
    named.push_back({module.parameters()[i].name, *taken[i]});
  return named;
}

std::vector<engine::owned_parameter> owned(const engine::model& layers) {
  std::vector<engine::owned_parameter> all;
  for (const auto& [name, tensor] : engine::parameters(layers))
    all.push_back({name, tensor.detach().clone()});
  return all;
}

std::map<std::string, at::Tensor> by_name(const fresh_values& values) {
  std::map<std::string, at::Tensor> all;
  for (const auto& each : values.values) all[each.name] = each.values;
  return all;
}

template <class Work>
void in_threads(std::uint32_t count, Work work) {
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < count; ++i) threads.emplace_back([&work, i] { work(i); });
  for (auto& each : threads) each.join();
}

}  // namespace

TEST_CASE("a synchronous parameter server trains to the bits of one process") {
  constexpr std::uint64_t steps = 6;
  const auto workers = GENERATE(1U, 2U, 3U);
  const auto shards = GENERATE(1U, 2U, 5U);
  const optimizers::options options{{"lr", 0.1}, {"momentum", 0.9}, {"weight_decay", 1e-3}};

  // Alone: each step, the workers' gradients one after another, their mean, one update.
  engine::stage_module alone(small_model(), {});
  const auto sgd = *optimizers::built_in().find("sgd");
  const auto complete = *optimizers::complete(sgd, options);
  optimizers::state state;
  std::vector<at::Tensor> parameters;
  for (const auto& each : alone.parameters()) parameters.push_back(each.tensor);
  for (std::uint64_t step = 1; step <= steps; ++step) {
    std::vector<gradients> all;
    for (std::uint32_t w = 0; w < workers; ++w) all.push_back(gradients_of(alone, step, w));
    std::vector<std::optional<at::Tensor>> mean;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      auto sum = all[0][i].tensor.clone();
      for (std::uint32_t w = 1; w < workers; ++w) sum.add_(all[w][i].tensor);
      mean.push_back(workers == 1 ? sum : sum / static_cast<std::int64_t>(workers));
    }
    REQUIRE(sgd.step(parameters, mean, state, complete, step));
  }

  server here(owned(small_model()), {.shards = shards, .workers = workers, .options = options});
  std::vector<std::map<std::string, at::Tensor>> last(workers);
  in_threads(workers, [&](std::uint32_t rank) {
    engine::stage_module mine(small_model(), {});
    const auto client = here.join(rank);
    auto fresh = client->refresh().get();
    for (std::uint64_t step = 1; fresh && step <= steps; ++step) {
      if (!take_values(mine.parameters(), client->parameters(), *fresh)) return;
      fresh = client->push_pull(gradients_of(mine, step, rank)).get();
    }
    if (fresh) last[rank] = by_name(*fresh);
  });
  for (const auto& values : last) {
    REQUIRE(values.size() == parameters.size());
    for (const auto& [name, tensor] : alone.parameters()) {
      INFO(name);
      CHECK(at::equal(values.at(name), tensor));
    }
  }
  CHECK(here.report().applied == steps * workers);
}

TEST_CASE("asynchronous pushes are each applied once or refused, and never too stale") {
  // Each gradient is a one in a place of its own worker, so the parameters count the pushes.
  constexpr std::uint32_t workers = 4;
  constexpr std::int64_t pushes = 60;
  constexpr std::uint64_t bound = 2;
  server here({{"a", at::zeros({300, 300})}, {"b", at::zeros({workers})}},
              {.mode = engine::server_mode::asynchronous, .staleness = bound});
  std::vector<std::int64_t> applied(workers);
  std::vector<std::int64_t> refused(workers);
  std::vector<std::uint64_t> oldest(workers);
  in_threads(workers, [&](std::uint32_t rank) {
    const auto client = here.join(rank);
    (void)client->refresh().get();
    for (std::int64_t i = 0; i < pushes; ++i) {
      auto a = at::zeros({300, 300});
      auto b = at::zeros({workers});
      a[0][rank] = -1;
      b[rank] = -1;
      const auto base = client->version();
      const auto update = client->push({{"a", a}, {"b", b}}, base).get();
      if (update) {
        ++applied[rank];
        oldest[rank] = std::max(oldest[rank], update->value - 1 - base.value);
      } else if (update.error().code == errc::stale) {
        ++refused[rank];
      } else {
        throw std::runtime_error(update.error().text);
      }
      (void)client->refresh().get();
    }
  });
  const auto reader = here.join(99);
  const auto values = by_name(*reader->refresh().get());
  std::int64_t total = 0;
  for (std::uint32_t w = 0; w < workers; ++w) {
    CHECK(applied[w] + refused[w] == pushes);
    CHECK(oldest[w] <= bound);
    CHECK(values.at("a")[0][w].item<std::int64_t>() == applied[w]);
    CHECK(values.at("b")[w].item<std::int64_t>() == applied[w]);
    total += applied[w];
  }
  const auto report = here.report();
  CHECK(report.applied == static_cast<std::uint64_t>(total));
  CHECK(report.version.value == report.applied);
  CHECK(report.applied + report.refused == workers * pushes);
}

TEST_CASE("asynchronous training converges") {
  server here(owned(small_model()), {.mode = engine::server_mode::asynchronous,
                                     .staleness = 8,
                                     .options = {{"lr", 0.02}, {"momentum", 0.9}}});
  const auto loss_with = [](engine::stage_module& module) {
    const auto random = at::detail::createCPUGenerator(1);
    const auto images = at::randn({64, 40}, random);
    const auto labels = images.narrow(1, 0, 10).argmax(1);
    return module.forward({{}, {1}}, engine::step_kind::evaluation, {}, images, labels, 64).loss;
  };
  engine::stage_module fresh_model(small_model(), {});
  const double before = loss_with(fresh_model);
  std::vector<double> after(3);
  in_threads(3, [&](std::uint32_t rank) {
    engine::stage_module mine(small_model(), {});
    const auto client = here.join(rank);
    auto fresh = client->refresh().get();
    const auto random = at::detail::createCPUGenerator(100 + rank);
    for (std::uint64_t step = 1; step <= 150; ++step) {
      if (!fresh && fresh.error().code == errc::stale) fresh = client->refresh().get();
      if (!fresh || !take_values(mine.parameters(), client->parameters(), *fresh)) return;
      const auto images = at::randn({32, 40}, random);
      const auto labels = images.narrow(1, 0, 10).argmax(1);
      const engine::step_key key{{}, {step}};
      mine.forward(key, engine::step_kind::training, {}, images, labels, 32);
      mine.backward_input(key, {}, {});
      mine.backward_weights(key, {});
      const auto taken = mine.take_gradients();
      gradients named;
      for (std::size_t i = 0; i < taken.size(); ++i)
        named.push_back({mine.parameters()[i].name, *taken[i]});
      fresh = client->push_pull(named).get();
    }
    after[rank] = loss_with(mine);
  });
  INFO("loss " << before << " -> " << after[0]);
  for (const auto loss : after) CHECK(loss < 0.5 * before);
}

TEST_CASE("sparse gradients travel and update by rows") {
  server here({{"table", at::zeros({1000, 4}), true}, {"bias", at::zeros({2})}}, {.shards = 1});
  const auto client = here.join(0);
  CHECK(client->refresh().get()->values.size() == 2);
  const auto sparse =
      at::sparse_coo_tensor(at::tensor({5L, 5L, 9L}).view({1, 3}), at::ones({3, 4}), {1000, 4});
  const auto fresh = client->push_pull({{"table", sparse}}).get();
  REQUIRE(fresh);
  REQUIRE(fresh->values.size() == 1);
  CHECK(at::equal(fresh->values[0].rows, at::tensor({5L, 9L})));
  CHECK(at::equal(fresh->values[0].values.select(1, 0), at::tensor({-2.0F, -1.0F})));
  const auto nothing = client->push_pull({}).get();
  REQUIRE(nothing);
  CHECK(nothing->values.empty());
  CHECK(nothing->version.value == 2);
}

TEST_CASE("a table larger than a shard's share is cut by rows, and nothing else changes") {
  const auto random = at::detail::createCPUGenerator(/*seed=*/3);
  const auto table = at::randn({101, 4}, random), other = at::randn({7, 4}, random);
  std::vector<gradients> pushes;
  for (int i = 0; i < 8; ++i) {
    const auto rows = at::randint(101, {1, i == 2 ? 1 : 20}, random, at::kLong);  // some twice
    const auto values = at::randn({rows.size(1), 4}, random);
    pushes.push_back({{"table", at::sparse_coo_tensor(rows, values, {101, 4})}});
    if (i % 3 == 0) pushes.back().push_back({"other", at::randn({7, 4}, random)});
  }
  pushes[5][0].tensor = pushes[5][0].tensor.to_dense();
  const auto trained = [&](std::uint32_t shards, bool whole) {
    server here({{"table", table.clone(), true}, {"other", other.clone()}},
                {.shards = shards, .options = {{"lr", 0.1}, {"momentum", 0.9}}});
    const auto client = here.join(0);
    CHECK(client->parameters().at("table").shape == std::vector<std::int64_t>{101, 4});
    const gradients mine{{"table", at::zeros({101, 4})}, {"other", at::zeros({7, 4})}};
    auto fresh = client->refresh().get();
    for (std::size_t i = 0; fresh && i < pushes.size(); ++i) {
      REQUIRE(take_values(mine, client->parameters(), *fresh));
      fresh = client->push_pull(pushes[i]).get();
    }
    if (whole) fresh = client->pull({"table", "other"}, {}).get();
    REQUIRE(fresh);
    REQUIRE(take_values(mine, client->parameters(), *fresh));
    return mine;
  };
  const auto one = trained(1, false);
  CHECK_FALSE(at::equal(one[0].tensor, table));
  for (const std::uint32_t shards : {2U, 3U, 7U})
    for (const bool whole : {false, true}) {
      CAPTURE(shards, whole);
      const auto cut = trained(shards, whole);
      CHECK(at::equal(cut[0].tensor, one[0].tensor));
      CHECK(at::equal(cut[1].tensor, one[1].tensor));
    }
  const auto parts = engine::spread_parameters({{"table", table, true}, {"other", other}}, 3);
  std::map<std::int64_t, std::int64_t> rows;  // by their first one: how many
  for (const auto& part : parts) {
    REQUIRE_FALSE(part.empty());
    rows[part[0].first_row] = part[0].values.size(0);
  }
  CHECK(rows == std::map<std::int64_t, std::int64_t>{{0, 33}, {33, 34}, {67, 34}});
}

TEST_CASE("bf16 gradients are rounded once, on the wire") {
  server here({{"a", at::zeros({3})}, {"b", at::zeros({200, 200})}}, {});
  const auto client = here.join(0, /*bf16=*/true);
  (void)client->refresh().get();
  const auto exact = at::randn({200, 200});
  const auto fresh = client->push_pull({{"a", at::full({3}, 1.001)}, {"b", exact}}).get();
  REQUIRE(fresh);
  const auto values = by_name(*fresh);
  CHECK(at::equal(values.at("a"), at::full({3}, -1.0)));
  CHECK(at::equal(values.at("b"), -exact.to(at::kBFloat16).to(at::kFloat)));
}

TEST_CASE("pushes that cannot be right are refused with typed errors, and harm nobody") {
  server here({{"a", at::zeros({3})}, {"b", at::zeros({200, 200})}},
              {.mode = engine::server_mode::asynchronous, .staleness = 1});
  const auto client = here.join(0);
  (void)client->refresh().get();
  const auto refused = [&](const gradients& with, std::uint64_t base, errc code,
                           const std::string& words) {
    const auto outcome = error_of(client->push(with, {base}).get());
    CHECK(outcome.code == code);
    CHECK_THAT(outcome.text, ContainsSubstring(words));
  };
  refused({{"c", at::zeros({3})}}, 0, errc::bad_data, "'c'");
  refused({{"b", at::zeros({200, 2})}}, 0, errc::bad_data, "'b' has shape [200, 2]");
  refused({{"a", at::zeros({4})}}, 0, errc::bad_data, "'a' has shape [4]");
  refused({{"b", at::zeros({200, 200}, at::kDouble)}}, 0, errc::bad_data, "dtype Double");
  refused({{"a", at::zeros({3})}}, 1, errc::bad_frame, "version 1: the newest is 0");
  for (int i = 0; i < 2; ++i) REQUIRE(client->push({{"a", at::ones({3})}}, {0}).get());
  refused({{"a", at::zeros({3})}}, 0, errc::stale, "2 updates old, 1 are allowed");
  CHECK(client->pull({"c"}, std::nullopt).get().error().code == errc::bad_data);
  const auto values = by_name(*client->pull({"a"}, std::nullopt).get());
  REQUIRE(values.size() == 1);
  CHECK(at::equal(values.at("a"), at::full({3}, -2.0)));
  // By hand, past the client: an index that is not there; somebody who never joined.
  const auto by_hand = [&](engine::based_push what, engine::tensor_batch batch) {
    return here.ask()
        .request<gradients_pushed>(
            here.shard(0), push_gradients{.what = what, .gradients = std::move(batch)}, patience)
        .get();
  };
  CHECK(by_hand({{{77}, 1}, {0}}, {}).error().code == errc::not_admitted);
}

TEST_CASE("a push that comes twice is answered twice and applied once") {
  server here({{"a", at::zeros({3})}}, {.shards = 1});
  caf::scoped_actor presence(here.system());
  const auto in =
      here.ask()
          .request<server_joined>(here.coordinator(),
                                  join_server{0, caf::actor_cast<caf::strong_actor_ptr>(presence)},
                                  patience)
          .get();
  REQUIRE(in);
  const push_gradients order{.what = {{in->worker, 1}, {0}},
                             .gradients = {{0}, at::ones({3}), {}},
                             .pull = true,
                             .newer_than = param_version{0}};
  const auto first = here.ask().request<gradients_pushed>(here.shard(0), order, patience);
  const auto second = here.ask().request<gradients_pushed>(here.shard(0), order, patience);
  REQUIRE(first.get(patience));
  const auto third = here.ask().request<gradients_pushed>(here.shard(0), order, patience);
  for (const auto& answer : {first, second, third}) {
    REQUIRE(answer.get(patience));
    CHECK(answer.get(patience)->applied.value == 1);
    CHECK(at::equal(answer.get(patience)->values.values, at::full({3}, -1.0)));
  }
  CHECK(here.report().applied == 1);
}

TEST_CASE("workers come and go, and the others go on") {
  server here({{"a", at::zeros({1})}}, {.workers = 2});
  auto one = here.join(0);
  auto two = here.join(1);
  CHECK_THROWS(here.join(1));
  for (const auto& each : {one.get(), two.get()}) (void)each->refresh().get();
  const auto together = one->push_pull({{"a", at::full({1}, 2.0)}});
  REQUIRE(two->push_pull({{"a", at::full({1}, 4.0)}}).get(patience));
  REQUIRE(together.get(patience));
  CHECK(together.get()->values.front().values.item<double>() == -3);
  // The first waits for the second, which leaves instead.
  const auto alone = one->push_pull({{"a", at::ones({1})}});
  REQUIRE(two->leave());
  REQUIRE(alone.get(patience));
  CHECK(alone.get()->values.front().values.item<double>() == -4);
  CHECK(two->push({}, {2}).get(patience).error().code == errc::not_admitted);
  two.reset();
  const auto three = here.join(1);
  CHECK(three->refresh().get()->version.value == 2);
  const auto again = one->push_pull({{"a", at::ones({1})}});
  REQUIRE(three->push_pull({{"a", at::full({1}, 3.0)}}).get(patience));
  CHECK(again.get(patience)->values.front().values.item<double>() == -6);
  CHECK(here.report().members == 2);
}

TEST_CASE("eight workers at once, and none waits at one shard for another's work at another") {
  constexpr std::uint32_t workers = 8;
  std::latch opened(1);
  auto held = *optimizers::built_in().find("sgd");
  held.step = [&opened, step = held.step](auto& params, const auto& given, auto& state,
                                          const auto& options, std::uint64_t number) {
    opened.wait();
    return step(params, given, state, options, number);
  };
  server here({{"a", at::zeros({200, 200})}, {"b", at::zeros({200, 200})}},
              {.mode = engine::server_mode::asynchronous, .staleness = workers}, held);
  std::vector<std::unique_ptr<parameter_client>> clients;
  std::vector<future<param_version>> pushes;
  for (std::uint32_t rank = 0; rank < workers; ++rank) clients.push_back(here.join(rank));
  for (const auto& each : clients)
    pushes.push_back(each->push({{"a", at::ones({200, 200})}, {"b", at::ones({200, 200})}}, {0}));
  // The second shard is stuck in its first update; the first one does all eight.
  const auto done = [&] {
    return here.ask()
        .request<parameters_pulled>(here.shard(0), pull_parameters{{}, param_version{0}}, patience)
        .get(patience)
        ->version.value;
  };
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (done() < workers) REQUIRE(std::chrono::steady_clock::now() < deadline);
  for (const auto& each : pushes) CHECK(!each.ready());
  opened.count_down();
  for (const auto& each : pushes) CHECK(each.get(patience));
}

TEST_CASE("a shard that ends fails what waits, at every worker, with a typed error") {
  server here({{"a", at::zeros({200, 200})}, {"b", at::zeros({200, 200})}}, {.workers = 3});
  const auto one = here.join(0);
  const auto two = here.join(1);
  const auto three = here.join(2);
  for (const auto& each : {one.get(), two.get()}) (void)each->refresh().get();
  const auto waits = one->push_pull({{"a", at::ones({200, 200})}});
  const auto waits_too = two->push_pull({{"b", at::ones({200, 200})}});
  const auto begin = std::chrono::steady_clock::now();
  caf::anon_send_exit(here.shard(1), caf::exit_reason::user_shutdown);
  CHECK(waits.get(patience).error().code == errc::unknown_target);
  CHECK(waits_too.get(patience).error().code == errc::unknown_target);
  CHECK(three->lost().get(patience).error().code == errc::peer_lost);  // which asked for nothing
  CHECK(std::chrono::steady_clock::now() - begin < 1s);
  CHECK(!parameter_client::join(here.system(), here.ask(), here.coordinator(), {.rank = 7}));
}
