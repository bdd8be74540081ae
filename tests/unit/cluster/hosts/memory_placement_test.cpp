// Where stages go when nodes say how much memory they have.

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "cluster/hosts/placement_core.hpp"
#include "tests/refusal.hpp"

namespace {

using namespace troupe::cluster;
using Catch::Matchers::ContainsSubstring;
using troupe::engine::stage_memory;
using places = std::vector<std::size_t>;

constexpr double mib = 1 << 20;

node_room node(const std::string& name, std::uint32_t cores, std::optional<double> memory_mib,
               const std::vector<std::uint32_t>& stages = {}) {
  node_room out{.name = name, .cores = cores, .stages = stages};
  if (memory_mib) out.memory_bytes = *memory_mib * mib;
  return out;
}

std::vector<stage_memory> in_bytes(const std::vector<double>& needs_mib) {
  std::vector<stage_memory> needs;
  for (const auto each : needs_mib) needs.push_back({.on_cpu = each * mib});
  return needs;
}

/// Of stages that need this much of a GPU in MiB, a tenth of it beside it, and twice on a CPU.
std::vector<stage_memory> on_gpus(const std::vector<double>& needs_mib) {
  std::vector<stage_memory> needs;
  for (const auto each : needs_mib) needs.push_back({2 * each * mib, each * mib, each * mib / 10});
  return needs;
}

/// With one GPU, or with one for each stage.
node_room gpu_node(const std::string& name, std::optional<double> device_mib,
                   node_devices devices = node_devices::shared,
                   const std::vector<std::uint32_t>& stages = {}) {
  auto out = node(name, 1, {}, stages);
  out.devices = devices;
  if (device_mib) out.device_bytes = *device_mib * mib;
  return out;
}

places placed(const std::vector<double>& needs_mib, const std::vector<node_room>& nodes) {
  const auto count = static_cast<std::uint32_t>(needs_mib.size());
  const auto made = place_stages(count, nodes, in_bytes(needs_mib));
  INFO((made ? "" : made.error().text));
  REQUIRE(made);
  return *made;
}

placement_fault refused(const std::vector<double>& needs_mib, const std::vector<node_room>& nodes) {
  const auto count = static_cast<std::uint32_t>(needs_mib.size());
  return troupe::error_of(place_stages(count, nodes, in_bytes(needs_mib)));
}

/// Whether any placement gives each node a stage and no node more than its memory.
bool can_be_placed(const std::vector<double>& needs_mib, const std::vector<node_room>& nodes) {
  std::size_t all = 1;
  for (std::size_t i = 0; i < needs_mib.size(); ++i) all *= nodes.size();
  for (std::size_t code = 0; code < all; ++code) {
    std::vector<double> bytes(nodes.size());
    std::vector<int> counts(nodes.size());
    auto rest = code;
    for (const auto need : needs_mib) {
      bytes[rest % nodes.size()] += need * mib;
      ++counts[rest % nodes.size()];
      rest /= nodes.size();
    }
    bool fits = true;
    for (std::size_t i = 0; i < nodes.size(); ++i)
      fits = fits && counts[i] > 0 && bytes[i] <= nodes[i].memory_bytes.value_or(1e18);
    if (fits) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("Where memory suffices, or nobody says any, stages go by cores") {
  const std::vector<double> needs{100, 100, 100, 100};
  CHECK(placed(needs, {node("a", 2, {}), node("b", 2, {})}) == places{0, 0, 1, 1});
  CHECK(placed(needs, {node("a", 2, 200), node("b", 2, 200)}) == places{0, 0, 1, 1});
  const std::vector<node_room> tight{node("a", 2, 1), node("b", 2, 1)};
  CHECK(place_stages(4, tight).value() == places{0, 0, 1, 1});  // of which nothing is predicted
}

TEST_CASE("A stage that its node by cores cannot hold goes where there is memory") {
  CHECK(placed({100, 100, 100, 100}, {node("a", 2, 100), node("b", 2, 300)}) == places{0, 1, 1, 1});
  // In the order of the nodes neither fits; the larger one chooses first.
  CHECK(placed({300, 100}, {node("a", 1, 100), node("b", 1, 300)}) == places{1, 0});
  // The fewest share a core: not 2 on a.
  CHECK(placed({50, 50, 300, 50}, {node("a", 1, 100), node("b", 2, 500), node("c", 1, 100)}) ==
        places{0, 1, 1, 2});
  CHECK(placed({200, 100, 100}, {node("a", 1, 200, {1}), node("b", 1, 300)}) == places{1, 0, 1});
}

TEST_CASE("What does not fit is refused with the stage, what it needs and what nodes have") {
  const auto large = refused({100, 812}, {node("a", 1, 500), node("b", 1, 700)});
  CHECK_THAT(large.text, ContainsSubstring("stage 1 is predicted to take 812 MiB of memory, and no "
                                           "node has that: the largest, node \"b\", has 700 MiB"));
  CHECK_THAT(large.text, ContainsSubstring("take more stages or smaller micro-batches"));
  CHECK(large.node == 1);
  CHECK(large.key == "memory_mib");
  const auto many = refused({100, 100, 100}, {node("a", 1, 140), node("b", 1, 150)});
  CHECK_THAT(many.text, ContainsSubstring("stage 2 is predicted to take 100 MiB of memory, and no "
                                          "node has that left: node \"a\" 40 MiB, node \"b\" 50"));
  const auto named = refused({100, 200, 50}, {node("a", 1, 250, {0, 1}), node("b", 1, {})});
  CHECK_THAT(named.text,
             ContainsSubstring("node \"a\" has 250 MiB of memory for its stages, which are "
                               "predicted to take 300 MiB (stage 0 100 MiB, stage 1 200 MiB)"));
  CHECK(named.node == 0);
  const auto empty = refused({100, 100}, {node("a", 1, 10), node("b", 1, 900)});
  CHECK_THAT(empty.text, ContainsSubstring("node \"a\" is left without a stage where stages are "
                                           "placed by their predicted memory"));
}

TEST_CASE("A replica gets the memory that the ones before it leave") {
  const auto needs = in_bytes({100, 100});
  const auto placed_replicas = [&](double memory_a, double memory_b) {
    return place_replicas(2, 2, {node("a", 1, memory_a), node("b", 1, memory_b)}, needs);
  };
  CHECK(placed_replicas(200, 200).value() == places{0, 1, 0, 1});
  const auto none = troupe::error_of(placed_replicas(100, 300));
  CHECK_THAT(none.text, ContainsSubstring("node \"a\" is left without a stage"));
  CHECK_FALSE(placed_replicas(100, 100));
  const auto by_replica = place_replicas(
      1, 2, {{.name = "a", .replicas = {0}, .memory_bytes = 100 * mib}, node("b", 1, 200)},
      in_bytes({100}));
  CHECK_FALSE(by_replica);  // replica 0 could be on either, and leaves one node empty
}

TEST_CASE("Of random nodes and stages no placement exceeds a memory, and few are missed") {
  std::mt19937 draw(20251);
  int possible = 0, found = 0;
  for (int i = 0; i < 600; ++i) {
    std::vector<node_room> nodes;
    for (const auto* name : {"a", "b", "c"})
      nodes.push_back(node(name, 1 + draw() % 4, 100.0 + draw() % 400));
    std::vector<double> needs(3 + draw() % 3);
    for (auto& each : needs) each = 20 + draw() % 200;
    const auto count = static_cast<std::uint32_t>(needs.size());
    if (!place_stages(count, nodes)) continue;  // by cores a node has no stage, as without memory
    possible += can_be_placed(needs, nodes);
    const auto made = place_stages(count, nodes, in_bytes(needs));
    if (!made) continue;
    ++found;
    std::vector<double> bytes(nodes.size());
    for (std::size_t stage = 0; stage < needs.size(); ++stage)
      bytes[made->at(stage)] += needs[stage] * mib;
    for (std::size_t n = 0; n < nodes.size(); ++n) CHECK(bytes[n] <= *nodes[n].memory_bytes);
  }
  CHECK(possible > 50);
  CHECK(found <= possible);
  CHECK(found * 10 >= possible * 9);
}

TEST_CASE("Stages go where the GPUs that nodes have can hold them") {
  const auto placed_on = [](const std::vector<double>& needs_mib,
                            const std::vector<node_room>& nodes) {
    const auto made =
        place_stages(static_cast<std::uint32_t>(needs_mib.size()), nodes, on_gpus(needs_mib));
    INFO((made ? "" : made.error().text));
    REQUIRE(made);
    return *made;
  };
  const std::vector<double> alike{100, 100, 100, 100};
  CHECK(placed_on(alike, {gpu_node("a", 200), gpu_node("b", 200)}) == places{0, 0, 1, 1});
  CHECK(placed_on(alike, {gpu_node("a", 100), gpu_node("b", 300)}) == places{0, 1, 1, 1});
  CHECK(placed_on(alike, {gpu_node("a", {}), gpu_node("b", 300)}) == places{0, 0, 1, 1});
  // Where each has one of its own, the largest counts, not their sum.
  CHECK(placed_on(alike, {gpu_node("a", 100, node_devices::own), gpu_node("b", 200)}) ==
        places{0, 0, 1, 1});
  CHECK(placed_on({300, 100}, {gpu_node("a", 100, node_devices::own),
                               gpu_node("b", 300, node_devices::own)}) == places{1, 0});
  // On a CPU a stage needs twice as much.
  CHECK(placed_on({100, 100}, {node("a", 1, 200), gpu_node("b", 100)}) == places{0, 1});
  CHECK_FALSE(place_stages(2, {node("a", 1, 199), gpu_node("b", 100)}, on_gpus({100, 100})));
  // What is beside a GPU counts too.
  auto beside = gpu_node("a", 1000);
  beside.memory_bytes = 25 * mib;
  CHECK(placed_on({100, 100, 100}, {beside, gpu_node("b", 1000)}) == places{0, 0, 1});
  beside.memory_bytes = 15 * mib;
  CHECK(placed_on({100, 100, 100}, {beside, gpu_node("b", 1000)}) == places{0, 1, 1});
}

TEST_CASE("What fits no GPU is refused with what it needs there and beside it") {
  const auto refused_on = [](const std::vector<double>& needs_mib,
                             const std::vector<node_room>& nodes) {
    const auto made =
        place_stages(static_cast<std::uint32_t>(needs_mib.size()), nodes, on_gpus(needs_mib));
    REQUIRE_FALSE(made);
    return made.error();
  };
  const auto large = refused_on({100, 200}, {gpu_node("a", 150), gpu_node("b", 140)});
  CHECK_THAT(large.text, ContainsSubstring(
                             "stage 1 is predicted to take 200 MiB of a GPU and 20 MiB beside it, "
                             "and no node has that: node \"a\" 150 MiB of a GPU, node \"b\" 140 "
                             "MiB of a GPU; take more stages or smaller micro-batches"));
  CHECK(large.key == "device_memory_mib");
  CHECK_THAT(refused_on({100, 200}, {gpu_node("a", 150), node("b", 1, 140)}).text,
             ContainsSubstring("beside it, or on a CPU 400 MiB of memory, and no node has that: "
                               "node \"a\" 150 MiB of a GPU, node \"b\" 140 MiB;"));
  CHECK_THAT(
      refused_on({100, 100, 100}, {gpu_node("a", 140), gpu_node("b", 150)}).text,
      ContainsSubstring("stage 2 is predicted to take 100 MiB of a GPU and 10 MiB beside it, "
                        "and no node has that left: node \"a\" 40 MiB of a GPU, node \"b\" "
                        "50 MiB of a GPU;"));
  const auto named = refused_on(
      {100, 200, 50}, {gpu_node("a", 250, node_devices::shared, {0, 1}), gpu_node("b", {})});
  CHECK_THAT(named.text, ContainsSubstring(
                             "node \"a\" has 250 MiB of a GPU for its stages, which are predicted "
                             "to take 300 MiB (stage 0 100 MiB, stage 1 200 MiB)"));
  CHECK(named.node == 0);
  CHECK(named.key == "device_memory_mib");
  CHECK_THAT(
      refused_on({100, 200, 50}, {gpu_node("a", 150, node_devices::own, {0, 1}), gpu_node("b", {})})
          .text,
      ContainsSubstring("node \"a\" has 150 MiB of a GPU for each of its stages, of which one is "
                        "predicted to take 200 MiB (stage 0 100 MiB, stage 1 200 MiB)"));
}

TEST_CASE("A replica gets what the ones before it leave of a GPU that they share") {
  const auto placed_on = [](double mib_of_gpu, node_devices devices) {
    return bool(place_replicas(1, 2, {gpu_node("a", mib_of_gpu, devices)}, on_gpus({100})));
  };
  CHECK(placed_on(200, node_devices::shared));
  CHECK_FALSE(placed_on(150, node_devices::shared));
  CHECK(placed_on(100, node_devices::own));
}

TEST_CASE("What NCCL is estimated to take of a GPU is in nobody's way elsewhere") {
  auto needs = on_gpus({100, 100});
  for (auto& each : needs) each.by_nccl = 50 * mib;
  CHECK(place_stages(2, {gpu_node("a", 300)}, needs));
  CHECK(place_stages(2, {node("a", 1, 400)}, needs));  // on the CPU
  CHECK(place_stages(2, {gpu_node("a", 150, node_devices::own)}, needs));
  const auto words = [&](double mib_of_gpu, node_devices devices,
                         const std::vector<std::uint32_t>& stages) {
    return troupe::error_of(place_stages(2, {gpu_node("a", mib_of_gpu, devices, stages)}, needs))
        .text;
  };
  CHECK_THAT(words(299, node_devices::shared, {0, 1}),
             ContainsSubstring("predicted to take 300 MiB (of which 100 MiB are an estimate of "
                               "NCCL's buffers) (stage 0 150 MiB, stage 1 150 MiB)"));
  CHECK_THAT(words(149, node_devices::own, {0, 1}),
             ContainsSubstring("predicted to take 150 MiB (of which 50 MiB are an estimate of "
                               "NCCL's buffers) (stage 0 150 MiB, stage 1 150 MiB)"));
  CHECK_THAT(words(149, node_devices::own, {}),
             ContainsSubstring("is predicted to take 150 MiB of a GPU (of which 50 MiB are an "
                               "estimate of NCCL's buffers) and 10 MiB beside it"));
}
