#include "cluster/training/saving/distant_slices.hpp"

#include <limits>
#include <utility>

#include "actors/base/deadlines.hpp"
#include "actors/interfaces.hpp"
#include "actors/transfer/pieces.hpp"
#include "actors/transfer/row_major.hpp"
#include "engine/slices/summed_file.hpp"

namespace troupe::cluster {
namespace {

constexpr auto all_tensors = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t bytes_at_once = std::uint64_t{8} << 20;

/// The weights, or the state, of one slice.
class distant_list {
 public:
  distant_list(actors::requester& ask, actors::slice_writer_actor keeper,
               const actors::read_slice& which)
      : ask_(ask), keeper_(std::move(keeper)), which_(which) {
    which_.most.bytes = bytes_at_once;
  }

  template <class Take>
  result<void> visit(bool forms, const Take& take) const {
    const auto piece_at = [&](const actors::list_place& from) -> result<actors::tensor_piece> {
      auto request = which_;
      request.from = from;
      request.forms = forms;
      auto part =
          ask_.request<actors::slice_piece>(keeper_, request, actors::usual_deadlines.transfer)
              .get();
      if (!part) return tl::unexpected(part.error());
      return std::move(part->piece);
    };
    return actors::visit_pieces(0, all_tensors, piece_at, take);
  }

  result<engine::tensor_stream> stream() const {
    engine::tensor_stream made;
    const auto listed = visit(true, [&](const actors::tensor_part& part) -> result<void> {
      if (!part.range)
        return fail(errc::bad_frame, "a form of '" + part.name + "' came without its shape");
      made.forms.push_back({part.name, part.tensor.scalar_type(), part.range->shape});
      return {};
    });
    if (!listed) return tl::unexpected(listed.error());
    made.send = [this](const engine::tensor_stream::taker& take) {
      actors::row_major_runs runs;
      return visit(false, [&](const actors::tensor_part& part) { return runs.add(part, take); });
    };
    return made;
  }

 private:
  actors::requester& ask_;
  actors::slice_writer_actor keeper_;
  actors::read_slice which_;
};

}  // namespace

result<std::map<std::string, engine::file_sums>> fetch_slice(actors::requester& ask,
                                                             const actors::write_slice& what,
                                                             const caf::strong_actor_ptr& keeper) {
  std::map<std::string, engine::file_sums> files;
  for (const bool state : {false, true}) {
    const auto& name = state ? what.state : what.weights;
    if (name.empty()) continue;
    const distant_list list(ask, caf::actor_cast<actors::slice_writer_actor>(keeper),
                            {.step = what.step, .state = state});
    const auto stream = list.stream();
    if (!stream) return tl::unexpected(stream.error());
    if (auto added = engine::add_summed(files, what.folder, name, *stream); !added)
      return tl::unexpected(added.error());
  }
  return files;
}

}  // namespace troupe::cluster
