#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <vector>

#include "cluster/training/parameter_server/driving/server_state.hpp"
#include "engine/state/safetensors.hpp"
#include "tests/refusal.hpp"
#include "tests/scratch_folder.hpp"

namespace {

using namespace troupe;
using namespace troupe::cluster;
using Catch::Matchers::ContainsSubstring;
using engine::named_tensor;

/// A table of 6 rows, of which the second shard has the last two, and a dense parameter.
std::vector<shard_part> two_shards() {
  return {{{"table", at::zeros({4, 2}), true, 0}},
          {{"dense", at::zeros({3})}, {"table", at::zeros({2, 2}), true, 4}}};
}

at::Tensor rows_seen(std::vector<int> which, std::int64_t count) {
  auto seen = at::zeros({count}, at::kBool);
  for (const int row : which) seen[row] = true;
  return seen;
}

/// A checkpoint of some state, in one file.
checkpoint written(const tests::scratch_folder& folder, std::vector<named_tensor> state) {
  state.push_back({"dense", at::zeros({3})});
  REQUIRE(engine::save_safetensors(folder / "file", state));
  return read_checkpoint(folder / "file").value();
}

void check_equal(const std::vector<named_tensor>& some, const std::vector<named_tensor>& others) {
  REQUIRE(some.size() == others.size());
  for (std::size_t i = 0; i < some.size(); ++i) {
    INFO(others[i].name);
    CHECK(some[i].name == others[i].name);
    CHECK(at::equal(some[i].tensor, others[i].tensor));
  }
}

}  // namespace

TEST_CASE("the state of a table that shards have cut is whole in a checkpoint") {
  const auto whole =
      join_states(two_shards(), {{},
                                 {{"optimizer.momentum_buffer.dense", at::full({3}, 7.)},
                                  {"optimizer.momentum_buffer.table@4", at::full({2, 2}, 5.)},
                                  {"optimizer.seen_rows.table@4", rows_seen({1}, 2)}}});
  REQUIRE(whole);
  auto table = at::zeros({6, 2}, at::kDouble);
  table.narrow(0, 4, 2).fill_(5);
  check_equal(*whole, {{"optimizer.momentum_buffer.dense", at::full({3}, 7.)},
                       {"optimizer.momentum_buffer.table", table},
                       {"optimizer.seen_rows.table", rows_seen({5}, 6)}});
  const auto wrong =
      error_of(join_states(two_shards(), {{{"optimizer.momentum_buffer.dense", {}}}, {}}));
  CHECK_THAT(wrong.text,
             ContainsSubstring("shard-0 has state") && ContainsSubstring("none of its parameters"));
}

TEST_CASE("each shard gets its rows of a checkpoint's state, and none where no row has one") {
  const tests::scratch_folder folder;
  const auto momentum = at::arange(12, at::kFloat).view({6, 2});
  const auto from = written(folder, {{"optimizer.momentum_buffer.table", momentum},
                                     {"optimizer.seen_rows.table", rows_seen({4}, 6)},
                                     {"optimizer.step.dense", at::full({}, 3., at::kDouble)}});
  CHECK(state_of_part(from, two_shards(), 0).value().empty());
  const auto second = state_of_part(from, two_shards(), 1);
  REQUIRE(second);
  check_equal(*second, {{"optimizer.step.dense", at::full({}, 3., at::kDouble)},
                        {"optimizer.momentum_buffer.table@4", momentum.narrow(0, 4, 2)},
                        {"optimizer.seen_rows.table@4", rows_seen({0}, 2)}});
}

TEST_CASE("a file that does not say which rows have a state means all of them") {
  const tests::scratch_folder folder;
  const auto from = written(folder, {{"optimizer.momentum_buffer.table", at::ones({6, 2})}});
  const auto first = state_of_part(from, two_shards(), 0);
  REQUIRE(first);
  check_equal(*first, {{"optimizer.momentum_buffer.table", at::ones({4, 2})},
                       {"optimizer.seen_rows.table", at::ones({4}, at::kBool)}});
}
