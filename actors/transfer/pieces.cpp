#include "actors/transfer/pieces.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <cstddef>
#include <exception>

#include "engine/base/torch_error.hpp"
#include "engine/device/device_streams.hpp"
#include "engine/model/model.hpp"

namespace troupe::actors {
namespace {

/// Of all names of a piece together: they are part of a message's header, which is bounded.
constexpr std::size_t most_name_bytes = std::size_t{256} << 10;

std::string text_of(const list_place& place) {
  return "tensor " + std::to_string(place.tensor) + ", element " + std::to_string(place.element);
}

/// The elements of a dense tensor as they lie in memory. [elements]
at::Tensor flat_view(const at::Tensor& dense) {
  return at::as_strided(dense.detach(), {dense.numel()}, {1}, dense.storage_offset());
}

/// What is left of a piece's limits while it is filled.
struct room {
  std::uint64_t bytes;
  std::uint32_t tensors;
  std::size_t name_bytes = most_name_bytes;
};

/// A run of a tensor that is too large for a piece, from `first` on. Nothing: there is no room.
std::optional<tensor_part> cut_tensor(const engine::named_tensor& from, std::uint64_t first,
                                      const room& left, bool must, piece_tensors how) {
  const auto dense =
      from.tensor.is_non_overlapping_and_dense() ? from.tensor : from.tensor.contiguous();
  const auto item = static_cast<std::uint64_t>(dense.element_size());
  auto count = left.bytes / item;
  if (count == 0 && !must) return std::nullopt;
  count = std::min(std::max<std::uint64_t>(count, 1),
                   static_cast<std::uint64_t>(dense.numel()) - first);
  auto run = flat_view(dense).narrow(0, static_cast<std::int64_t>(first),
                                     static_cast<std::int64_t>(count));
  if (how == piece_tensors::copied) run = engine::copy_on_host(run);
  return tensor_part{from.name, std::move(run),
                     storage_range{dense.sizes().vec(), dense.strides().vec(), first}};
}

/// What of a tensor goes into the piece, or nothing if it has to wait for the next.
std::optional<tensor_part> next_part(const engine::named_tensor& from, std::uint64_t first,
                                     const room& left, const piece_limits& most, bool must,
                                     piece_tensors how) {
  const bool fits = left.tensors > 0 && left.name_bytes >= from.name.size();
  if (!fits && !must) return std::nullopt;
  if (!from.tensor.defined()) return tensor_part{from.name, {}};
  const std::uint64_t bytes = from.tensor.nbytes();
  if (first > 0 || bytes > most.bytes) return cut_tensor(from, first, left, must, how);
  if (bytes > left.bytes && !must) return std::nullopt;
  const auto detached = from.tensor.detach();
  return tensor_part{from.name,
                     how == piece_tensors::copied ? engine::copy_on_host(detached) : detached};
}

/// Whether such a tensor has its elements in one run of memory, each once.
bool is_dense(const storage_range& range) {
  if (range.shape.size() != range.strides.size()) return false;
  std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // stride, size
  for (std::size_t i = 0; i < range.shape.size(); ++i) {
    if (range.shape[i] < 1) return false;
    if (range.shape[i] > 1) dims.emplace_back(range.strides[i], range.shape[i]);
  }
  std::ranges::sort(dims);
  std::int64_t due = 1;
  for (const auto& [stride, size] : dims) {
    if (stride != due || __builtin_mul_overflow(due, size, &due)) return false;
  }
  return true;
}

/// Where a list goes on behind a part that begins there.
list_place place_behind(const list_place& at, const tensor_part& part) {
  if (!part.range || !part.tensor.defined()) return {at.tensor + 1, 0};
  const auto end = part.range->first + static_cast<std::uint64_t>(part.tensor.numel());
  const auto all = static_cast<std::uint64_t>(c10::multiply_integers(part.range->shape));
  return end < all ? list_place{at.tensor, end} : list_place{at.tensor + 1, 0};
}

tl::unexpected<error> misfit(const std::string& name, const std::string& why) {
  return fail(errc::bad_data, "the parts of tensor '" + name + "' do not fit together: " + why);
}

}  // namespace

result<tensor_piece> cut_piece(const std::vector<engine::named_tensor>& list,
                               const list_place& from, const piece_limits& most,
                               piece_tensors how) {
  if (most.bytes == 0 || most.tensors == 0)
    return fail(errc::bad_config, "a piece of at most " + std::to_string(most.bytes) +
                                      " bytes and " + std::to_string(most.tensors) +
                                      " tensors holds nothing");
  const auto size_of = [&](std::uint64_t i) {
    return list[i].tensor.defined() ? static_cast<std::uint64_t>(list[i].tensor.numel()) : 0;
  };
  const bool is_inside = from.tensor < list.size()
                             ? from.element == 0 || from.element < size_of(from.tensor)
                             : from == list_place{};
  if (!is_inside)
    return fail(errc::bad_frame, "a piece from " + text_of(from) + " on was asked for, of " +
                                     std::to_string(list.size()) + " tensors");
  tensor_piece piece{.begin = from};
  room left{most.bytes, most.tensors};
  auto at = from;
  while (at.tensor < list.size()) {
    auto part = next_part(list[at.tensor], at.element, left, most, piece.parts.empty(), how);
    if (!part) return piece;
    const std::uint64_t bytes = part->tensor.defined() ? part->tensor.nbytes() : 0;
    left.bytes -= std::min(bytes, left.bytes);
    left.tensors -= left.tensors > 0 ? 1 : 0;
    left.name_bytes -= std::min(part->name.size(), left.name_bytes);
    at = place_behind(at, *part);
    piece.parts.push_back(std::move(*part));
  }
  piece.last = true;
  return piece;
}

tensor_piece forms_of(const std::vector<engine::named_tensor>& list, const list_place& from,
                      const piece_limits& most) {
  tensor_piece piece{.begin = from};
  for (auto i = from.tensor; i < list.size() && piece.parts.size() < most.tensors; ++i) {
    const auto& [name, tensor] = list[i];
    piece.parts.push_back({name, at::empty({0}, tensor.options().device(at::kCPU)),
                           storage_range{tensor.sizes().vec(), tensor.strides().vec(),
                                         static_cast<std::uint64_t>(tensor.numel())}});
  }
  piece.last = from.tensor + piece.parts.size() >= list.size();
  return piece;
}

list_place end_of(const tensor_piece& piece) {
  auto at = piece.begin;
  for (const auto& part : piece.parts) at = place_behind(at, part);
  return at;
}

result<void> tensor_assembly::add(const tensor_piece& piece) {
  if (failure_) return tl::unexpected(*failure_);
  auto added = [&]() -> result<void> {
    try {
      return add_all(piece);
    } catch (const std::exception& problem) {
      return fail(errc::handler_failed,
                  "a piece cannot be put in its place: " + engine::reason_of(problem));
    }
  }();
  if (!added) failure_ = added.error();
  return added;
}

result<void> tensor_assembly::add_all(const tensor_piece& piece) {
  if (complete_)
    return fail(errc::bad_frame,
                "a piece from " + text_of(piece.begin) + " on came after the last");
  if (piece.begin != next_)
    return fail(errc::bad_frame, "a piece from " + text_of(piece.begin) + " on came " +
                                     (piece.begin < next_ ? "again" : "early") +
                                     "; the next is to begin at " + text_of(next_));
  if (piece.parts.empty() && !piece.last)
    return fail(errc::bad_frame, "a piece at " + text_of(next_) + " is empty");
  for (const auto& part : piece.parts) {
    if (auto added = add_part(part); !added) return added;
    next_ = open_ ? list_place{next_.tensor, static_cast<std::uint64_t>(open_->filled)}
                  : list_place{next_.tensor + 1, 0};
  }
  if (piece.last && open_)
    return fail(errc::bad_frame, "tensor '" + open_->name + "' ended after " +
                                     std::to_string(open_->filled) + " of its " +
                                     std::to_string(open_->flat.numel()) + " elements");
  complete_ = piece.last;
  return {};
}

result<void> tensor_assembly::add_part(const tensor_part& part) {
  if (open_ && (!part.range || part.name != open_->name))
    return misfit(open_->name, "'" + part.name + "' came after " + std::to_string(open_->filled) +
                                   " of " + std::to_string(open_->flat.numel()) + " elements");
  if (!open_ && !names_.insert(part.name).second)
    return fail(errc::bad_data, "tensor '" + part.name + "' came twice");
  if (part.range) return add_range(part);
  ready_.push_back({part.name, part.tensor});
  return {};
}

result<void> tensor_assembly::add_range(const tensor_part& part) {
  const auto& values = part.tensor;
  if (!values.defined() || values.dim() != 1 || values.numel() == 0)
    return misfit(part.name, "one of them is no run of elements");
  if (!open_) {
    if (auto opened = open(part); !opened) return opened;
  }
  auto& [name, whole, flat, filled] = *open_;
  if (whole.sizes() != at::IntArrayRef(part.range->shape) ||
      whole.strides() != at::IntArrayRef(part.range->strides))
    return misfit(name, "they are of tensors of different shapes");
  if (values.scalar_type() != whole.scalar_type())
    return misfit(name, std::string("they are ") + c10::toString(whole.scalar_type()) + " and " +
                            c10::toString(values.scalar_type()));
  if (part.range->first != static_cast<std::uint64_t>(filled) ||
      values.numel() > flat.numel() - filled)
    return misfit(name, std::to_string(values.numel()) + " elements from " +
                            std::to_string(part.range->first) + " on came after " +
                            std::to_string(filled) + " of " + std::to_string(flat.numel()));
  const at::NoGradGuard no_grad;
  flat.narrow(0, filled, values.numel()).copy_(values);
  filled += values.numel();
  if (filled < flat.numel()) return {};
  ready_.push_back({name, whole});
  open_.reset();
  return {};
}

result<void> tensor_assembly::open(const tensor_part& part) {
  if (!is_dense(*part.range)) return misfit(part.name, "the whole has gaps or overlaps");
  result<at::Tensor> whole =
      where_ ? where_(part)
             : at::empty_strided(part.range->shape, part.range->strides, part.tensor.options());
  if (!whole) return tl::unexpected(whole.error());
  open_ = open_tensor{part.name, *whole, flat_view(*whole)};
  return {};
}

weight_loader::weight_loader(std::vector<engine::named_tensor> own, bool partly)
    : own_(std::move(own)),
      partly_(partly),
      assembly_([this](const auto& first) { return place_of(first); }) {
  for (std::size_t i = 0; i < own_.size(); ++i) places_.emplace(own_[i].name, i);
}

result<const engine::named_tensor*> weight_loader::find(const std::string& name) const {
  const auto found = places_.find(name);
  if (found == places_.end())
    return fail(errc::bad_data, "weight '" + name + "' belongs to no layer of the model");
  return &own_[found->second];
}

/// The model's own tensor where it lies in memory as the parts do; else one to be copied from.
result<at::Tensor> weight_loader::place_of(const tensor_part& first) const {
  const auto own = find(first.name);
  if (!own) return tl::unexpected(own.error());
  const auto& [shape, strides, begin] = *first.range;
  const auto& tensor = (*own)->tensor;
  if (auto fits = engine::check_weight(**own, shape, first.tensor.scalar_type()); !fits)
    return tl::unexpected(fits.error());
  if (tensor.strides() == at::IntArrayRef(strides) && tensor.is_cpu() &&
      tensor.scalar_type() == first.tensor.scalar_type())
    return tensor.detach();
  return at::empty_strided(shape, strides, first.tensor.options());
}

result<void> weight_loader::put(const engine::named_tensor& given) {
  const auto own = find(given.name);
  if (!own) return tl::unexpected(own.error());
  if (!given.tensor.defined())
    return fail(errc::bad_data, "weight '" + given.name + "' has no values");
  if (auto fits = engine::check_weight(**own, given.tensor.sizes(), given.tensor.scalar_type());
      !fits)
    return fits;
  given_.insert(given.name);
  if (given.tensor.const_data_ptr() == (*own)->tensor.const_data_ptr()) {  // built there
    (*own)->tensor.unsafeGetTensorImpl()->bump_version();
    return {};
  }
  const at::NoGradGuard no_grad;
  (*own)->tensor.detach().copy_(given.tensor);
  return {};
}

result<void> weight_loader::add(const tensor_piece& piece) try {
  if (auto added = assembly_.add(piece); !added) return added;
  for (const auto& each : assembly_.take()) {
    if (auto taken = put(each); !taken) return taken;
  }
  if (!complete() || partly_) return {};
  for (const auto& [name, tensor] : own_) {
    if (!given_.contains(name))
      return fail(errc::bad_data, "weight '" + name + "' of the model is missing");
  }
  return {};
} catch (const std::exception& problem) {
  return fail(errc::handler_failed, "copying weights failed: " + engine::reason_of(problem));
}

}  // namespace troupe::actors
