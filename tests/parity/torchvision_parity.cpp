// Troupe's ResNets against torchvision's, by the fixtures of make_fixture.py (which says what they
// hold). On the machine that made a fixture, with two threads, everything is equal to the bit; the
// test that makes fixtures afresh, where the Python peers are installed, demands that. Between
// instruction sets rounding differs, and a ResNet-50 at its initial weights magnifies that a
// hundred thousand times on its way back. Tolerances for the committed fixtures, as the largest
// difference over the largest magnitude of a tensor, and the worst seen between instruction sets:
//   float64: 1e-10 (3e-13)
//   float32: 1e-3 for outputs, losses and buffers, 0.1 for gradients (0.03)
// The same for float32 in channels_last, where batch norm is Troupe's own.

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/Version.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "apps/resnet_pipeline/resnet.hpp"
#include "engine/model/model.hpp"
#include "engine/state/model_file.hpp"
#include "engine/state/safetensors.hpp"

namespace {

using namespace troupe;
using namespace troupe::engine;
namespace fs = std::filesystem;

constexpr std::int64_t classes = 10;
constexpr std::uint64_t seed = 20;
const fs::path parity_dir = TROUPE_PARITY_DIR;
const fs::path fixtures_dir = parity_dir / "fixtures";

using tensors = std::map<std::string, at::Tensor>;

std::vector<named_tensor> load(const fs::path& file) {
  auto loaded = load_safetensors(file);
  if (!loaded) FAIL(loaded.error().text);
  return std::move(*loaded);
}

tensors load_fixture(const fs::path& file) {
  tensors all;
  for (auto& each : load(file)) all.emplace(each.name, each.tensor);
  return all;
}

// Two threads, as the fixtures; and the processor must draw normal numbers as the fixtures' did.
void prepare() {
  (void)at::get_num_threads();  // a thread's first use takes the global value: let that pass
  at::set_num_threads(2);
  if (at::get_cpu_capability() == "DEFAULT")
    SKIP("without AVX2 PyTorch itself draws other weights from a seed");
}

// As in make_fixture.py.
at::Tensor summary(const at::Tensor& tensor, std::int64_t samples = 64) {
  auto flat = tensor.detach().to(at::kDouble).flatten();
  if (flat.numel() <= samples) return flat;
  const auto at = at::arange(samples).mul(flat.numel() - 1).floor_divide(samples - 1);
  return at::cat(
      {at::stack({flat.sum(), flat.abs().sum(), flat.norm()}), flat.index_select(0, at)});
}

double distance(const at::Tensor& made, const at::Tensor& expected) {
  if (made.sizes() != expected.sizes()) return std::numeric_limits<double>::infinity();
  if (at::equal(made, expected)) return 0;
  const auto largest = expected.abs().max().item<double>();
  return made.sub(expected).abs().max().item<double>() / std::max(largest, 1e-300);
}

struct tolerance {
  double gradients;
  double others;
};
constexpr tolerance same_bits = {0, 0};
constexpr tolerance float64_tolerance = {1e-10, 1e-10};
constexpr tolerance float32_tolerance = {0.1, 1e-3};

// Every tensor of `expected` under `prefix` is in `made`, which holds nothing else.
void compare(const tensors& made, const tensors& expected, const std::string& prefix,
             const tolerance& allowed) {
  std::size_t compared = 0;
  for (const auto& [name, value] : expected) {
    if (!name.starts_with(prefix)) continue;
    INFO(name);
    const auto found = made.find(name.substr(prefix.size()));
    REQUIRE(found != made.end());
    const auto apart = distance(found->second, value);
    CHECK(apart <= (name.find(".grad.") == std::string::npos ? allowed.others : allowed.gradients));
    ++compared;
  }
  CHECK(compared == made.size());
}

void convert(const model& layers, at::ScalarType kind) {
  const c10::NoGradGuard no_grad;
  for (const auto& each : layers)
    for (const auto& part : {each->parameters(), each->buffers()})
      for (const auto& [name, tensor] : part)
        if (tensor.is_floating_point()) tensor.set_data(tensor.detach().to(kind));
}

at::Tensor run(const model& layers, at::Tensor x, bool training) {
  for (const auto& each : layers) x = each->forward(x, training);
  return x;
}

void add_loss(tensors& made, const std::string& loss_name, const at::Tensor& loss,
              const model& layers) {
  const auto named = parameters(layers);
  std::vector<at::Tensor> leaves;
  leaves.reserve(named.size());
  for (const auto& each : named) leaves.push_back(each.tensor);
  const auto gradients = torch::autograd::grad({loss}, leaves, {}, /*retain_graph=*/true);
  made[loss_name] = summary(loss);
  const auto prefix = loss_name + ".grad.";
  for (std::size_t i = 0; i < named.size(); ++i) {
    made[prefix + named[i].name] = summary(gradients[i]);
    CHECK_FALSE(leaves[i].grad().defined());
  }
}

// One training forward, its losses, all their gradients and what it left in the buffers.
tensors step(const model& layers, const tensors& given) {
  tensors made;
  const auto kind = parameters(layers).front().tensor.scalar_type();
  const auto format = parameters(layers).front().tensor.suggest_memory_format();
  const auto input = given.at("input").to(kind).contiguous(format);
  const auto output = run(layers, input, true);
  made["output"] = summary(output);
  const bool classifies = given.contains("labels");
  const auto target = classifies ? given.at("target").to(kind) : at::zeros_like(output);
  add_loss(made, "mse", at::mse_loss(output, target), layers);
  if (classifies)
    add_loss(made, "cross_entropy", at::cross_entropy_loss(output, given.at("labels")), layers);
  for (const auto& each : layers)
    for (const auto& [name, buffer] : each->buffers()) made["buffer." + name] = summary(buffer);
  const c10::NoGradGuard no_grad;
  made["evaluated"] = summary(run(layers, input, false));
  return made;
}

model network(const std::string& name) {
  auto layers = apps::build_resnet(name, classes, seed).value();
  return name.starts_with("resnext") ? take_layers(layers, {0, 6}).value() : std::move(layers);
}

void check_step(const fs::path& dir, const std::string& name, const tolerance& float64,
                const tolerance& float32) {
  const auto given = load_fixture(dir / (name + ".safetensors"));
  const auto in_float64 = network(name);
  convert(in_float64, at::kDouble);
  compare(step(in_float64, given), given, "f64.", float64);
  compare(step(network(name), given), given, "f32.", float32);
}

// Samples to the bit; the sums in front of them may round differently on another processor.
void check_initial(const fs::path& dir, const std::string& name) {
  const auto expected = load_fixture(dir / "initial.safetensors");
  const auto layers = apps::build_resnet(name, classes, seed).value();
  tensors sums;
  const auto prefix = name + ".";
  for (const auto& [parameter, tensor] : parameters(layers)) {
    INFO(parameter);
    const auto value = summary(tensor, 8);
    const auto& other = expected.at(prefix + parameter);
    REQUIRE(value.sizes() == other.sizes());
    CHECK(at::equal(value.narrow(0, value.size(0) - 8, 8), other.narrow(0, other.size(0) - 8, 8)));
    sums[parameter] = value;
  }
  compare(sums, expected, prefix, {1e-12, 1e-12});
}

void check_trained(const model& layers, const fs::path& weights, const fs::path& step_file,
                   double allowed) {
  const auto file = tensor_reader::open(weights).value();
  const auto own = collect_weights(layers);
  CHECK(file->tensors().size() == own.size());
  const auto loaded = load_weights({file}, own, {});
  if (!loaded) FAIL(loaded.error().text);
  const auto given = load_fixture(step_file);
  const c10::NoGradGuard no_grad;
  CHECK(distance(summary(run(layers, given.at("input"), false)), given.at("output")) <= allowed);
}

model stem() {
  auto layers = apps::build_resnet("resnet18", classes, 0).value();
  return take_layers(layers, {0, 5}).value();
}

// A folder that is gone when the test is.
class scratch_folder {
 public:
  scratch_folder()
      : path_(fs::temp_directory_path() /
              ("troupe-parity-" + std::to_string(std::random_device()()))) {
    fs::create_directories(path_);
  }
  scratch_folder(const scratch_folder&) = delete;
  scratch_folder& operator=(const scratch_folder&) = delete;
  ~scratch_folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }

  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

const std::vector<std::string> stepped = {"resnet18", "resnet50", "resnext101_32x8d"};

}  // namespace

TEST_CASE("a seed draws torchvision's initial weights") {
  prepare();
  const auto name = GENERATE(Catch::Generators::from_range(apps::resnet_names()));
  INFO(name);
  check_initial(fixtures_dir, name);
}

TEST_CASE("outputs, losses and every gradient agree with torchvision's") {
  prepare();
  const auto name = GENERATE(Catch::Generators::from_range(stepped));
  INFO(name);
  check_step(fixtures_dir, name, float64_tolerance, float32_tolerance);
}

TEST_CASE("in channels_last outputs, losses and every gradient agree with torchvision's too") {
  prepare();
  const auto name = GENERATE(Catch::Generators::from_range(stepped));
  INFO(name);
  const auto given = load_fixture(fixtures_dir / (name + ".safetensors"));
  const auto layers = network(name);
  to_memory_format(layers, true);
  compare(step(layers, given), given, "f32.", float32_tolerance);
}

TEST_CASE("weights that torchvision saved as safetensors load, and compute the same") {
  prepare();
  check_trained(stem(), fixtures_dir / "stem_weights.safetensors",
                fixtures_dir / "stem.safetensors", 1e-5);
}

TEST_CASE("weights are saved with the names, types and shapes of those that torchvision saved") {
  const scratch_folder scratch;
  const auto file = scratch.path() / "stem.safetensors";
  REQUIRE(save_safetensors(file, collect_weights(stem())));
  const auto ours = load_fixture(file);
  const auto theirs = load_fixture(fixtures_dir / "stem_weights.safetensors");
  REQUIRE(ours.size() == theirs.size());
  for (const auto& [name, tensor] : theirs) {
    INFO(name);
    REQUIRE(ours.contains(name));
    CHECK(ours.at(name).scalar_type() == tensor.scalar_type());
    CHECK(ours.at(name).sizes() == tensor.sizes());
  }
}

TEST_CASE("everything equals torchvision on this machine to the bit, whole weight files too") {
  const auto python = parity_dir / "../../.venv-peers/bin/python";
  if (!fs::exists(python))
    SKIP("the Python peers are not installed (./dev bench resnet --peers installs them)");
  prepare();
  const scratch_folder scratch;
  const auto& dir = scratch.path();
  const auto command = "'" + python.string() + "' '" + (parity_dir / "make_fixture.py").string() +
                       "' --weights --out '" + dir.string() + "'";
  REQUIRE(std::system(command.c_str()) == 0);
  for (const auto& name : apps::resnet_names()) check_initial(dir, name);
  for (const auto& name : stepped) check_step(dir, name, same_bits, same_bits);
  check_trained(stem(), dir / "stem_weights.safetensors", dir / "stem.safetensors", 0);
  for (const std::string name : {"resnet18", "resnet50"})
    check_trained(apps::build_resnet(name, classes, 0).value(),
                  dir / (name + "_weights.safetensors"), dir / (name + "_trained.safetensors"), 0);
}
