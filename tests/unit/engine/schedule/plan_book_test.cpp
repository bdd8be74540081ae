#include "engine/schedule/plan_book.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "engine/schedule/generators.hpp"
#include "engine/schedule/packed_plan.hpp"
#include "tests/refusal.hpp"

using namespace troupe;
using namespace troupe::engine;
using Catch::Matchers::ContainsSubstring;

namespace {

/// Counts how many plans are made.
plan_book::planner counting(int& made) {
  return [&made](step_kind kind, std::uint32_t microbatches) -> result<plan> {
    ++made;
    if (microbatches == 0) return fail(errc::bad_config, "no micro-batch");
    if (kind == step_kind::evaluation) return forward_only({.stages = 2}, microbatches);
    return one_f_one_b(2, microbatches);
  };
}

}  // namespace

TEST_CASE("a run of many steps makes each of its plans once") {
  int made = 0;
  plan_book book(counting(made));
  std::set<std::uint32_t> numbers;
  int fresh = 0;
  const auto take = [&](step_kind kind, std::uint32_t microbatches) {
    const auto entry = book.plan_for(kind, microbatches).value();
    CHECK(entry.number < plan_book::capacity);
    if (entry.fresh) {
      ++fresh;
      CHECK(entry.fresh->microbatches == microbatches);
    }
    numbers.insert(entry.number);
    return entry.number;
  };
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (int step = 0; step < 1000; ++step) take(step_kind::training, 8);
    take(step_kind::training, 3);
    for (int step = 0; step < 100; ++step) take(step_kind::evaluation, 8);
    take(step_kind::evaluation, 1);
  }
  CHECK(made == 4);
  CHECK(fresh == 4);
  CHECK(numbers.size() == 4);
  CHECK(take(step_kind::training, 8) == take(step_kind::training, 8));
  CHECK(take(step_kind::training, 8) != take(step_kind::evaluation, 8));
}

TEST_CASE("a full book forgets the plan that was not asked for the longest") {
  int made = 0;
  plan_book book(counting(made));
  for (std::uint32_t m = 1; m <= plan_book::capacity; ++m)
    REQUIRE(book.plan_for(step_kind::training, m)->number == m - 1);
  REQUIRE_FALSE(book.plan_for(step_kind::training, 1)->fresh);
  const auto another = book.plan_for(step_kind::training, 100).value();
  CHECK(another.number == 1);  // of the plan for two
  CHECK(another.fresh);
  CHECK_FALSE(book.plan_for(step_kind::training, 1)->fresh);
  CHECK(book.plan_for(step_kind::training, 2)->fresh);
}

TEST_CASE("a plan that cannot be made leaves a book as it was") {
  int made = 0;
  plan_book book(counting(made));
  CHECK(book.plan_for(step_kind::training, 0).error().text == "no micro-batch");
  CHECK(book.plan_for(step_kind::training, 4)->number == 0);
  CHECK(book.plan_for(step_kind::training, 0).error().text == "no micro-batch");
  CHECK(made == 3);
}

TEST_CASE("what a stage does comes back from the numbers that a message carries") {
  for (const auto& steps : {gpipe(3, 5), zb_h2(4, 9), zb_v(2, 6), interleaved_1f1b(2, 4, 3)})
    for (const auto& stage : steps.stages)
      CHECK(unpack(pack(stage.actions)).value() == stage.actions);
  const std::vector<action> last{
      {action_kind::weight_gradient, {max_microbatches - 1}, max_chunks - 1}};
  CHECK(unpack(pack(last)).value() == last);
  CHECK(unpack({}).value().empty());
}

TEST_CASE("numbers that are no actions are refused by their place") {
  auto numbers = pack(gpipe(1, 2).stages[0].actions);
  for (const std::int32_t wrong : {-1, 1 << 20, std::numeric_limits<std::int32_t>::max()}) {
    numbers[2] = wrong;
    check_refused(unpack(numbers), errc::bad_frame,
                  "action 2 of a stage's plan is none: " + std::to_string(wrong));
  }
  const std::vector<std::int32_t> many(std::size_t{3} * max_chunks * max_microbatches + 1);
  CHECK_THAT(unpack(many).error().text, ContainsSubstring("the most is 786432"));
}

TEST_CASE("all plans that steps may name are made once more for a stage that knows none") {
  int made = 0;
  plan_book book(counting(made));
  static_cast<void>(book.plan_for(step_kind::training, 8));
  static_cast<void>(book.plan_for(step_kind::evaluation, 3));
  const auto all = book.all().value();
  REQUIRE(all.size() == 2);
  for (std::uint32_t number = 0; number < 2; ++number) CHECK(all[number].number == number);
  CHECK((all[0].kind == step_kind::training && all[0].steps.microbatches == 8));
  CHECK((all[1].kind == step_kind::evaluation && all[1].steps.microbatches == 3));
  CHECK_FALSE(book.plan_for(step_kind::training, 8)->fresh);
}
