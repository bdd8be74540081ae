// Lists of tensors in pieces: the same bits whatever the pieces, and every wrong piece by name.

#include "actors/transfer/pieces.hpp"
#include "actors/transfer/row_major.hpp"
#include "tests/refusal.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <map>
#include <string>
#include <vector>

namespace {

using namespace troupe;
using namespace troupe::actors;
using Catch::Matchers::ContainsSubstring;
using tensors = std::vector<engine::named_tensor>;

/// Of all layouts and types that a model and its optimizer have, small and large.
tensors mixed() {
  return {{"first", at::randn({5})},
          {"nothing", {}},
          {"conv", at::randn({6, 5, 3, 2}).contiguous(at::MemoryFormat::ChannelsLast)},
          {"transposed", at::randn({20, 30}).t()},
          {"count", at::full({}, 7, at::kLong)},
          {"empty", at::empty({0, 4})},
          {"strided", at::randn({8, 10}).narrow(1, 2, 3)},
          {"half", at::randn({40}).to(at::kBFloat16)},
          {"table", at::randn({50, 30}).to(at::kDouble)},
          {"last", at::ones({1})}};
}

std::vector<tensor_piece> pieces_of(const tensors& list, const piece_limits& most) {
  std::vector<tensor_piece> all;
  REQUIRE(give_pieces(list, most, [&](tensor_piece piece) -> result<void> {
    all.push_back(std::move(piece));
    return {};
  }));
  return all;
}

bool same(const tensors& left, const tensors& right) {
  if (left.size() != right.size()) return false;
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (left[i].name != right[i].name || left[i].tensor.defined() != right[i].tensor.defined())
      return false;
    if (!left[i].tensor.defined()) continue;
    if (left[i].tensor.scalar_type() != right[i].tensor.scalar_type() ||
        !at::equal(left[i].tensor, right[i].tensor))
      return false;
  }
  return true;
}

error refusal(tensor_assembly& all, const tensor_piece& piece) {
  return error_of(all.add(piece));
}

}  // namespace

TEST_CASE("a list is the same to the bit, whatever pieces it travelled in") {
  const auto list = mixed();
  const piece_limits most{GENERATE(1U, 8U, 100U, 1000U, 1U << 20), GENERATE(1U, 3U, 1000U)};
  const auto pieces = pieces_of(list, most);
  tensor_assembly all;
  for (const auto& piece : pieces) {
    CHECK(!all.complete());
    CHECK(piece.begin == all.next());
    std::uint64_t bytes = 0;
    for (const auto& part : piece.parts) bytes += part.tensor.defined() ? part.tensor.nbytes() : 0;
    CHECK(bytes <= std::max<std::uint64_t>(most.bytes, 8));  // an element at least
    CHECK(piece.parts.size() <= most.tensors);
    REQUIRE(all.add(piece));
    CHECK(all.next() == end_of(piece));
  }
  CHECK(all.complete());
  CHECK(same(all.take(), list));
  if (most.bytes == 1U << 20 && most.tensors == 1000) CHECK(pieces.size() == 1);
}

TEST_CASE("a tensor that was cut keeps its layout") {
  const auto conv = at::randn({6, 5, 3, 2}).contiguous(at::MemoryFormat::ChannelsLast);
  tensor_assembly all;
  for (const auto& piece : pieces_of({{"conv", conv}}, {.bytes = 100})) REQUIRE(all.add(piece));
  const auto came = all.take().at(0).tensor;
  CHECK(came.strides() == conv.strides());
  CHECK(at::equal(came, conv));
}

TEST_CASE("a piece of copies does not change with its list") {
  const auto tensor = at::zeros({10});
  const auto shared = *cut_piece({{"a", tensor}}, {}, {}, piece_tensors::shared);
  const auto copied = *cut_piece({{"a", tensor}}, {}, {}, piece_tensors::copied);
  const auto cut = *cut_piece({{"a", tensor}}, {}, {.bytes = 8}, piece_tensors::copied);
  tensor.fill_(1);
  CHECK(shared.parts.at(0).tensor.sum().item<double>() == 10);
  CHECK(copied.parts.at(0).tensor.sum().item<double>() == 0);
  CHECK(cut.parts.at(0).tensor.sum().item<double>() == 0);
}

TEST_CASE("names are counted too: they fill a message's header") {
  tensors list;
  for (int i = 0; i < 40; ++i) list.push_back({std::string(20'000, 'n') + std::to_string(i), {}});
  for (const auto& piece : pieces_of(list, {})) {
    std::size_t bytes = 0;
    for (const auto& part : piece.parts) bytes += part.name.size();
    CHECK(bytes <= 256 * 1024);
  }
}

TEST_CASE("a place outside of a list, and limits that allow nothing, are refused") {
  const tensors list{{"a", at::ones({4})}};
  const auto code = [&](const list_place& from, const piece_limits& most) {
    return cut_piece(list, from, most, piece_tensors::shared).error().code;
  };
  CHECK(code({1, 0}, {}) == errc::bad_frame);
  CHECK(code({0, 4}, {}) == errc::bad_frame);
  CHECK(code({0, 0}, {.bytes = 0}) == errc::bad_config);
  CHECK(code({0, 0}, {.tensors = 0}) == errc::bad_config);
}

TEST_CASE("a piece that is missing, repeated or out of order is refused by name") {
  const tensors list{{"a", at::ones({4})}, {"b", at::ones({40})}, {"c", at::ones({4})}};
  const auto pieces = pieces_of(list, {.bytes = 40});
  REQUIRE(pieces.size() > 4);
  tensor_assembly all;
  REQUIRE(all.add(pieces[0]));

  SECTION("missing") {
    const auto why = refusal(all, pieces[2]);
    CHECK(why.code == errc::bad_frame);
    CHECK_THAT(why.text, ContainsSubstring("came early; the next is to begin at tensor 1"));
    CHECK(refusal(all, pieces[1]) == why);  // there is no way back
  }
  SECTION("repeated") {
    REQUIRE(all.add(pieces[1]));
    const auto why = refusal(all, pieces[1]);
    CHECK(why.code == errc::bad_frame);
    CHECK_THAT(why.text, ContainsSubstring("came again"));
  }
  SECTION("after the last") {
    for (std::size_t i = 1; i < pieces.size(); ++i) REQUIRE(all.add(pieces[i]));
    CHECK_THAT(refusal(all, pieces.back()).text, ContainsSubstring("came after the last"));
  }
  SECTION("the end in the middle of a tensor") {
    auto early = pieces[1];
    early.last = true;
    const auto why = refusal(all, early);
    CHECK(why.code == errc::bad_frame);
    CHECK_THAT(why.text, ContainsSubstring("tensor 'b' ended after"));
  }
}

TEST_CASE("parts that do not fit together are refused by name") {
  const auto pieces = pieces_of({{"a", at::ones({4, 10})}}, {.bytes = 40});
  tensor_assembly all;
  REQUIRE(all.add(pieces[0]));
  auto wrong = pieces[1];
  auto& part = wrong.parts.at(0);
  std::string expected;
  SECTION("another shape") {
    part.range->shape = {10, 4};
    part.range->strides = {4, 1};
    expected = "different shapes";
  }
  SECTION("another type") {
    part.tensor = part.tensor.to(at::kDouble);
    expected = "Float and Double";
  }
  SECTION("another place") {
    part.range->first = 11;
    expected = "elements from 11 on came after 10 of 40";
  }
  SECTION("too many elements") {
    part.tensor = at::ones({31});
    expected = "31 elements from 10 on";
  }
  SECTION("another tensor") {
    part.name = "b";
    expected = "'b' came after 10 of 40";
  }
  SECTION("no run of elements") {
    part.tensor = at::ones({2, 5});
    expected = "no run of elements";
  }
  const auto why = refusal(all, wrong);
  CHECK(why.code == errc::bad_data);
  CHECK_THAT(why.text, ContainsSubstring("'a'") && ContainsSubstring(expected));
}

TEST_CASE("the first part of a tensor is checked before its storage is made") {
  tensor_piece piece{.begin = {}, .parts = {{"a", at::ones({4}), storage_range{}}}};
  auto& range = *piece.parts.at(0).range;
  const auto refused = [&] {
    tensor_assembly all;
    return refusal(all, piece).code;
  };
  range = {{8, 8}, {9, 1}, 0};  // gaps
  CHECK(refused() == errc::bad_data);
  range = {{8, 8}, {1, 1}, 0};  // overlaps
  CHECK(refused() == errc::bad_data);
  range = {{std::int64_t{1} << 40, std::int64_t{1} << 40}, {std::int64_t{1} << 40, 1}, 0};
  CHECK(refused() == errc::bad_data);
  range = {{8, -8}, {-8, 1}, 0};
  CHECK(refused() == errc::bad_data);
  range = {{8}, {1}, 2};  // not its beginning
  CHECK(refused() == errc::bad_data);
}

TEST_CASE("a name that comes twice is refused") {
  tensor_assembly all;
  const auto piece =
      *cut_piece({{"a", at::ones({1})}, {"a", at::ones({1})}}, {}, {}, piece_tensors::shared);
  const auto why = refusal(all, piece);
  CHECK(why.code == errc::bad_data);
  CHECK(why.text == "tensor 'a' came twice");
}

TEST_CASE("weights are copied to where they belong, in any layout, without other storage") {
  const piece_limits most{GENERATE(64U, 1U << 20)};
  const tensors given{{"conv", at::randn({6, 5, 3, 2})},
                      {"flat", at::randn({300})},
                      {"steps", at::full({}, 3, at::kLong)}};
  const tensors own{{"flat", at::zeros({300})},
                    {"conv", at::zeros({6, 5, 3, 2}).contiguous(at::MemoryFormat::ChannelsLast)},
                    {"steps", at::zeros({}, at::kLong)}};
  const auto* const before = own[0].tensor.const_data_ptr();
  weight_loader loader(own);
  for (const auto& piece : pieces_of(given, most)) REQUIRE(loader.add(piece));
  CHECK(loader.complete());
  CHECK(own[0].tensor.const_data_ptr() == before);
  CHECK(at::equal(own[0].tensor, given[1].tensor));
  CHECK(at::equal(own[1].tensor, given[0].tensor));
  CHECK(own[2].tensor.item<std::int64_t>() == 3);
}

TEST_CASE("weights that are not the model's are refused by name, cut or whole") {
  const piece_limits most{GENERATE(64U, 1U << 20)};
  const auto refused = [&](const tensors& given) {
    weight_loader loader({{"a", at::zeros({100})}, {"b", at::zeros({2})}});
    for (const auto& piece : pieces_of(given, most)) {
      if (const auto added = loader.add(piece); !added) {
        CHECK(added.error().code == errc::bad_data);
        return added.error().text;
      }
    }
    return std::string("taken");
  };
  CHECK(refused({{"a", at::ones({100})}, {"b", at::ones({2})}}) == "taken");
  CHECK(refused({{"a", at::ones({100})}}) == "weight 'b' of the model is missing");
  CHECK(refused({{"c", at::ones({100})}}) == "weight 'c' belongs to no layer of the model");
  CHECK(refused({{"a", at::ones({10, 10})}}) ==
        "weight 'a' has shape [10, 10], but the model expects [100]");
  CHECK(refused({{"a", at::ones({100}, at::kLong)}}) ==
        "weight 'a' is of type Long, but the model expects Float");
  CHECK(refused({{"a", {}}}) == "weight 'a' has no values");
}

TEST_CASE("Parts of tensors in any layout are handed on in row-major order") {
  auto list = mixed();
  std::erase_if(list, [](const auto& each) { return !each.tensor.defined(); });
  for (const piece_limits most : {piece_limits{1, 1}, piece_limits{100, 3}, piece_limits{}}) {
    row_major_runs runs;
    std::map<std::string, std::vector<at::Tensor>> got;
    for (const auto& piece : pieces_of(list, most))
      for (const auto& part : piece.parts)
        REQUIRE(runs.add(part,
                         [&](const std::string& name, std::uint64_t first,
                             const at::Tensor& run) -> result<void> {
                           std::int64_t before = 0;
                           for (const auto& each : got[name]) before += each.numel();
                           CHECK(first == static_cast<std::uint64_t>(before));
                           got[name].push_back(run.flatten());
                           return {};
                         }));
    for (const auto& [name, tensor] : list) {
      INFO(name);
      CHECK(at::equal(at::cat(got[name]), tensor.contiguous().flatten()));
    }
  }
  row_major_runs runs;
  const auto take = [](const auto&...) { return result<void>(); };
  CHECK_FALSE(runs.add({"undefined", {}}, take));
  CHECK_FALSE(runs.add({"odd", at::ones({1}), storage_range{{2, 2}, {1}, 0}}, take));
}
