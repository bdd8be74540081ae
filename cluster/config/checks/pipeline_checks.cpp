#include "cluster/config/checks/pipeline_checks.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "cluster/config/words.hpp"
#include "engine/collective/tree.hpp"
#include "engine/schedule/generators.hpp"
#include "engine/schedule/plan_file.hpp"
#include "messages/base/near_miss.hpp"

namespace troupe::cluster {

result<void> check_plan(draft& whole, const registries&) {
  pipeline_config& pipeline = whole.config.pipeline;
  if (pipeline.schedule_file.empty()) return {};
  auto steps = engine::read_plan(pipeline.schedule_file);
  if (!steps) return fail_at(whole, "pipeline.schedule_file", steps.error().text);
  const auto stages = static_cast<std::uint32_t>(steps->stages.size());
  if (whole.find("pipeline.stages") == nullptr) pipeline.stages = stages;
  if (whole.find("pipeline.micro_batches") == nullptr) pipeline.micro_batches = steps->microbatches;
  if (whole.find("pipeline.chunks") == nullptr) pipeline.chunks = steps->chunks;
  const auto refuse = [&](const char* key, std::uint32_t value, const std::string& has) {
    return fail_at(whole, "pipeline.schedule_file", key,
                   std::to_string(value) + source(whole, key, value) + ", but the plan has " + has);
  };
  if (pipeline.stages != stages)
    return refuse("pipeline.stages", pipeline.stages, std::to_string(stages));
  if (pipeline.chunks != steps->chunks)
    return refuse("pipeline.chunks", pipeline.chunks, std::to_string(steps->chunks));
  if (pipeline.micro_batches > steps->microbatches)
    return refuse("pipeline.micro_batches", pipeline.micro_batches,
                  "no more than " + std::to_string(steps->microbatches));
  pipeline.plan = std::move(*steps);
  return {};
}

result<void> check_chunks(draft& whole, const registries& known) {
  const pipeline_config& pipeline = whole.config.pipeline;
  const auto layout = engine::layout_of(schedule_of(pipeline, known.schedules), 1);
  if (layout || pipeline.plan) return {};
  return fail_at(whole, "pipeline.chunks", "pipeline.schedule",
                 layout.error().text + source(whole, "pipeline.schedule", pipeline.schedule));
}

result<void> check_cut(draft& whole, const registries& known) {
  pipeline_config& pipeline = whole.config.pipeline;
  if (pipeline.cut.empty()) return {};
  const std::string key =
      whole.find("pipeline.cut") != nullptr ? "pipeline.cut" : "pipeline.partition";
  const std::size_t layers = pipeline.cut.size();
  const std::uint32_t chunks = slices_of(pipeline, known.schedules) / pipeline.stages;
  if (whole.find("pipeline.stages") == nullptr && !pipeline.plan && (layers + 1) % chunks == 0)
    pipeline.stages = static_cast<std::uint32_t>((layers + 1) / chunks);
  if (slices_of(pipeline, known.schedules) == layers + 1) return {};
  const std::string parts = chunks == 1 ? "stages" : "slices";
  const bool is_word = layers == 1 && key == "pipeline.partition";
  const auto meant = is_word ? nearest(pipeline.cut.front(), {"auto", "even"}) : std::nullopt;
  return fail_at(whole, key, "pipeline.stages",
                 "a cut at " + counted(layers, "layer") +
                     source(whole, key, join({pipeline.cut.begin(), pipeline.cut.end()})) +
                     " makes " + std::to_string(layers + 1) + " " + parts + ", not " +
                     std::to_string(slices_of(pipeline, known.schedules)) +
                     source(whole, "pipeline.stages", pipeline.stages) +
                     (chunks == 1 ? "" : " of " + std::to_string(chunks) + " chunks each") +
                     "; name one layer less than " + parts + ", or none to have them balanced" +
                     (meant ? "; did you mean " + std::string(*meant) + "?" : ""));
}

result<void> check_memory(draft& whole, const registries&) {
  const pipeline_config& pipeline = whole.config.pipeline;
  if (pipeline.memory_mib == 0 || pipeline.partition == partition::automatic) return {};
  return fail_at(whole, "pipeline.memory_mib",
                 "applies to partition = \"auto\" only (--partition auto)");
}

result<void> check_micro_batches(draft& whole, const registries&) {
  const auto samples = static_cast<std::uint64_t>(whole.config.train.batch_size);
  const std::uint64_t parts = whole.config.pipeline.micro_batches;
  if (parts <= samples) return {};
  return fail_at(whole, "pipeline.micro_batches", "train.batch_size",
                 std::to_string(parts) + " micro-batches" +
                     source(whole, "pipeline.micro_batches", parts) +
                     " need as many samples, but a batch has " + std::to_string(samples) +
                     source(whole, "train.batch_size", samples));
}

result<void> check_replicas(draft& whole, const registries&) {
  const pipeline_config& pipeline = whole.config.pipeline;
  const train_config& train = whole.config.train;
  const auto replicas = pipeline.replicas;
  const auto logical = logical_replicas_of(pipeline, train);
  const auto given_replicas = source(whole, "pipeline.replicas", replicas);
  const auto refuse = [&](const std::string& why) {
    return fail_at(whole, "train.logical_replicas", "pipeline.replicas", why);
  };
  if (!engine::is_tree_of_shares(logical, replicas))
    return refuse(std::to_string(logical) + " logical replicas" +
                  source(whole, "train.logical_replicas", train.logical_replicas) +
                  " cannot be shared out to " + std::to_string(replicas) + " replicas" +
                  given_replicas + "; take " + std::to_string(replicas) + ", or twice or four " +
                  "times as many");
  if (logical == 1) return {};
  if (train.verify && train.verify_tolerance == 0)
    return refuse(
        "--verify compares with one process, which adds up gradients in another order "
        "than a tree of logical replicas: say how far they may differ "
        "(--verify-tolerance 1e-6)");
  const auto samples = static_cast<std::uint64_t>(train.batch_size);
  if (samples < logical)
    return refuse(std::to_string(logical) + " logical replicas" +
                  (train.logical_replicas > 0
                       ? source(whole, "train.logical_replicas", train.logical_replicas)
                       : given_replicas) +
                  " need a sample each, but a batch has " + std::to_string(samples) +
                  source(whole, "train.batch_size", samples) +
                  "; take fewer of them, or larger batches");
  const std::uint64_t parts = pipeline.micro_batches;
  if (parts == 0)
    return refuse(
        "--micro-batches auto cannot choose for several replicas; say how many "
        "micro-batches a batch has");
  if (parts < logical)
    return refuse(std::to_string(logical) + " logical replicas need a micro-batch each, but a " +
                  "batch has " + std::to_string(parts) +
                  source(whole, "pipeline.micro_batches", parts) +
                  "; take fewer of them, or more micro-batches");
  return {};
}

result<void> check_link(draft& whole, const registries&) {
  const transport kind = whole.config.link.transport;
  const placement where = whole.config.pipeline.stages_in;
  if (kind == transport::automatic) return {};
  if ((kind == transport::loopback) == (where == placement::threads)) return {};
  const std::string link(word_of(kind));
  const std::string stages(word_of(where));
  return fail_at(whole, "link.transport", "pipeline.stages_in",
                 link + source(whole, "link.transport", link) + " cannot connect stages in " +
                     stages + source(whole, "pipeline.stages_in", stages) + "; allowed there: " +
                     (where == placement::threads ? "auto, loopback" : "auto, tcp, shm, mixed"));
}

result<void> check_hang(draft& whole, const registries&) {
  const placement where = whole.config.pipeline.stages_in;
  if (whole.config.train.hang_timeout == 0 || where == placement::processes) return {};
  return fail_at(whole, "train.hang_timeout", "pipeline.stages_in",
                 "stages in threads" +
                     source(whole, "pipeline.stages_in", std::string(word_of(placement::threads))) +
                     " cannot be ended when they hang; put them in processes");
}

result<void> check_fault(draft& whole, const registries&) {
  if (whole.config.train.on_fault == fault_policy::stop) {
    if (whole.config.cluster.understudies == 0) return {};
    return fail_at(whole, "cluster.understudies", "train.on_fault",
                   "understudies take the places of lost stages, and a run "
                   "ends with the first that is lost; add --on-fault recover "
                   "([train] on_fault)");
  }
  if (whole.config.pipeline.stages_in == placement::processes) return {};
  return fail_at(whole, "train.on_fault", "pipeline.stages_in",
                 "stages in threads end with the trainer, and cannot be "
                 "replaced; put them in processes");
}

}  // namespace troupe::cluster
