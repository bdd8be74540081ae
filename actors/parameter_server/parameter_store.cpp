#include "actors/parameter_server/parameter_store.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <exception>
#include <sstream>
#include <utility>

#include "actors/parameter_server/mean.hpp"
#include "actors/wire/lendable.hpp"
#include "engine/base/torch_error.hpp"
#include "engine/parameter_server/placement.hpp"

namespace troupe::actors {
namespace {

constexpr std::size_t largest_group = 256 * 1024;  // bytes

std::string text_of(at::IntArrayRef shape) {
  std::ostringstream out;
  out << shape;
  return out.str();
}

at::ScalarType dtype_of(const parameter_entry& entry) {
  return static_cast<at::ScalarType>(entry.dtype);
}

std::int64_t elements_of(const parameter_entry& entry) {
  return c10::multiply_integers(entry.shape);
}

tl::unexpected<error> unknown(std::uint32_t index, std::size_t known) {
  return fail(errc::bad_data, "there is no parameter " + std::to_string(index) +
                                  " here; this shard has " + std::to_string(known));
}

result<void> check_dtype(const parameter_entry& entry, at::ScalarType type) {
  if (type == dtype_of(entry) || type == at::kBFloat16) return {};
  return fail(errc::bad_data, "the gradient of '" + entry.name + "' has dtype " +
                                  c10::toString(type) + ", and the parameter " +
                                  c10::toString(dtype_of(entry)));
}

result<void> check_rows(const parameter_entry& entry, const tensor_batch::entry& gradient) {
  const auto refuse = [&](const std::string& why) {
    return fail(errc::bad_data, "the gradient of '" + entry.name + "' " + why);
  };
  const auto& rows = gradient.rows;
  if (!entry.by_rows) return refuse("comes by rows, and the parameter is updated as a whole");
  if (rows.dim() != 1 || rows.scalar_type() != at::kLong || !rows.is_contiguous() ||
      rows.numel() != gradient.values.size(0))
    return refuse("has rows that are not one index for each of its " +
                  std::to_string(gradient.values.size(0)) + " rows of values");
  const auto* const index = rows.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < rows.numel(); ++i) {
    if (index[i] < 0 || index[i] >= entry.shape.front())
      return refuse("has row " + std::to_string(entry.first_row + index[i]) +
                    ", and the rows here are " + std::to_string(entry.shape.front()) + " from " +
                    std::to_string(entry.first_row) + " on");
  }
  return {};
}

result<void> check_gradient(const parameter_entry& entry, const tensor_batch::entry& gradient) {
  if (!gradient.values.defined())
    return fail(errc::bad_data, "the gradient of '" + entry.name + "' has no values");
  auto shape = entry.shape;
  if (gradient.rows.defined() && !shape.empty() && gradient.values.dim() > 0)
    shape.front() = gradient.values.size(0);
  if (gradient.values.sizes() != at::IntArrayRef(shape))
    return fail(errc::bad_data, "the gradient of '" + entry.name + "' has shape " +
                                    text_of(gradient.values.sizes()) + ", and the parameter " +
                                    text_of(entry.shape));
  if (auto good = check_dtype(entry, gradient.values.scalar_type()); !good) return good;
  return gradient.rows.defined() ? check_rows(entry, gradient) : result<void>();
}

/// Whether the packed values are those of their parameters, as many and in one piece.
result<void> check_packed(const tensor_batch& batch,
                          const std::vector<parameter_entry>& directory) {
  std::int64_t wanted = 0;
  for (const auto index : batch.packed) {
    if (index >= directory.size()) return unknown(index, directory.size());
    wanted += elements_of(directory[index]);
  }
  const auto& values = batch.values;
  if (!values.defined() && batch.packed.empty()) return {};
  if (values.defined() && values.dim() == 1 && values.numel() == wanted && values.is_contiguous())
    return {};
  return fail(errc::bad_data, "the packed values are " +
                                  std::to_string(values.defined() ? values.numel() : 0) +
                                  ", and their parameters have another number of elements");
}

/// Elements of `of`, which is in one piece, from `begin` on. Cheaper than a view by operators, and
/// apart from autograd.
at::Tensor part_of(const at::Tensor& of, std::int64_t begin, at::IntArrayRef shape) {
  auto part = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(of.storage()), of.key_set(), of.dtype());
  part.unsafeGetTensorImpl()->set_storage_offset(of.storage_offset() + begin);
  part.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return part;
}

/// Whether nobody else reads the parameter, so that it may be written. Links let go of tensors in
/// their own threads: what they read was read before.
bool is_alone(const at::Tensor& values) {
  const bool alone = values.use_count() == 1 && values.storage().use_count() == 1;
#ifdef __SANITIZE_THREAD__  // knows no fences, but what a handle does to counts when it goes
  const at::Tensor handle = values;
  const c10::Storage memory = values.storage();
#else
  std::atomic_thread_fence(std::memory_order_acquire);
#endif
  return alone;
}

/// Adds each row of `from` to the row of `sum` that `to` names, in their order.
template <class T>
void add_rows(at::Tensor& sum, const at::Tensor& to, const at::Tensor& from) {
  const auto width = from.size(0) == 0 ? 0 : from.numel() / from.size(0);
  const auto* const target = to.const_data_ptr<std::int64_t>();
  const auto* source = from.const_data_ptr<T>();
  for (std::int64_t row = 0; row < from.size(0); ++row, source += width) {
    T* const out = sum.mutable_data_ptr<T>() + target[row] * width;
    for (std::int64_t i = 0; i < width; ++i) out[i] += source[i];
  }
}

/// What is by rows and more than a shard's share, in runs of rows.
std::vector<owned_parameter> cut_large(const std::vector<owned_parameter>& parameters,
                                       std::uint32_t shards) {
  std::uint64_t total = 0;
  for (const auto& each : parameters) total += each.values.nbytes();
  std::vector<owned_parameter> all;
  for (const auto& whole : parameters) {
    const std::int64_t rows = whole.by_rows && whole.values.dim() > 0 ? whole.values.size(0) : 1;
    const std::int64_t pieces = std::clamp<std::int64_t>(
        rows, 1, engine::count_pieces(whole.values.nbytes(), total, shards));
    if (pieces == 1) {
      all.push_back(whole);
      continue;
    }
    for (std::int64_t i = 0; i < pieces; ++i) {
      const auto first = rows * i / pieces;
      const auto count = rows * (i + 1) / pieces - first;
      all.push_back({whole.name, whole.values.narrow(0, first, count), true, first});
    }
  }
  return all;
}

}  // namespace

parameter_store::gradient parameter_store::mean_of_rows(const std::vector<gradient>& of,
                                                        std::size_t count, at::ScalarType type) {
  std::vector<at::Tensor> rows;
  std::vector<at::Tensor> values;
  for (const auto& each : of) {
    rows.push_back(each.rows);
    values.push_back(each.values.to(type));
  }
  const auto all = at::cat(values).contiguous();
  const auto [touched, place, times] = at::_unique2(
      at::cat(rows), /*sorted=*/true, /*return_inverse=*/true, /*return_counts=*/false);
  auto shape = all.sizes().vec();
  shape.front() = touched.size(0);
  auto sum = at::zeros(shape, all.options());
  if (type == at::kFloat)
    add_rows<float>(sum, place, all);
  else if (type == at::kDouble)
    add_rows<double>(sum, place, all);
  else
    sum.index_add_(0, place, all);
  if (count > 1) sum.div_(static_cast<double>(count));
  return {touched, std::move(sum)};
}

std::vector<std::vector<owned_parameter>> spread_parameters(std::vector<owned_parameter> parameters,
                                                            std::uint32_t shards) {
  parameters = cut_large(parameters, shards);
  std::vector<std::uint64_t> bytes;
  for (const auto& each : parameters) bytes.push_back(each.values.nbytes());
  const auto owner = engine::place_parameters(bytes, shards);
  std::vector<std::vector<owned_parameter>> of(shards);
  for (std::size_t i = 0; i < parameters.size(); ++i)
    of[owner[i]].push_back(std::move(parameters[i]));
  return of;
}

parameter_store::parameter_store(std::vector<owned_parameter> parameters,
                                 optimizers::optimizer optimizer, optimizers::options options,
                                 rate_of_update rate,
                                 std::shared_ptr<messages::shared_memory> memory)
    : optimizer_(std::move(optimizer)),
      options_(std::move(options)),
      rate_(std::move(rate)),
      memory_(std::move(memory)) {
  const lendable_tensors lendable(memory_);
  for (auto& each : parameters) add_parameter(std::move(each));
}

void parameter_store::add_parameter(owned_parameter given) {
  const auto index = static_cast<std::uint32_t>(parameters_.size());
  const bool by_rows = given.by_rows && given.values.dim() > 0;
  directory_.push_back({std::move(given.name), given.values.sizes().vec(),
                        static_cast<std::int32_t>(given.values.scalar_type()), by_rows,
                        given.first_row});
  const auto fits = [&](const group& last) {
    std::size_t bytes = given.values.nbytes();
    for (const auto& each : last.values) bytes += each.nbytes();
    return bytes <= largest_group && !by_rows && !parameters_.back().by_rows();
  };
  if (groups_.empty() || !fits(groups_.back())) groups_.push_back({{}, {}, index});
  auto& values = groups_.back().values;
  parameter owned{.group = static_cast<std::uint32_t>(groups_.size() - 1),
                  .place = static_cast<std::uint32_t>(values.size()),
                  .changed = {},
                  .seen = {},
                  .log = {}};
  if (by_rows) owned.seen = at::zeros({given.values.size(0)}, at::kBool);
  values.push_back(given.values.detach().clone(at::MemoryFormat::Contiguous));
  parameters_.push_back(std::move(owned));
}

const at::Tensor& parameter_store::values_of(const parameter& owned) const {
  return groups_[owned.group].values[owned.place];
}

result<void> parameter_store::check(const tensor_batch& gradients) const {
  if (auto good = check_packed(gradients, directory_); !good) return good;
  std::vector<bool> given(directory_.size());
  const auto once = [&](std::uint32_t index) -> result<void> {
    if (index >= directory_.size()) return unknown(index, directory_.size());
    if (given[index])
      return fail(errc::bad_data,
                  "the gradient of '" + directory_[index].name + "' is given twice");
    given[index] = true;
    return {};
  };
  for (const auto index : gradients.packed) {
    auto good = once(index).and_then(
        [&] { return check_dtype(directory_[index], gradients.values.scalar_type()); });
    if (!good) return good;
  }
  for (const auto& each : gradients.entries) {
    auto good = once(each.parameter).and_then([&] {
      return check_gradient(directory_[each.parameter], each);
    });
    if (!good) return good;
  }
  return {};
}

std::vector<std::vector<parameter_store::gradient>> parameter_store::gather(
    std::span<const tensor_batch> pushes) const {
  std::vector<std::vector<gradient>> of(parameters_.size());
  for (const auto& push : pushes) {
    auto entries = unpack(push, directory_);
    for (auto& each : *entries)
      of[each.parameter].push_back({std::move(each.rows), std::move(each.values)});
  }
  return of;
}

result<void> parameter_store::update(std::span<const tensor_batch> pushes) try {
  const at::NoGradGuard no_grad;
  const lendable_tensors lendable(memory_);
  ++version_.value;
  auto gradients = gather(pushes);
  const auto options = options_now();
  for (auto& each : groups_) {
    const std::span of(gradients.data() + each.first, each.values.size());
    if (std::ranges::all_of(of, [](const auto& pushed) { return pushed.empty(); })) continue;
    const auto& first = of.front();
    const bool by_rows =
        parameters_[each.first].by_rows() &&
        std::ranges::all_of(first, [](const auto& pushed) { return pushed.rows.defined(); });
    const auto type = each.values.front().scalar_type();
    auto stepped = by_rows ? step_rows(each, mean_of_rows(first, pushes.size(), type), options)
                           : step(each, of, pushes.size(), options);
    if (!stepped)
      return fail(stepped.error().code, "update " + std::to_string(version_.value) + ": " +
                                            directory_[each.first].name +
                                            " and on: " + stepped.error().text);
  }
  return {};
} catch (const std::exception& problem) {
  return fail(errc::handler_failed,
              "update " + std::to_string(version_.value) + ": " + engine::reason_of(problem));
}

optimizers::options parameter_store::options_now() const {
  auto options = options_;
  if (rate_) options["lr"] = rate_(version_.value);
  return options;
}

at::Tensor parameter_store::dense_mean(const std::vector<gradient>& of, std::size_t count,
                                       const at::Tensor& like) {
  std::vector<at::Tensor> values;
  for (const auto& each : of) {
    values.push_back(each.values);
    if (!each.rows.defined()) continue;
    values.back() = at::zeros_like(like);
    values.back().index_add_(0, each.rows, each.values.to(like.scalar_type()));
  }
  return mean_of(values, count, like.scalar_type());
}

result<void> parameter_store::step(group& all, std::span<std::vector<gradient>> gradients,
                                   std::size_t count, const optimizers::options& options) {
  std::vector<std::optional<at::Tensor>> means(all.values.size());
  bool in_place = true;
  for (std::size_t i = 0; i < means.size(); ++i) {
    if (gradients[i].empty()) continue;
    means[i] = dense_mean(gradients[i], count, all.values[i]);
    gradients[i].clear();  // its buffers serve the next arrivals
    in_place = in_place && is_alone(all.values[i]);
    auto& owned = parameters_[all.first + i];
    owned.changed = version_;
    if (!owned.by_rows()) continue;  // a dense gradient touches every row
    owned.seen.fill_(true);
    owned.log = {.touched = {}, .rows = 0, .complete_since = version_};
  }
  if (in_place) return optimizer_.step(all.values, means, all.state, options, version_.value);
  auto next =
      optimizers::next_version(optimizer_, all.values, means, all.state, options, version_.value);
  if (!next) return tl::unexpected(next.error());
  all.values = std::move(next->params);
  all.state = std::move(next->kept);
  return {};
}

result<void> parameter_store::step_rows(group& all, const gradient& mean,
                                        const optimizers::options& options) {
  auto& owned = parameters_[all.first];
  owned.changed = version_;
  if (auto& values = all.values.front(); !is_alone(values)) values = values.clone();
  remember(owned.log, mean.rows, all.values.front().size(0));
  // Rows have a state from their first gradient on, as whole parameters have.
  const auto old = owned.seen.index_select(0, mean.rows);
  for (const bool first : {true, false}) {
    const auto which = (first ? old.logical_not() : old).nonzero().view(-1);
    if (which.numel() == 0) continue;
    const gradient part{mean.rows.index_select(0, which), mean.values.index_select(0, which)};
    if (auto stepped = step_some_rows(all, part, first, options); !stepped) return stepped;
  }
  return {};
}

result<void> parameter_store::step_some_rows(group& all, const gradient& mean, bool first,
                                             const optimizers::options& options) {
  auto& values = all.values.front();
  std::vector<at::Tensor> rows{values.index_select(0, mean.rows)};
  optimizers::state state;
  if (!first) {
    for (const auto& [slot, whole] : all.state)
      state[slot] = {whole.front().index_select(0, mean.rows)};
  }
  auto stepped = optimizer_.step(rows, {mean.values}, state, options, version_.value);
  if (!stepped) return stepped;
  values.index_copy_(0, mean.rows, rows.front());
  for (const auto& [slot, part] : state) {
    if (part.empty() || !part.front().defined()) continue;
    if (part.front().sizes() != mean.values.sizes())
      return fail(errc::bad_config, "optimizer '" + optimizer_.name + "' keeps '" + slot +
                                        "' in another shape than its parameter's, so it cannot "
                                        "update single rows");
    auto& whole = all.state[slot];
    if (whole.empty()) whole.push_back(at::zeros_like(values));
    whole.front().index_copy_(0, mean.rows, part.front());
  }
  parameters_[all.first].seen.index_fill_(0, mean.rows, !state.empty());
  return {};
}

void parameter_store::remember(row_log& log, const at::Tensor& rows, std::int64_t all) const {
  log.touched.emplace_back(version_, rows);
  log.rows += rows.numel();
  while (log.rows > all / 2) {  // to send the whole is as good
    log.rows -= log.touched.front().second.numel();
    log.complete_since = log.touched.front().first;
    log.touched.pop_front();
  }
}

std::optional<at::Tensor> parameter_store::rows_since(const row_log& log, param_version than) {
  if (than < log.complete_since) return std::nullopt;
  std::vector<at::Tensor> rows;
  for (const auto& [version, touched] : log.touched)
    if (version > than) rows.push_back(touched);
  if (rows.size() == 1) return rows.front();
  return std::get<0>(at::_unique2(at::cat(rows), true, false, false));
}

result<tensor_batch> parameter_store::read(const std::vector<std::uint32_t>& wanted,
                                           std::optional<param_version> newer_than) const try {
  const at::NoGradGuard no_grad;
  const lendable_tensors lendable(memory_);
  if (wanted.size() > parameters_.size())
    return fail(errc::bad_data, std::to_string(wanted.size()) +
                                    " parameters are asked for; this shard has " +
                                    std::to_string(parameters_.size()));
  batch_builder out(at::kFloat);
  const auto add = [&](std::uint32_t index) {
    const auto& owned = parameters_[index];
    const auto& values = values_of(owned);
    if (newer_than && owned.changed <= *newer_than) return;
    const auto rows = newer_than && owned.by_rows() ? rows_since(owned.log, *newer_than)
                                                    : std::optional<at::Tensor>();
    if (rows)
      out.add(index, *rows, values.index_select(0, *rows));
    else
      out.add(index, {}, values);
  };
  for (const auto index : wanted) {
    if (index >= parameters_.size()) return unknown(index, parameters_.size());
    add(index);
  }
  for (std::uint32_t i = 0; wanted.empty() && i < parameters_.size(); ++i) add(i);
  return out.take();
} catch (const std::exception& problem) {
  return fail(errc::handler_failed,
              "reading " + (wanted.empty() ? "all" : std::to_string(wanted.size())) +
                  " parameters after update " + std::to_string(version_.value) + ": " +
                  engine::reason_of(problem));
}

void batch_builder::add(std::uint32_t parameter, at::Tensor rows, at::Tensor values) {
  if (!rows.defined() && values.numel() <= largest_packed && values.scalar_type() == dtype_) {
    batch_.packed.push_back(parameter);
    elements_ += values.numel();
    small_.push_back(std::move(values));
  } else {
    batch_.entries.push_back({parameter, std::move(rows), values.detach()});
  }
}

tensor_batch batch_builder::take() {
  if (small_.empty()) return std::exchange(batch_, {});
  batch_.values = at::empty({std::exchange(elements_, 0)}, dtype_);
  auto* to = static_cast<std::byte*>(batch_.values.mutable_data_ptr());
  for (const auto& each : std::exchange(small_, {})) {
    const auto from = each.contiguous();
    std::memcpy(to, from.const_data_ptr(), from.nbytes());
    to += from.nbytes();
  }
  return std::exchange(batch_, {});
}

result<std::vector<tensor_batch::entry>> unpack(const tensor_batch& batch,
                                                const std::vector<parameter_entry>& directory) {
  if (auto good = check_packed(batch, directory); !good) return tl::unexpected(good.error());
  std::vector<tensor_batch::entry> all;
  all.reserve(batch.packed.size() + batch.entries.size());
  std::int64_t begin = 0;
  for (const auto index : batch.packed) {
    const auto& shape = directory[index].shape;
    all.push_back({index, {}, part_of(batch.values, begin, shape)});
    begin += c10::multiply_integers(shape);
  }
  for (const auto& each : batch.entries) {
    if (each.parameter >= directory.size()) return unknown(each.parameter, directory.size());
    all.push_back(each);
  }
  return all;
}

}  // namespace troupe::actors
