// Gradients and values in pieces: what is put together is what was cut, and wrong pieces are
// refused by name.

#include "actors/parameter_server/batch_pieces.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "actors/messages/parameter_server/worker.hpp"
#include "engine/parameter_server/batch.hpp"
#include "tests/refusal.hpp"

namespace {

using namespace troupe;
using namespace troupe::actors;
using Catch::Matchers::ContainsSubstring;

constexpr auto f32 = static_cast<std::int32_t>(at::kFloat);

std::vector<engine::parameter_entry> directory() {
  return {{"bias", {7}, f32},          {"scale", {}, f32},
          {"matrix", {200, 100}, f32}, {"table", {500, 40}, f32, true},
          {"other", {150, 200}, f32},  {"rows", {3000}, f32, true},
          {"small", {11}, f32}};
}

/// Gradients of all of them: packed, dense and by rows.
engine::tensor_batch gradients() {
  engine::batch_builder out(at::kFloat);
  out.add(0, {}, at::randn({7}));
  out.add(1, {}, at::randn({}));
  out.add(2, {}, at::randn({200, 100}));
  out.add(3, at::arange(0, 500, 3), at::randn({167, 40}));
  out.add(4, {}, at::randn({150, 200}).to(at::kBFloat16));
  out.add(5, at::arange(100, 2900), at::randn({2800}));
  out.add(6, {}, at::randn({11}));
  return out.take();
}

std::vector<engine::tensor_batch> batch_pieces_of(const engine::tensor_batch& whole,
                                                  const piece_limits& most) {
  std::vector<engine::tensor_batch> all;
  for (batch_cutter cut(whole, directory(), most); all.empty() || !cut.done();)
    all.push_back(cut.next());
  return all;
}

std::map<std::uint32_t, engine::tensor_batch::entry> by_parameter(
    const engine::tensor_batch& batch) {
  std::map<std::uint32_t, engine::tensor_batch::entry> all;
  const auto entries = unpack(batch, directory());
  REQUIRE(entries);
  for (const auto& each : *entries) all.emplace(each.parameter, each);
  return all;
}

bool same(const at::Tensor& left, const at::Tensor& right) {
  if (!left.defined() || !right.defined()) return left.defined() == right.defined();
  return left.scalar_type() == right.scalar_type() && at::equal(left, right);
}

std::uint64_t bytes_of(const engine::tensor_batch& piece) {
  std::uint64_t bytes = piece.values.defined() ? piece.values.nbytes() : 0;
  const auto add = [&](const auto& list) {
    for (const auto& each : list)
      bytes += each.values.nbytes() + (each.rows.defined() ? each.rows.nbytes() : 0);
  };
  add(piece.entries);
  add(piece.runs);
  return bytes;
}

push_gradients push_of(const engine::tensor_batch& piece, std::uint32_t number, bool last,
                       std::uint64_t sequence = 4) {
  return {.what = {{{2}, sequence}, {}}, .gradients = piece, .piece = number, .last = last};
}

}  // namespace

TEST_CASE("a batch is the same to the bit, whatever pieces it travelled in") {
  const auto whole = gradients();
  const piece_limits most{GENERATE(1U, 400U, 3000U, 60'000U, 10U << 20), GENERATE(1U, 2U, 100U)};
  const auto pieces = batch_pieces_of(whole, most);
  if (most.bytes == 10U << 20 && most.tensors == 100) CHECK(pieces.size() == 1);
  CHECK(fits(whole, most) == (pieces.size() == 1 && most.tensors == 100));
  batch_assembly all(directory());
  for (const auto& piece : pieces) {
    if (most.bytes >= 400) CHECK(bytes_of(piece) <= most.bytes);
    REQUIRE(all.add(piece));
  }
  const auto came = all.take();
  REQUIRE(came);
  const auto expected = by_parameter(whole), got = by_parameter(*came);
  REQUIRE(expected.size() == got.size());
  for (const auto& [parameter, entry] : expected) {
    INFO(directory()[parameter].name);
    CHECK(same(got.at(parameter).rows, entry.rows));
    CHECK(same(got.at(parameter).values, entry.values));
  }
}

TEST_CASE("a batch of nothing is one piece") {
  const auto pieces = batch_pieces_of({}, {.bytes = 1, .tensors = 1});
  REQUIRE(pieces.size() == 1);
  batch_assembly all(directory());
  REQUIRE(all.add(pieces[0]));
  CHECK(all.take()->entries.empty());
}

TEST_CASE("runs that are missing, repeated or of another shape are refused by name") {
  engine::tensor_batch whole;
  whole.entries.push_back({2, {}, at::ones({200, 100})});
  const auto pieces = batch_pieces_of(whole, {.bytes = 20'000});
  REQUIRE(pieces.size() == 4);
  batch_assembly all(directory());
  REQUIRE(all.add(pieces[0]));
  auto wrong = pieces[1];
  auto& run = wrong.runs.at(0);
  auto code = errc::bad_frame;
  std::string expected;
  SECTION("missing") {
    wrong = pieces[2];
    expected = "'matrix' begins at 10000, where 'matrix' is due from 5000 on";
  }
  SECTION("repeated") {
    wrong = pieces[0];
    expected = "'matrix' begins at 0";
  }
  SECTION("beyond the end") {
    run.values = at::ones({15'001});
    expected = "'matrix' goes beyond its end";
  }
  SECTION("of another count") {
    run.count = 30'000;
    expected = "'matrix' begins at 5000";
  }
  SECTION("another parameter first") {
    wrong = {};
    wrong.entries.push_back({4, {}, at::ones({150, 200})});
    expected = "'matrix' ended after 5000 of 20000";
  }
  SECTION("of another type") {
    run.values = run.values.to(at::kDouble);
    code = errc::bad_data;
    expected = "'matrix' has another shape or dtype";
  }
  SECTION("by rows") {
    run.rows = at::arange(5000);
    code = errc::bad_data;
    expected = "'matrix' has another shape or dtype";
  }
  const auto added = error_of(all.add(wrong));
  CHECK(added.code == code);
  CHECK_THAT(added.text, ContainsSubstring(expected));
}

TEST_CASE("a run is checked against its parameter before its storage is made") {
  const auto refused = [](const engine::tensor_batch::run& run) {
    batch_assembly all(directory());
    engine::tensor_batch piece;
    piece.runs.push_back(run);
    const auto added = error_of(all.add(piece));
    CHECK(added.code == errc::bad_data);
    return added.text;
  };
  CHECK_THAT(refused({2, 0, 20'001, {}, at::ones({10})}), ContainsSubstring("has 20000"));
  CHECK_THAT(refused({3, 0, 501, at::arange(1), at::ones({1, 40})}), ContainsSubstring("has 500"));
  CHECK_THAT(refused({2, 0, 100, at::arange(1), at::ones({1, 100})}),
             ContainsSubstring("updated as a whole"));
  CHECK_THAT(refused({99, 0, 10, {}, at::ones({10})}), ContainsSubstring("no parameter 99"));
  CHECK_THAT(refused({2, 0, 20'000, {}, {}}), ContainsSubstring("is empty"));
}

TEST_CASE("a parameter that comes twice, or not to its end, is refused by name") {
  engine::tensor_batch whole;
  whole.entries.push_back({2, {}, at::ones({200, 100})});
  batch_assembly all(directory());
  const auto pieces = batch_pieces_of(whole, {.bytes = 20'000});
  for (std::size_t i = 0; i + 1 < pieces.size(); ++i) REQUIRE(all.add(pieces[i]));
  CHECK_THAT(all.take().error().text, ContainsSubstring("'matrix' ended after 15000 of 20000"));
  REQUIRE(all.add(pieces.back()));
  engine::tensor_batch large;
  large.entries.push_back({4, {}, at::ones({30'001})});
  CHECK(batch_assembly(directory()).add(large).error().text ==
        "'other' comes with more elements than it has");
  CHECK(error_of(all.add(whole)).text == "'matrix' is given twice");
}

TEST_CASE("a part of a push in pieces is whole or refused, and what is wrong is told at its end") {
  const auto pieces = batch_pieces_of(gradients(), {.bytes = 30'000});
  const auto count = static_cast<std::uint32_t>(pieces.size());
  REQUIRE(count > 4);
  incoming_parts parts;
  const auto give = [&](std::uint32_t from, std::uint32_t to, std::uint64_t sequence = 4) {
    std::optional<whole_part> last;
    for (auto i = from; i < to; ++i)
      last = parts.add(push_of(pieces[i], i, i + 1 == count, sequence), directory());
    return last;
  };
  SECTION("whole") {
    CHECK(!give(0, count - 1));
    const auto whole = give(count - 1, count);
    REQUIRE(whole);
    REQUIRE(*whole);
    CHECK((*whole)->entries.size() == 7);
  }
  SECTION("a piece is missing") {
    CHECK(!give(0, 2));
    const auto whole = give(3, count);
    REQUIRE(whole);
    CHECK((*whole).error().code == errc::bad_frame);
    CHECK_THAT((*whole).error().text,
               ContainsSubstring("piece 3 of push 4 of worker 2 came where piece 2"));
  }
  SECTION("a piece is repeated") {
    CHECK(!give(0, 2));
    CHECK(!give(1, 2));
    CHECK_THAT(give(2, count)->error().text, ContainsSubstring("piece 1 of push 4"));
  }
  SECTION("pieces of two pushes") {
    CHECK(!give(0, 2));
    CHECK_THAT(give(2, count, 5)->error().text, ContainsSubstring("piece 2 of push 5"));
  }
  SECTION("the beginning is missing") {
    CHECK_THAT(give(count - 1, count)->error().text, ContainsSubstring("where piece 0"));
  }
  SECTION("it starts over, or its worker goes") {
    CHECK(!give(0, 3));
    CHECK(!give(0, 2));
    parts.forget({2});
    CHECK(!give(0, count - 1));
    CHECK(give(count - 1, count)->has_value());
  }
}

TEST_CASE("values that do not fit into an answer wait for the worker that asked") {
  const auto whole = gradients();
  const batch_limits most{.frame = {.bytes = 50'000}, .piece = {.bytes = 30'000}};
  unfetched_values kept;
  batch_assembly all(directory());
  auto part = kept.begin({2}, {9}, whole, most, directory());
  REQUIRE(part.more);
  REQUIRE(all.add(part.values));
  CHECK(kept.next({3}, 1).error().code == errc::bad_frame);
  CHECK_THAT(kept.next({2}, 2).error().text, ContainsSubstring("piece 1 is due"));
  for (std::uint32_t piece = 1; part.more; ++piece) {
    part = *kept.next({2}, piece);
    CHECK(part.version.value == 9);
    REQUIRE(all.add(part.values));
  }
  CHECK(all.take()->entries.size() == 7);
  CHECK_THAT(kept.next({2}, 1).error().text, ContainsSubstring("none is left"));
  CHECK(!kept.begin({2}, {9}, whole, {}, directory()).more);  // it fits
  REQUIRE(kept.begin({2}, {9}, whole, most, directory()).more);
  kept.forget({2});
  CHECK(!kept.next({2}, 1));
}

TEST_CASE("a directory of thousands of parameters is two tensors, and a malformed one is refused") {
  std::vector<engine::parameter_entry> many;
  for (int i = 0; i < 5000; ++i)
    many.push_back({"layer." + std::to_string(i), {i % 7, 3}, f32, i % 2 == 0, i});
  const auto packed = packed_directory::pack(many);
  const auto back = packed.unpack();
  REQUIRE(back.size() == many.size());
  for (std::size_t i = 0; i < many.size(); ++i) {
    CHECK(back[i].name == many[i].name);
    CHECK(back[i].shape == many[i].shape);
    CHECK(back[i].by_rows == many[i].by_rows);
    CHECK(back[i].first_row == many[i].first_row);
  }
  CHECK(packed_directory::pack({}).unpack().empty());
  const auto malformed = [](packed_directory wrong) {
    CHECK_THROWS_AS(wrong.unpack(), std::invalid_argument);
  };
  malformed({});
  malformed({packed.names, packed.numbers.narrow(0, 0, packed.numbers.numel() - 1)});
  malformed({packed.names.narrow(0, 0, packed.names.numel() - 1), packed.numbers});
  malformed({packed.numbers, packed.numbers});
  auto numbers = packed.numbers.clone();
  numbers[0] = -1;
  malformed({packed.names, numbers});
}
