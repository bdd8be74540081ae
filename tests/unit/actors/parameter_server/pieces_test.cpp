// Pushes and pulls between nodes whose link takes far less than all of it at once: the same bits as
// in one piece.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>

#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/messages/parameter_server/coordinator.hpp"
#include "actors/messages/parameter_server/worker.hpp"
#include "actors/parameter_server/client.hpp"
#include "actors/parameter_server/coordinator_actor.hpp"
#include "actors/parameter_server/shard_actor.hpp"
#include "actors/transfer/pieces.hpp"
#include "tests/all_messages.hpp"
#include "tests/refusal.hpp"
#include "tests/unit/actors/limited_nodes.hpp"

namespace {

using namespace troupe;
using namespace troupe::actors;
using Catch::Matchers::ContainsSubstring;
using tests::all_messages;
using tests::limited_node;
using tests::patience;
using tensors = std::vector<engine::named_tensor>;

/// A parameter server with shards on nodes of their own, and workers and coordinator on another.
class remote_server {
 public:
  remote_server(std::vector<engine::owned_parameter> parameters, std::uint32_t count,
                const messages::limits& bounds, std::uint32_t workers = 1)
      : here_("workers", network_, all_messages(), bounds),
        ask_(here_.system, [this](const caf::node_id& id) { return here_.node->name_of(id); }) {
    const auto sgd = *optimizers::built_in().find("sgd");
    const auto options = *optimizers::complete(sgd, {{"lr", 0.5}, {"momentum", 0.9}});
    std::vector<shard_actor> shards;
    for (auto& part : engine::spread_parameters(std::move(parameters), count)) {
      const auto name = "shard-" + std::to_string(nodes_.size());
      nodes_.push_back(std::make_unique<limited_node>(name, network_, all_messages(), bounds));
      built_.push_back(spawn_shard(
          nodes_.back()->system,
          {name, std::make_unique<engine::parameter_store>(std::move(part), sgd, options)}));
      nodes_.back()->publish("shard", built_.back());
      shards.push_back(here_.find<shard_actor>(*nodes_.back(), "shard"));
    }
    shards_ = shards;
    coordinator_ =
        spawn_coordinator(here_.system, {shards, engine::server_mode::synchronous, 0, workers});
  }
  ~remote_server() {
    caf::anon_send_exit(coordinator_, caf::exit_reason::user_shutdown);
    for (const auto& each : built_) caf::anon_send_exit(each, caf::exit_reason::user_shutdown);
  }

  result<std::unique_ptr<parameter_client>> join(std::uint32_t rank, const batch_limits& most) {
    return parameter_client::join(here_.system, ask_, coordinator_,
                                  {.rank = rank, .deadline = patience, .most = most});
  }
  requester& ask() { return ask_; }
  const shard_actor& shard(std::size_t i) const { return shards_.at(i); }
  coordinator_report report() {
    return *ask_.request<coordinator_report>(coordinator_, read_coordinator{}, patience).get();
  }

 private:
  messages::loopback_network network_;
  limited_node here_;
  std::vector<std::unique_ptr<limited_node>> nodes_;
  requester ask_;
  std::vector<shard_actor> built_, shards_;
  coordinator_actor coordinator_;
};

std::vector<engine::owned_parameter> parameters() {
  const auto random = at::detail::createCPUGenerator(5);
  std::vector<engine::owned_parameter> all;
  for (int i = 0; i < 30; ++i)
    all.push_back({"small" + std::to_string(i), at::randn({i + 1}, random)});
  all.push_back({"huge", at::randn({700, 300}, random)});
  all.push_back({"table", at::randn({900, 64}, random), true});
  all.push_back({"large", at::randn({200, 150}, random)});
  return all;
}

tensors gradients_of(const std::vector<engine::owned_parameter>& of, std::uint64_t seed) {
  const auto random = at::detail::createCPUGenerator(seed);
  tensors all;
  for (const auto& each : of) {
    if (each.by_rows) {
      const auto rows = at::arange(static_cast<std::int64_t>(seed % 3), each.values.size(0), 4);
      all.push_back(
          {each.name, at::sparse_coo_tensor(rows.unsqueeze(0),
                                            at::randn({rows.numel(), each.values.size(1)}, random),
                                            each.values.sizes())});
    } else {
      all.push_back({each.name, at::randn(each.values.sizes(), random)});
    }
  }
  return all;
}

using named_values = std::map<std::string, at::Tensor>;

/// Takes what a pull brought over into what is known.
void take(named_values& known, const fresh_values& fresh) {
  for (const auto& [name, rows, values] : fresh.values) {
    if (rows.defined())
      known.at(name).index_copy_(0, rows, values);
    else
      known[name] = values.clone();
  }
}

/// What a worker knows after these pushes.
named_values trained(const batch_limits& most, const messages::limits& bounds,
                     std::uint32_t shards) {
  const auto all = parameters();
  remote_server server(all, shards, bounds);
  auto client = server.join(0, most);
  REQUIRE(client);
  named_values known;
  for (const auto& each : all) known[each.name] = at::zeros(each.values.sizes());
  take(known, (*client)->refresh().get().value());
  for (std::uint64_t step = 1; step <= 3; ++step) {
    take(known, (*client)->push_pull(gradients_of(all, step)).get().value());
  }
  const auto again = (*client)->pull({"huge"}, {}).get();
  REQUIRE(again);
  CHECK(at::equal(again->values.at(0).values, known.at("huge")));
  return known;
}

}  // namespace

TEST_CASE(
    "pushes and pulls of many tensors and of huge ones in pieces have the bits of one piece") {
  const auto whole = trained({}, {}, 1);
  const auto shards = GENERATE(1U, 2U);
  const auto bytes = GENERATE(20'000U, 150'000U);
  const piece_limits most{bytes, 4};
  const auto pieces =
      trained({.frame = most, .piece = most}, {.tensors = 4, .tensor_bytes = bytes}, shards);
  REQUIRE(whole.size() == 33);
  REQUIRE(pieces.size() == whole.size());
  for (const auto& [name, values] : whole) {
    INFO(name);
    CHECK(at::equal(values, pieces.at(name)));
  }
}

TEST_CASE("a part of a push that comes wrong is refused at every shard and leaves nothing") {
  std::vector<engine::owned_parameter> all{{"a", at::zeros({100})}, {"b", at::zeros({100})}};
  remote_server server(all, 2, {});
  auto client = *server.join(0, {});
  REQUIRE(client->refresh().get());
  // A worker of its own, by hand: it pushes to shard 0 in pieces, of which one is missing.
  const auto worker = engine::worker_id{1};
  const auto send = [&](std::size_t shard, std::uint64_t sequence, std::uint32_t piece, bool last,
                        const std::vector<engine::tensor_batch::run>& runs) {
    push_gradients order{
        .what = {{worker, sequence}, {}}, .gradients = {}, .piece = piece, .last = last};
    order.gradients.runs = runs;
    return server.ask().request<gradients_pushed>(server.shard(shard), std::move(order), patience);
  };
  REQUIRE(send(0, 1, 0, false, {{0, 0, 100, {}, at::ones({40})}}).get());
  const auto first = send(0, 1, 2, true, {{0, 80, 100, {}, at::ones({20})}});
  const auto second = send(1, 1, 0, true, {});
  for (const auto& each : {first, second}) {
    const auto outcome = error_of(each.get());
    CHECK(outcome.code == errc::bad_frame);
    CHECK_THAT(outcome.text, ContainsSubstring("piece 2 of push 1"));
  }
  CHECK(server.report().refused == 1);
  CHECK(server.report().applied == 0);
  const auto untouched = client->pull({}, {}).get();
  REQUIRE(untouched);
  for (const auto& each : untouched->values) CHECK(at::equal(each.values, at::zeros({100})));

  // The same push whole, under the next number.
  REQUIRE(send(0, 2, 0, false, {{0, 0, 100, {}, at::ones({40})}}).get());
  const auto good = send(0, 2, 1, true, {{0, 40, 100, {}, at::ones({60})}});
  REQUIRE(send(1, 2, 0, true, {}).get());
  REQUIRE(good.get());
  CHECK(server.report().applied == 1);

  const auto stranger = error_of(
      server.ask()
          .request<gradients_pushed>(
              server.shard(0),
              push_gradients{.what = {{{99}, 1}, {}}, .gradients = {}, .last = false}, patience)
          .get());
  CHECK(stranger.code == errc::not_admitted);
}

TEST_CASE("a worker that goes in the middle of a push in pieces leaves nothing of it") {
  std::vector<engine::owned_parameter> all{{"a", at::zeros({100})}};
  remote_server server(all, 1, {}, 2);
  auto goes = *server.join(0, {});
  auto stays = *server.join(1, {});
  REQUIRE(stays->refresh().get());
  push_gradients piece{.what = {{{1}, 1}, {}}, .gradients = {}, .last = false};
  piece.gradients.runs.push_back({0, 0, 100, {}, at::full({40}, 1000.0)});
  REQUIRE(server.ask().request<gradients_pushed>(server.shard(0), piece, patience).get());
  const auto open = stays->push_pull({{"a", at::ones({100})}});
  goes.reset();
  CHECK(at::equal(open.get(patience).value().values.at(0).values, at::full({100}, -0.5)));
  const auto late = server.ask().request<gradients_pushed>(server.shard(0), piece, patience).get();
  REQUIRE(!late);
  CHECK(late.error().code == errc::not_admitted);
}

TEST_CASE("a server of more parameters than a frame has tensors is joined, pushed to and pulled") {
  std::vector<engine::owned_parameter> all;
  tensors pushes;
  for (int i = 0; i < 5000; ++i) {  // of doubles, which are not packed
    all.push_back({"parameter" + std::to_string(i), at::full({2}, i, at::kDouble)});
    pushes.push_back({all.back().name, at::ones({2}, at::kDouble)});
  }
  remote_server server(all, 1, {});
  auto client = *server.join(0, {});
  CHECK(client->parameters().size() == 5000);
  REQUIRE(client->refresh().get()->values.size() == 5000);
  const auto fresh = client->push_pull(pushes).get();
  REQUIRE(fresh);
  REQUIRE(fresh->values.size() == 5000);
  for (const auto& [name, rows, values] : fresh->values) {
    const auto number = std::stoi(name.substr(std::string("parameter").size()));
    CHECK(values[1].item<double>() == number - 0.5);
  }
}

TEST_CASE("values of more than a message are for members alone") {
  remote_server server({{"a", at::zeros({100'000})}}, 1, {});  // too large to be packed
  const piece_limits small{.bytes = 400};
  const auto ask = [&](engine::worker_id worker) {
    return server.ask()
        .request<parameters_pulled>(server.shard(0),
                                    pull_parameters{.wanted = {},
                                                    .newer_than = {},
                                                    .worker = worker,
                                                    .most = {.frame = small, .piece = small}},
                                    patience)
        .get();
  };
  auto client = *server.join(0, {});
  CHECK(ask({99}).error().code == errc::not_admitted);
  CHECK(ask({1})->more);
}
