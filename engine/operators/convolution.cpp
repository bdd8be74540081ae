#include "engine/operators/convolution.hpp"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/ivalue.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mkldnn_convolution.h>
#include <c10/util/BFloat16.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <optional>
#include <utility>

#include "engine/autograd/autocast.hpp"
#include "engine/autograd/weight_gradients.hpp"
#include "engine/kernels/weight_gradient.hpp"
#include "engine/operators/packed_convolution.hpp"
#include "engine/operators/weight_copies.hpp"

namespace troupe::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using sides = convolution_sides;

bool goes_through_onednn(const at::Tensor& input) {
  return input.is_cpu() && input.scalar_type() == at::kFloat && input.numel() > 0 &&
         at::Context::hasMKLDNN() && at::globalContext().userEnabledMkldnn();
}

/// oneDNN's backward takes for granted that both have this layout.
at::MemoryFormat layout_of(const at::Tensor& input, const at::Tensor& weight) {
  const auto last = at::MemoryFormat::ChannelsLast;
  const bool any = input.suggest_memory_format() == last || weight.suggest_memory_format() == last;
  return any ? last : at::MemoryFormat::Contiguous;
}

at::Tensor forward_of(const at::Tensor& input, const at::Tensor& weight, const sides& how) {
  if (goes_through_onednn(input))
    return at::mkldnn_convolution(input, weight, {}, how.padding, how.stride, how.dilation,
                                  how.groups);
  return at::convolution(input, weight, {}, how.stride, how.padding, how.dilation,
                         /*transposed=*/false, /*output_padding=*/{0, 0}, how.groups);
}

enum class gradient_of : std::uint8_t { input, weight };

/// Both gradients are computed apart, whoever asks: unsplit and split are the same arithmetic.
at::Tensor backward_of(gradient_of which, const at::Tensor& gradient, const at::Tensor& input,
                       const at::Tensor& weight, const sides& how) {
  const bool to_input = which == gradient_of::input;
  const std::array<bool, 3> wanted{to_input, !to_input, /*bias=*/false};
  if (!goes_through_onednn(input)) {
    auto [input_gradient, weight_gradient, none] =
        at::convolution_backward(gradient, input, weight, at::OptionalIntArrayRef(), how.stride,
                                 how.padding, how.dilation, /*transposed=*/false,
                                 /*output_padding=*/{0, 0}, how.groups, wanted);
    return to_input ? input_gradient : weight_gradient;
  }
  // oneDNN's backward has no operator of its own, and the dispatcher in front of it is not
  // exported. It is one function for every CPU, so the table's default entry is it.
  const auto onednn_backward = decltype(at::native::mkldnn_convolution_backward_stub)::DEFAULT;
  const auto layout = layout_of(input, weight);
  const auto laid_out = [&](const at::Tensor& each) {
    return each.resolve_neg().contiguous(layout);
  };
  auto [input_gradient, weight_gradient, none] =
      onednn_backward(laid_out(input), gradient.resolve_neg(), laid_out(weight), how.padding,
                      how.stride, how.dilation, how.groups, wanted);
  return to_input ? input_gradient : weight_gradient;
}

/// This CPU's best.
kernels::instructions best_instructions() {
  static const auto best = kernels::best_instructions();
  return best;
}

/// Where Troupe's own kernel takes a weight's gradient: its convolution. With several intra-op
/// threads oneDNN's was measured to be faster. Asked on the stage's own thread, so that a helper
/// which computes the gradient does so in the same way.
std::optional<kernels::convolution_shape> own_shape(const at::Tensor& input,
                                                    const at::Tensor& weight, const sides& how) {
  const auto last = at::MemoryFormat::ChannelsLast;
  const auto type = input.scalar_type();
  const bool fits = at::get_num_threads() == 1 && input.is_cpu() &&
                    (type == at::kFloat || type == at::kBFloat16) &&
                    weight.scalar_type() == at::kFloat && input.suggest_memory_format() == last &&
                    input.is_contiguous(last) && !input.is_neg() && input.numel() > 0 &&
                    how.groups == 1 && how.dilation[0] == 1;
  if (!fits) return std::nullopt;
  const kernels::convolution_shape shape{input.size(0),  input.size(1),  input.size(2),
                                         input.size(3),  weight.size(0), weight.size(2),
                                         weight.size(3), how.stride[0],  how.padding[0]};
  const auto best = best_instructions();
  const bool amx = kernels::has_amx();
  const bool wins = type == at::kFloat ? kernels::outruns_onednn<float>(best, amx, shape)
                                       : kernels::outruns_onednn<c10::BFloat16>(best, amx, shape);
  return wins ? std::optional(shape) : std::nullopt;
}

/// Writes it to `to`, or adds it to what `to` has: channels_last in f32.
template <class T>
void write_weight_gradient(const at::Tensor& gradient, const at::Tensor& input,
                           const kernels::convolution_shape& shape, at::Tensor& to, bool adds) {
  const auto given = gradient.resolve_neg().contiguous(at::MemoryFormat::ChannelsLast);
  auto* const numbers = to.mutable_data_ptr<float>();
  kernels::weight_gradient(best_instructions(), shape, input.const_data_ptr<T>(),
                           given.const_data_ptr<T>(), numbers, adds ? numbers : nullptr);
}

void write_own(const at::Tensor& gradient, const at::Tensor& input,
               const kernels::convolution_shape& shape, at::Tensor& to, bool adds) {
  if (input.scalar_type() == at::kFloat)
    write_weight_gradient<float>(gradient, input, shape, to, adds);
  else
    write_weight_gradient<c10::BFloat16>(gradient, input, shape, to, adds);
}

/// Of one weight by the kernel.
weight_task own_task(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight,
                     const kernels::convolution_shape& shape) {
  const auto last = at::MemoryFormat::ChannelsLast;
  const auto compute = [gradient, input, weight, shape, last]() -> at::Tensor {
    auto made = at::empty(weight.sizes(), weight.options().requires_grad(false), last);
    write_own(gradient, input, shape, made, /*adds=*/false);
    return made;
  };
  const auto add = [gradient, input, shape, last, compute](at::Tensor& sum) {
    if (sum.scalar_type() != at::kFloat || !sum.is_contiguous(last) || sum.is_neg())
      return static_cast<void>(sum.add_(compute()));
    write_own(gradient, input, shape, sum, /*adds=*/true);
  };
  return {weight, compute, add};
}

/// The same by oneDNN, in the type of the weight; `cast` is that in the type of the input.
weight_task onednn_task(const at::Tensor& gradient, const at::Tensor& input,
                        const at::Tensor& weight, const at::Tensor& cast, const sides& how) {
  return cast_when_added(weight, [gradient, input, cast, how] {
    return backward_of(gradient_of::weight, gradient, input, cast, how);
  });
}

/// A convolution's weight for one input: the parameter itself, or copies of it.
class weight_source {
 public:
  weight_source(const at::Tensor& input, const at::Tensor& weight, const sides& how,
                weight_copies* copies)
      : input_(input),
        weight_(weight),
        how_(how),
        copies_(copies),
        packed_(copies != nullptr && takes_packed(input, how)) {}

  /// In the input's type.
  [[nodiscard]] at::Tensor cast() const {
    const auto type = input_.scalar_type();
    if (copies_ == nullptr || weight_.scalar_type() == type) return weight_.detach().to(type);
    return copies_->get(weight_, type, weight_form::cast,
                        [&] { return weight_.detach().to(type); });
  }

  [[nodiscard]] at::Tensor forward() const {
    if (!packed_) return forward_of(input_, cast(), how_);
    return packed_forward(input_,
                          copy_in(weight_form::forward,
                                  [&] { return pack_for_forward(cast(), input_.sizes(), how_); }),
                          how_);
  }

  [[nodiscard]] at::Tensor input_gradient(const at::Tensor& gradient) const {
    if (!packed_ || !takes_packed_gradient(input_, how_))
      return backward_of(gradient_of::input, gradient, input_, cast(), how_);
    return packed_input_gradient(gradient,
                                 copy_in(weight_form::input_gradient,
                                         [&] {
                                           return pack_for_input_gradient(cast(), input_.sizes(),
                                                                          gradient.sizes(), how_);
                                         }),
                                 input_.sizes(), weight_.sizes(), how_);
  }

 private:
  template <class Make>
  [[nodiscard]] at::Tensor copy_in(weight_form form, const Make& make) const {
    return copies_->get(weight_, input_.scalar_type(), form, make);
  }

  const at::Tensor& input_;
  const at::Tensor& weight_;
  const sides& how_;
  weight_copies* copies_;
  bool packed_;
};

/// What a backward needs beside tensors.
struct recorded_convolution final : torch::CustomClassHolder {
  recorded_convolution(const convolution_geometry& geometry, std::shared_ptr<weight_copies> kept)
      : how(geometry), copies(std::move(kept)) {}

  sides how;
  std::shared_ptr<weight_copies> copies;  // null: none are kept
};

/// The weight is the parameter itself, cast inside: its gradient is one task, cast included.
struct convolution_function : torch::autograd::Function<convolution_function> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const convolution_geometry& geometry,
                            const std::shared_ptr<weight_copies>& copies) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto kept = c10::make_intrusive<recorded_convolution>(geometry, copies);
    auto output = weight_source(input, weight, kept->how, copies.get()).forward();
    context->save_for_backward({input, weight});
    context->saved_data["how"] = c10::IValue::make_capsule(std::move(kept));
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto& [input, weight] = std::tie(saved[0], saved[1]);
    const auto kept = c10::static_intrusive_pointer_cast<recorded_convolution>(
        context->saved_data["how"].toCapsule());
    const weight_source source(input, weight, kept->how, kept->copies.get());
    variable_list out(4);
    if (context->needs_input_grad(0)) out[0] = source.input_gradient(gradients[0]);
    if (!context->needs_input_grad(1)) return out;
    const auto own = own_shape(input, weight, kept->how);
    auto task = own ? own_task(gradients[0], input, weight, *own)
                    : onednn_task(gradients[0], input, weight, source.cast(), kept->how);
    if (auto* const later = weight_gradient_collector::current())
      later->add(std::move(task));
    else
      out[1] = task.gradient();
    return out;
  }
};

}  // namespace

at::Tensor convolve(const at::Tensor& input, const at::Tensor& weight,
                    const convolution_geometry& how, const std::shared_ptr<weight_copies>& copies) {
  const auto type = current_autocast(input.device().type()).value_or(input.scalar_type());
  return convolution_function::apply(input.to(type), weight, how, copies);
}

}  // namespace troupe::engine
