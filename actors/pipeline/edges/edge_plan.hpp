#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "actors/interfaces.hpp"
#include "actors/messages/pipeline.hpp"
#include "engine/collective/edge_transport.hpp"
#include "engine/collective/reach.hpp"
#include "engine/schedule/plan.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {
struct sum_offer;
}  // namespace troupe::engine

namespace troupe::actors {

class requester;

/// The ports of all edges of a pipeline that lead from one process to another (see edge_port).
class edge_plan {
 public:
  /// No ports: all tensors go over links.
  edge_plan() = default;

  /// Ports for all such edges, by NCCL or UCX. `stages`: of all replicas, one replica after the
  /// other. Asks the stages. Errors: bad_config where all neighbours share a process; those of
  /// engine::reach_between and engine::check_copies_between.
  [[nodiscard]] static result<edge_plan> make(requester& ask,
                                              const std::vector<stage_actor>& stages,
                                              const engine::model_layout& layout,
                                              engine::edge_transport by, bool network_is_trusted);

  /// What the sockets of the ports need.
  [[nodiscard]] engine::socket_reach reach() const noexcept { return reach_; }

  /// Gets an invitation to each port from its sender. `sockets`: those of the whole run. Errors:
  /// those of the stages.
  [[nodiscard]] result<void> invite(requester& ask, const std::vector<stage_actor>& stages,
                                    engine::socket_reach sockets);

  [[nodiscard]] bool empty() const noexcept { return ways_.empty(); }

  /// Those that a stage sends or receives by.
  [[nodiscard]] std::vector<edge_port> ports_of(std::size_t place,
                                                const std::vector<stage_actor>& stages) const;

  /// For the start of a run; empty: there are none.
  [[nodiscard]] const std::string& line() const noexcept { return line_; }

 private:
  struct way {
    std::size_t from = 0, to = 0;  // places of stages
    edge_port port = {};           // but for `other` and `sends`
  };

  [[nodiscard]] result<void> agree(way& what, const engine::sum_offer& sender,
                                   const engine::sum_offer& receiver, bool network_is_trusted);

  std::vector<way> ways_;
  engine::socket_reach reach_ = engine::socket_reach::loopback;
  std::string line_;
};

}  // namespace troupe::actors
