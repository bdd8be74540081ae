#include "actors/parameter_server/parameter_store.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <sstream>
#include <utility>

#include "actors/parameter_server/mean.hpp"
#include "engine/parameter_server/placement.hpp"
#include "engine/stage/torch_error.hpp"

namespace troupe::actors {
namespace {

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
      return refuse("has row " + std::to_string(index[i]) + ", and the parameter " +
                    std::to_string(entry.shape.front()) + " rows");
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
  const auto type = gradient.values.scalar_type();
  if (type != dtype_of(entry) && type != at::kBFloat16)
    return fail(errc::bad_data, "the gradient of '" + entry.name + "' has dtype " +
                                    c10::toString(type) + ", and the parameter " +
                                    c10::toString(dtype_of(entry)));
  return gradient.rows.defined() ? check_rows(entry, gradient) : result<void>();
}

/// Before a write: gives the parameter memory of its own if somebody else reads it. Links let go of
/// tensors in their own threads: what they read was read before.
void unshare(at::Tensor& values) {
  const bool alone = values.use_count() == 1 && values.storage().use_count() == 1;
  std::atomic_thread_fence(std::memory_order_acquire);
  if (!alone) values = values.clone();
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
                                 rate_of_update rate)
    : optimizer_(std::move(optimizer)), options_(std::move(options)), rate_(std::move(rate)) {
  for (auto& [name, values, by_rows] : parameters) {
    by_rows = by_rows && values.dim() > 0;
    directory_.push_back({std::move(name), values.sizes().vec(),
                          static_cast<std::int32_t>(values.scalar_type()), by_rows});
    parameter owned;
    owned.values = values.detach().contiguous();
    values.reset();
    if (by_rows) owned.seen = at::zeros({owned.values.size(0)}, at::kBool);
    parameters_.push_back(std::move(owned));
  }
}

result<void> parameter_store::check(const tensor_batch& gradients) const {
  const auto all = unpack(gradients, directory_);
  if (!all) return tl::unexpected(all.error());
  std::vector<bool> given(directory_.size());
  for (const auto& each : *all) {
    const auto& entry = directory_[each.parameter];
    if (given[each.parameter])
      return fail(errc::bad_data, "the gradient of '" + entry.name + "' is given twice");
    given[each.parameter] = true;
    if (auto good = check_gradient(entry, each); !good) return good;
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
  ++version_.value;
  auto gradients = gather(pushes);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    auto& of = gradients[i];
    if (of.empty()) continue;
    auto& owned = parameters_[i];
    const auto type = owned.values.scalar_type();
    const bool by_rows = std::ranges::all_of(of, [](const auto& g) { return g.rows.defined(); });
    std::vector<at::Tensor> values;
    result<void> stepped;
    if (by_rows) {
      stepped = step_rows(owned, mean_of_rows(of, pushes.size(), type));
    } else {
      for (const auto& each : of) {
        values.push_back(each.values);
        if (!each.rows.defined()) continue;
        values.back() = at::zeros_like(owned.values);
        values.back().index_add_(0, each.rows, each.values.to(type));
      }
      stepped = step(owned, mean_of(values, pushes.size(), type));
    }
    if (!stepped)
      return fail(stepped.error().code, directory_[i].name + ": " + stepped.error().text);
    owned.changed = version_;
    of.clear();  // its buffers serve the next arrivals
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

result<void> parameter_store::step(parameter& owned, const at::Tensor& mean) {
  unshare(owned.values);
  std::vector<at::Tensor> one{std::move(owned.values)};
  auto stepped = optimizer_.step(one, {mean}, owned.state, options_now(), version_.value);
  owned.values = std::move(one.front());
  if (owned.by_rows()) {  // a dense gradient touched every row
    owned.seen.fill_(true);
    owned.log = {.touched = {}, .rows = 0, .complete_since = version_};
  }
  return stepped;
}

result<void> parameter_store::step_rows(parameter& owned, const gradient& mean) {
  unshare(owned.values);
  remember(owned.log, mean.rows, owned.values.size(0));
  // Rows have a state from their first gradient on, as whole parameters have.
  const auto old = owned.seen.index_select(0, mean.rows);
  for (const bool first : {true, false}) {
    const auto which = (first ? old.logical_not() : old).nonzero().view(-1);
    if (which.numel() == 0) continue;
    const gradient part{mean.rows.index_select(0, which), mean.values.index_select(0, which)};
    if (auto stepped = step_some_rows(owned, part, first); !stepped) return stepped;
  }
  return {};
}

result<void> parameter_store::step_some_rows(parameter& owned, const gradient& mean, bool first) {
  std::vector<at::Tensor> rows{owned.values.index_select(0, mean.rows)};
  optimizers::state state;
  if (!first) {
    for (const auto& [slot, whole] : owned.state)
      state[slot] = {whole.front().index_select(0, mean.rows)};
  }
  auto stepped = optimizer_.step(rows, {mean.values}, state, options_now(), version_.value);
  if (!stepped) return stepped;
  owned.values.index_copy_(0, mean.rows, rows.front());
  for (const auto& [slot, part] : state) {
    if (part.empty() || !part.front().defined()) continue;
    if (part.front().sizes() != mean.values.sizes())
      return fail(errc::bad_config, "optimizer '" + optimizer_.name + "' keeps '" + slot +
                                        "' in another shape than its parameter's, so it cannot "
                                        "update single rows");
    auto& whole = owned.state[slot];
    if (whole.empty()) whole.push_back(at::zeros_like(owned.values));
    whole.front().index_copy_(0, mean.rows, part.front());
  }
  owned.seen.index_fill_(0, mean.rows, !state.empty());
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
                                           std::optional<param_version> newer_than) const {
  const at::NoGradGuard no_grad;
  batch_builder out(at::kFloat);
  const auto add = [&](std::uint32_t index) {
    const auto& owned = parameters_[index];
    if (newer_than && owned.changed <= *newer_than) return;
    const auto rows = newer_than && owned.by_rows() ? rows_since(owned.log, *newer_than)
                                                    : std::optional<at::Tensor>();
    if (rows)
      out.add(index, *rows, owned.values.index_select(0, *rows));
    else
      out.add(index, {}, owned.values.detach());
  };
  for (const auto index : wanted) {
    if (index >= parameters_.size()) return unknown(index, parameters_.size());
    add(index);
  }
  for (std::uint32_t i = 0; wanted.empty() && i < parameters_.size(); ++i) add(i);
  return out.take();
}

void batch_builder::add(std::uint32_t parameter, at::Tensor rows, at::Tensor values) {
  if (!rows.defined() && values.numel() <= largest_packed && values.scalar_type() == dtype_) {
    batch_.packed.push_back(parameter);
    small_.push_back(values.reshape({-1}));
  } else {
    batch_.entries.push_back({parameter, std::move(rows), std::move(values)});
  }
}

tensor_batch batch_builder::take() {
  if (!small_.empty()) batch_.values = at::cat(std::exchange(small_, {}));
  return std::exchange(batch_, {});
}

result<std::vector<tensor_batch::entry>> unpack(const tensor_batch& batch,
                                                const std::vector<parameter_entry>& directory) {
  std::vector<tensor_batch::entry> all;
  all.reserve(batch.packed.size() + batch.entries.size());
  const auto values = batch.values.defined() ? batch.values.numel() : 0;
  std::int64_t begin = 0;
  for (const auto index : batch.packed) {
    if (index >= directory.size()) return unknown(index, directory.size());
    const auto& entry = directory[index];
    const auto length = elements_of(entry);
    if (!batch.values.defined() || batch.values.dim() != 1 || begin + length > values) break;
    all.push_back({index, {}, batch.values.narrow(0, begin, length).view(entry.shape)});
    begin += length;
  }
  if (begin != values || all.size() != batch.packed.size())
    return fail(errc::bad_data, "the packed values are " + std::to_string(values) +
                                    ", and their parameters have another number of elements");
  for (const auto& each : batch.entries) {
    if (each.parameter >= directory.size()) return unknown(each.parameter, directory.size());
    all.push_back(each);
  }
  return all;
}

}  // namespace troupe::actors
