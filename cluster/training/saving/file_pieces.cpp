#include "cluster/training/saving/file_pieces.hpp"

#include <algorithm>
#include <utility>

namespace troupe::cluster {
namespace {

std::uint64_t bytes_of(const engine::safetensors_entry& of) {
  return of.end - of.begin;
}

std::vector<std::int64_t> row_major_strides(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

}  // namespace

result<actors::tensor_part> file_pieces::part(const engine::tensor_place& which,
                                              std::uint64_t room) {
  const auto& of = *which.entry;
  if (at_.element == 0 && bytes_of(of) <= most_.bytes) {
    at_ = {at_.tensor + 1, 0};
    return which.file->read(of).map([&](at::Tensor whole) {
      return actors::tensor_part{of.name, std::move(whole)};
    });
  }
  const auto item = c10::elementSize(of.type);
  const auto all = bytes_of(of) / item;
  const auto first = at_.element;
  const auto count = std::min(std::max<std::uint64_t>(room / item, 1), all - first);
  at_ = first + count < all ? actors::list_place{at_.tensor, first + count}
                            : actors::list_place{at_.tensor + 1, 0};
  return which.file->read_run(of, first, count).map([&](at::Tensor run) {
    return actors::tensor_part{of.name, std::move(run),
                               actors::storage_range{of.shape, row_major_strides(of.shape), first}};
  });
}

result<actors::tensor_piece> file_pieces::next() {
  actors::tensor_piece piece{.begin = at_};
  std::uint64_t room = most_.bytes;
  while (at_.tensor < names_.size() && piece.parts.size() < most_.tensors) {
    const auto which = engine::find_in(files_, names_[at_.tensor]);
    const auto left = bytes_of(*which.entry) - at_.element * c10::elementSize(which.entry->type);
    if (left > room && !piece.parts.empty()) return piece;
    auto made = part(which, room);
    if (!made) return tl::unexpected(made.error());
    room -= std::min<std::uint64_t>(made->tensor.nbytes(), room);
    piece.parts.push_back(std::move(*made));
  }
  piece.last = at_.tensor == names_.size();
  return piece;
}

}  // namespace troupe::cluster
