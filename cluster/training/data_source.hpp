#pragma once

#include <caf/actor_control_block.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "actors/interfaces.hpp"
#include "actors/pipeline/data/distant_data.hpp"
#include "cluster/membership/node_group.hpp"
#include "cluster/training/application.hpp"

namespace troupe::cluster {

/// How the data that the config names are opened, here or by a stage's process.
[[nodiscard]] engine::dataset_options dataset_options_of(const application& program,
                                                         const trainer_config& config);

/// Opens the data that the config names, in this process. Errors: those of engine::open_dataset.
[[nodiscard]] result<std::shared_ptr<const engine::dataset>> open_data_here(
    const application& program, const trainer_config& config);

/// The data of a run that a stage's process reads, or another process once that one is lost. Used
/// by one thread, and ends before the nodes.
class data_on_node {
 public:
  /// Has the process of a stage open the data and read the batches from then on. `group` outlives
  /// it. `how`: see dataset_options_of. Errors: those of opening it, with the name of the node;
  /// peer_lost.
  [[nodiscard]] static result<std::shared_ptr<data_on_node>> open(
      node_group& group, std::size_t stage, const engine::dataset_options& how,
      const data_config& data, const train_config& train);

  [[nodiscard]] std::shared_ptr<const engine::dataset> data() const { return data_; }
  [[nodiscard]] actors::data_actor reader() const { return data_->reader(); }

  /// A batch was read: see actors::distant_data::note_read.
  void note_read(const actors::deliver_batch& order, const actors::batch_delivered& as) {
    data_->note_read(order, as);
  }

  /// Whether another process has the place of the one that has read the data.
  [[nodiscard]] bool is_lost() const { return group_.hosts().at(place_) != process_; }

  /// Has another process read the data, in the order of places_for_data; `reader` changes.
  /// `reached`: the last step that was reported, for errors. Errors: handler_failed if no process
  /// that is left can read the data, or if they are not the same data; peer_lost, after which this
  /// may be called again.
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
