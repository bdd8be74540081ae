#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <string>

#include "engine/schedule/gantt.hpp"
#include "engine/schedule/generators.hpp"
#include "engine/schedule/plan_text.hpp"
#include "tests/unit/engine/schedule/plans.hpp"

using namespace troupe;
using namespace troupe::engine;
using namespace troupe::tests;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("a plan's text reads like a schedule and comes back as the same plan") {
  CHECK(to_text(one_f_one_b(2, 2)) ==
        "schedule 1f1b microbatches 2\n"
        "stage 0 cap 2: F0 F1 B0 B1\n"
        "stage 1 cap 1: F0 B0 F1 B1\n");
  CHECK(to_text(zb_h1(2, 2)) ==
        "schedule zb-h1 microbatches 2\n"
        "stage 0 cap 2: F0 F1 I0 W0 I1 W1\n"
        "stage 1 cap 2: F0 I0 F1 I1 W0 W1\n");
  CHECK(to_text(zb_v(1, 1)) ==
        "schedule zb-v microbatches 1 chunks 2 v-shaped\n"
        "stage 0 cap 2: 0F0 1F0 1I0 1W0 0I0 0W0\n");
  for (std::uint32_t p = 1; p <= 5; ++p)
    for (std::uint32_t m = 1; m <= 5; ++m)
      for (const auto& schedule : all_schedules()) {
        const plan steps = make(schedule, p, m);
        CHECK(parse(to_text(steps)).value() == steps);
        CHECK(parse_checked(to_text(steps)).value() == steps);
        CHECK(parse(to_text(forward_only(steps.layout(), m))).value() ==
              forward_only(steps.layout(), m));
      }
  CHECK(
      parse("# by hand\r\n\nschedule x microbatches 1\r\n  stage 0 cap 1 :F0\tB0 # both").value() ==
      plan{"x", 1, {{{f(0), b(0)}, 1}}});
  CHECK(parse("schedule x microbatches 1\nstage 0 cap 0:\n").value() == plan{"x", 1, {{{}, 0}}});
}

TEST_CASE("a plan that breaks a rule is refused with line, column, action and rule") {
  const auto fault = [](std::string_view text) {
    const auto read = parse_checked(text);
    return read ? "none" : read.error().text;
  };
  const std::string head = "# mine\nschedule x microbatches 2\nstage 0 cap 2: F0 F1 B0 B1\n";
  CHECK(fault(head + "stage 1 cap 1: F0 B0 F1 B1") == "none");
  CHECK(fault(head + "stage 1 cap 1: F0 B0  F1 F1 B1") ==
        "line 4, column 26: stage 1: F1 appears twice");
  CHECK(fault(head + "\nstage 1 cap 1: F0 B0 F1  # B1") ==
        "line 5, column 26: stage 1: B1 is missing");
  CHECK(fault(head + "stage 1 cap 1: F0 F1 B0 B1") ==
        "line 4, column 19: stage 1: F1 would hold 2 activations, over the memory cap of 1");
  CHECK(fault("schedule x microbatches 1 chunks 2 looped\nstage 0 cap 2: 1F0 0F0 1B0 0B0") ==
        "line 2, column 16: stage 0: 1F0 waits for ever for its own 0F0");
  CHECK(fault("schedule x microbatches 2\n") == "a plan of 0 stages is out of range: 1 to 1024");
  CHECK(fault("schedule x microbatches 2\nstage 0 cap 1: Q0") ==
        "line 2, column 16: expected an action such as F0 or B3 (F, B, I or W; micro-batches 0 to "
        "16383), found 'Q0'");
}

TEST_CASE("a parse error names line, column, what was expected and what was found") {
  const auto fault = [](std::string_view text) {
    const auto read = parse(text);
    return read ? "none" : read.error().text;
  };
  const std::string head = "schedule x microbatches 2\n";
  CHECK(fault("") == "line 1, column 1: expected 'schedule', found the end of the line");
  CHECK(fault("plan x") == "line 1, column 1: expected 'schedule', found 'plan'");
  CHECK(fault("schedule") ==
        "line 1, column 9: expected the schedule's name, found the end of the line");
  CHECK(fault("schedule x microbatches many") ==
        "line 1, column 25: expected a number from 1 to 16384, found 'many'");
  CHECK(fault("schedule x microbatches 2 3") ==
        "line 1, column 27: expected 'chunks' or the end of the line, found '3'");
  CHECK(fault("schedule x microbatches 2 chunks 1") ==
        "line 1, column 34: expected a number from 2 to 16, found '1'");
  CHECK(fault("schedule x microbatches 2 chunks 2 round") ==
        "line 1, column 36: expected 'looped' or 'v-shaped', found 'round'");
  CHECK(fault(head + "stage 1 cap 2:") == "line 2, column 7: expected '0', found '1'");
  CHECK(fault(head + "stage 0 cap -1:") ==
        "line 2, column 13: expected a number from 0 to 4294967295, found '-1'");
  CHECK(fault(head + "stage 0 cap 2 F0") == "line 2, column 15: expected ':', found 'F0'");
  for (const std::string_view wrong :
       {"X1", "F", "B-1", "F01", "F1x", "f0", "F16384", "F99999999999", "0F1"})
    CHECK(fault(std::string(head).append("stage 0 cap 2: F0 ").append(wrong)) ==
          std::string("line 2, column 19: expected an action such as F0 or B3 (F, B, I or W; "
                      "micro-batches 0 to 16383), found '")
              .append(wrong)
              .append("'"));
  const std::string chunked = "schedule x microbatches 2 chunks 2 looped\nstage 0 cap 2: ";
  for (const std::string_view wrong : {"F0", "2F0", "00F0", "-1F0", "F"})
    CHECK(fault(chunked + std::string(wrong)) ==
          std::string("line 2, column 16: expected an action such as 0F0 or 1B3 (chunks 0 to 1; F, "
                      "B, I or W; micro-batches 0 to 16383), found '")
              .append(wrong)
              .append("'"));
}

TEST_CASE("a chart shows when each stage does what") {
  const plan steps = one_f_one_b(2, 2);
  const auto costs = even_costs(steps.layout(), {1, 2, 0});
  const auto ran = simulate(steps, costs).value();
  CHECK(to_terminal(steps, costs, ran, 100, false) ==
        "0 |F0-F1-      B0----   B1----|\n"
        "1 |   F0-B0----F1-B1----      |\n");
  CHECK(to_terminal(steps, costs, ran, 9, false) ==
        "0 |FF  B0 B1|\n"
        "1 | FB0FB1  |\n");
  const auto coloured = to_terminal(steps, costs, ran, 100, true);
  CHECK_THAT(coloured, ContainsSubstring("\033[44;97mF1-\033[0m"));
  const auto picture = to_svg({"a<b", 2, steps.stages}, costs, ran);
  CHECK_THAT(picture, ContainsSubstring("a&lt;b, 2 stages, 2 micro-batches: 9, bubble 33.3333 %"));
  CHECK_THAT(picture, ContainsSubstring("<title>B1: 7 to 9</title>"));
  CHECK_THAT(picture, ContainsSubstring(">stage 1</text>"));
}
