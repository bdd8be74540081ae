#include "cluster/config/checks/device_checks.hpp"

#include <algorithm>
#include <set>
#include <string>

#include "cluster/config/words.hpp"
#include "engine/collective/port.hpp"
#include "engine/device/device_choice.hpp"
#include "engine/device/open_device.hpp"
#include "messages/base/near_miss.hpp"

namespace troupe::cluster {
namespace {

using kind = engine::device_choice::kind;

// Why stages cannot compute there; empty: they can, as far as this machine can tell. `here`: on it.
std::string fault_of(const std::string& device, bool here) {
  const auto choice = engine::parse_device(device);
  if (!choice) return unknown_value(device, {"cpu", "auto", "cuda:0"}) + ", cuda:1, ..";
  if (choice->what != kind::cuda || !here) return {};
  const auto why = engine::open_device(device);
  return why.empty() ? why : '"' + device + "\": " + why;
}

bool is_cpu(const std::string& device) {
  const auto choice = engine::parse_device(device);
  return choice && choice->what == kind::cpu;
}

// Why they are not the stages' devices, however good each of them is; empty: they are.
std::string fault_of_list(const draft& whole) {
  const auto& pipeline = whole.config.pipeline;
  const std::size_t count = pipeline.devices.size(), stages = pipeline.stages;
  if (count == 1) return {};
  if (!whole.config.cluster.nodes.empty())
    return "a list is for stages that are on no node; name one device, and in its [[node]] table "
           "that of a node";
  const auto all = stages * pipeline.replicas;
  if (count == stages || count == all) return {};
  return "has " + std::to_string(count) + " devices for " + counted(stages, "stage") +
         source(whole, "pipeline.stages", stages) + "; name one for all stages, or one for each" +
         (all > stages ? ", of one replica or of all " + std::to_string(pipeline.replicas) : "");
}

bool has_automatic_stages(const placement_tables& config) {
  return std::ranges::count(config.pipeline.devices, "auto") > 0 ||
         std::ranges::any_of(config.cluster.nodes,
                             [](const auto& node) { return node.device == "auto"; });
}

// Whether some stage's device is such a one, as far as that can be told before stages have places.
template <class Predicate>
bool has_stages_on(const placement_tables& config, const Predicate& is_such) {
  const auto& nodes = config.cluster.nodes;
  const bool is_usual = std::ranges::any_of(config.pipeline.devices, is_such);
  if (nodes.empty()) return is_usual;
  return std::ranges::any_of(nodes, [&](const auto& node) {
    return node.device.empty() ? is_usual : is_such(node.device);
  });
}

// Why the sum over replicas cannot be NCCL's own; empty: it can.
std::string fault_of_fast(const placement_tables& config) {
  if (has_stages_on(config, is_cpu))
    return "\"fast\" is NCCL's own order of additions, and NCCL sums on GPUs, but stages compute "
           "on the CPU; leave it out, or name GPUs (--device cuda:0)";
  if (config.pipeline.zero > 0)
    return "\"fast\" sums for all replicas alike, but with zero = 1 each sum goes to one of them; "
           "leave one of the two out";
  return {};
}

// Why NCCL or UCX cannot move what stages send each other; empty: it can, as far as that is known
// before stages have places. `own`: the program's own libraries; null: NCCL and UCX.
std::string fault_of_edges(const placement_tables& config, const actors::device_libraries& own) {
  const auto edges = config.pipeline.edges;
  const auto word = '"' + std::string(word_of(edges)) + '"';
  const bool is_nccl = edges == edge_transport::nccl;
  if (config.pipeline.stages == 1)
    return word + " is for what stages send each other, but there is one stage; leave it out";
  if (config.pipeline.stages_in == placement::threads)
    return word +
           " is for stages in processes of their own, and inside one process tensors are "
           "handed over as they are; leave one of the two out";
  const auto& by = own.of(edges);
  const bool takes_cpu = by && by->library_for(c10::kCPU).has_value();
  if (!takes_cpu && has_stages_on(config, is_cpu))
    return std::string(is_nccl ? "NCCL" : "UCX") +
           " sends from GPU to GPU, but stages compute on the CPU; leave " + word +
           " out, or name " +
           (is_nccl ? "a GPU for each stage (--device cuda:0,cuda:1)" : "GPUs (--device cuda:0)");
  return {};
}

// TF32 rounds factors by half of that.
constexpr double least_tf32_tolerance = 1e-3;

// Why TF32 cannot be allowed; empty: it can.
std::string fault_of_tf32(const placement_tables& config, const train_config& train) {
  if (!has_stages_on(config, [](const std::string& device) { return !is_cpu(device); }))
    return "is for GPUs, but stages compute on the CPU; leave it out, or name GPUs (--device "
           "cuda:0)";
  if (train.verify && train.verify_tolerance < least_tf32_tolerance)
    return "rounds factors to a mantissa of 10 bits, so that a step cannot be verified to less "
           "than 0.001; allow that (--verify-tolerance 0.001), or leave --verify or TF32 out";
  return {};
}

}  // namespace

std::vector<error> check_devices(draft& whole, const registries& known) {
  const auto& config = whole.config;
  const bool here = !is_over_hosts(config.cluster.launch);
  std::vector<error> found;
  const auto refuse = [&](const std::string& key, const std::string& why) {
    found.push_back({errc::bad_config, whole.where(key) + ": " + why});
  };
  for (const auto& device :
       std::set(config.pipeline.devices.begin(), config.pipeline.devices.end()))
    if (const auto why = fault_of(device, here); !why.empty()) refuse("pipeline.device", why);
  if (const auto why = fault_of_list(whole); !why.empty()) refuse("pipeline.device", why);
  for (std::size_t i = 0; i < config.cluster.nodes.size(); ++i) {
    const auto& device = config.cluster.nodes[i].device;
    if (device.empty()) continue;
    if (const auto why = fault_of(device, here); !why.empty())
      refuse("node[" + std::to_string(i) + "].device", why);
  }
  for (std::size_t i = 0; i < config.cluster.nodes.size(); ++i) {
    const auto& node = config.cluster.nodes[i];
    if (node.device_memory_mib > 0 && devices_of(node, config.pipeline) == node_devices::none)
      refuse("node[" + std::to_string(i) + "].device_memory_mib",
             "its stages compute on the CPU; leave it out, or name their GPU (device)");
  }
  // Before anything in this process asks LibTorch for a GPU, which then has its answer for ever.
  if (here && config.pipeline.stages_in == placement::threads && has_automatic_stages(config))
    (void)engine::find_usable_cards();
  if (config.pipeline.reduce == reduce_order::fast)
    if (const auto why = fault_of_fast(config); !why.empty()) refuse("pipeline.reduce", why);
  if (config.pipeline.edges != edge_transport::link)
    if (const auto why = fault_of_edges(config, known.libraries); !why.empty())
      refuse("pipeline.edges", why);
  if (config.model.tf32)
    if (const auto why = fault_of_tf32(config, config.train); !why.empty())
      refuse("model.tf32", why);
  return found;
}

}  // namespace troupe::cluster
