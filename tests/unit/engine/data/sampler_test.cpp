#include "engine/data/sampler.hpp"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <numeric>

#include "engine/base/random.hpp"
#include "tests/refusal.hpp"

namespace {

using namespace troupe;
using namespace troupe::engine;
using Catch::Matchers::ContainsSubstring;
using numbers = std::vector<std::int64_t>;

}  // namespace

TEST_CASE("SplitMix64 draws the numbers of its reference implementation") {
  splitmix64 random(1234567);
  CHECK(random.next() == 6457827717110365317U);
  CHECK(random.next() == 3203168211198807973U);
  CHECK(random.next() == 9817491932198370423U);
}

TEST_CASE("a bounded draw is within its bound and reaches all of it") {
  splitmix64 random(5);
  std::vector<int> drawn(6);
  for (int i = 0; i < 60000; ++i) ++drawn[random.below(6)];
  for (const int count : drawn) CHECK((count > 9600 && count < 10400));
  CHECK(random.below(1) == 0);
}

TEST_CASE("an epoch's order is the same on every platform") {
  // Computed by another program, in Python, from the description in the header.
  CHECK(epoch_order(10, 1, 0, true) == numbers{1, 7, 6, 8, 4, 0, 9, 2, 3, 5});
  CHECK(epoch_order(10, 1, 1, true) == numbers{1, 7, 3, 5, 0, 9, 2, 8, 6, 4});
  auto long_one = epoch_order(60000, 42, 0, true);
  long_one.resize(8);
  CHECK(long_one == numbers{48844, 30905, 35222, 28131, 1171, 48809, 46146, 58607});
}

TEST_CASE("an epoch visits every sample once") {
  for (const std::int64_t samples : {0, 1, 2, 3, 100, 4097}) {
    numbers sorted(static_cast<std::size_t>(samples));
    std::iota(sorted.begin(), sorted.end(), 0);
    CHECK(epoch_order(samples, 7, 3, false) == sorted);
    auto shuffled = epoch_order(samples, 7, 3, true);
    std::sort(shuffled.begin(), shuffled.end());
    CHECK(shuffled == sorted);
  }
}

TEST_CASE("epochs and seeds differ, and each comes again alike") {
  const auto order = epoch_order(1000, 1, 0, true);
  CHECK(order == epoch_order(1000, 1, 0, true));
  CHECK(order != epoch_order(1000, 1, 1, true));
  CHECK(order != epoch_order(1000, 2, 0, true));
  CHECK(epoch_order(1000, 1, 2, true) != epoch_order(1000, 2, 1, true));
}

TEST_CASE("an element is as likely to come to one place as to another") {
  std::vector<int> places(5);
  for (std::uint64_t epoch = 0; epoch < 50000; ++epoch) {
    const auto order = epoch_order(5, 11, epoch, true);
    ++places[static_cast<std::size_t>(std::find(order.begin(), order.end(), 2) - order.begin())];
  }
  for (const int count : places) CHECK((count > 9600 && count < 10400));
}

TEST_CASE("batches cover the epoch in order, the last one smaller") {
  const auto order = epoch_order(10, 1, 0, true);
  CHECK(batch_count(10, 4) == 3);
  CHECK(batch_count(8, 4) == 2);
  CHECK(batch_count(0, 4) == 0);
  CHECK(batch_count(3, 100) == 1);
  numbers joined;
  for (std::int64_t i = 0; i < 3; ++i) {
    const auto part = batch_of(order, 4, i);
    CHECK(part.size() == (i < 2 ? 4 : 2));
    joined.insert(joined.end(), part.begin(), part.end());
  }
  CHECK(joined == order);
  CHECK(batch_of(order, 4, 3).empty());
}

TEST_CASE("micro-batches have the sizes that torch.tensor_split gives") {
  CHECK(microbatch_sizes(10, 3).value() == numbers{4, 3, 3});
  CHECK(microbatch_sizes(120, 8).value() == numbers(8, 15));
  CHECK(microbatch_sizes(7, 7).value() == numbers(7, 1));
  CHECK(microbatch_sizes(100, 16).value() ==
        numbers{7, 7, 7, 7, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6});
  CHECK(microbatch_sizes(1, 1).value() == numbers{1});
}

TEST_CASE("more micro-batches than samples is an error that names both numbers") {
  CHECK_THAT(error_of(microbatch_sizes(3, 4), errc::bad_config).text,
             ContainsSubstring("3 samples") && ContainsSubstring("4 micro-batches"));
  CHECK_FALSE(microbatch_sizes(0, 1));
  CHECK_FALSE(microbatch_sizes(5, 0));
  CHECK_FALSE(microbatch_sizes(5, -1));
}
