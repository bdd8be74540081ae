#include "cluster/training/data_source.hpp"

#include <utility>

#include "cluster/recovery/data_places_core.hpp"
#include "messages/base/log.hpp"

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

data_on_node::data_on_node(node_group& group, std::size_t stage) : group_(group) {
  note_process(stage);
}

void data_on_node::note_process(std::size_t place) {
  place_ = place;
  host_ = group_.hosts_of_places().at(place);
  process_ = group_.hosts().at(place);
}

result<std::shared_ptr<data_on_node>> data_on_node::open(node_group& group, std::size_t stage,
                                                         const engine::dataset_options& how,
                                                         const data_config& data,
                                                         const train_config& train) {
  std::shared_ptr<data_on_node> made(new data_on_node(group, stage));
  auto opened = actors::distant_data::open(
      group.system(), [&group](const caf::node_id& id) { return group.node().name_of(id); },
      caf::actor_cast<actors::host_actor>(made->process_), how,
      train.on_fault == fault_policy::recover);
  if (opened) {
    made->data_ = std::move(*opened);
    return made;
  }
  const auto& why = opened.error();
  if (why.code == errc::peer_lost) return tl::unexpected(group.explain(why));
  return tl::unexpected(error_about("data on node " + data.node, why));
}

result<void> data_on_node::open_again(std::uint64_t reached) {
  std::string why;
  for (const auto place : places_for_data(group_.hosts_of_places(), place_, host_)) {
    const auto name = group_.names().at(place);
    const auto opened =
        data_->open_again(caf::actor_cast<actors::host_actor>(group_.hosts().at(place)));
    if (opened) {
      note_process(place);
      log::info(name + " reads the data from here on");
      return {};
    }
    if (opened.error().code == errc::peer_lost) return opened;
    why += (why.empty() ? "" : "; ") + ("on " + name + ": ") + opened.error().text;
  }
  return fail(errc::handler_failed, "the process that read the data was lost after step " +
                                        std::to_string(reached) +
                                        ", and none that is left can take its place: " + why);
}

}  // namespace troupe::cluster
