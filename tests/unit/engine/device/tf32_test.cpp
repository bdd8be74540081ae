// What LibTorch's operators may do to the bits of f32: use TF32, in each of the forms in which it
// is asked, and add in any order.

#include "engine/device/tf32.hpp"

#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include <catch2/catch_test_macros.hpp>
#include <stdexcept>
#include <string>

#include "engine/base/torch_error.hpp"
#include "engine/device/determinism.hpp"

namespace {

using troupe::engine::allow_tf32;
using troupe::engine::is_tf32_allowed;

/// What ATen's operators ask before they choose a kernel.
void check_operators(bool allowed) {
  const auto& context = at::globalContext();
  CHECK(context.allowTF32CuBLAS() == allowed);
  CHECK(context.allowTF32CuDNN(at::Float32Op::CONV) == allowed);
  CHECK(context.allowTF32CuDNN(at::Float32Op::RNN) == allowed);
  CHECK(context.allowTF32CuDNN() == allowed);
  CHECK(is_tf32_allowed() == allowed);
  for (const auto which : {at::Float32Op::MATMUL, at::Float32Op::CONV})  // a CPU has no part in it
    CHECK(context.float32Precision(at::Float32Backend::MKLDNN, which) !=
          at::Float32Precision::TF32);
}

}  // namespace

TEST_CASE("TF32 is allowed for products and convolutions alike, however LibTorch asks") {
  CHECK_THROWS_AS(is_tf32_allowed(), std::logic_error);  // LibTorch's defaults differ
  for (const bool allowed : {false, true, true, false}) {
    allow_tf32(allowed);
    check_operators(allowed);
  }
  at::globalContext().setAllowTF32CuDNN(true);
  CHECK_THROWS_AS(is_tf32_allowed(), std::logic_error);
  allow_tf32(false);
  check_operators(false);
}

TEST_CASE("An operator that adds in any order is refused by its name, unless that is allowed") {
  const auto refused = [] {
    try {
      at::globalContext().alertNotDeterministic("an_operator_cuda");
      return std::string();
    } catch (const c10::Error& problem) {
      return troupe::engine::reason_of(problem);
    }
  };
  for (const bool wanted : {true, false, true, false}) {
    troupe::engine::compute_deterministically(wanted);
    CHECK(at::globalContext().deterministicCuDNN() == wanted);
    CHECK(refused() == (wanted ? "an_operator_cuda does not give the same bits each time: leave it "
                                 "out, or set model.deterministic = false (--no-deterministic)"
                               : ""));
  }
}
