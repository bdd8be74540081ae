#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <optional>

#include "cluster/recovery/earlier_scalers_core.hpp"
#include "engine/step/loss_scaler.hpp"

namespace {

using troupe::cluster::earlier_scalers_core;
using troupe::engine::loss_scaler;

loss_scaler scaler_after(std::uint64_t step) {
  return {.applied = static_cast<std::uint32_t>(step)};
}

/// Stages that have begun behind one step and have done all up to another one.
earlier_scalers_core::teller stages_from(std::uint64_t first, std::uint64_t last) {
  return [first, last](std::uint64_t step) {
    return step < first || step > last ? std::nullopt : std::optional(scaler_after(step));
  };
}

}  // namespace

TEST_CASE("Stages that go back again before their first step have an older version's loss scale") {
  for (const std::uint32_t update : {1U, 2U, 5U}) {
    earlier_scalers_core scalers;
    CHECK(scalers.go_back(10, update, stages_from(0, 10)) == scaler_after(10));
    CHECK(scalers.go_back(10, update, stages_from(10, 10)) == scaler_after(10));
    CHECK(scalers.go_back(10 - update, update, stages_from(10, 10)) == scaler_after(10 - update));
  }
}

TEST_CASE("All stages may go back to the beginning with the loss scale of that") {
  earlier_scalers_core scalers;
  CHECK(scalers.go_back(4, 4, stages_from(0, 4)) == scaler_after(4));
  CHECK(scalers.go_back(0, 4, stages_from(4, 4)) == scaler_after(0));
}

TEST_CASE("What stages of now know of a step counts, and what nobody has known is not made up") {
  earlier_scalers_core scalers;
  CHECK_FALSE(scalers.go_back(7, 1, stages_from(8, 9)));
  CHECK(scalers.go_back(3, 1, [](auto) { return std::optional(loss_scaler{.scale = 4}); }) ==
        loss_scaler{.scale = 4});
  CHECK(scalers.go_back(3, 1, stages_from(3, 3)) == scaler_after(3));
  CHECK(scalers.go_back(2, 1, stages_from(3, 3)) == loss_scaler{.scale = 4});
  CHECK_FALSE(scalers.go_back(1, 1, stages_from(3, 3)));
}
