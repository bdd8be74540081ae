/// \file
/// ATen seeds its generator by chance. Linked into every test program that draws tensors, this
/// listener seeds it with Catch2's seed at the beginning of each test case: the seed is printed
/// with what fails, and `--rng-seed` repeats it. Each case begins with as many threads as the
/// first.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_case_info.hpp>
#include <catch2/reporters/catch_reporter_event_listener.hpp>
#include <catch2/reporters/catch_reporter_registrars.hpp>

namespace {

class seeded_draws : public Catch::EventListenerBase {
 public:
  using EventListenerBase::EventListenerBase;

  void testCaseStarting(const Catch::TestCaseInfo&) override {
    at::Generator everyones = at::detail::getDefaultCPUGenerator();
    everyones.set_current_seed(Catch::getSeed());
    // Not where none changed it: that makes LibTorch start a pool, which no fork takes along.
    if (at::get_num_threads() != threads_) at::set_num_threads(threads_);
  }

 private:
  const int threads_ = at::get_num_threads();
};

}  // namespace

CATCH_REGISTER_LISTENER(seeded_draws)
