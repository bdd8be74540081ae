#include "cluster/training/needs/placement_words.hpp"

#include <algorithm>
#include <cstddef>

#include "actors/pipeline/stage_needs.hpp"
#include "cluster/config/checks/thread_checks.hpp"
#include "cluster/membership/launchers/launch_choice.hpp"
#include "cluster/training/restarts/keeper_process.hpp"
#include "engine/device/device_choice.hpp"
#include "engine/device/open_device.hpp"

namespace troupe::cluster {
namespace {

using actors::in_mebi;

const char* const explanation_of_versions =
    "  With on_fault = recover also versions of its own and of another stage; the trainer keeps "
    "those of stages\n"
    "  that lend it their memory. On one machine they are the pages of the stage that they are of, "
    "which a process\n"
    "  shows only once it has read them.\n";

const char* const explanation_of_keeper =
    "  With max_restarts too the keeper, which outlives the trainer, keeps versions in its place: "
    "three of each\n"
    "  stage that does not lend it its memory, and the next one as it comes.\n";

const char* const explanation_of_devices =
    "device memory: what of that a stage has on its GPU, beside what CUDA's own libraries take; "
    "its process\n"
    "  then has its weights before they are moved, and what waits on edges to other processes.\n";

/// What replicas do with these stages; empty: there is one replica, logical ones counted.
std::string words_on_replicas(const placement_tables& config, const train_config& train) {
  const auto logical = logical_replicas_of(config.pipeline, train);
  if (logical <= 1) return "";
  const auto replicas = config.pipeline.replicas;
  const bool has_nodes = bool(node_of_stages(config));
  auto out = std::to_string(replicas) + (replicas > 1 ? " replicas, each with" : " replica with") +
             " these stages" + (has_nodes ? "" : " on this machine") + "; a batch has " +
             std::to_string(logical) + " logical replicas, whose gradients " +
             (config.pipeline.reduce == reduce_order::fast ? "NCCL sums in its own order\n"
                                                           : "are summed in a fixed tree\n");
  if (is_norm_synced(config.pipeline, train))
    out += "batch norm normalizes the micro-batches of all logical replicas together\n";
  if (state_shares_of(config.pipeline) > 1)
    out += "the replicas of a stage share out its optimizer's state (zero = 1)\n";
  return out;
}

}  // namespace

std::string explanation_of_memory(double program_bytes, const train_config& train,
                                  const pipeline_config& pipeline, bool has_gpus) {
  const bool keeps_versions = train.on_fault == fault_policy::recover;
  return "memory: the predicted peak of a process beside the program itself, which with its data "
         "has " +
         in_mebi(program_bytes) +
         " in this one.\n"
         "  A stage: parameters, gradients (the sum and a micro-batch's), the optimizer's state, "
         "activations of\n"
         "  the micro-batches in flight (measured here by one forward of each layer), what waits "
         "on its edges,\n"
         "  and the largest layer, which it draws; the trainer: two batches, and no weights.\n" +
         (keeps_versions ? explanation_of_versions : "") +
         (outlives_trainer(train, pipeline) ? explanation_of_keeper : "") +
         (has_gpus ? explanation_of_devices : "");
}

std::string words_on_devices(const placement_tables& config) {
  if (is_over_hosts(config.cluster.launch)) return "";
  const auto seats = seats_of_stages(config);
  const auto found = std::ranges::find(seats, "auto", &device_seat::device);
  if (found == seats.end()) return "";
  const auto said =
      engine::assign_device(engine::find_usable_cards(), found->seat, found->seats).said;
  return said.empty() ? "" : said + "\n";
}

std::string words_on_nodes(const placement_tables& config, const predicted_memory& memory) {
  const auto places = node_of_stages(config);
  std::string out;
  for (std::size_t n = 0; places && n < config.cluster.nodes.size(); ++n) {
    const auto& node = config.cluster.nodes[n];
    const auto devices = devices_of(node, config.pipeline);
    double bytes = 0, on_device = 0;
    for (std::size_t i = 0; i < places->size(); ++i) {
      if (places->at(i) != n) continue;
      const auto& need = memory.stages[i % memory.stages.size()];
      bytes += need.on_host(devices != node_devices::none);
      on_device = devices == node_devices::own ? std::max(on_device, need.of_device())
                                               : on_device + need.of_device();
    }
    if (node.memory_mib > 0)
      out += "node " + node.name + ": its stages take " + in_mebi(bytes) + " of " +
             std::to_string(node.memory_mib) + " MiB\n";
    if (node.device_memory_mib > 0)
      out += "node " + node.name + ": " +
             (devices == node_devices::own ? "a stage takes at most " : "its stages take ") +
             in_mebi(on_device) + " of a GPU's " + std::to_string(node.device_memory_mib) +
             " MiB\n";
  }
  return out;
}

std::string words_on_thread_loads(const placement_tables& config) {
  const auto& nodes = config.cluster.nodes;
  const auto here = cores_here();
  const auto launch = config.cluster.launch;
  const auto loads = thread_loads_of(config, here);
  std::string out;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    const bool is_node = i < nodes.size();
    const auto cores = known_cores(is_node ? nodes[i] : node_entry{}, launch, here);
    const auto words = cores > 0 ? words_on_threads(loads[i], cores) : "";
    if (!words.empty())
      out +=
          (is_node ? "node " + nodes[i].name : std::string("this machine")) + ": " + words + "\n";
  }
  return out;
}

std::string words_on_versions(const predicted_memory& memory, const std::vector<stage_place>& on) {
  std::string out;
  for (std::size_t stage = 0; stage < memory.sent.size(); ++stage) {
    const auto& sent = memory.sent[stage];
    if (!sent) continue;
    out += "stage " + std::to_string(stage) +
           ": each version travels to a keeper that shares no memory with it as ";
    if (sent->is_update(on[stage].on_gpu))
      out += in_mebi(sent->update) + " of gradients and buffers, of which the keeper computes " +
             in_mebi(sent->state) + " of state\n";
    else
      out += in_mebi(sent->state) + " of state\n";
  }
  return out;
}

std::string words_on_nccl_buffers(const predicted_memory& memory,
                                  const std::vector<stage_place>& on) {
  std::string out;
  for (std::size_t stage = 0; stage < memory.stages.size(); ++stage)
    if (on[stage].on_gpu && memory.stages[stage].by_nccl > 0)
      out += (out.empty() ? "" : ", ") + in_mebi(memory.stages[stage].by_nccl) + " of stage " +
             std::to_string(stage);
  if (out.empty()) return "";
  return "device memory includes an estimate of NCCL's buffers, which is high where no NVLink "
         "joins GPUs: " +
         out + "\n";
}

std::string words_on_run(const stage_tables& config, const data_config& data,
                         const std::string& devices) {
  auto out = words_on_replicas(config, config.train) + devices;
  if (config.model.tf32)
    out +=
        "matrix products and convolutions of f32 on GPUs may use TF32, whose bits are not those of "
        "f32\n";
  if (config.cluster.launch == launch_way::none)
    if (const auto who = who_may_join(config.link.listen); !who.empty()) out += who + "\n";
  if (!data.node.empty()) out += "node " + data.node + " reads the data\n";
  return out;
}

std::string words_on_missing_data(const data_config& data, const prepared_run& run,
                                  const error& why) {
  const auto& node = data.node;
  std::string out = "the data are not on this machine (" + why.text + "): node " + node +
                    " opens them when the run starts, and for `troupe doctor`\n"
                    "not checked without them: what stages and trainer need, how many steps there "
                    "are and whether each has samples enough, a checkpoint to go on from";
  if (run.layers.empty())
    return out +
           ", the model's layers and what names them\n"
           "with their number of classes in the file (classes in [model]) the layers are checked\n";
  if (run.ranges.empty())
    return out +
           ", where the model is cut\n"
           "with cuts in the file (cut in [pipeline]) the table shows the layers of each stage\n";
  return out + "\n";
}

}  // namespace troupe::cluster
