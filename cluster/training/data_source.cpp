#include "cluster/training/data_source.hpp"

namespace troupe::cluster {

engine::dataset_options dataset_options_of(const application& program,
                                           const trainer_config& config) {
  engine::dataset_options options{.source = config.data.source,
                                  .image_size = config.data.image_size,
                                  .seed = config.train.seed,
                                  .threads = config.data.threads,
                                  .strict = config.data.strict,
                                  .warn = {}};
  if (program.adjust_data) program.adjust_data(config, options);
  return options;
}

result<std::shared_ptr<const engine::dataset>> open_data_here(const application& program,
                                                              const trainer_config& config) {
  auto data = engine::open_dataset(dataset_options_of(program, config), program.info.known.data);
  if (!data) return tl::unexpected(config.places.blame("data.source", data.error()));
  return std::shared_ptr<const engine::dataset>(std::move(*data));
}

result<std::shared_ptr<const actors::distant_data>> open_data_at(node_group& group,
                                                                 std::size_t stage,
                                                                 const application& program,
                                                                 const trainer_config& config) {
  auto data = actors::distant_data::open(
      group.system(), [&group](const caf::node_id& id) { return group.node().name_of(id); },
      caf::actor_cast<actors::host_actor>(group.hosts().at(stage)),
      dataset_options_of(program, config));
  if (data) return data;
  if (data.error().code == errc::peer_lost) return tl::unexpected(group.explain(data.error()));
  return fail(data.error().code, "data on node " + config.data.node + ": " + data.error().text);
}

}  // namespace troupe::cluster
