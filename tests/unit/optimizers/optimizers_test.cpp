#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <limits>

#include "optimizers/optimizer.hpp"
#include "tests/refusal.hpp"
#include "tests/unit/optimizers/sgd_options.hpp"

using namespace troupe;
using namespace troupe::optimizers;
using Catch::Matchers::ContainsSubstring;
using troupe::testing::sgd_entry;
using troupe::testing::with;

namespace {

std::string complaint(const options& given) {
  return error_of(complete(sgd_entry, given), errc::bad_config).text;
}

/// The error of one step over these parameters, and proof that it changed none of them.
std::string complaint(std::vector<at::Tensor> params, const gradient_list& gradients,
                      state kept = {}) {
  std::vector<at::Tensor> before;
  for (const auto& param : params) before.push_back(param.clone());
  const error stepped = error_of(
      sgd_entry.step(params, gradients, kept, with({{"momentum", 0.9}}), 1), errc::bad_config);
  for (std::size_t i = 0; i < params.size(); ++i) CHECK(params[i].equal(before[i]));
  return stepped.text;
}

}  // namespace

TEST_CASE("the registry knows the built-in optimizers and those that a user adds") {
  registry names = built_in();
  CHECK(names.find("sgd")->name == "sgd");
  CHECK(names.find("adem").error() ==
        error{errc::bad_config,
              "no optimizer called 'adem'; known optimizers: adadelta, adagrad, adam, adamax, "
              "adamw, lamb, lion, muon, nadam, qhm, radam, rmsprop, rprop, sgd"});
  optimizer mine = sgd_entry;
  mine.name = "mine";
  names.add(mine);
  CHECK(names.find("mine").has_value());
  CHECK_THAT(names.find("adem").error().text, ContainsSubstring("lion, mine, muon"));
  CHECK_THAT(registry().find("sgd").error().text, ContainsSubstring("known optimizers: none"));
}

TEST_CASE("options not given take their defaults") {
  const options all = with({{"lr", 0.5}});
  CHECK(all == options{{"lr", 0.5},
                       {"momentum", 0},
                       {"dampening", 0},
                       {"weight_decay", 0},
                       {"nesterov", 0},
                       {"maximize", 0}});
  CHECK(with({}).at("lr") == 1e-3);
}

TEST_CASE("an unknown option is refused with the known ones") {
  CHECK(complaint({{"learning_rate", 0.1}}) ==
        "optimizer 'sgd' has no option 'learning_rate'; its options: dampening, lr, maximize, "
        "momentum, nesterov, weight_decay");
}

TEST_CASE("an option out of range is refused with its name, value and range") {
  CHECK(complaint({{"lr", -0.1}}) ==
        "optimizer 'sgd': lr = -0.1 is out of range: from 0 upwards, finite as f32");
  CHECK_THAT(complaint({{"momentum", -1}}), ContainsSubstring("momentum = -1 is out of range"));
  CHECK_THAT(complaint({{"weight_decay", -1e-4}}), ContainsSubstring("weight_decay = -1e-04"));
  CHECK_THAT(complaint({{"lr", 1e300}}), ContainsSubstring("lr = 1e+300"));
  CHECK_THAT(complaint({{"lr", std::numeric_limits<double>::infinity()}}),
             ContainsSubstring("lr = inf"));
  CHECK_THAT(complaint({{"dampening", -1e300}}), ContainsSubstring("any finite f32"));
  CHECK_THAT(complaint({{"nesterov", 0.5}}),
             ContainsSubstring("nesterov = 0.5 is out of range: 0 or 1"));
  for (const auto& [name, value] : sgd_entry.defaults)
    CHECK_THAT(complaint({{name, std::numeric_limits<double>::quiet_NaN()}}),
               ContainsSubstring(name + " = nan is out of range"));
}

TEST_CASE("nesterov needs momentum and no dampening") {
  CHECK(complaint({{"nesterov", 1}}) ==
        "optimizer 'sgd': nesterov needs momentum > 0 and dampening = 0, and they are 0 and 0");
  CHECK_THAT(complaint({{"nesterov", 1}, {"momentum", 0.9}, {"dampening", 0.1}}),
             ContainsSubstring("they are 0.9 and 0.1"));
  CHECK(with({{"nesterov", 1}, {"momentum", 0.9}}).at("nesterov") == 1);
}

TEST_CASE("a step refuses options that were not completed") {
  std::vector<at::Tensor> params{at::ones({2})};
  state kept;
  CHECK_THAT(sgd_entry.step(params, {at::ones({2})}, kept, {{"lr", 0.1}}, 1).error().text,
             ContainsSubstring("option 'momentum' is missing"));
  options extra = with({});
  extra["beta"] = 1;
  CHECK_THAT(sgd_entry.step(params, {at::ones({2})}, kept, extra, 1).error().text,
             ContainsSubstring("has no option 'beta'"));
}

TEST_CASE("gradients that do not fit are refused before anything changes") {
  const at::Tensor one = at::ones({2, 3});
  CHECK(complaint({one.clone(), one.clone()}, {one}) ==
        "optimizer 'sgd': 2 parameters, but 1 gradients");
  CHECK(complaint({one.clone(), one.clone()}, {one, at::ones({3, 2})}) ==
        "optimizer 'sgd': parameter 1 has shape [2, 3], but its gradient has [3, 2]");
  CHECK(complaint({one.clone()}, {one.to(at::kDouble)}) ==
        "optimizer 'sgd': parameter 0 has dtype Float, but its gradient has Double");
  CHECK(complaint({one.clone()}, {one.to(at::kMeta)}) ==
        "optimizer 'sgd': parameter 0 has device cpu, but its gradient has meta");
  CHECK(complaint({one.to(at::kLong)}, {one}) ==
        "optimizer 'sgd': parameter 0 has dtype Long, which is not floating point");
  std::vector<at::Tensor> undefined(1);
  state kept;
  CHECK_THAT(sgd_entry.step(undefined, {one}, kept, with({}), 1).error().text,
             ContainsSubstring("parameter 0 is undefined"));
}

TEST_CASE("state that does not fit is refused before anything changes") {
  const at::Tensor one = at::ones({2, 3});
  CHECK(complaint({one.clone()}, {one}, {{"momentum_buffer", {one.clone(), one.clone()}}}) ==
        "optimizer 'sgd': 1 parameters, but 2 entries of 'momentum_buffer'");
  CHECK(complaint({one.clone()}, {one}, {{"momentum_buffer", {at::ones({6})}}}) ==
        "optimizer 'sgd': parameter 0 has shape [2, 3], but its momentum_buffer has [6]");
  CHECK_THAT(complaint({one.clone()}, {one}, {{"exp_avg", {one.clone()}}}),
             ContainsSubstring("no state called 'exp_avg'"));
}

TEST_CASE("a missing gradient leaves its parameter and state alone") {
  std::vector<at::Tensor> params{at::ones({3}), at::ones({3}), at::ones({3})};
  const at::Tensor change = at::ones({3});
  state kept;
  const options chosen = with({{"lr", 0.5}, {"momentum", 0.5}});
  REQUIRE(sgd_entry.step(params, {change, std::nullopt, at::Tensor()}, kept, chosen, 1));
  CHECK(params[0].equal(at::ones({3}).mul(0.5)));
  CHECK(params[1].equal(at::ones({3})));
  CHECK(params[2].equal(at::ones({3})));
  CHECK_FALSE(kept["momentum_buffer"][1].defined());
  const at::Tensor buffer = kept["momentum_buffer"][0].clone();
  REQUIRE(sgd_entry.step(params, {std::nullopt, change, std::nullopt}, kept, chosen, 2));
  CHECK(params[0].equal(at::ones({3}).mul(0.5)));
  CHECK(kept["momentum_buffer"][0].equal(buffer));
  CHECK(kept["momentum_buffer"][1].equal(change));
}

TEST_CASE("without momentum no state appears") {
  std::vector<at::Tensor> params{at::ones({3})};
  state kept;
  REQUIRE(sgd_entry.step(params, {at::ones({3})}, kept, with({{"lr", 1}}), 1));
  CHECK(kept.empty());
  CHECK(params[0].equal(at::zeros({3})));
}
