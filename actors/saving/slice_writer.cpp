#include "actors/saving/slice_writer.hpp"

#include <pthread.h>
#include <sys/resource.h>

#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <filesystem>
#include <utility>
#include <vector>

#include "actors/base/errors.hpp"
#include "actors/base/failure.hpp"
#include "actors/detached.hpp"
#include "actors/messages/slices.hpp"
#include "actors/transfer/pieces.hpp"
#include "engine/slices/slice_folder.hpp"
#include "engine/slices/summed_file.hpp"
#include "optimizers/training/saved_state.hpp"

namespace troupe::actors {
namespace {

namespace fs = std::filesystem;
using tensor_list = std::vector<engine::named_tensor>;

/// A slice that waits for somebody who can write it.
struct kept_slice {
  std::uint64_t step = 0;
  tensor_list weights, state;
};

struct slice_writer_state {
  std::string name;
  kept_slice kept;
};

using slice_writer_pointer = slice_writer_actor::stateful_pointer<slice_writer_state>;

caf::error refusal(const slice_writer_state& state, const error& why) {
  return to_caf(error_about(state.name, why));
}

/// What of a slice goes into which file; all of it has one.
struct sorted_slice {
  engine::shown_tensors weights, state;
};

sorted_slice sorted(const store_slice& order) {
  sorted_slice out;
  for (const auto& each : order.tensors)
    (optimizers::is_state_name(each->form().name) ? out.state : out.weights).push_back(each);
  return out;
}

result<tensor_list> all_of(const engine::shown_tensors& tensors) {
  tensor_list out;
  for (const auto& each : tensors) {
    auto tensor = each->read_whole();
    if (!tensor) return tl::unexpected(tensor.error());
    out.push_back({each->form().name, std::move(*tensor)});
  }
  return out;
}

caf::result<slice_written> on_store(slice_writer_pointer self, const store_slice& order) {
  auto& state = self->state;
  auto slice = sorted(order);
  state.kept = {};
  const fs::path folder = order.what.folder;
  std::error_code absent;
  if (order.what.is_own) {
    if (auto made = engine::make_synced_folder(folder); !made) return refusal(state, made.error());
  } else if (!fs::is_directory(folder, absent)) {
    auto weights = all_of(slice.weights);
    if (!weights) return refusal(state, weights.error());
    auto rest = all_of(slice.state);
    if (!rest) return refusal(state, rest.error());
    state.kept = {order.what.step, std::move(*weights), std::move(*rest)};
    return slice_written{.keeper = caf::actor_cast<caf::strong_actor_ptr>(self)};
  }
  auto files = engine::save_all_summed(
      folder, {{order.what.weights, engine::stream_of(std::move(slice.weights))},
               {order.what.state, engine::stream_of(std::move(slice.state))}});
  if (!files) return refusal(state, files.error());
  return slice_written{.files = std::move(*files)};
}

caf::result<slice_piece> on_read_slice(slice_writer_pointer self, const read_slice& what) {
  auto& kept = self->state.kept;
  if (kept.step != what.step)
    return refusal(self->state, {errc::stale, "the slice of step " + std::to_string(what.step) +
                                                  " is not kept any more"});
  auto& list = what.state ? kept.state : kept.weights;
  if (what.forms) return slice_piece{forms_of(list, what.from, what.most)};
  auto piece = cut_piece(list, what.from, what.most, piece_tensors::shared);
  if (!piece) return refusal(self->state, piece.error());
  if (piece->last) list.clear();
  return slice_piece{std::move(*piece)};
}

slice_writer_actor::behavior_type slice_writer_behavior(slice_writer_pointer self,
                                                        std::string stage) {
  // Of this thread alone: checksums take what the arithmetic leaves of the cores.
  pthread_setname_np(pthread_self(), "checkpoints");
  constexpr int behind_arithmetic = 10;
  static_cast<void>(::setpriority(PRIO_PROCESS, 0, behind_arithmetic));
  self->state.name = std::move(stage);
  const auto name = self->state.name + ": the writer of checkpoints";
  end_when_thrown(*self, name);
  const guarding guarded(self, name);
  return {
      guarded(on_store),
      guarded(on_read_slice),
  };
}

}  // namespace

slice_writer_actor spawn_slice_writer(caf::actor_system& system, std::string stage) {
  return spawn_detached(system, "the files of checkpoints", slice_writer_behavior,
                        std::move(stage));
}

}  // namespace troupe::actors
