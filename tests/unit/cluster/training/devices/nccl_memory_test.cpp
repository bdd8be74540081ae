// What NCCL is estimated to take of the GPUs of stages.

#include "cluster/training/devices/nccl_memory.hpp"

#include <catch2/catch_test_macros.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cluster/config/trainer_config.hpp"

namespace {

using namespace troupe;
using namespace troupe::cluster;
using engine::chunk_order;
using mebis = std::vector<double>;

/// MiB of buffers between two GPUs, one way, for NCCL's 32 channels.
constexpr double receives = 32 * 10, sends = 32 * 2, both = receives + sends;

/// MiB of buffers at either end of a network, one way, for 4 channels.
constexpr double over_network = 4 * 10;

const std::vector<int> eight_cards{0, 1, 2, 3, 4, 5, 6, 7};

mebis estimated(const trainer_config& config, const engine::model_layout& layout,
                const std::vector<int>& cards = eight_cards) {
  auto bytes = nccl_bytes_of_stages(config, config.link, layout, {.indices = cards});
  for (auto& each : bytes) each /= 1 << 20;
  return bytes;
}

mebis of_edges(const engine::model_layout& layout, edge_transport edges = edge_transport::nccl) {
  trainer_config config;
  config.pipeline.stages = layout.stages;
  config.pipeline.devices = {"cuda:0", "cuda:1", "cuda:2"};
  config.pipeline.edges = edges;
  return estimated(config, layout);
}

/// Replicas of one stage.
trainer_config replicas_on(std::vector<std::string> devices, std::uint32_t replicas) {
  trainer_config config;
  config.pipeline.stages = 1;
  config.pipeline.replicas = replicas;
  config.pipeline.devices = std::move(devices);
  return config;
}

/// With a host for each name.
void put_on_hosts(trainer_config& config, const std::vector<std::string>& names) {
  config.cluster.launch = launch_way::ssh;
  for (const auto& name : names) {
    node_entry node;
    node.name = node.host = name;
    node.cores = 1;
    config.cluster.nodes.push_back(node);
  }
}

mebis of_sums(std::vector<std::string> devices, std::uint32_t replicas,
              reduce_order reduce = reduce_order::ordered) {
  auto config = replicas_on(std::move(devices), replicas);
  config.pipeline.reduce = reduce;
  return estimated(config, {});
}

}  // namespace

TEST_CASE("NCCL has buffers for each direction in which a stage sends or receives by it") {
  CHECK(of_edges({.stages = 3}) == mebis{both, 2 * both, both});
  CHECK(of_edges({.stages = 3}, edge_transport::link) == mebis{0, 0, 0});
  CHECK(of_edges({.stages = 1}) == mebis{0});
  // With several chunks two neighbours send each other activations and gradients in both
  // directions, but nothing goes from a stage to itself.
  CHECK(of_edges({.stages = 2, .chunks = 2}) == mebis{2 * both, 2 * both});
  CHECK(of_edges({.stages = 2, .chunks = 2, .order = chunk_order::v_shaped}) ==
        mebis{2 * both, 2 * both});
  CHECK(of_edges({.stages = 2, .chunks = 4}) == mebis{2 * both, 2 * both});
}

TEST_CASE("NCCL has buffers for each replica that parts are sent to, and for a ring") {
  CHECK(of_sums({"cuda:0", "cuda:1"}, 2) == mebis{2 * both});
  CHECK(of_sums({"cuda:0", "cuda:1", "cuda:2", "cuda:3"}, 4) == mebis{4 * both});
  CHECK(of_sums({"auto"}, 4) == mebis{4 * both});
}

TEST_CASE("NCCL's own all-reduce has a ring and a tree, however many replicas there are") {
  CHECK(of_sums({"cuda:0", "cuda:1"}, 2, reduce_order::fast) == mebis{2 * both});
  CHECK(of_sums({"auto"}, 4, reduce_order::fast) == mebis{3 * both});
  CHECK(of_sums({"auto"}, 8, reduce_order::fast) == mebis{3 * both});
}

TEST_CASE("NCCL has no buffers where replicas sum over links") {
  CHECK(of_sums({"cuda:0"}, 1) == mebis{0});
  CHECK(of_sums({"cuda:0"}, 2) == mebis{0});  // which they share
  CHECK(of_sums({"cpu"}, 2) == mebis{0});
  CHECK(of_sums({"cuda:0", "cpu"}, 2) == mebis{0});
  const auto automatic = replicas_on({"auto"}, 2);
  CHECK(estimated(automatic, {}, {3, 5}) == mebis{2 * both});
  CHECK(estimated(automatic, {}, {3}) == mebis{0});  // which they share
  CHECK(estimated(automatic, {}, {}) == mebis{0});   // and so compute on the CPU
}

TEST_CASE("Replicas on different hosts sum by NCCL only on a network that is trusted") {
  auto config = replicas_on({"cuda:0"}, 2);
  put_on_hosts(config, {"host-0", "host-1"});
  config.cluster.nodes[0].replicas = {"0"};
  config.cluster.nodes[1].replicas = {"1"};
  CHECK(estimated(config, {}) == mebis{0});
  config.link.network = network::trusted;
  // Parts go through the network; a ring is taken to have what NVLink has.
  CHECK(estimated(config, {}) == mebis{2 * over_network + both});
  config.pipeline.devices = {"auto"};  // of GPUs that are not known here
  CHECK(estimated(config, {}, {}) == mebis{2 * over_network + both});
}

TEST_CASE("NCCL has buffers at both ends of an edge between hosts, and fewer channels") {
  trainer_config config;
  config.pipeline.stages = 2;
  config.pipeline.devices = {"cuda:0"};
  config.pipeline.edges = edge_transport::nccl;
  put_on_hosts(config, {"host-0", "host-1"});
  config.cluster.nodes[0].stages = {"0"};
  config.cluster.nodes[1].stages = {"1"};
  CHECK(estimated(config, {.stages = 2}) == mebis{2 * over_network, 2 * over_network});
}
