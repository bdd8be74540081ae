// Forks that carry tensors, and the ensemble that is made of them.

#include "actors/futures/fork.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>

#include <catch2/catch_test_macros.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "apps/lstm_ensemble/ensemble.hpp"
#include "tests/unit/scratch_folder.hpp"

namespace {

using namespace troupe;
using actors::fork;
using actors::pool;
using actors::wait;

}  // namespace

TEST_CASE("100 forks of neg on a scalar one sum to -100") {
  pool on(actors::tensor_pool(2));
  const auto one = at::ones({});
  std::vector<actors::future<at::Tensor>> forked;
  for (int i = 0; i < 100; ++i)
    forked.push_back(fork(
        on, [](const at::Tensor& x) { return at::neg(x); }, one));
  double sum = 0;
  for (const auto& each : forked) sum += wait(each)->item<double>();
  CHECK(sum == -100);
}

TEST_CASE("a tensor is passed to a fork by reference") {
  pool on(actors::tensor_pool(1));
  const auto tensor = at::ones({4});
  CHECK(wait(fork(
            on, [](const at::Tensor& x) { return x.data_ptr(); }, tensor)) == tensor.data_ptr());
}

TEST_CASE("autograd records through forks, and grad mode is the caller's") {
  pool on(actors::tensor_pool(2));
  const auto x = at::full({}, 3.0).set_requires_grad(true);
  const auto square = [](const at::Tensor& y) { return at::mul(y, y); };
  const auto nested = fork(on, [&] { return at::add(*wait(fork(on, square, x)), x); });
  const auto gradient = torch::autograd::grad({*wait(nested)}, {x});
  CHECK(gradient[0].item<double>() == 7);
  const at::NoGradGuard off;
  CHECK(!wait(fork(on, square, x))->requires_grad());
}

TEST_CASE("torch's exception arrives as handler_failed") {
  pool on(actors::tensor_pool(1));
  const auto failed = fork(on, [] { return at::add(at::ones({2}), at::ones({3})); });
  CHECK(wait(failed).error().code == errc::handler_failed);
  CHECK(wait(failed).error().text.find("size") != std::string::npos);
}

TEST_CASE("every form of the ensemble gives the same bits, on any number of threads") {
  const apps::ensemble_shape shape{.models = 3, .steps = 4, .batch = 2, .channels = 8};
  for (const bool train : {false, true}) {
    const apps::lstm_ensemble ensemble(shape, 1, train);
    const auto input =
        at::randn({shape.steps, shape.batch, shape.channels}, at::detail::createCPUGenerator(2));
    std::vector<std::uint64_t> prints;
    for (const unsigned threads : {1U, 2U}) {
      pool on(actors::tensor_pool(threads));
      for (const auto form : {apps::ensemble_form::serial, apps::ensemble_form::directions,
                              apps::ensemble_form::models}) {
        apps::trace spans;
        const auto outcome = wait(fork(on, [&] { return ensemble.run(on, form, input, spans); }));
        REQUIRE(outcome);
        CHECK(outcome->output.sizes() == at::IntArrayRef({4, 2, 16}));
        CHECK(outcome->gradients.size() == (train ? 24U : 0U));
        for (const auto& gradient : outcome->gradients)
          CHECK(gradient.count_nonzero().item<std::int64_t>() > 0);
        prints.push_back(apps::fingerprint(*outcome));
      }
    }
    for (const auto print : prints) CHECK(print == prints.front());
  }
}

TEST_CASE("the ensemble's gradients are those of one plain backward") {
  const apps::ensemble_shape shape{.models = 2, .steps = 3, .batch = 2, .channels = 4};
  const auto input = at::randn({3, 2, 4}, at::detail::createCPUGenerator(5));
  const auto random = at::detail::createCPUGenerator(9);
  std::vector<apps::lstm> cells;  // drawn as the ensemble draws them
  for (int i = 0; i < 4; ++i) cells.emplace_back(shape.channels, random, true);
  at::Tensor sum;
  std::vector<at::Tensor> weights;
  for (std::size_t model = 0; model < 2; ++model) {
    const auto& ahead = cells[2 * model];
    const auto& reversed = cells[2 * model + 1];
    const auto joined =
        at::cat({ahead.forward(input), reversed.forward(input.flip({0})).flip({0})}, 2);
    sum = sum.defined() ? at::add(sum, joined) : joined;
    for (const auto* cell : {&ahead, &reversed})
      weights.insert(weights.end(), cell->weights().begin(), cell->weights().end());
  }
  const auto expected = torch::autograd::grad({sum.square().mean()}, weights);

  pool on(actors::tensor_pool(2));
  apps::trace spans;
  const apps::lstm_ensemble ensemble(shape, 9, true);
  const auto outcome =
      wait(fork(on, [&] { return ensemble.run(on, apps::ensemble_form::models, input, spans); }));
  REQUIRE(outcome);
  CHECK(at::allclose(outcome->output, sum));
  REQUIRE(outcome->gradients.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i)
    CHECK(at::allclose(outcome->gradients[i], expected[i], 1e-5, 1e-7));
}

TEST_CASE("a trace holds a span for each cell and opens as JSON") {
  const testing::scratch_folder folder;
  const apps::lstm_ensemble ensemble({.models = 2, .steps = 2, .batch = 1, .channels = 4}, 1, true);
  pool on(actors::tensor_pool(2));
  apps::trace spans;
  const auto input = at::randn({2, 1, 4}, at::detail::createCPUGenerator(2));
  REQUIRE(
      wait(fork(on, [&] { return ensemble.run(on, apps::ensemble_form::models, input, spans); })));
  REQUIRE(spans.write(folder.path() / "trace.json"));
  std::ifstream file(folder.path() / "trace.json");
  const auto written = nlohmann::json::parse(file);
  CHECK(written["traceEvents"].size() == 8);
  CHECK(written["traceEvents"][0]["ph"] == "X");
  CHECK(spans.write(folder.path() / "none" / "trace.json").error().code == errc::io_failed);
}
