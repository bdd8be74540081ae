#include "optimizers/algorithm.hpp"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <exception>

#include "optimizers/arguments.hpp"
#include "optimizers/options.hpp"

namespace troupe::optimizers {
namespace {

/// A parameter's tensors: where they stand in the lists of the step.
struct places {
  at::Tensor* param = nullptr;
  std::array<at::Tensor*, max_slots> kept{};
  std::array<at::Tensor*, max_scalars> scalars{};
};

/// One step of one algorithm over many parameters: in place, or into new tensors that take the
/// places of the old ones.
class stepper {
 public:
  stepper(const algorithm& from, simd level, const options& chosen, bool replace)
      : from_(from),
        update_(from.bind(chosen)),
        uses_(update_->uses()),
        level_(level),
        replace_(replace) {
    uses_.resize(from.slots.size());
  }

  /// `kept` gets an entry for each of `count` parameters in each slot that is used.
  void make_room(state& kept, std::size_t count) {
    const auto room = [&](const std::string& slot) {
      auto& list = kept[slot];
      list.resize(count);
      return &list;
    };
    for (std::size_t k = 0; k < from_.slots.size(); ++k)
      if (uses_[k].used) slots_[k] = room(from_.slots[k]);
    for (std::size_t k = 0; k < from_.scalars.size(); ++k)
      scalars_[k] = room(from_.scalars[k].name);
  }

  void run(std::vector<at::Tensor>& params, const at::Tensor& gradient, std::size_t index) {
    places at{&params[index], {}, {}};
    for (std::size_t k = 0; k < max_slots; ++k)
      if (slots_[k] != nullptr) at.kept[k] = &(*slots_[k])[index];
    for (std::size_t k = 0; k < max_scalars; ++k)
      if (scalars_[k] != nullptr) at.scalars[k] = &(*scalars_[k])[index];
    const auto type = at.param->scalar_type();
    at_ = last_ = index;
    if (update_->wants_operators(*at.param, gradient, at.kept))
      by_operators(at, gradient);
    else if (type == at::kFloat && is_plain(*at.param))
      direct<float>(at, gradient);
    else if (type == at::kDouble && is_plain(*at.param))
      direct<double>(at, gradient);
    else if (!at.param->is_cpu() && update_->has_tensors())
      gather(at, gradient, index);
    else if (type == at::kDouble)
      staged<double>(at, gradient);
    else
      staged<float>(at, gradient);
  }

  /// Updates what is still to be: parameters of a device are updated together.
  void finish() {
    if (bundle_.all.empty()) return;
    at_ = bundle_.first;
    by_tensors(std::exchange(bundle_, {}));
  }

  /// "parameter 3", or where several are updated at once "parameters 3 to 8".
  [[nodiscard]] std::string place() const {
    if (at_ == last_) return "parameter " + std::to_string(at_);
    return "parameters " + std::to_string(at_) + " to " + std::to_string(last_);
  }

 private:
  void by_operators(const places& at, const at::Tensor& gradient) {
    if (replace_) {
      replace_param(at, at.param->clone());
      for (at::Tensor* kept : at.kept)
        if (kept != nullptr && kept->defined()) *kept = kept->clone();
    }
    update_->run_operators(*at.param, gradient, at.kept);
  }

  static void replace_param(const places& at, at::Tensor made) {
    made.set_requires_grad(at.param->requires_grad());
    *at.param = std::move(made);
  }

  /// Elements where they are.
  template <class T>
  void direct(const places& at, const at::Tensor& gradient) {
    const at::Tensor old = *at.param;
    const bool aligned = is_plain(gradient) && same_layout(old, gradient);
    const at::Tensor copy = aligned ? at::Tensor() : laid_out_as(old, gradient);
    arrays<T> over{.param = old.template const_data_ptr<T>(),
                   .gradient = (aligned ? gradient : copy).template const_data_ptr<T>(),
                   .count = old.numel()};
    param_numbers numbers = read_scalars(at);
    std::array<at::Tensor, max_slots> olds;  // alive until they are read
    for (std::size_t k = 0; k < uses_.size(); ++k)
      if (swept(k)) open_slot(at, k, olds[k], over, numbers);
    if (replace_)
      replace_param(at, like(old));
    else
      old.unsafeGetTensorImpl()->bump_version();
    over.next_param = at.param->template mutable_data_ptr<T>();
    update_->run(level_, over, numbers);
    write_scalars(at, numbers);
  }

  bool swept(std::size_t k) const { return uses_[k].used && uses_[k].swept; }

  template <class T>
  void open_slot(const places& at, std::size_t k, at::Tensor& old, arrays<T>& over,
                 param_numbers& numbers) {
    at::Tensor& kept = *at.kept[k];
    const at::Tensor& param = *at.param;
    if (!kept.defined()) {
      numbers.fresh = true;
      kept = like(param).fill_(uses_[k].start);
    } else if (!is_plain(kept) || !same_layout(param, kept)) {
      kept = laid_out_as(param, kept);
    } else if (replace_) {
      old = std::exchange(kept, like(param));
    } else {
      kept.unsafeGetTensorImpl()->bump_version();
    }
    over.next_kept[k] = kept.template mutable_data_ptr<T>();
    over.kept[k] = old.defined() ? old.template const_data_ptr<T>() : over.next_kept[k];
  }

  /// Parameters of a device that are updated at once.
  struct bundle {
    std::vector<places> all = {};
    tensor_list gradients = {};
    param_numbers numbers = {};
    std::size_t first = 0;  // of the step's parameters
    std::size_t bytes = 0;
  };

  /// Puts a parameter of a device to those before it, if they are alike.
  void gather(const places& at, const at::Tensor& gradient, std::size_t index) {
    auto numbers = read_scalars(at);
    for (std::size_t k = 0; k < uses_.size(); ++k)
      if (swept(k) && !at.kept[k]->defined()) numbers.fresh = true;
    if (!bundle_.all.empty()) {
      const auto& before = *bundle_.all.front().param;
      const bool is_alike = before.device() == at.param->device() &&
                            before.scalar_type() == at.param->scalar_type() &&
                            update_->is_fused(before) == update_->is_fused(*at.param) &&
                            bundle_.numbers == numbers;
      const bool has_room =
          bundle_.bytes + at.param->nbytes() <= most_bundled || update_->is_in_place(*at.param);
      if (!is_alike || !has_room) finish();
    }
    if (bundle_.all.empty()) {
      bundle_.first = index;
      bundle_.numbers = numbers;
    }
    bundle_.all.push_back(at);
    bundle_.gradients.push_back(gradient);
    bundle_.bytes += at.param->nbytes();
  }

  /// On the parameters' own device.
  void by_tensors(bundle what) {
    const auto& all = what.all;
    const auto type = all.front().param->scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const auto count = all.size();
    if (replace_) replace_by_copies(all);
    tensor_list next, slopes;
    std::array<tensor_list, max_slots> kept;
    for (std::size_t i = 0; i < count; ++i) {
      next.push_back(all[i].param->detach().to(type));
      slopes.push_back(strided(what.gradients[i]).to(type));
    }
    for (std::size_t k = 0; k < uses_.size(); ++k) {
      if (!swept(k)) continue;
      for (const auto& at : all) {
        if (!at.kept[k]->defined()) *at.kept[k] = like(*at.param).fill_(uses_[k].start);
        kept[k].push_back(at.kept[k]->to(type));
      }
    }
    const tensor_list before = next;
    const auto kept_before = kept;
    update_->run_tensors(next, slopes, kept, what.numbers);
    for (std::size_t k = 0; k < uses_.size(); ++k)
      if (swept(k)) write(kept[k], kept_before[k], [&](std::size_t i) { return *all[i].kept[k]; });
    write(next, before, [&](std::size_t i) { return *all[i].param; });
    for (const auto& at : all) write_scalars(at, what.numbers);
  }

  /// New tensors with the same values take the places of parameters and slots.
  void replace_by_copies(const std::vector<places>& all) const {
    tensor_list from, to;
    const auto copy = [&](const at::Tensor& old) {
      from.push_back(old.detach());
      return to.emplace_back(like(old));
    };
    for (const auto& at : all) {
      for (std::size_t k = 0; k < uses_.size(); ++k)
        if (swept(k) && at.kept[k]->defined()) *at.kept[k] = copy(*at.kept[k]);
      replace_param(at, copy(*at.param));
    }
    at::_foreach_copy_(to, from);
  }

  /// Writes what has been computed where it belongs, but for what was written in place.
  template <class Place>
  static void write(const tensor_list& made, const tensor_list& before, const Place& place) {
    tensor_list from, to;
    for (std::size_t i = 0; i < made.size(); ++i) {
      const auto target = place(i).detach();
      // In another type `before` is a copy, whatever it was written.
      if (made[i].is_same(before[i]) && before[i].is_alias_of(target)) continue;
      from.push_back(made[i]);
      to.push_back(target);
    }
    if (!from.empty()) at::_foreach_copy_(to, from);
  }

  /// By way of contiguous copies on the CPU, rounded back to what they came from.
  template <class T>
  void staged(const places& at, const at::Tensor& gradient) {
    const auto type = c10::CppTypeToScalarType<T>::value;
    const auto stage = [&](const at::Tensor& from) {
      return at::empty(from.sizes(), type).copy_(strided(from));
    };
    at::Tensor param = stage(*at.param);
    const at::Tensor slope = stage(gradient);
    param_numbers numbers = read_scalars(at);
    arrays<T> over{.param = param.template const_data_ptr<T>(),
                   .gradient = slope.template const_data_ptr<T>(),
                   .next_param = param.template mutable_data_ptr<T>(),
                   .count = param.numel()};
    std::array<at::Tensor, max_slots> kept;
    for (std::size_t k = 0; k < uses_.size(); ++k) {
      if (!swept(k)) continue;
      numbers.fresh = numbers.fresh || !at.kept[k]->defined();
      kept[k] = at.kept[k]->defined() ? stage(*at.kept[k])
                                      : at::full(param.sizes(), uses_[k].start, param.options());
      over.kept[k] = over.next_kept[k] = kept[k].template mutable_data_ptr<T>();
    }
    update_->run(level_, over, numbers);
    for (std::size_t k = 0; k < uses_.size(); ++k) {
      if (!swept(k)) continue;
      if (replace_ || !at.kept[k]->defined()) *at.kept[k] = like(*at.param);
      at.kept[k]->copy_(kept[k]);
    }
    if (replace_) replace_param(at, like(*at.param));
    at.param->copy_(param);
    write_scalars(at, numbers);
  }

  static constexpr std::size_t most_bundled = std::size_t{32} << 20;

  param_numbers read_scalars(const places& at) const {
    param_numbers numbers;
    for (std::size_t k = 0; k < from_.scalars.size(); ++k)
      numbers.scalars[k] = at.scalars[k]->defined() ? *at.scalars[k]->const_data_ptr<double>()
                                                    : from_.scalars[k].start;
    return numbers;
  }

  void write_scalars(const places& at, const param_numbers& numbers) const {
    for (std::size_t k = 0; k < from_.scalars.size(); ++k) {
      at::Tensor& to = *at.scalars[k];
      if (replace_ || !to.defined()) to = at::empty({}, at::kDouble);
      *to.mutable_data_ptr<double>() = numbers.scalars[k];
    }
  }

  bundle bundle_;
  std::size_t at_ = 0, last_ = 0;
  const algorithm& from_;
  std::unique_ptr<update> update_;
  std::vector<slot_use> uses_;
  simd level_;
  bool replace_;
  std::array<std::vector<at::Tensor>*, max_slots> slots_{};
  std::array<std::vector<at::Tensor>*, max_scalars> scalars_{};
};

result<void> check_all(const algorithm& from, const options& chosen) {
  if (auto good = check_options(from.name, from.rules, chosen); !good) return good;
  return from.check ? from.check(chosen) : result<void>();
}

result<void> check_arguments(const algorithm& from, const std::vector<at::Tensor>& params,
                             const gradient_list& gradients, const state& kept) {
  if (auto good = check_gradients(from.name, params, gradients); !good) return good;
  std::vector<std::string> scalars;
  for (const auto& scalar : from.scalars) scalars.push_back(scalar.name);
  return check_state(from.name, params, kept, from.slots, scalars);
}

result<void> run_step(const algorithm& from, simd level, std::vector<at::Tensor>& params,
                      const gradient_list& gradients, state& kept, const options& chosen,
                      std::uint64_t number, bool replace) {
  if (auto good = check_all(from, chosen); !good) return good;
  if (auto good = check_arguments(from, params, gradients, kept); !good) return good;
  const c10::NoGradGuard no_grad;
  std::optional<stepper> step;
  const auto failed = [&](const char* why) {
    return fail(errc::handler_failed, "optimizer '" + from.name + "': step " +
                                          std::to_string(number) + ", " +
                                          (step ? step->place() : "parameter 0") + ": " + why);
  };
  try {
    step.emplace(from, level, chosen, replace);
    step->make_room(kept, params.size());
    for (std::size_t i = 0; i < params.size(); ++i)
      if (const at::Tensor* gradient = given(gradients[i])) step->run(params, *gradient, i);
    step->finish();
  } catch (const c10::Error& thrown) {
    return failed(thrown.what_without_backtrace());
  } catch (const std::exception& thrown) {
    return failed(thrown.what());
  }
  return {};
}

}  // namespace

optimizer make_optimizer(algorithm from, simd level) {
  const auto shared = std::make_shared<const algorithm>(std::move(from));
  return {.name = shared->name,
          .defaults = defaults_of(shared->rules),
          .check = [shared](const options& chosen) { return check_all(*shared, chosen); },
          .step =
              [shared, level](std::vector<at::Tensor>& params, const gradient_list& gradients,
                              state& kept, const options& chosen, std::uint64_t number) {
                return run_step(*shared, level, params, gradients, kept, chosen, number, false);
              },
          .rules = shared->rules,
          .next = [shared, level](const std::vector<at::Tensor>& params,
                                  const gradient_list& gradients, const state& kept,
                                  const options& chosen, std::uint64_t number) -> result<version> {
            version made{params, kept};
            auto done =
                run_step(*shared, level, made.params, gradients, made.kept, chosen, number, true);
            if (!done) return tl::unexpected(done.error());
            return made;
          },
          .same_on_every_cpu = shared->same_on_every_cpu};
}

}  // namespace troupe::optimizers
