// What a stage takes from the same stage of another replica, and what it refuses.
#include "actors/step_end/replica_sum.hpp"
#include "tests/refusal.hpp"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace troupe;
using actors::replica_gradients;
using actors::replica_parameters;
using actors::replica_statistics;
using Catch::Matchers::ContainsSubstring;

const engine::step_key first_step{epoch_id{0}, step_id{1}};

/// Replica 0 of two. It owns the larger weight; the other one has the two biases.
actors::replica_sum sum_of(bool shares_state) {
  const actors::replica_group group{.stages = {nullptr, nullptr}, .shares_state = shares_state};
  return {group,
          {{"weight", at::zeros({8, 4})}, {"bias", at::zeros({4})}, {"more", at::zeros({2})}},
          1};
}

constexpr std::uint32_t others = 0, own = 1;

template <class Message>
void check_refused(const actors::replica_sum& sum, const Message& message,
                   const std::string& words) {
  const auto refused = error_of(sum.check(message));
  CHECK(refused.code == errc::bad_frame);
  CHECK_THAT(refused.text, ContainsSubstring("what replica 1 sent for step 1"));
  CHECK_THAT(refused.text, ContainsSubstring(words));
}

replica_gradients gradients(std::uint32_t bucket, std::vector<at::Tensor> all) {
  return {first_step, bucket, 1, false, std::move(all), {}};
}

replica_parameters values(std::uint32_t bucket, std::vector<at::Tensor> all) {
  return {first_step, bucket, 1, std::move(all), {}};
}

}  // namespace

TEST_CASE("Gradients of another replica fit a bucket's parameters, or are refused") {
  const auto sum = sum_of(false);
  REQUIRE(sum.core.buckets().size() == 2);
  REQUIRE(sum.core.buckets()[others].parameters == std::vector<std::size_t>{2, 1});
  CHECK(sum.check(gradients(own, {at::zeros({8, 4})})));
  CHECK(sum.check(gradients(own, {at::Tensor()})));
  check_refused(sum, gradients(2, {}), "is bucket 2 of 2");
  check_refused(sum, gradients(own, {}), "has 0 tensors, not 1");
  check_refused(sum, gradients(own, {at::zeros({4, 8})}), "a gradient of weight of another shape");
  check_refused(sum, gradients(own, {at::zeros({8, 4}, at::kDouble)}),
                "a gradient of weight of another shape or type");
}

TEST_CASE("Updated parameters of another replica are its own, all and whole, or are refused") {
  const auto sum = sum_of(true);
  CHECK(sum.check(values(others, {at::zeros({2}), at::zeros({4})})));
  check_refused(sum, values(others, {at::zeros({2})}), "has 1 tensors, not 2");
  check_refused(sum, values(others, {at::zeros({2}), at::Tensor()}), "has no value of bias");
  check_refused(sum, values(others, {at::zeros({2}), at::zeros({5})}), "has no value of bias");
  check_refused(sum, values(7, {}), "is bucket 7 of 2");
  check_refused(sum_of(false), values(others, {at::zeros({2}), at::zeros({4})}),
                "is of an update that is not shared out");
}

TEST_CASE("Statistics of another number of chunks are refused") {
  const auto sum = sum_of(false);
  CHECK(sum.check(replica_statistics{first_step, 1, std::vector<engine::step_statistics>(1), {}}));
  check_refused(sum, replica_statistics{first_step, 1, {}, {}}, "statistics of another number");
}

TEST_CASE("Parameters that no replica has a gradient of have none after a collective's sum") {
  const actors::replica_group group{.stages = {nullptr, nullptr},
                                    .sums = engine::replica_sum_way::ordered};
  actors::replica_sum sum{
      group,
      {{"weight", at::zeros({8, 4})}, {"bias", at::zeros({4})}, {"more", at::zeros({2})}},
      1};
  CHECK_FALSE(sum.keep_own(first_step, 2, std::nullopt));
  sum.keep_rest(first_step, {std::nullopt, std::nullopt, std::nullopt},
                std::vector<engine::step_statistics>(1));
  CHECK(sum.without(first_step) == std::vector<std::uint32_t>{2, 0, 1});
  replica_statistics theirs{first_step, 1, std::vector<engine::step_statistics>(1), {}, {1, 2}};
  REQUIRE(sum.check(theirs));
  sum.keep(theirs);
  sum.keep_own_sum(first_step, others, {at::zeros({2}), at::zeros({4})});
  sum.keep_own_sum(first_step, own, {at::full({8, 4}, 2.0)});
  const auto outcome = sum.take(first_step).gradients;
  REQUIRE(outcome[0]);
  CHECK(outcome[0]->equal(at::full({8, 4}, 2.0)));
  CHECK_FALSE(outcome[1]);
  CHECK_FALSE(outcome[2]);
  theirs.without = {3};
  check_refused(sum, theirs, "names a parameter that there is not");
}

TEST_CASE("Values of other replicas wait under their parameters until they are taken, once") {
  auto sum = sum_of(true);
  CHECK(sum.owns(0));
  CHECK_FALSE(sum.owns(1));
  sum.keep(values(others, {at::full({2}, 3.0), at::full({4}, 5.0)}));
  const auto taken = sum.take_values(first_step);
  REQUIRE(taken.size() == 3);
  CHECK_FALSE(taken[0]);
  CHECK(taken[1]->equal(at::full({4}, 5.0)));
  CHECK(taken[2]->equal(at::full({2}, 3.0)));
  CHECK_FALSE(sum.take_values(first_step)[1]);
}
