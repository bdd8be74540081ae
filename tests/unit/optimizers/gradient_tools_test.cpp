#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <limits>
#include <numeric>

#include "optimizers/elementwise.hpp"
#include "optimizers/groups.hpp"
#include "optimizers/options.hpp"
#include "optimizers/schedule.hpp"
#include "optimizers/training/gradients.hpp"
#include "tests/refusal.hpp"
#include "tests/unit/optimizers/optimizer_cases.hpp"

using namespace troupe;
using namespace troupe::optimizers;
using namespace troupe::testing;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::WithinRel;

namespace {

gradient_list two(double first, double second) {
  return {at::full({3}, first), std::nullopt, at::full({1, 4}, second)};
}

double sum_of_squares(const gradient_list& gradients) {
  const auto squares = squares_of_each(gradients);
  return std::accumulate(squares.begin(), squares.end(), 0.0);
}

std::string group_error(const std::string& text) {
  return error_of(parse_group(find("adamw"), text), errc::bad_config).text;
}

}  // namespace

TEST_CASE("the squares of gradients over shards add up to their norm, which scaling brings down") {
  gradient_list left = two(1, 2), right = two(-2, 0.5);
  CHECK(sum_of_squares(left) == 3 + 16);
  CHECK(sum_of_squares(right) == 12 + 1);
  CHECK(sum_of_squares({at::full({5}, 2, at::kHalf)}) == 20);
  CHECK(sum_of_squares({at::ones({2, 6}).slice(1, 0, 6, 2)}) == 6);
  const double factor = 2 / std::sqrt(32);
  left = scaled(left, factor);
  right = scaled(right, factor);
  CHECK_THAT(sum_of_squares(left) + sum_of_squares(right), WithinRel(4, 1e-6));
}

TEST_CASE("squares of what is not finite are not either, and those of large numbers are") {
  const float huge = std::numeric_limits<float>::infinity();
  CHECK(std::isinf(sum_of_squares(two(1, huge))));
  CHECK(std::isnan(sum_of_squares(two(1, std::nan("")))));
  CHECK(std::isfinite(sum_of_squares(two(1, 3e38))));
}

TEST_CASE("clipping by value bounds each element") {
  const gradient_list given = two(3, -0.25), gradients = clipped(given, 0.5);
  CHECK(given[0]->equal(at::full({3}, 3.0)));
  CHECK_FALSE(gradients[1]);
  CHECK(gradients[0]->equal(at::full({3}, 0.5)));
  CHECK(gradients[2]->equal(at::full({1, 4}, -0.25)));
}

TEST_CASE("an accumulator gives the mean of its steps, where any had a gradient") {
  gradient_accumulator sums;
  REQUIRE(sums.add({at::full({3}, 1.0), std::nullopt, std::nullopt}));
  REQUIRE(sums.add({at::full({3}, 2.0), at::full({2}, 5.0), std::nullopt}));
  const auto mean = sums.take_mean();
  CHECK(mean[0]->equal(at::full({3}, 1.5)));
  CHECK(mean[1]->equal(at::full({2}, 2.5)));
  CHECK_FALSE(mean[2]);
  REQUIRE(sums.add({at::ones({3})}));
  CHECK_THAT(sums.add({}).error().text, ContainsSubstring("0 gradients after steps with 1"));
  gradient_accumulator shared;
  const at::Tensor same = at::ones({2});  // the gradient of both terms of a sum
  REQUIRE(shared.add({same, same}));
  REQUIRE(shared.add({same, same}));
  REQUIRE(shared.add({same, std::nullopt}));
  const auto thirds = shared.take_mean();
  CHECK(thirds[0]->equal(at::ones({2})));
  CHECK(thirds[1]->allclose(at::full({2}, 2.0 / 3)));
  CHECK(same.equal(at::ones({2})));
}

TEST_CASE("an accumulator of one step gives its gradients, and none of what it forgot") {
  gradient_accumulator sums;
  const at::Tensor only = at::ones({3});
  REQUIRE(sums.add({at::full({3}, 7.0)}));
  sums.clear();
  REQUIRE(sums.add({only}));
  CHECK(sums.take_mean().front()->is_same(only));
  REQUIRE(sums.add({at::ones({2}), at::ones({2})}));
  CHECK(sums.take_mean().size() == 2);
}

TEST_CASE("schedules begin at the full rate and end where they say") {
  const auto share = [](rate_schedule schedule, std::uint64_t step) {
    return rate_share(schedule, step, 100);
  };
  for (const auto curve : {rate_curve::linear, rate_curve::cosine, rate_curve::polynomial}) {
    const rate_schedule schedule{.curve = curve, .end = 0.1};
    CHECK(share(schedule, 1) == 1);
    CHECK_THAT(share(schedule, 101), WithinRel(0.1, 1e-12));
    CHECK(share(schedule, 1000) == share(schedule, 101));
    for (std::uint64_t step = 2; step <= 101; ++step)
      CHECK(share(schedule, step) < share(schedule, step - 1));
  }
  CHECK_THAT(share({.curve = rate_curve::linear}, 51), WithinRel(0.5, 1e-12));
  CHECK_THAT(share({.curve = rate_curve::cosine}, 51), WithinRel(0.5, 1e-12));
  CHECK_THAT(share({.curve = rate_curve::polynomial, .power = 3}, 51), WithinRel(0.125, 1e-12));
  CHECK(share({}, 77) == 1);
  const rate_schedule steps{.curve = rate_curve::step, .step_every = 40, .step_factor = 0.5};
  CHECK(share(steps, 40) == 1);
  CHECK(share(steps, 41) == 0.5);
  CHECK(share(steps, 81) == 0.25);
}

TEST_CASE("one cycle rises to the full rate and falls to its end") {
  const rate_schedule cycle{
      .curve = rate_curve::one_cycle, .end = 0.01, .peak = 0.25, .start = 0.2};
  CHECK_THAT(rate_share(cycle, 1, 100), WithinRel(0.2, 1e-12));
  CHECK_THAT(rate_share(cycle, 26, 100), WithinRel(1, 1e-12));
  CHECK(rate_share(cycle, 25, 100) < 1);
  CHECK(rate_share(cycle, 27, 100) < 1);
  CHECK_THAT(rate_share(cycle, 101, 100), WithinRel(0.01, 1e-12));
}

TEST_CASE("warm-up rises evenly, then the curve goes through what is left") {
  const rate_schedule schedule{.curve = rate_curve::linear, .warmup = 4};
  CHECK(rate_share(schedule, 1, 14) == 0.25);
  CHECK(rate_share(schedule, 4, 14) == 1);
  CHECK(rate_share(schedule, 5, 14) == 1);
  CHECK_THAT(rate_share(schedule, 10, 14), WithinRel(0.5, 1e-12));
  CHECK(rate_share({.curve = rate_curve::cosine, .warmup = 20}, 30, 10) == 1);
}

TEST_CASE("a parameter group is read from its text") {
  const auto rule = parse_group(find("qhm"),
                                "*.bias|bn?.* weight_decay=0 nu=1 lr_scale=0.5 "
                                "weight_decay_type=direct")
                        .value();
  CHECK(rule.changed == options{{"nu", 1}, {"weight_decay", 0}, {"weight_decay_type", 1}});
  CHECK(rule.lr_scale == 0.5);
  for (const auto* name : {"fc.bias", "bn1.weight", ".bias"}) CHECK(matches(rule, name));
  for (const auto* name : {"fc.weight", "bn.weight", "fc.biases", ""})
    CHECK_FALSE(matches(rule, name));
}

TEST_CASE("a parameter group that cannot be is refused with its text") {
  CHECK(group_error("*.bias weight_decay=-1") ==
        "parameter group '*.bias weight_decay=-1': optimizer 'adamw': weight_decay = -1 is out of "
        "range: from 0 upwards, finite as f32");
  CHECK_THAT(group_error("*.bias nu=1"), ContainsSubstring("'adamw' has no option 'nu'; its"));
  CHECK_THAT(group_error("*.bias lr=1"), ContainsSubstring("give lr_scale"));
  CHECK_THAT(group_error("*.bias lr_scale=-1"), ContainsSubstring("lr_scale = -1 is out of range"));
  CHECK_THAT(group_error("*.bias beta1"), ContainsSubstring("'beta1' is not OPTION=VALUE"));
  CHECK_THAT(group_error("*.bias beta1=x"), ContainsSubstring("beta1 = x is out of range: from 0 "
                                                              "to below 1"));
  CHECK_THAT(group_error("*.bias"), ContainsSubstring("gives no option"));
  CHECK_THAT(group_error("weight_decay=0"), ContainsSubstring("must begin with a pattern"));
  CHECK_THAT(group_error(""), ContainsSubstring("must begin with a pattern"));
  CHECK(parse_option(find("qhm"), "weight_decay_type", "indirect").error().text ==
        "optimizer 'qhm': weight_decay_type = indirect is out of range: grad or direct");
  CHECK(parse_option(find("sgd"), "nesterov", "true") == 1);
  CHECK(parse_option(find("sgd"), "nesterov", "0") == 0);
}

TEST_CASE("groups step with their own options and rates, as if each were alone") {
  const optimizer entry = find("adamw");
  const std::vector<std::string> names{"fc.weight", "fc.bias", "bn.weight"};
  const std::vector rules{parse_group(entry, "*.bias weight_decay=0 lr_scale=0.5").value(),
                          parse_group(entry, "bn.*|*.bias weight_decay=0.5").value()};
  const auto groups = make_groups(entry, {{"weight_decay", 0.1}}, rules, names).value();
  REQUIRE(groups.size() == 3);
  numbers values(4);
  std::vector<at::Tensor> params, gradients;
  for (int i = 0; i < 3; ++i) {
    params.push_back(values.tensor({9}, at::kFloat));
    gradients.push_back(values.tensor({9}, at::kFloat));
  }
  std::vector<at::Tensor> together;
  for (const auto& param : params) together.push_back(param.clone());
  state kept;
  for (std::uint64_t step = 1; step <= 3; ++step)
    REQUIRE(step_groups(entry, groups, together, {gradients.begin(), gradients.end()}, kept, 0.02,
                        step));
  const double rates[] = {0.02, 0.01, 0.02}, decays[] = {0.1, 0, 0.5};
  for (std::size_t i = 0; i < 3; ++i) {
    std::vector<at::Tensor> alone{params[i]};
    state own;
    const options chosen = complete(entry, {{"lr", rates[i]}, {"weight_decay", decays[i]}}).value();
    for (std::uint64_t step = 1; step <= 3; ++step)
      REQUIRE(entry.step(alone, {gradients[i]}, own, chosen, step));
    CHECK(same_bits(alone[0], together[i]));
    CHECK(same_bits(own["exp_avg"][0], kept["exp_avg"][i]));
  }
  CHECK_THAT(step_groups(entry, groups, together, {at::ones({9}), std::nullopt, at::ones({8})},
                         kept, 0.02, 4, names)
                 .error()
                 .text,
             ContainsSubstring("parameter 2 (bn.weight) has shape [9], but its gradient has [8]"));
  CHECK_THAT(make_groups(find("sgd"), {}, {parse_group(find("sgd"), "* nesterov=1").value()}, names)
                 .error()
                 .text,
             ContainsSubstring("parameter group '* nesterov=1': optimizer 'sgd': nesterov needs"));
}

TEST_CASE("an optimizer written as one function does what the built-in one does") {
  const optimizer mine = elementwise(
      "mine", {{.name = "lr", .fallback = 0.1}, {.name = "momentum", .fallback = 0.9, .most = 1}},
      {"momentum_buffer"}, [](auto& x, auto gradient, auto& buffer, auto lr, auto momentum) {
        buffer = momentum * buffer + gradient;
        x -= lr * buffer;
      });
  const optimizer sgd = find("sgd");
  const options chosen = complete(mine, {{"lr", 0.25}}).value();
  const options theirs_chosen = complete(sgd, {{"lr", 0.25}, {"momentum", 0.9}}).value();
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    numbers values(6);
    std::vector<at::Tensor> ours{values.tensor({77}, type)}, theirs{ours[0].clone()};
    state our_state, their_state;
    for (std::uint64_t step = 1; step <= 5; ++step) {
      const at::Tensor gradient = values.tensor({77}, type);
      REQUIRE(mine.step(ours, {gradient}, our_state, chosen, step));
      REQUIRE(sgd.step(theirs, {gradient}, their_state, theirs_chosen, step));
    }
    CHECK(ours[0].allclose(theirs[0], 1e-5, type == at::kBFloat16 ? 0.05 : 1e-5));
  }
  CHECK(complete(mine, {{"momentum", 2}}).error().text ==
        "optimizer 'mine': momentum = 2 is out of range: from 0 to 1");
  CHECK_THAT(complete(mine, {{"nu", 2}}).error().text, ContainsSubstring("'mine' has no option"));
}
