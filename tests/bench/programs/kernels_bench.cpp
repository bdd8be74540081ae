// The weight gradients of a network's convolutions by Troupe's kernel and by oneDNN, shape by shape
// and one after the other, in GFLOP/s of one core; and oneDNN's forward and input gradients with
// copies of weights and without, in ms of the whole network.

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <c10/util/BFloat16.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "engine/kernels/machine_rates.hpp"
#include "engine/kernels/weight_gradient.hpp"
#include "engine/operators/convolution.hpp"
#include "engine/operators/weight_copies.hpp"
#include "tests/bench/programs/figures.hpp"
#include "tests/flags.hpp"

namespace {

namespace kernels = troupe::engine::kernels;
using kernels::convolution_shape;
using kernels::instructions;
using troupe::bench::figures;
using troupe::bench::stopwatch;

struct options {
  bool json = false;
  std::string type = "fp32";
  std::string network = "resnet50";
  std::int64_t images = 15;
  int rounds = 7;
  std::string with = "best";
  int threads = 1;
  std::string only;
};

constexpr auto channels_last = at::MemoryFormat::ChannelsLast;

/// A convolution of a network, and how often it has one like it.
struct layer {
  std::int64_t in;
  std::int64_t out;
  std::int64_t size;  ///< Of the image's sides.
  std::int64_t kernel;
  std::int64_t stride;
  int count;

  [[nodiscard]] std::string name() const {
    return std::to_string(kernel) + "x" + std::to_string(kernel) + "/" + std::to_string(stride) +
           " " + std::to_string(in) + "->" + std::to_string(out) + " @" + std::to_string(size) +
           " x" + std::to_string(count);
  }
};

/// ResNet-50 on images of 128 x 128.
const std::vector<layer> resnet50{
    {3, 64, 128, 7, 2, 1},   {64, 64, 32, 1, 1, 1},   {64, 64, 32, 3, 1, 3},
    {64, 256, 32, 1, 1, 4},  {256, 64, 32, 1, 1, 2},  {256, 128, 32, 1, 1, 1},
    {128, 128, 32, 3, 2, 1}, {128, 512, 16, 1, 1, 4}, {256, 512, 32, 1, 2, 1},
    {512, 128, 16, 1, 1, 3}, {128, 128, 16, 3, 1, 3}, {512, 256, 16, 1, 1, 1},
    {256, 256, 16, 3, 2, 1}, {256, 1024, 8, 1, 1, 6}, {512, 1024, 16, 1, 2, 1},
    {1024, 256, 8, 1, 1, 5}, {256, 256, 8, 3, 1, 5},  {1024, 512, 8, 1, 1, 1},
    {512, 512, 8, 3, 2, 1},  {512, 2048, 4, 1, 1, 3}, {1024, 2048, 8, 1, 2, 1},
    {2048, 512, 4, 1, 1, 2}, {512, 512, 4, 3, 1, 2}};

/// ResNet-18 on images of 32 x 32.
const std::vector<layer> resnet18{
    {3, 64, 32, 7, 2, 1},   {64, 64, 8, 3, 1, 4},   {64, 128, 8, 3, 2, 1},  {64, 128, 8, 1, 2, 1},
    {128, 128, 4, 3, 1, 3}, {128, 256, 4, 3, 2, 1}, {128, 256, 4, 1, 2, 1}, {256, 256, 2, 3, 1, 3},
    {256, 512, 2, 3, 2, 1}, {256, 512, 2, 1, 2, 1}, {512, 512, 1, 3, 1, 3}};

convolution_shape shape_of(const layer& of, std::int64_t images) {
  return {images, of.in, of.size, of.size, of.out, of.kernel, of.kernel, of.stride, of.kernel / 2};
}

/// One convolution's operands and gradients.
class subject {
 public:
  subject(const layer& of, const options& chosen)
      : shape_(shape_of(of, chosen.images)),
        with_(chosen.with == "portable" ? instructions::portable
              : chosen.with == "avx2"   ? instructions::avx2
              : chosen.with == "avx512" ? instructions::avx512
                                        : kernels::best_instructions()),
        type_(chosen.type == "bf16" ? at::kBFloat16 : at::kFloat),
        input_(make({chosen.images, of.in, of.size, of.size})),
        gradient_(make({chosen.images, of.out, shape_.out_height(), shape_.out_width()})),
        weight_(make({of.out, of.in, of.kernel, of.kernel})) {}

  [[nodiscard]] double flops() const {
    return 2.0 * static_cast<double>(gradient_.numel() * weight_.numel() / weight_.size(0));
  }

  [[nodiscard]] at::Tensor ours() const {
    auto made = at::empty(weight_.sizes(), at::TensorOptions(at::kFloat), channels_last);
    if (type_ == at::kFloat)
      kernels::weight_gradient(with_, shape_, input_.const_data_ptr<float>(),
                               gradient_.const_data_ptr<float>(), made.mutable_data_ptr<float>());
    else
      kernels::weight_gradient(with_, shape_, input_.const_data_ptr<c10::BFloat16>(),
                               gradient_.const_data_ptr<c10::BFloat16>(),
                               made.mutable_data_ptr<float>());
    return made;
  }

  /// As engine/operators calls it.
  [[nodiscard]] at::Tensor onednns() const {
    const std::array<std::int64_t, 2> stride{shape_.stride, shape_.stride};
    const std::array<std::int64_t, 2> padding{shape_.padding, shape_.padding};
    const std::array<std::int64_t, 2> once{1, 1};
    const std::array<bool, 3> wanted{false, true, false};
    if (type_ == at::kFloat)
      return std::get<1>(decltype(at::native::mkldnn_convolution_backward_stub)::DEFAULT(
          input_, gradient_, weight_, padding, stride, once, 1, wanted));
    return std::get<1>(at::convolution_backward(gradient_, input_, weight_,
                                                at::OptionalIntArrayRef(), stride, padding, once,
                                                false, {0, 0}, 1, wanted))
        .to(at::kFloat);
  }

 private:
  [[nodiscard]] at::Tensor make(at::IntArrayRef sizes) const {
    return at::randn(sizes).to(type_).contiguous(channels_last);
  }

  convolution_shape shape_;
  instructions with_;
  at::ScalarType type_;
  at::Tensor input_;
  at::Tensor gradient_;
  at::Tensor weight_;
};

/// A layer's forward and input gradient.
class layer_pass {
 public:
  layer_pass(const layer& of, const options& chosen, bool keeps_copies)
      : how_{.stride = of.stride, .padding = of.kernel / 2},
        input_(at::randn({chosen.images, of.in, of.size, of.size})
                   .to(chosen.type == "bf16" ? at::kBFloat16 : at::kFloat)
                   .contiguous(channels_last)
                   .requires_grad_()),
        weight_(at::randn({of.out, of.in, of.kernel, of.kernel}).contiguous(channels_last)),
        copies_(keeps_copies ? std::make_shared<troupe::engine::weight_copies>() : nullptr) {
    const at::AutoGradMode recording(true);
    output_ = forward();
    gradient_ = at::randn_like(output_);
  }

  [[nodiscard]] at::Tensor forward() const {
    return troupe::engine::convolve(input_, weight_, how_, copies_);
  }

  [[nodiscard]] at::Tensor input_gradient() const {
    return torch::autograd::grad({output_}, {input_}, {gradient_}, /*retain_graph=*/true)[0];
  }

 private:
  troupe::engine::convolution_geometry how_;
  at::Tensor input_;
  at::Tensor weight_;
  std::shared_ptr<troupe::engine::weight_copies> copies_;
  at::Tensor output_;
  at::Tensor gradient_;
};

template <class Work>
double seconds(const Work& work) {
  const stopwatch watch;
  work();
  return watch.seconds();
}

/// Adds a layer's seconds with copies of its weight, which are there, and without.
void measure_copies(const layer& of, const options& chosen, std::map<std::string, double>& total) {
  const layer_pass plain(of, chosen, false), copied(of, chosen, true);
  std::map<std::string, std::vector<double>> taken;
  const auto run = [&](const layer_pass& which, const std::string& suffix) {
    taken["forward" + suffix].push_back(seconds([&] { static_cast<void>(which.forward()); }));
    if (of.in < 64) return;  // images need no gradient
    taken["input gradient" + suffix].push_back(
        seconds([&] { static_cast<void>(which.input_gradient()); }));
  };
  run(copied, "");
  taken.clear();
  for (int i = 0; i < chosen.rounds; ++i) {
    run(plain, "");
    run(copied, " with copies");
  }
  for (const auto& [name, values] : taken)
    total[name] += of.count * troupe::bench::quantile(values, 0.5);
}

void measure(const options& chosen) {
  const figures out(chosen.json);
  const auto kind = chosen.type == "bf16" ? kernels::arithmetic::bf16 : kernels::arithmetic::f32;
  out.add("peak", kernels::measure_flops_per_s(kind) / 1e9, "GFLOP/s");
  std::map<std::string, double> total;
  for (const auto& each : chosen.network == "resnet50" ? resnet50 : resnet18) {
    if (!each.name().starts_with(chosen.only)) continue;
    const subject of(each, chosen);
    std::vector<double> ours;
    std::vector<double> theirs;
    static_cast<void>(of.ours()), static_cast<void>(of.onednns());
    for (int i = 0; i < chosen.rounds; ++i) {
      ours.push_back(seconds([&] { static_cast<void>(of.ours()); }));
      theirs.push_back(seconds([&] { static_cast<void>(of.onednns()); }));
    }
    const double own = troupe::bench::quantile(ours, 0.5);
    const double other = troupe::bench::quantile(theirs, 0.5);
    total["troupe"] += each.count * own;
    total["onednn"] += each.count * other;
    out.add(each.name() + " troupe", of.flops() / own / 1e9, "GFLOP/s");
    out.add(each.name() + " onednn", of.flops() / other / 1e9, "GFLOP/s");
    measure_copies(each, chosen, total);
  }
  for (const auto& [name, value] : total) out.add("all " + name, value * 1e3, "ms");
}

}  // namespace

int main(int argc, char** argv) {
  options chosen;
  troupe::tests::flags line(
      "kernels_bench: convolutions by Troupe's kernel, and with copies of weights, beside "
      "oneDNN's");
  line.flag("--json", chosen.json, "One JSON object a line");
  line.text("--type", chosen.type, "Numbers of the operands", {"fp32", "bf16"});
  line.text("--network", chosen.network, "Whose convolutions", {"resnet50", "resnet18"});
  line.number("--images", chosen.images, "Images of a micro-batch", 1);
  line.number("--rounds", chosen.rounds, "Times of each", 1);
  line.number("--threads", chosen.threads, "Intra-op threads", 1);
  line.text("--only", chosen.only, "Layers whose names begin like this");
  line.text("--with", chosen.with, "Instruction set of Troupe's kernel",
            {"best", "portable", "avx2", "avx512"});
  if (const auto end = line.read(argc, argv)) return *end;
  at::set_num_threads(chosen.threads);
  const at::NoGradGuard no_grad;
  measure(chosen);
}
