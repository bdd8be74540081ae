#include "cluster/training/devices/nccl_memory.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "engine/collective/edge_ways.hpp"
#include "engine/collective/nccl/buffer_bytes.hpp"
#include "engine/collective/reach.hpp"
#include "engine/collective/sum_choice_core.hpp"
#include "engine/device/driver.hpp"

namespace troupe::cluster {
namespace {

/// What each stage will say of itself when the run starts, those of one replica after those of
/// another, if NCCL is installed.
std::vector<engine::sum_offer> offers_of(const placement_tables& config,
                                         const engine::usable_cards& here) {
  const auto seats = seats_of_stages(config);
  const auto nodes = node_of_stages(config);
  const bool is_elsewhere = is_over_hosts(config.cluster.launch);
  std::vector<engine::sum_offer> offers;
  for (std::size_t i = 0; i < seats.size(); ++i) {
    const auto& [named, seat, of] = seats[i];
    engine::sum_offer offer{
        .stage = std::to_string(i),
        .library = {},
        .why_not = "no GPU",
        .device = named,
        .machine = nodes && is_elsewhere ? config.cluster.nodes[nodes->at(i)].host : "here"};
    offer.network = offer.machine;
    if (named == "auto")
      offer.device = is_elsewhere ? "cuda:" + std::to_string(seat)
                                  : engine::assign_device(here, seat, of).device;
    if (is_gpu(offer.device)) offer.library = "NCCL";
    offers.push_back(std::move(offer));
  }
  return offers;
}

engine::sum_choice choice_of_sums(const std::vector<engine::sum_offer>& offers, std::size_t stage,
                                  const pipeline_config& pipeline, const link_config& link) {
  std::vector<engine::sum_offer> replicas;
  for (auto i = stage; i < offers.size(); i += pipeline.stages) replicas.push_back(offers[i]);
  return engine::choose_sum(replicas, {.fast = pipeline.reduce == reduce_order::fast,
                                       .network_is_trusted = link.network == network::trusted})
      .value_or(engine::sum_choice{});
}

/// What two stages reach each other by: loopback if they share a machine in any replica, where NCCL
/// takes the most.
engine::socket_reach reach_of_edge(const std::vector<engine::sum_offer>& offers, std::size_t from,
                                   std::size_t to, std::size_t stages) {
  for (std::size_t first = 0; first < offers.size(); first += stages)
    if (offers[first + from].machine == offers[first + to].machine)
      return engine::socket_reach::loopback;
  return engine::socket_reach::network;
}

}  // namespace

engine::usable_cards cards_to_share(const placement_tables& config) {
  engine::usable_cards cards;
  if (config.pipeline.replicas < 2 || is_over_hosts(config.cluster.launch)) return cards;
  const auto seats = seats_of_stages(config);
  if (std::ranges::find(seats, "auto", &device_seat::device) == seats.end()) return cards;
  const auto driver = engine::ask_driver();
  for (const auto& card : driver.cards) cards.indices.push_back(card.index);
  return cards;
}

std::vector<double> nccl_bytes_of_stages(const placement_tables& config, const link_config& link,
                                         const engine::model_layout& layout,
                                         const engine::usable_cards& here) {
  const auto& pipeline = config.pipeline;
  const auto offers = offers_of(config, here);
  std::vector<double> bytes(pipeline.stages);
  for (std::size_t stage = 0; pipeline.replicas > 1 && stage < bytes.size(); ++stage) {
    const auto chosen = choice_of_sums(offers, stage, pipeline, link);
    bytes[stage] = engine::nccl::sum_buffer_bytes(pipeline.replicas, chosen.way, chosen.sockets);
  }
  if (pipeline.edges != edge_transport::nccl) return bytes;
  for (const auto& [from, to, on] : engine::ways_between_stages(layout)) {
    const auto over = reach_of_edge(offers, from, to, pipeline.stages);
    bytes.at(from) += engine::nccl::edge_buffer_bytes(/*sends=*/true, over);
    bytes.at(to) += engine::nccl::edge_buffer_bytes(/*sends=*/false, over);
  }
  return bytes;
}

}  // namespace troupe::cluster
