#include "actors/recovery/kept_versions.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdint>
#include <vector>

#include "actors/recovery/kept_stages.hpp"

namespace {

using namespace troupe;
using actors::kept_versions;
using actors::version_name;
using Catch::Matchers::ContainsSubstring;

using steps = std::vector<std::uint64_t>;

std::vector<engine::named_tensor> version_of(std::uint64_t step) {
  const auto value = static_cast<double>(step);
  return {{"weight", at::full({3, 4}, value)}, {"optimizer.m.weight", at::full({3, 4}, -value)}};
}

/// Whether all was taken, in pieces of at most so many bytes; `most`: pieces that come.
bool add(kept_versions& to, std::uint64_t step, std::uint64_t bytes = 1 << 20, int most = 1000,
         std::uint32_t incarnation = 1) {
  const auto list = version_of(step);
  actors::list_place from;
  for (int i = 0; i < most; ++i) {
    const auto piece =
        actors::cut_piece(list, from, {.bytes = bytes}, actors::piece_tensors::shared);
    REQUIRE(piece);
    if (!to.add(version_name{step, incarnation}, *piece)) return false;
    if (piece->last) return true;
    from = actors::end_of(*piece);
  }
  return false;
}

/// The second piece of a version, as if the first had just come.
result<void> add_second(kept_versions& to, std::uint64_t step, std::uint32_t incarnation = 1) {
  const auto piece =
      actors::cut_piece(version_of(step), {0, 4}, {.bytes = 16}, actors::piece_tensors::shared);
  REQUIRE(piece);
  return to.add(version_name{step, incarnation}, *piece);
}

}  // namespace

TEST_CASE("A keeper has the newest two versions, whole") {
  kept_versions kept;
  CHECK(kept.steps().empty());
  REQUIRE(add(kept, 4));
  REQUIRE(add(kept, 6, 16));
  CHECK(kept.steps() == steps{4, 6});
  REQUIRE(add(kept, 8));
  CHECK(kept.steps() == steps{6, 8});
  const auto sixth = kept.at(6);
  REQUIRE(sixth);
  REQUIRE((*sixth)->size() == 2);
  CHECK((*sixth)->at(0).tensor.equal(version_of(6)[0].tensor));
  CHECK((*sixth)->at(1).tensor.equal(version_of(6)[1].tensor));
  CHECK(kept.at(4).error().code == errc::stale);
}

TEST_CASE("A version that did not come whole is none, and harms none") {
  kept_versions kept;
  REQUIRE(add(kept, 1));
  REQUIRE(add(kept, 2));
  CHECK_FALSE(add(kept, 3, 16, 2));
  CHECK(kept.steps() == steps{1, 2});
  REQUIRE(add(kept, 3));
  CHECK(kept.steps() == steps{2, 3});
}

TEST_CASE("A run that goes back forgets what it had made behind") {
  kept_versions kept;
  REQUIRE(add(kept, 5));
  REQUIRE(add(kept, 6));
  REQUIRE(add(kept, 5));
  CHECK(kept.steps() == steps{5});
}

TEST_CASE("Pieces of two versions do not mix") {
  kept_versions kept;
  CHECK_FALSE(add(kept, 3, 16, 1));
  const auto refused = add_second(kept, 4);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == errc::bad_frame);
}

TEST_CASE("After its last piece a version has no further ones") {
  kept_versions kept;
  REQUIRE(add(kept, 4, 16));
  const auto refused = add_second(kept, 4);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == errc::bad_frame);
  CHECK_THAT(refused.error().text, ContainsSubstring("of step 4, which has not begun"));
}

TEST_CASE("What makes a version of another one changes none before it is kept") {
  kept_versions kept;
  REQUIRE(add(kept, 4));
  const auto list = version_of(5);
  const auto piece = actors::cut_piece(list, {}, {}, actors::piece_tensors::shared);
  REQUIRE(piece);
  const auto update = kept.add_to_update(version_name{5, 1}, *piece);
  REQUIRE(update);
  REQUIRE(*update);
  CHECK((*update)->size() == list.size());
  CHECK(kept.steps() == steps{4});
  kept.keep(5, **update);
  CHECK(kept.steps() == steps{4, 5});
  kept.keep(4, **update);
  CHECK(kept.steps() == steps{4});
}

TEST_CASE("Pieces of a version and of what makes it do not mix") {
  kept_versions kept;
  CHECK_FALSE(add(kept, 3, 16, 1));
  const auto piece =
      actors::cut_piece(version_of(3), {0, 4}, {.bytes = 16}, actors::piece_tensors::shared);
  REQUIRE(piece);
  const auto refused = kept.add_to_update(version_name{3, 1}, *piece);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == errc::bad_frame);
}

TEST_CASE("A stage that was replaced, and lives, changes nothing once the other one has begun") {
  kept_versions kept;
  REQUIRE(add(kept, 4, 16));
  CHECK_FALSE(add(kept, 5, 16, 1));     // the one that is taken for lost
  CHECK_FALSE(add(kept, 4, 16, 2, 2));  // the one in its place, in the middle of a version
  const auto refused = add_second(kept, 5);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == errc::stale);
  CHECK_THAT(refused.error().text, ContainsSubstring("of step 5 is of a stage that was replaced"));
  CHECK_FALSE(add(kept, 5));  // nor from the beginning on
  CHECK(kept.steps() == steps{4});
  const auto list = version_of(4);
  for (actors::list_place from{0, 8}; from != actors::list_place{2, 0};) {
    const auto piece = actors::cut_piece(list, from, {.bytes = 16}, actors::piece_tensors::shared);
    REQUIRE(piece);
    CHECK(kept.add(version_name{4, 2}, *piece));
    from = actors::end_of(*piece);
  }
  CHECK(kept.steps() == steps{4});
  REQUIRE(add(kept, 5, 16, 1000, 2));
  CHECK(kept.steps() == steps{4, 5});
}

TEST_CASE("Pieces of two stages in one place do not mix, even of one version") {
  kept_versions kept;
  CHECK_FALSE(add(kept, 3, 16, 1));
  const auto refused = add_second(kept, 3, 2);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == errc::bad_frame);
  REQUIRE(add(kept, 3, 16, 1000, 2));
  CHECK(kept.steps() == steps{3});
}

TEST_CASE("What a stage that was replaced has stored before is kept, and may be stored again") {
  kept_versions kept;
  REQUIRE(add(kept, 4));
  REQUIRE(add(kept, 5));
  REQUIRE(add(kept, 5, 16, 1000, 2));
  CHECK(kept.steps() == steps{4, 5});
}

TEST_CASE("What makes a version is refused too from a stage that was replaced") {
  kept_versions kept;
  REQUIRE(add(kept, 4, 16, 1000, 2));
  const auto piece = actors::cut_piece(version_of(5), {}, {}, actors::piece_tensors::shared);
  REQUIRE(piece);
  const auto refused = kept.add_to_update(version_name{5, 1}, *piece);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == errc::stale);
}

TEST_CASE(
    "What outlives a trainer takes versions of the next one's stages, and has the last notes") {
  actors::kept_stages kept{.versions = actors::kept_stages::versions_behind_notes};
  auto& versions = kept.of(0);
  REQUIRE(add(versions, 3, 1 << 20, 1000, 7));
  CHECK_FALSE(add(versions, 4, 1 << 20, 1000, 1));
  kept.begin_again();
  REQUIRE(add(versions, 4, 1 << 20, 1000, 1));
  REQUIRE(add(versions, 5));
  CHECK(versions.steps() == steps{3, 4, 5});
  REQUIRE(add(versions, 6));
  CHECK(versions.steps() == steps{4, 5, 6});
  for (std::uint64_t step = 1; step <= 6; ++step) kept.note({.step = step, .slices = {}});
  kept.note({.step = 6, .evaluated = 6, .slices = {}});
  REQUIRE(kept.notes.size() == actors::kept_stages::most_notes);
  CHECK(kept.notes.begin()->first == 3);
  CHECK(kept.notes.at(5).evaluated == 0);
  CHECK(kept.notes.at(6).evaluated == 6);
}

TEST_CASE("What outlives a trainer has the newest notes too where the run has gone back") {
  actors::kept_stages kept;
  for (std::uint64_t step = 47; step <= 50; ++step) kept.note({.step = step, .slices = "0-9 "});
  for (std::uint64_t step = 41; step <= 43; ++step) kept.note({.step = step, .slices = "0-8 "});
  REQUIRE(kept.notes.size() == 3);
  CHECK(kept.notes.begin()->first == 41);
  CHECK(kept.notes.at(43).slices == "0-8 ");
}

TEST_CASE("What was not whole is forgotten when the stages that sent it are replaced") {
  kept_versions kept;
  CHECK_FALSE(add(kept, 3, 16, 1));
  kept.begin_again();
  const auto refused = add_second(kept, 3);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == errc::bad_frame);
}
