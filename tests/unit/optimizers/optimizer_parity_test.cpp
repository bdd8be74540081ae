#include <ATen/ops/arange.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

#include "optimizers/options.hpp"
#include "tests/unit/optimizers/optimizer_cases.hpp"

using namespace troupe;
using namespace troupe::optimizers;
using namespace troupe::testing;

namespace {

constexpr std::uint64_t steps = 100;
const std::vector<std::vector<std::int64_t>> parity_shapes{{37}, {5, 8}, {3, 2, 2, 2}};

/// One case of tests/parity/make_optimizer_fixture.py and where it led in PyTorch.
struct parity_run {
  optimizer_case what;
  at::ScalarType type = at::kFloat;
  bool gaps = false;
  std::string text;
  std::map<std::size_t, std::vector<double>> params;  ///< First and last element, weighted sum.
  std::map<std::pair<std::string, std::size_t>, double> slots;  ///< Weighted sum.
};

parity_run read_case(const std::string& line) {
  parity_run made{.what = {}, .text = line, .params = {}, .slots = {}};
  std::istringstream words(line);
  std::string kind, dtype, gradients;
  words >> kind >> made.what.name >> dtype >> gradients;
  made.type = dtype == "f32" ? at::kFloat : at::kDouble;
  made.gaps = gradients == "gaps";
  const optimizer entry = find(made.what.name);
  for (std::string setting; words >> setting;) {
    const std::size_t equals = setting.find('=');
    const std::string option = setting.substr(0, equals);
    const auto value = parse_option(entry, option, setting.substr(equals + 1));
    INFO((value ? line : value.error().text));
    REQUIRE(value);
    made.what.chosen[option] = *value;
  }
  return made;
}

std::vector<parity_run> read_fixture() {
  std::ifstream file(TROUPE_OPTIMIZERS_FIXTURE);
  REQUIRE(file.good());
  std::vector<parity_run> runs;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string kind, slot;
    std::size_t index = 0;
    double value = 0;
    words >> kind;
    if (kind == "case") runs.push_back(read_case(line));
    if (kind == "param") {
      words >> index;
      while (words >> value) runs.back().params[index].push_back(value);
    } else if (kind == "slot") {
      words >> slot >> index >> value;
      runs.back().slots[{slot, index}] = value;
    }
  }
  return runs;
}

double weighted_sum(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kDouble).flatten();
  return flat.mul(at::arange(flat.numel()).remainder(7).add(1)).sum().item<double>();
}

/// How far numbers may be apart, as a share of the larger of 1 and the expected one. PyTorch rounds
/// between its operators, where our kernels fuse. Muon's iterations run in bf16, whose rounding
/// depends on how the CPU multiplies matrices.
double tolerance(const parity_run& of) {
  if (of.what.name == "muon" && of.what.chosen.find("orthogonal") == of.what.chosen.end())
    return 2e-2;
  return of.type == at::kFloat ? 2e-5 : 1e-12;
}

void check_near(const parity_run& of, double ours, double expected, double terms) {
  CAPTURE(ours, expected);
  CHECK(std::abs(ours - expected) <= tolerance(of) * std::max(1.0, std::abs(expected)) * terms);
}

void replay(const parity_run& of) {
  CAPTURE(of.text);
  const optimizer entry = find(of.what.name);
  const options chosen = complete(entry, of.what.chosen).value();
  numbers source(7);
  std::vector<at::Tensor> params;
  for (const auto& shape : parity_shapes) params.push_back(source.tensor(shape, of.type));
  state kept;
  for (std::uint64_t step = 1; step <= steps; ++step) {
    gradient_list gradients;
    for (std::size_t i = 0; i < parity_shapes.size(); ++i) {
      gradients.emplace_back(source.tensor(parity_shapes[i], of.type, of.gaps));
      if (of.gaps && (step + 2 * i) % 5 == 1) gradients.back().reset();
    }
    REQUIRE(entry.step(params, gradients, kept, chosen, step));
  }
  REQUIRE(of.params.size() == parity_shapes.size());
  for (const auto& [index, expected] : of.params) {
    CAPTURE(index);
    const at::Tensor flat = params[index].flatten().to(at::kDouble);
    check_near(of, flat[0].item<double>(), expected[0], 1);
    check_near(of, flat[-1].item<double>(), expected[1], 1);
    check_near(of, weighted_sum(flat), expected[2], 4);
  }
  for (const auto& [place, expected] : of.slots) {
    const auto& [slot, index] = place;
    CAPTURE(slot, index);
    REQUIRE(kept.contains(slot));
    check_near(of, weighted_sum(kept[slot][index]), expected, 4);
  }
}

}  // namespace

TEST_CASE("after 100 steps every optimizer is where PyTorch's, or the paper's, is") {
  const std::vector<parity_run> runs = read_fixture();
  std::set<std::string> seen;
  for (const parity_run& each : runs) {
    replay(each);
    seen.insert(each.what.name);
  }
  CHECK(std::vector<std::string>(seen.begin(), seen.end()) == built_in().names());
}
