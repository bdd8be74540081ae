// What a stage gathers of weights that it shares with others: each once, of the right shape.
#include "actors/stage/settlement.hpp"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

using namespace troupe;
using actors::settlement;
using Catch::Matchers::ContainsSubstring;

namespace {

const std::vector<engine::named_tensor>& parameters() {
  static const std::vector<engine::named_tensor> all{{"head", at::zeros({2, 3})},
                                                     {"own", at::zeros({4})}};
  return all;
}

const std::vector<actors::tied_parameter> ties{{"head", {}, "embedding"}};

actors::tied_gradient tied(const std::string& parameter, std::optional<at::Tensor> value) {
  return {{epoch_id{0}, step_id{7}}, parameter, std::move(value)};
}

}  // namespace

TEST_CASE("a settlement adds each tied gradient once, whichever comes first") {
  for (const bool own_first : {true, false}) {
    settlement here;
    if (own_first) here.own({at::ones({2, 3}), at::ones({4})});
    CHECK_FALSE(here.complete(ties));
    REQUIRE(here.shared(tied("head", at::full({2, 3}, 2.0)), ties, parameters()));
    if (!own_first) here.own({at::ones({2, 3}), at::ones({4})});
    REQUIRE(here.complete(ties));
    const auto sums = here.take().settle(parameters());
    CHECK(at::equal(*sums[0], at::full({2, 3}, 3.0)));
    CHECK(at::equal(*sums[1], at::ones({4})));
    CHECK_FALSE(here.complete(ties));
  }
}

TEST_CASE("a settlement refuses by name what comes twice, fits nothing, or has another shape") {
  settlement here;
  const auto refused = [&](const actors::tied_gradient& from, const std::string& words) {
    const auto taken = here.shared(from, ties, parameters());
    REQUIRE_FALSE(taken);
    CHECK(taken.error().code == errc::bad_frame);
    CHECK_THAT(taken.error().text, ContainsSubstring(words));
    CHECK_THAT(taken.error().text, ContainsSubstring("step 7"));
  };
  refused(tied("own", at::zeros({4})), "'own' of step 7 of epoch 0 came, and no other stage");
  refused(tied("stranger", std::nullopt), "no other stage has that weight");
  refused(tied("head", at::zeros({3})), "another shape");
  REQUIRE(here.shared(tied("head", std::nullopt), ties, parameters()));
  refused(tied("head", at::zeros({2, 3})), "came twice");
  here.own({at::ones({2, 3}), std::nullopt});
  REQUIRE(here.complete(ties));
  (void)here.take();
  refused(tied("head", at::zeros({2, 3})), "came twice");  // nor does it begin another
}
