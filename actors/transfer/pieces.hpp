#pragma once

#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "actors/transfer/piece.hpp"
#include "engine/model/layer.hpp"
#include "messages/base/error.hpp"

namespace troupe::actors {

/// Whether a piece's tensors are those of the list, or copies that outlive the next change of it.
enum class piece_tensors { shared, copied };

/// The piece of `list` that begins at `from`: as much as `most` allows, and at least one element.
/// Tensors that fit are whole. Errors: bad_frame for a place outside of the list, bad_config for
/// limits that allow nothing.
[[nodiscard]] result<tensor_piece> cut_piece(const std::vector<engine::named_tensor>& list,
                                             const list_place& from, const piece_limits& most,
                                             piece_tensors how);

/// The same without values: each part is an empty run of its tensor, with shape and type.
[[nodiscard]] tensor_piece forms_of(const std::vector<engine::named_tensor>& list,
                                    const list_place& from, const piece_limits& most);

/// Where the piece after this one begins.
[[nodiscard]] list_place end_of(const tensor_piece& piece);

/// Puts a list together from its pieces, which come in order and once. A tensor that was cut gets
/// its storage at its first part, and later parts are copied into it; others are kept as they
/// came. Used by one thread.
class tensor_assembly {
 public:
  /// Storage for a tensor that comes in parts: of the part's whole shape, strides and dtype.
  using storage_for = std::function<result<at::Tensor>(const tensor_part& first)>;

  /// `where`: none allocates.
  explicit tensor_assembly(storage_for where = {}) : where_(std::move(where)) {}

  /// Errors: bad_frame for a piece that is missing, repeated or out of order, or a tensor that is
  /// incomplete; bad_data naming a tensor that comes twice or whose parts do not fit each other.
  /// After an error it takes nothing more.
  [[nodiscard]] result<void> add(const tensor_piece& piece);

  /// Where the next piece is to begin.
  [[nodiscard]] const list_place& next() const noexcept { return next_; }
  [[nodiscard]] bool complete() const noexcept { return complete_; }

  /// The whole tensors that have come since the last call, in the list's order.
  [[nodiscard]] std::vector<engine::named_tensor> take() { return std::exchange(ready_, {}); }

 private:
  struct open_tensor {
    std::string name;
    at::Tensor whole;
    at::Tensor flat;  // [elements], the same storage
    std::int64_t filled = 0;
  };

  [[nodiscard]] result<void> add_all(const tensor_piece& piece);
  [[nodiscard]] result<void> add_part(const tensor_part& part);
  [[nodiscard]] result<void> add_range(const tensor_part& part);
  [[nodiscard]] result<void> open(const tensor_part& part);

  storage_for where_;
  list_place next_;
  bool complete_ = false;
  std::optional<error> failure_;
  std::optional<open_tensor> open_;
  std::unordered_set<std::string> names_;
  std::vector<engine::named_tensor> ready_;
};

/// Copies a model's weights from pieces to where they belong, each as it comes: beside the weights
/// there is never more than a piece, or one tensor whose layout is another than the model's. After
/// an error the weights are partly the new ones. Used by one thread.
class weight_loader {
 public:
  /// `own`: the model's tensors, which are written. `partly`: those that do not come stay.
  explicit weight_loader(std::vector<engine::named_tensor> own, bool partly = false);
  weight_loader(const weight_loader&) = delete;
  weight_loader& operator=(const weight_loader&) = delete;

  /// Errors: those of tensor_assembly; bad_data naming a tensor that is unknown, of another shape
  /// or kind, or, at the last piece, missing.
  [[nodiscard]] result<void> add(const tensor_piece& piece);
  [[nodiscard]] bool complete() const noexcept { return assembly_.complete(); }

 private:
  [[nodiscard]] result<at::Tensor> place_of(const tensor_part& first) const;
  [[nodiscard]] result<const engine::named_tensor*> find(const std::string& name) const;
  [[nodiscard]] result<void> put(const engine::named_tensor& given);

  std::vector<engine::named_tensor> own_;
  bool partly_;
  std::unordered_map<std::string, std::size_t> places_;
  std::unordered_set<std::string> given_;
  tensor_assembly assembly_;
};

/// Asks for a list piece after piece: `ask(place)` gives a result<tensor_piece>. Errors: its own,
/// and those of tensor_assembly.
template <class Ask>
[[nodiscard]] result<std::vector<engine::named_tensor>> gather_pieces(Ask ask) {
  tensor_assembly all;
  while (!all.complete()) {
    auto piece = ask(all.next());
    if (!piece) return tl::unexpected(piece.error());
    if (auto added = all.add(*piece); !added) return tl::unexpected(added.error());
  }
  return all.take();
}

/// Asks for a list piece after piece, from one of its tensors on, and hands each part of the
/// `count` tensors from there to `take` as it comes: `ask(place)` gives a result<tensor_piece>,
/// `take(part)` a result<void>. Errors: theirs; bad_frame for a piece that was not asked for.
template <class Ask, class Take>
[[nodiscard]] result<void> visit_pieces(std::uint64_t first, std::uint64_t count, Ask ask,
                                        Take take) {
  list_place at{first, 0};
  while (at.tensor - first < count) {
    auto piece = ask(at);
    if (!piece) return tl::unexpected(piece.error());
    if (piece->begin != at || (piece->parts.empty() && !piece->last))
      return fail(errc::bad_frame, "a piece came that was not asked for");
    for (const auto& part : piece->parts) {
      if (at.tensor - first >= count) return {};
      if (auto taken = take(part); !taken) return taken;
      at = end_of({at, {part}});
    }
    if (piece->last) return {};
  }
  return {};
}

/// Hands a list out piece after piece, until one is refused: `give(piece)` gives a result<void>.
template <class Give>
[[nodiscard]] result<void> give_pieces(const std::vector<engine::named_tensor>& list,
                                       const piece_limits& most, Give give) {
  list_place from;
  for (bool last = false; !last;) {
    auto piece = cut_piece(list, from, most, piece_tensors::shared);
    if (!piece) return tl::unexpected(piece.error());
    from = end_of(*piece);
    last = piece->last;
    if (auto given = give(std::move(*piece)); !given) return given;
  }
  return {};
}

}  // namespace troupe::actors
