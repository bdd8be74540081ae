// What an evaluation's metrics are computed from, and how their sums are added.
#include <ATen/ops/arange.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/ones.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/blocks.hpp"
#include "engine/stage/stage_module.hpp"
#include "tests/refusal.hpp"

namespace {

using namespace troupe;
using namespace troupe::engine;
using Catch::Matchers::WithinAbs;

const step_key of_evaluation{epoch_id{0}, step_id{1}};

forward_outcome evaluate(metric_registry metrics, step_kind kind = step_kind::evaluation) {
  model layers;
  layers.push_back(std::make_unique<relu>("relu"));
  stage_module module(std::move(layers), stage_options{.metrics = std::move(metrics)});
  // Three of four labels are where the outputs, which are the inputs, are largest.
  const auto labels = at::arange(4).clamp_max(2);
  return module.forward(of_evaluation, kind, {}, at::eye(4), labels, 8);
}

std::string failure_of(metric_registry metrics) {
  try {
    evaluate(std::move(metrics));
  } catch (const std::invalid_argument& why) {
    return why.what();
  }
  return "none";
}

}  // namespace

TEST_CASE("accuracy and loss are sums over an evaluation's labels") {
  const auto outcome = evaluate(built_in_metrics());
  REQUIRE(outcome.metrics.size() == 2);
  CHECK(outcome.metrics[0] == 3);
  CHECK_THAT(outcome.metrics[1], WithinAbs(8 * outcome.loss, 1e-5));  // the loss is of 4 in 8
}

TEST_CASE("a program's own metric sees the outputs, the labels and the loss") {
  metric_registry own;
  own.add("labels", {.sum = [](const evaluated_batch& of) { return of.labels.sum(); }});
  own.add("outputs", {.sum = [](const evaluated_batch& of) { return of.outputs.sum(); }});
  own.add("loss", {.sum = [](const evaluated_batch& of) { return of.loss; }});
  const auto outcome = evaluate(own);
  REQUIRE(outcome.metrics.size() == 3);
  CHECK(outcome.metrics[0] == 5);
  CHECK(outcome.metrics[1] == 4);
  CHECK_THAT(outcome.metrics[2], WithinAbs(2 * outcome.loss, 1e-6));
}

TEST_CASE("metrics are of evaluations alone") {
  CHECK(evaluate(built_in_metrics(), step_kind::training).metrics.empty());
}

TEST_CASE("a metric that gives no single number is named") {
  metric_registry own;
  own.add("wide", {.sum = [](const evaluated_batch&) { return at::ones({2}); }});
  CHECK(failure_of(own) == "the metric 'wide' gives a tensor that is not one number");
  own = {};
  own.add("none", {.sum = [](const evaluated_batch&) { return at::Tensor(); }});
  CHECK(failure_of(own) == "the metric 'none' gives a tensor that is not one number");
}

TEST_CASE("metrics are found by their names, in the order of the names") {
  const auto known = built_in_metrics();
  const auto found = find_metrics(known, {"loss", "accuracy"}).value();
  CHECK(names_of(found) == std::vector<std::string>{"loss", "accuracy"});
  const error unknown = error_of(find_metrics(known, {"accuracy", "f1"}), errc::bad_config);
  CHECK(unknown.text.starts_with("unknown metric 'f1'; known: "));
}

TEST_CASE("sums of metrics are added one by one, and a missing one counts as 0") {
  std::vector<double> sums;
  add_sums(sums, {1, 2});
  add_sums(sums, {0.5, 0.25, 4});
  add_sums(sums, {});
  CHECK(sums == std::vector<double>{1.5, 2.25, 4});
}
