#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/square.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "apps/resnet_pipeline/resnet.hpp"
#include "apps/transformer_pipeline/generate.hpp"
#include "engine/blueprint/initial_weights.hpp"
#include "engine/blueprint/model_blueprint.hpp"
#include "engine/model/blocks.hpp"
#include "engine/model/model.hpp"
#include "engine/operators/cross_entropy.hpp"
#include "tests/refusal.hpp"
#include "tests/small_residual_network.hpp"

namespace {

using namespace troupe;
using namespace troupe::engine;
using apps::build_resnet;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;
using Catch::Matchers::WithinRel;
using shape = std::vector<std::int64_t>;

at::Generator seeded(std::uint64_t seed) {
  return at::make_generator<at::CPUGeneratorImpl>(seed);
}

at::Tensor images(const shape& sizes) {
  return at::randn(sizes, seeded(1), at::kFloat);
}

void fill_weights(const layer& of, double value) {
  const c10::NoGradGuard no_grad;
  for (const auto& each : of.parameters()) each.tensor.fill_(value);
}

// Input [2, in, 9, 9]: what the layer gives has the shape that macs says.
void check_shape(layer& of, std::int64_t in) {
  shape sample = {in, 9, 9};
  (void)of.macs(sample);
  sample.insert(sample.begin(), 2);
  CHECK(of.forward(images({2, in, 9, 9}), true).sizes() == at::IntArrayRef(sample));
}

model tiny(std::uint64_t seed = 3) {
  return std::move(build_resnet("resnet18", 5, seed).value());
}

at::Tensor run(const model& layers, at::Tensor x, bool training) {
  for (const auto& each : layers) x = each->forward(x, training);
  return x;
}

std::vector<at::Tensor> leaves(const model& layers) {
  std::vector<at::Tensor> all;
  for (const auto& each : parameters(layers)) all.push_back(each.tensor);
  return all;
}

bool same(const std::vector<named_tensor>& left, const std::vector<named_tensor>& right) {
  return std::ranges::equal(left, right, [](const named_tensor& a, const named_tensor& b) {
    return a.name == b.name && at::equal(a.tensor, b.tensor);
  });
}

std::vector<named_tensor> copies(const model& layers) {
  auto all = collect_weights(layers);
  for (auto& each : all) each.tensor = each.tensor.clone();
  return all;
}

}  // namespace

TEST_CASE("a convolution honours stride, padding, dilation and groups") {
  convolution plain("c", {.in_channels = 2, .out_channels = 3, .kernel = 3, .padding = 1},
                    seeded(0));
  fill_weights(plain, 1);
  const auto window = plain.forward(at::ones({1, 2, 4, 4}), true);  // [1, 3, 4, 4]
  CHECK(window[0][0][1][1].item<float>() == 18);                    // 2 channels of 9
  CHECK(window[0][0][0][0].item<float>() == 8);                     // the corner sees 4 of 9

  const convolution_options options{.in_channels = 4,
                                    .out_channels = 8,
                                    .kernel = 3,
                                    .stride = 2,
                                    .padding = 2,
                                    .dilation = 2,
                                    .groups = 2};
  convolution grouped("c", options, seeded(0));
  CHECK(grouped.parameters().front().name == "c.weight");
  CHECK(grouped.parameters().front().tensor.sizes() == at::IntArrayRef{8, 2, 3, 3});
  fill_weights(grouped, 1);
  auto input = at::zeros({1, 4, 9, 9});
  input.narrow(1, 0, 2).fill_(1);  // only the first group sees something
  const auto output = grouped.forward(input, true);
  CHECK(output[0][3].max().item<float>() == 18);
  CHECK(output[0][4].max().item<float>() == 0);
  check_shape(grouped, 4);
  shape sample = {4, 9, 9};
  CHECK(grouped.macs(sample) == 5 * 5 * 8 * 2 * 9);
}

TEST_CASE("groups that do not divide the channels are refused by the layer's name") {
  for (const std::int64_t groups : {0, 2}) {
    const convolution_options options{.in_channels = 4, .out_channels = 3, .groups = groups};
    CHECK_THROWS_WITH(convolution("layer1.0.conv2", options, seeded(0)),
                      ContainsSubstring("layer1.0.conv2") && ContainsSubstring("4 -> 3"));
  }
}

TEST_CASE("batch norm folds a tenth of each micro-batch's statistics into the running ones") {
  batch_norm norm("bn", 1);
  const auto input = at::tensor({0.F, 2.F, 4.F, 6.F}).view({1, 1, 2, 2});
  const auto output = norm.forward(input, true);
  CHECK_THAT(output.flatten()[0].item<float>(), WithinRel(-3 / std::sqrt(5.F), 1e-4F));

  const auto buffers = norm.buffers();
  REQUIRE(buffers.size() == 3);
  CHECK(buffers[0].name == "bn.running_mean");
  CHECK_THAT(buffers[0].tensor.item<float>(), WithinRel(0.3F, 1e-5F));
  CHECK(buffers[1].name == "bn.running_var");
  CHECK_THAT(buffers[1].tensor.item<float>(), WithinRel(0.9F + 0.1F * 20 / 3, 1e-5F));
  CHECK(buffers[2].name == "bn.num_batches_tracked");
  CHECK(buffers[2].tensor.item<std::int64_t>() == 1);

  const auto evaluated = norm.forward(input, false);
  CHECK(buffers[2].tensor.item<std::int64_t>() == 1);
  CHECK_THAT(buffers[0].tensor.item<float>(), WithinRel(0.3F, 1e-5F));
  CHECK_THAT(evaluated.flatten()[0].item<float>(),
             WithinRel(-0.3F / std::sqrt(0.9F + 2.F / 3), 1e-4F));
}

TEST_CASE("batch norm refuses to train on one value per channel and counts no batch") {
  batch_norm norm("layer4.0.bn1", 3);
  CHECK_THROWS_WITH(norm.forward(at::ones({1, 3, 1, 1}), true),
                    ContainsSubstring("layer4.0.bn1 needs more than 1 value per channel"));
  CHECK(norm.buffers()[2].tensor.item<std::int64_t>() == 0);
  CHECK_NOTHROW(norm.forward(at::ones({1, 3, 1, 1}), false));
  CHECK_NOTHROW(norm.forward(at::ones({2, 3, 1, 1}), true));
}

TEST_CASE("relu works in place, but never on a leaf") {
  relu positive("relu");
  const auto leaf = at::tensor({-1.F, 2.F});
  CHECK(at::equal(positive.forward(leaf, true), at::tensor({0.F, 2.F})));
  CHECK(at::equal(leaf, at::tensor({-1.F, 2.F})));

  const auto inner = at::tensor({-1.F, 2.F}).requires_grad_().clone();
  CHECK(positive.forward(inner, true).is_same(inner));
  CHECK(at::equal(inner, at::tensor({0.F, 2.F})));
}

TEST_CASE("linear multiplies by the transposed weight and adds the bias") {
  linear dense("fc", 3, 2, seeded(0));
  REQUIRE(dense.parameters().size() == 2);
  CHECK(dense.parameters()[0].name == "fc.weight");
  CHECK(dense.parameters()[1].name == "fc.bias");
  fill_weights(dense, 0.5);
  CHECK(at::equal(dense.forward(at::ones({4, 3}), true), at::full({4, 2}, 2.F)));
  shape sample = {3};
  CHECK(dense.macs(sample) == 6);
  CHECK(sample == shape{2});
  CHECK_THROWS_WITH(dense.macs(sample), ContainsSubstring("fc takes samples [..., 3]"));
}

TEST_CASE("every block predicts the shape that it gives") {
  for (const std::int64_t stride : {1, 2, 3}) {
    convolution window("c", {.in_channels = 2, .out_channels = 4, .kernel = 3, .stride = stride},
                       seeded(0));
    check_shape(window, 2);
    max_pool pool("p", 3, stride, 1);
    check_shape(pool, 2);
  }
  batch_norm norm("n", 2);
  check_shape(norm, 2);
  relu positive("r");
  check_shape(positive, 2);
  adaptive_average_pool average("a", 2);
  check_shape(average, 2);
  shape flat = {2};
  CHECK_THROWS_WITH(average.macs(flat), ContainsSubstring("a takes samples [C, H, W]"));
}

TEST_CASE("every network has torchvision's sizes") {
  struct known {
    const char* name;
    std::size_t layers;
    std::int64_t parameters;  // torchvision's num_params
    double giga_macs;         // torchvision's _ops
  };
  const std::vector<known> expected = {{"resnet18", 14, 11'689'512, 1.814},
                                       {"resnet34", 22, 21'797'672, 3.664},
                                       {"resnet50", 22, 25'557'032, 4.089},
                                       {"resnet101", 39, 44'549'160, 7.801},
                                       {"resnext101_32x8d", 39, 88'791'336, 16.414}};
  REQUIRE(apps::resnet_names().size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    INFO(expected[i].name);
    CHECK(apps::resnet_names()[i] == expected[i].name);
    const auto layers = describe(apps::resnet_blueprint(expected[i].name, 1000).value()).value();
    CHECK(layers.size() == expected[i].layers);
    std::int64_t count = 0;
    for (const auto& leaf : leaves(layers)) count += leaf.numel();
    CHECK(count == expected[i].parameters);
    shape sample = {3, 224, 224};
    double total = 0;
    for (const auto& each : layers) total += each->macs(sample);
    CHECK(sample == shape{1000});
    CHECK_THAT(total / 1e9, WithinRel(expected[i].giga_macs, 1e-3));
  }
}

TEST_CASE("a network lists its layers and tensors by torchvision's names") {
  const auto layers = tiny();
  CHECK(layer_names(layers) == std::vector<std::string>{"conv1", "bn1", "relu", "maxpool",
                                                        "layer1.0", "layer1.1", "layer2.0",
                                                        "layer2.1", "layer3.0", "layer3.1",
                                                        "layer4.0", "layer4.1", "avgpool", "fc"});
  std::vector<std::string> names;
  for (const auto& each : layers[6]->parameters()) names.push_back(each.name);
  CHECK(names == std::vector<std::string>{
                     "layer2.0.conv1.weight", "layer2.0.bn1.weight", "layer2.0.bn1.bias",
                     "layer2.0.conv2.weight", "layer2.0.bn2.weight", "layer2.0.bn2.bias",
                     "layer2.0.downsample.0.weight", "layer2.0.downsample.1.weight",
                     "layer2.0.downsample.1.bias"});
  CHECK(layers[6]->buffers().size() == 9);
  for (const auto& each : parameters(layers)) CHECK(each.tensor.requires_grad());
}

TEST_CASE("a network that cannot be built is refused") {
  CHECK_THAT(error_of(build_resnet("resnet51", 10, 0), errc::bad_config).text,
             ContainsSubstring("'resnet51'") &&
                 ContainsSubstring("resnet18, resnet34, resnet50, resnet101, resnext101_32x8d"));
  CHECK_THAT(error_of(build_resnet("resnet18", 0, 0)).text,
             ContainsSubstring("at least 1 class, not 0"));
}

TEST_CASE("the seed alone decides the initial weights, in the whole model as in a slice") {
  const auto whole = tiny(7);
  CHECK(same(collect_weights(whole), collect_weights(tiny(7))));
  CHECK_FALSE(same(collect_weights(whole), collect_weights(tiny(8))));

  auto other = tiny(7);
  const auto slice = take_layers(other, {4, 6}).value();
  CHECK(layer_names(slice) == std::vector<std::string>{"layer1.0", "layer1.1"});
  CHECK(same(slice[1]->parameters(), whole[5]->parameters()));
}

TEST_CASE("layers are taken out of a model once, and only where there are some") {
  auto whole = tiny();
  REQUIRE(take_layers(whole, {4, 6}));
  REQUIRE(take_layers(whole, {6, whole.size()}));
  for (const auto range :
       {layer_range{0, whole.size() + 1}, {1, 1}, {2, 1}, {4, 6}, {3, 5}, {5, 6}})
    CHECK(take_layers(whole, range).error().code == errc::bad_config);
}

TEST_CASE("a model cut before any layer gives the same loss and gradients to the bit") {
  at::set_num_threads(1);
  const auto make = [] { return make_whole(tests::small_residual_network(5), 3).value(); };
  const auto input = images({2, 3, 40, 40});
  const auto whole = make();
  const auto expected = at::square(run(whole, input, true)).mean();
  const auto expected_grads = torch::autograd::grad({expected}, leaves(whole));
  const auto expected_end = copies(whole);
  for (std::size_t cut = 1; cut < whole.size(); ++cut) {
    INFO("cut before " << whole[cut]->name());
    auto parts = make();
    const auto head = take_layers(parts, {0, cut}).value();
    const auto tail = take_layers(parts, {cut, parts.size()}).value();
    const auto sent = run(head, input, true);
    const auto before = sent.detach().clone();
    const auto received = sent.detach().requires_grad_();
    const auto loss = at::square(run(tail, received, true)).mean();
    CHECK(at::equal(sent, before));

    auto inner = leaves(tail);
    inner.push_back(received);
    auto tail_grads = torch::autograd::grad({loss}, inner);
    const auto sent_grad = tail_grads.back();
    tail_grads.pop_back();
    auto grads = torch::autograd::grad({sent}, leaves(head), {sent_grad});
    grads.insert(grads.end(), tail_grads.begin(), tail_grads.end());

    CHECK(at::equal(loss, expected));
    CHECK(std::ranges::equal(grads, expected_grads, at::equal));
    auto end = copies(head);
    std::ranges::move(copies(tail), std::back_inserter(end));
    CHECK(same(end, expected_end));
  }
  for (const auto& leaf : leaves(whole)) CHECK_FALSE(leaf.grad().defined());
}

TEST_CASE("weights go out under their names, apart from autograd") {
  const auto all = collect_weights(tiny());
  CHECK(all.size() == 122);
  for (const auto& each : all) CHECK_FALSE(each.tensor.requires_grad());
}

TEST_CASE("channels last lays out every 4-D weight and gives outputs of that layout") {
  const auto layers = tiny();
  const auto held = parameters(layers);
  const auto input = images({2, 3, 40, 40});
  const auto contiguous = run(layers, input, false);
  to_memory_format(layers, true);
  for (const auto& [name, weight] : held) {
    INFO(name);
    CHECK((weight.suggest_memory_format() == at::MemoryFormat::ChannelsLast) ==
          (weight.dim() == 4));
    CHECK((weight.is_leaf() && weight.requires_grad()));
  }
  CHECK(same(collect_weights(layers), collect_weights(tiny())));
  const auto mid = layers[0]->forward(input, false);
  CHECK(mid.suggest_memory_format() == at::MemoryFormat::ChannelsLast);
  CHECK(at::allclose(run(layers, input, false), contiguous, 1e-4, 1e-4));
  to_memory_format(layers, false);
  for (const auto& each : held) CHECK(each.tensor.is_contiguous());
  CHECK(at::equal(run(layers, input, false), contiguous));
}

TEST_CASE("a residual network needs two samples where its last batch norms see one pixel") {
  struct row {
    std::vector<std::int64_t> images;
    std::int64_t least;
  };
  for (const auto& [images, least] : {row{{3, 32, 32}, 2}, row{{3, 8, 8}, 2}, row{{3, 33, 32}, 1},
                                      row{{3, 32, 64}, 1}, row{{3, 224, 224}, 1}}) {
    const auto layers = troupe::apps::build_resnet("resnet18", 10, 1).value();
    const auto x = at::zeros({least, images[0], images[1], images[2]});
    CHECK(troupe::apps::least_resnet_samples(images) == least);
    const auto run = [&](at::Tensor batch) {
      for (const auto& each : layers) batch = run_layer(*each, batch, /*training=*/true);
    };
    CHECK_NOTHROW(run(x));
    if (least == 2) CHECK_THROWS(run(x.narrow(0, 0, 1)));
  }
}

TEST_CASE("a sample of text is shown as it is, but for what is no text") {
  using troupe::apps::printable;
  CHECK(printable("Gr\xc3\xbc\xc3\x9f\x65, \xe2\x82\xac\n\tok") ==
        "Gr\xc3\xbc\xc3\x9f\x65, \xe2\x82\xac\n\tok");
  CHECK(printable("cut \xc3") == "cut \\xc3");
  CHECK(printable("\xff\xe2\x82 x") == "\\xff\\xe2\\x82 x");
  CHECK(printable("\x1b[31m\x7f\r") == "\\x1b[31m\\x7f\\x0d");
  CHECK(printable("\xc2\x9b"
                  "1m") == "\\xc2\\x9b1m");  // a control of one character
  CHECK(printable("").empty());
}

TEST_CASE(
    "Cross-entropy of rounded scores is that of f32, and so is its gradient but for rounding") {
  const auto scores = at::randn({6, 9}).to(at::kBFloat16);
  const auto labels = at::tensor({3, 0, -100, 8, 8, 1}, at::kLong);
  const auto gradient_of = [&](const at::Tensor& given, auto loss) {
    const auto leaf = given.detach().requires_grad_();
    const auto value = loss(leaf, labels);
    auto gradient = torch::autograd::grad({value * 0.5}, {leaf}).front();
    return std::pair(value.detach(), gradient);
  };
  const auto [expected, expected_gradient] =
      gradient_of(scores.to(at::kFloat),
                  [](const auto& x, const auto& y) { return at::cross_entropy_loss(x, y); });
  const auto [found, gradient] = gradient_of(scores, troupe::engine::mean_cross_entropy);
  CHECK(at::allclose(found, expected, 1e-6, 0));
  CHECK(gradient.scalar_type() == at::kBFloat16);
  CHECK(at::allclose(gradient.to(at::kFloat), expected_gradient, 1.0 / 128, 1e-7));
  CHECK(gradient[2].abs().max().item<float>() == 0);
  // The first columns of a matrix: what stands behind them has no part in it.
  const auto matrix = at::cat({scores, at::full({6, 7}, 50, scores.options())}, 1).requires_grad_();
  const auto of_view = troupe::engine::mean_cross_entropy(matrix.narrow(1, 0, 9), labels);
  CHECK(at::allclose(of_view.detach(), expected, 1e-6, 0));
  const auto of_matrix = torch::autograd::grad({of_view * 0.5}, {matrix}).front();
  CHECK(at::allclose(of_matrix.narrow(1, 0, 9).to(at::kFloat), expected_gradient, 1.0 / 128, 1e-7));
  CHECK(of_matrix.narrow(1, 9, 7).abs().max().item<float>() == 0);
  CHECK(matrix.detach().narrow(1, 9, 7).eq(50).all().item<bool>());
  for (const std::int64_t row : {0, 2}) {  // one that counts, and one that does not
    const auto broken = scores.clone();
    broken[row][5] = std::numeric_limits<float>::quiet_NaN();
    const auto none = gradient_of(broken, troupe::engine::mean_cross_entropy).second;
    CHECK_FALSE(at::isfinite(none).all().item<bool>());
  }
}
