#include "actors/parameter_server/batch_pieces.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "actors/messages/parameter_server/tensors.hpp"
#include "engine/base/torch_error.hpp"
#include "engine/parameter_server/batch.hpp"

namespace troupe::actors {
namespace {

/// Packed parameters of one message: each is a number in its header, which is bounded.
constexpr std::size_t most_packed = 16 * 1024;

std::uint64_t bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<std::uint64_t>(tensor.nbytes()) : 0;
}

std::uint64_t tensors_of(const engine::tensor_batch::entry& entry) {
  return entry.rows.defined() ? 2 : 1;
}

/// Elements of a dense entry, rows of one by rows.
std::uint64_t units_of(const engine::tensor_batch::entry& entry) {
  return static_cast<std::uint64_t>(entry.rows.defined() ? entry.rows.numel()
                                                         : entry.values.numel());
}

std::string text_of(const engine::push_id& push) {
  return "push " + std::to_string(push.sequence) + " of worker " +
         std::to_string(push.worker.value);
}

bool is_empty(const engine::tensor_batch& piece) {
  return piece.packed.empty() && piece.entries.empty() && piece.runs.empty();
}

}  // namespace

bool fits(const engine::tensor_batch& batch, const piece_limits& most) {
  std::uint64_t bytes = bytes_of(batch.values);
  std::uint64_t tensors = batch.packed.empty() ? 0 : 1;
  for (const auto& each : batch.entries) {
    bytes += bytes_of(each.rows) + bytes_of(each.values);
    tensors += tensors_of(each);
  }
  return bytes <= most.bytes && tensors <= most.tensors && batch.packed.size() <= most_packed;
}

batch_cutter::batch_cutter(engine::tensor_batch whole,
                           const std::vector<engine::parameter_entry>& directory,
                           const piece_limits& most)
    : whole_(std::move(whole)), most_(most) {
  for (const auto index : whole_.packed)
    packed_sizes_.push_back(c10::multiply_integers(directory.at(index).shape));
}

bool batch_cutter::done() const {
  return packed_ == whole_.packed.size() && entry_ == whole_.entries.size();
}

engine::tensor_batch batch_cutter::next() {
  const at::NoGradGuard no_grad;
  engine::tensor_batch piece;
  room left{most_.bytes, most_.tensors};
  if (packed_ < whole_.packed.size()) take_packed(piece, left);
  while (packed_ == whole_.packed.size() && entry_ < whole_.entries.size()) {
    if (!take_entry(piece, left)) break;
  }
  return piece;
}

void batch_cutter::take_packed(engine::tensor_batch& piece, room& left) {
  const auto item = static_cast<std::uint64_t>(whole_.values.element_size());
  std::int64_t elements = 0;
  while (packed_ < whole_.packed.size() && piece.packed.size() < most_packed) {
    const auto size = packed_sizes_[packed_];
    const bool enough = static_cast<std::uint64_t>(elements + size) * item > most_.bytes;
    if (enough && !piece.packed.empty()) break;
    piece.packed.push_back(whole_.packed[packed_++]);
    elements += size;
  }
  piece.values = whole_.values.narrow(0, element_, elements);
  element_ += elements;
  left.bytes -= std::min(left.bytes, static_cast<std::uint64_t>(elements) * item);
  left.tensors -= std::min<std::uint64_t>(left.tensors, 1);
}

bool batch_cutter::take_entry(engine::tensor_batch& piece, room& left) {
  const auto& from = whole_.entries[entry_];
  const auto bytes = bytes_of(from.rows) + bytes_of(from.values);
  const bool must = is_empty(piece);
  if (tensors_of(from) > left.tensors && !must) return false;
  if (first_ > 0 || bytes > most_.bytes) return take_run(from, piece, left);
  if (bytes > left.bytes && !must) return false;
  piece.entries.push_back(from);
  left.bytes -= std::min(left.bytes, bytes);
  left.tensors -= std::min(left.tensors, tensors_of(from));
  ++entry_;
  return true;
}

bool batch_cutter::take_run(const engine::tensor_batch::entry& from, engine::tensor_batch& piece,
                            room& left) {
  const auto all = units_of(from);
  const auto unit = std::max<std::uint64_t>(1, (bytes_of(from.rows) + bytes_of(from.values)) / all);
  auto count = std::min(left.bytes / unit, all - first_);
  if (count == 0 && !is_empty(piece)) return false;
  count = std::max<std::uint64_t>(count, 1);
  const auto begin = static_cast<std::int64_t>(first_);
  const auto length = static_cast<std::int64_t>(count);
  engine::tensor_batch::run run{from.parameter, first_, all, {}, {}};
  if (from.rows.defined()) {
    run.rows = from.rows.narrow(0, begin, length);
    run.values = from.values.narrow(0, begin, length);
  } else {
    run.values = from.values.contiguous().view(-1).narrow(0, begin, length);
  }
  piece.runs.push_back(std::move(run));
  left.bytes -= std::min(left.bytes, count * unit);
  left.tensors -= std::min(left.tensors, tensors_of(from));
  first_ += count;
  if (first_ < all) return false;  // the piece is full
  first_ = 0;
  ++entry_;
  return true;
}

batch_assembly::batch_assembly(std::vector<engine::parameter_entry> directory)
    : directory_(std::move(directory)), given_(directory_.size()) {}

result<void> batch_assembly::once(std::uint32_t parameter) {
  if (parameter >= directory_.size())
    return fail(errc::bad_data, "there is no parameter " + std::to_string(parameter) +
                                    " here; this shard has " + std::to_string(directory_.size()));
  if (given_[parameter])
    return fail(errc::bad_data, "'" + directory_[parameter].name + "' is given twice");
  given_[parameter] = true;
  return {};
}

result<void> batch_assembly::add(const engine::tensor_batch& piece) try {
  const at::NoGradGuard no_grad;
  auto entries = engine::unpack(piece, directory_);
  if (!entries) return tl::unexpected(entries.error());
  if (open_ && (piece.runs.empty() || piece.runs.front().parameter != open_->parameter))
    return fail(errc::bad_frame, "'" + directory_[open_->parameter].name + "' ended after " +
                                     std::to_string(open_->first) + " of " +
                                     std::to_string(open_->count));
  const auto add_runs = [&](bool open) -> result<void> {
    for (const auto& each : piece.runs) {
      if ((each.first > 0) != open) continue;
      if (auto added = add_run(each); !added) return added;
    }
    return {};
  };
  if (auto added = add_runs(true); !added) return added;
  for (auto& each : *entries) {
    if (auto first = once(each.parameter); !first) return first;
    if (each.values.defined() &&
        each.values.numel() > c10::multiply_integers(directory_[each.parameter].shape))
      return fail(errc::bad_data,
                  "'" + directory_[each.parameter].name + "' comes with more elements than it has");
    whole_.entries.push_back(std::move(each));
  }
  return add_runs(false);
} catch (const std::exception& problem) {
  return fail(errc::handler_failed, "a piece cannot be kept: " + engine::reason_of(problem));
}

result<void> batch_assembly::open(const engine::tensor_batch::run& run) {
  if (auto first = once(run.parameter); !first) return first;
  const auto& entry = directory_[run.parameter];
  const auto refuse = [&](const std::string& why) {
    return fail(errc::bad_data, "a run of '" + entry.name + "' " + why);
  };
  auto shape = entry.shape;
  const bool by_rows = run.rows.defined();
  if (by_rows && (!entry.by_rows || shape.empty()))
    return refuse("comes by rows, and the parameter is updated as a whole");
  const auto all =
      static_cast<std::uint64_t>(by_rows ? shape.front() : c10::multiply_integers(shape));
  if (by_rows ? run.count > all : run.count != all)
    return refuse("is one of " + std::to_string(run.count) + ", and the parameter has " +
                  std::to_string(all));
  if (by_rows) shape.front() = static_cast<std::int64_t>(run.count);
  open_ = engine::tensor_batch::run{run.parameter, 0, run.count, {}, {}};
  open_->values = at::empty(shape, run.values.scalar_type());
  if (by_rows) open_->rows = at::empty({static_cast<std::int64_t>(run.count)}, at::kLong);
  return {};
}

result<void> batch_assembly::add_run(const engine::tensor_batch::run& run) {
  const auto name = run.parameter < directory_.size() ? directory_[run.parameter].name : "?";
  const auto refuse = [&](errc code, const std::string& why) {
    return fail(code, "a run of '" + name + "' " + why);
  };
  if (!run.values.defined() || run.values.dim() == 0 || run.values.size(0) == 0)
    return refuse(errc::bad_data, "is empty");
  if (!open_ && run.first == 0) {
    if (auto opened = open(run); !opened) return opened;
  }
  if (!open_ || open_->parameter != run.parameter || open_->first != run.first ||
      open_->count != run.count)
    return refuse(errc::bad_frame,
                  "begins at " + std::to_string(run.first) + ", where " +
                      (open_ ? "'" + directory_[open_->parameter].name + "' is due from " +
                                   std::to_string(open_->first) + " on"
                             : std::string("none is due")));
  const bool by_rows = open_->rows.defined();
  auto to = by_rows ? open_->values : open_->values.view(-1);
  const auto begin = static_cast<std::int64_t>(run.first);
  const auto length = run.values.size(0);
  if (length > to.size(0) - begin) return refuse(errc::bad_frame, "goes beyond its end");
  to = to.narrow(0, begin, length);
  if (by_rows != run.rows.defined() || to.sizes() != run.values.sizes() ||
      to.scalar_type() != run.values.scalar_type() ||
      (by_rows &&
       (run.rows.dim() != 1 || run.rows.numel() != length || run.rows.scalar_type() != at::kLong)))
    return refuse(errc::bad_data, "has another shape or dtype than the others");
  to.copy_(run.values);
  if (by_rows) open_->rows.narrow(0, begin, length).copy_(run.rows);
  open_->first += static_cast<std::uint64_t>(length);
  if (open_->first < open_->count) return {};
  whole_.entries.push_back({open_->parameter, open_->rows, open_->values});
  open_.reset();
  return {};
}

result<engine::tensor_batch> batch_assembly::take() {
  if (open_)
    return fail(errc::bad_frame, "'" + directory_[open_->parameter].name + "' ended after " +
                                     std::to_string(open_->first) + " of " +
                                     std::to_string(open_->count));
  return std::exchange(whole_, {});
}

std::optional<whole_part> incoming_parts::add(
    const push_gradients& piece, const std::vector<engine::parameter_entry>& directory) {
  const auto& push = piece.what.push;
  if (piece.piece == 0 || !open_.contains(push.worker))
    open_.insert_or_assign(push.worker, open_part{push.sequence, 0, batch_assembly(directory)});
  auto& open = open_.at(push.worker);
  if (open.pieces && (open.sequence != push.sequence || open.next != piece.piece)) {
    open.pieces =
        fail(errc::bad_frame, "piece " + std::to_string(piece.piece) + " of " + text_of(push) +
                                  " came where piece " + std::to_string(open.next) + " of push " +
                                  std::to_string(open.sequence) + " was due");
  } else if (open.pieces) {
    if (auto added = open.pieces->add(piece.gradients); !added)
      open.pieces = tl::unexpected(added.error());
  }
  ++open.next;
  if (!piece.last) return std::nullopt;
  auto done = std::move(open_.extract(push.worker).mapped());
  if (!done.pieces) return whole_part(tl::unexpected(done.pieces.error()));
  return done.pieces->take();
}

parameters_pulled unfetched_values::begin(engine::worker_id worker, param_version version,
                                          const engine::tensor_batch& values,
                                          const batch_limits& most,
                                          const std::vector<engine::parameter_entry>& directory) {
  kept_.erase(worker);
  if (fits(values, most.frame)) return {version, values};
  rest all{version, 1, batch_cutter(values, directory, most.piece)};
  auto first = all.pieces.next();
  const bool more = !all.pieces.done();
  if (more) kept_.emplace(worker, std::move(all));
  return {version, std::move(first), more};
}

result<parameters_pulled> unfetched_values::next(engine::worker_id worker, std::uint32_t piece) {
  const auto found = kept_.find(worker);
  if (found == kept_.end() || found->second.next != piece)
    return fail(
        errc::bad_frame,
        "worker " + std::to_string(worker.value) + " asked for piece " + std::to_string(piece) +
            " of its values, where " +
            (found == kept_.end() ? std::string("none is left")
                                  : "piece " + std::to_string(found->second.next) + " is due"));
  auto& [version, next, pieces] = found->second;
  ++next;
  parameters_pulled part{version, pieces.next(), !pieces.done()};
  if (!part.more) kept_.erase(found);
  return part;
}

}  // namespace troupe::actors
