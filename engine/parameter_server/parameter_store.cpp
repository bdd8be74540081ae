#include "engine/parameter_server/parameter_store.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <utility>

#include "engine/base/torch_error.hpp"
#include "engine/parameter_server/mean.hpp"

namespace troupe::engine {
namespace {

constexpr std::size_t largest_group = 256 * 1024;  // bytes

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

parameter_store::parameter_store(std::vector<owned_parameter> parameters,
                                 optimizers::optimizer optimizer, optimizers::options options,
                                 rate_of_update rate)
    : optimizer_(std::move(optimizer)), options_(std::move(options)), rate_(std::move(rate)) {
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
      return tl::unexpected(error_about("update " + std::to_string(version_.value) + ": " +
                                            directory_[each.first].name + " and on",
                                        stepped.error()));
  }
  return {};
} catch (const std::exception& problem) {
  return fail(errc::handler_failed,
              "update " + std::to_string(version_.value) + ": " + reason_of(problem));
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
    if (index >= parameters_.size())
      return tl::unexpected(no_such_parameter(index, parameters_.size()));
    add(index);
  }
  for (std::uint32_t i = 0; wanted.empty() && i < parameters_.size(); ++i) add(i);
  return out.take();
} catch (const std::exception& problem) {
  return fail(errc::handler_failed, "reading " +
                                        (wanted.empty() ? "all" : std::to_string(wanted.size())) +
                                        " parameters after update " +
                                        std::to_string(version_.value) + ": " + reason_of(problem));
}

}  // namespace troupe::engine
