// The reader of plans: what it takes is written and read back as it was, and checked in time.
#include "engine/schedule/plan_checker.hpp"
#include "engine/schedule/plan_text.hpp"
#include "tests/fuzz/target.hpp"

namespace troupe::fuzz {

std::vector<std::string> seeds() {
  return {
      "schedule 1f1b microbatches 2\nstage 0 cap 2: F0 F1 B0 B1\nstage 1 cap 1: F0 B0 F1 B1\n",
      "schedule zb-v microbatches 1 chunks 2 v-shaped\nstage 0 cap 2: 0F0 1F0 1I0 1W0 0I0 0W0\n",
      "# nothing\n\nschedule gpipe microbatches 1\nstage 0 cap 1: F0 B0 # all\n"};
}

void run(std::span<const std::byte> input) {
  const auto read = engine::parse(text_of(input));
  if (!read) return require(!read.error().text.empty(), "a refusal says why");
  const auto again = engine::parse(engine::to_text(*read));
  require(again && *again == *read, "a plan survives being written");
  require(engine::parse_checked(text_of(input)).has_value() == engine::check(*read).has_value(),
          "what the checker accepts is read, and nothing else");
}

}  // namespace troupe::fuzz
