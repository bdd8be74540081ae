#include "apps/resnet_pipeline/resnet.hpp"

#include <ATen/ops/flatten.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "engine/blueprint/initial_weights.hpp"
#include "engine/model/blocks.hpp"

namespace troupe::apps {

namespace {

using engine::convolution_options;
using engine::named_tensor;

struct variant {
  const char* name;
  bool bottleneck;                     // 1x1, 3x3, 1x1 blocks instead of 3x3, 3x3
  std::array<std::int64_t, 4> blocks;  // in layer1 .. layer4
  std::int64_t groups = 1;
  std::int64_t group_width = 64;

  [[nodiscard]] std::int64_t expansion() const { return bottleneck ? 4 : 1; }
};

constexpr std::array<variant, 5> variants = {{
    {"resnet18", false, {2, 2, 2, 2}},
    {"resnet34", false, {3, 4, 6, 3}},
    {"resnet50", true, {3, 4, 6, 3}},
    {"resnet101", true, {3, 4, 23, 3}},
    {"resnext101_32x8d", true, {3, 4, 23, 3}, 32, 8},
}};

// A convolution and the batch norm behind it.
struct normed_convolution {
  engine::convolution convolution;
  engine::batch_norm norm;

  normed_convolution(std::string convolution_name, std::string norm_name,
                     const convolution_options& options, const at::Generator& random)
      : convolution(std::move(convolution_name), options, random),
        norm(std::move(norm_name), options.out_channels) {}

  at::Tensor forward(const at::Tensor& input, bool training) {
    return norm.forward(convolution.forward(input, training), training);
  }

  // With a ReLU behind it, and `added` before that.
  at::Tensor forward_relu(const at::Tensor& input, bool training, const at::Tensor& added = {}) {
    return norm.forward_relu(convolution.forward(input, training), training, added);
  }
};

// torchvision's BasicBlock or Bottleneck: what the convolutions give is added to the input, which
// a 1x1 convolution adapts where shapes differ.
class residual_block final : public engine::layer {
 public:
  // Draws in torchvision's order: the adapting convolution first, although it is listed last.
  residual_block(std::string name, const std::vector<convolution_options>& body,
                 const std::optional<convolution_options>& downsample, const at::Generator& random)
      : layer(std::move(name)) {
    const auto part = [&](const std::string& convolution, const std::string& norm,
                          const convolution_options& options) {
      return std::make_unique<normed_convolution>(this->name() + convolution, this->name() + norm,
                                                  options, random);
    };
    if (downsample) downsample_ = part(".downsample.0", ".downsample.1", *downsample);
    for (std::size_t i = 0; i < body.size(); ++i) {
      const auto number = std::to_string(i + 1);
      body_.push_back(part(".conv" + number, ".bn" + number, body[i]));
    }
  }

  at::Tensor forward(const at::Tensor& input, bool training) override {
    at::Tensor output = input;
    for (auto each = body_.begin(); each != std::prev(body_.end()); ++each)
      output = (*each)->forward_relu(output, training);
    const auto added = downsample_ ? downsample_->forward(input, training) : input;
    return body_.back()->forward_relu(output, training, added);
  }

  [[nodiscard]] std::vector<named_tensor> parameters() const override {
    return gather([](const engine::layer& each) { return each.parameters(); });
  }

  [[nodiscard]] std::vector<named_tensor> buffers() const override {
    return gather([](const engine::layer& each) { return each.buffers(); });
  }

  [[nodiscard]] double macs(std::vector<std::int64_t>& sample_shape) const override {
    auto input_shape = sample_shape;
    double total = downsample_ ? downsample_->convolution.macs(input_shape) : 0;
    for (const auto& each : body_) total += each->convolution.macs(sample_shape);
    return total;
  }

 private:
  template <class Part>
  [[nodiscard]] std::vector<named_tensor> gather(Part part) const {
    std::vector<named_tensor> all;
    const auto add = [&](const normed_convolution& from) {
      std::ranges::move(part(from.convolution), std::back_inserter(all));
      std::ranges::move(part(from.norm), std::back_inserter(all));
    };
    for (const auto& each : body_) add(*each);
    if (downsample_) add(*downsample_);
    return all;
  }

  std::vector<std::unique_ptr<normed_convolution>> body_;
  std::unique_ptr<normed_convolution> downsample_;
};

// [N, C, 1, 1] -> [N, classes]
class classifier final : public engine::layer {
 public:
  classifier(std::string name, std::int64_t in, std::int64_t classes, const at::Generator& random)
      : layer(std::move(name)), linear_(this->name(), in, classes, random) {}

  at::Tensor forward(const at::Tensor& input, bool training) override {
    return linear_.forward(at::flatten(input, 1), training);
  }

  [[nodiscard]] std::vector<named_tensor> parameters() const override {
    return linear_.parameters();
  }

  [[nodiscard]] double macs(std::vector<std::int64_t>& sample_shape) const override {
    sample_shape = {c10::multiply_integers(sample_shape)};
    return linear_.macs(sample_shape);
  }

 private:
  engine::linear linear_;
};

std::vector<convolution_options> body_options(const variant& network, std::int64_t in,
                                              std::int64_t planes, std::int64_t stride) {
  const auto out = planes * network.expansion();
  if (!network.bottleneck)
    return {{.in_channels = in, .out_channels = out, .kernel = 3, .stride = stride, .padding = 1},
            {.in_channels = out, .out_channels = out, .kernel = 3, .padding = 1}};
  const auto width = planes * network.group_width / 64 * network.groups;
  return {{.in_channels = in, .out_channels = width},
          {.in_channels = width,
           .out_channels = width,
           .kernel = 3,
           .stride = stride,
           .padding = 1,
           .groups = network.groups},
          {.in_channels = width, .out_channels = out}};
}

void add_stem(engine::model_blueprint& to) {
  const convolution_options options{
      .in_channels = 3, .out_channels = 64, .kernel = 7, .stride = 2, .padding = 3};
  to.add<engine::convolution>("conv1", options);
  to.add<engine::batch_norm>("bn1", options.out_channels);
  to.add<engine::relu>("relu");
  to.add<engine::max_pool>("maxpool", 3, 2, 1);
}

// Returns the channels of the last block's output.
std::int64_t add_blocks(engine::model_blueprint& to, const variant& network) {
  std::int64_t in = 64;
  std::int64_t planes = 64;
  for (std::size_t group = 0; group < network.blocks.size(); ++group, planes *= 2) {
    const auto prefix = "layer" + std::to_string(group + 1) + ".";
    const auto out = planes * network.expansion();
    for (std::int64_t i = 0; i < network.blocks[group]; ++i) {
      const std::int64_t stride = group > 0 && i == 0 ? 2 : 1;
      std::optional<convolution_options> downsample;
      if (stride != 1 || in != out)
        downsample = {.in_channels = in, .out_channels = out, .stride = stride};
      to.add<residual_block>(prefix + std::to_string(i), body_options(network, in, planes, stride),
                             downsample);
      in = out;
    }
  }
  return in;
}

// torch.nn.init.kaiming_normal_(mode="fan_out", nonlinearity="relu") over every convolution.
void draw_convolutions(engine::layer& which, const at::Generator& random) {
  const c10::NoGradGuard no_grad;
  for (const auto& [name, weight] : which.parameters()) {
    if (weight.dim() != 4) continue;
    const std::int64_t fan_out = weight.numel() / weight.size(1);
    weight.normal_(0, std::sqrt(2.0) / std::sqrt(static_cast<double>(fan_out)), random);
  }
}

}  // namespace

std::vector<std::string> resnet_names() {
  std::vector<std::string> names;
  names.reserve(variants.size());
  for (const auto& each : variants) names.emplace_back(each.name);
  return names;
}

result<engine::model_blueprint> resnet_blueprint(const std::string& name, std::int64_t classes) {
  const auto* const found = std::ranges::find(variants, name, &variant::name);
  if (found == variants.end()) {
    std::string known;
    for (const auto& each : variants) known += (known.empty() ? "" : ", ") + std::string(each.name);
    return fail(errc::bad_config, "unknown model '" + name + "'; known: " + known);
  }
  if (classes < 1)
    return fail(errc::bad_config, name + " needs at least 1 class, not " + std::to_string(classes));
  engine::model_blueprint made{.layers = {}, .redraw = draw_convolutions};
  add_stem(made);
  const auto channels = add_blocks(made, *found);
  made.add<engine::adaptive_average_pool>("avgpool", 1);
  made.add<classifier>("fc", channels, classes);
  return made;
}

result<engine::model> build_resnet(const std::string& name, std::int64_t classes,
                                   std::uint64_t seed) {
  const auto blueprint = resnet_blueprint(name, classes);
  if (!blueprint) return tl::unexpected(blueprint.error());
  return engine::make_whole(*blueprint, seed);
}

std::int64_t least_resnet_samples(const std::vector<std::int64_t>& sample_shape) {
  constexpr std::int64_t side_of_a_pixel = 32;  // conv1, maxpool and layer2 to layer4 halve it
  const bool is_one_pixel =
      sample_shape.at(1) <= side_of_a_pixel && sample_shape.at(2) <= side_of_a_pixel;
  return is_one_pixel ? 2 : 1;
}

}  // namespace troupe::apps
