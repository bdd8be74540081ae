#pragma once

#include <caf/actor_control_block.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "actors/interfaces.hpp"
#include "actors/pipeline/distant_data.hpp"
#include "cluster/membership/node_group.hpp"
#include "cluster/training/application.hpp"

namespace troupe::cluster {

/// How the data that the config names are opened, here or by a stage's process.
[[nodiscard]] engine::dataset_options dataset_options_of(const application& program,
                                                         const trainer_config& config);

/// Opens the data that the config names, in this process. Errors: those of engine::open_dataset.
[[nodiscard]] result<std::shared_ptr<const engine::dataset>> open_data_here(
    const application& program, const trainer_config& config);

/// The data of a run that a stage's process reads, and another one where that is lost. Used by one
/// thread, and ends before the nodes.
class data_on_node {
 public:
  /// Has the process of a stage open the data and read the batches from then on. `group` outlives
  /// it. Errors: those of opening it, with the name of the node; peer_lost.
  [[nodiscard]] static result<std::shared_ptr<data_on_node>> open(node_group& group,
                                                                  std::size_t stage,
                                                                  const application& program,
                                                                  const trainer_config& config);

  [[nodiscard]] std::shared_ptr<const engine::dataset> data() const { return data_; }
  [[nodiscard]] actors::data_actor reader() const { return data_->reader(); }

  /// Whether another process has the place of the one that has read the data.
  [[nodiscard]] bool is_lost() const { return group_.hosts().at(place_) != process_; }

  /// Has another process read them, as places_for_data orders; `reader` is another one then.
  /// `reached`: the last step that was reported, for errors. Errors: handler_failed where no
  /// process that is left can read the data, or where they are not what they were; peer_lost, after
  /// which it may be called again.
  [[nodiscard]] result<void> open_again(std::uint64_t reached);

 private:
  data_on_node(node_group& group, std::size_t stage);
  void note_process(std::size_t place);

  node_group& group_;
  std::shared_ptr<actors::distant_data> data_;
  std::size_t place_ = 0;
  std::string host_;               // of that process, see node_launcher::host_of
  caf::strong_actor_ptr process_;  // its host_actor
};

}  // namespace troupe::cluster
