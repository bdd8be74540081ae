// What a stage keeps of weights that it shares with others, until it adds it to its own gradients.
#include "actors/step_end/tied_gradients.hpp"
#include "tests/refusal.hpp"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

using namespace troupe;
using Catch::Matchers::ContainsSubstring;

namespace {

const std::vector<engine::named_tensor>& parameters() {
  static const std::vector<engine::named_tensor> all{{"head", at::zeros({2, 3})},
                                                     {"own", at::zeros({4})}};
  return all;
}

constexpr engine::step_key step{epoch_id{0}, step_id{7}};

actors::tied_gradient tied(const std::string& parameter, std::optional<at::Tensor> value) {
  return {step, parameter, std::move(value)};
}

}  // namespace

TEST_CASE("tied gradients are added to the own ones of their step, where there are any") {
  actors::tied_gradients here;
  REQUIRE(here.keep(tied("head", at::full({2, 3}, 2.0)), parameters()));
  const auto sums =
      actors::add_ties({at::ones({2, 3}), at::ones({4})}, here.take(step), parameters());
  CHECK(at::equal(*sums[0], at::full({2, 3}, 3.0)));
  CHECK(at::equal(*sums[1], at::ones({4})));
  CHECK(here.take(step).empty());
  REQUIRE(here.keep(tied("head", std::nullopt), parameters()));
  CHECK(at::equal(
      *actors::add_ties({at::ones({2, 3}), std::nullopt}, here.take(step), parameters()).front(),
      at::ones({2, 3})));
}

TEST_CASE("a tied gradient of another shape than its weight is refused by name") {
  actors::tied_gradients here;
  for (const auto& from : {tied("head", at::zeros({3})), tied("stranger", std::nullopt)}) {
    const auto kept = error_of(here.keep(from, parameters()));
    CHECK(kept.code == errc::bad_frame);
    CHECK_THAT(kept.text, ContainsSubstring(from.parameter + "' of step 7 of epoch 0 has "
                                                             "another shape"));
  }
  CHECK(here.take(step).empty());
}
