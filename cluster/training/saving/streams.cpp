#include "cluster/training/saving/streams.hpp"

#include <utility>

#include "actors/transfer/row_major.hpp"
#include "engine/model/model.hpp"

namespace troupe::cluster {

engine::tensor_stream weights_of(actors::pipeline& stages, const engine::model& described) {
  engine::tensor_stream made;
  for (const auto& each : engine::collect_weights(described))
    made.forms.push_back(engine::form_of(each));
  made.send = [&stages](const engine::tensor_stream::taker& take) -> result<void> {
    actors::row_major_runs runs;
    for (std::uint32_t at = 0; at < stages.layout().virtual_stages(); ++at) {
      auto sent = stages.visit_weights(
          at, [&](const actors::tensor_part& part) { return runs.add(part, take); });
      if (!sent) return sent;
    }
    return {};
  };
  return made;
}

result<engine::tensor_stream> state_of(actors::pipeline& stages) {
  auto forms = stages.list_state();
  if (!forms) return tl::unexpected(forms.error());
  return engine::tensor_stream{
      .forms = std::move(*forms), .send = [&stages](const engine::tensor_stream::taker& take) {
        actors::row_major_runs runs;
        return stages.visit_state(
            [&](const actors::tensor_part& part) { return runs.add(part, take); });
      }};
}

}  // namespace troupe::cluster
