#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <map>
#include <string>
#include <vector>

#include "actors/wire/lendable.hpp"
#include "actors/wire/tensors.hpp"
#include "engine/parameter_server/batch.hpp"
#include "engine/parameter_server/mean.hpp"
#include "engine/parameter_server/parameter_store.hpp"
#include "engine/parameter_server/parts.hpp"
#include "tests/refusal.hpp"

namespace {

using namespace troupe;
using namespace troupe::engine;
using Catch::Matchers::ContainsSubstring;

constexpr double rate = 0.5;

parameter_store make_store(std::vector<owned_parameter> parameters, double momentum = 0) {
  const auto sgd = *optimizers::built_in().find("sgd");
  return {std::move(parameters), sgd,
          *optimizers::complete(sgd, {{"lr", rate}, {"momentum", momentum}})};
}

tensor_batch whole(std::uint32_t index, at::Tensor values) {
  batch_builder out(at::kFloat);
  out.add(index, {}, std::move(values));
  return out.take();
}

tensor_batch rows_of(std::uint32_t index, at::Tensor rows, at::Tensor values) {
  return {{}, {}, {{index, std::move(rows), std::move(values)}}};
}

/// The whole of a store, by name.
std::map<std::string, at::Tensor> all_of(const parameter_store& store) {
  std::map<std::string, at::Tensor> values;
  const auto batch = store.read({}, std::nullopt).value();
  const auto entries = unpack(batch, store.directory());
  REQUIRE(entries);
  for (const auto& each : *entries)
    values[store.directory()[each.parameter].name] = each.values.clone();
  return values;
}

}  // namespace

TEST_CASE("the mean adds up in order and divides, to the bit, whatever the type on the wire") {
  for (const auto count : {1, 2, 3, 7})
    for (const auto type : {at::kFloat, at::kDouble}) {
      std::vector<at::Tensor> tensors;
      for (int i = 0; i < count; ++i) {
        const auto one = at::randn({5001}, type);
        tensors.push_back(i % 2 == 1 ? one.to(at::kBFloat16) : one);
      }
      auto sum = tensors.front().to(type, false, true);
      for (int i = 1; i < count; ++i) sum.add_(tensors[static_cast<std::size_t>(i)].to(type));
      CHECK(at::equal(mean_of(tensors, static_cast<std::size_t>(count), type), sum / count));
    }
}

TEST_CASE("a lazy negative is sent and counted with its sign") {
  const auto values = at::randn({7});
  const auto lazy = at::_neg_view(values);
  CHECK(at::equal(whole(0, lazy).values, values.neg()));
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const std::vector both{lazy.to(type), at::_neg_view(values.to(type))};
    CHECK(at::equal(mean_of(both, 2, at::kFloat), values.neg().to(type).to(at::kFloat)));
  }
}

TEST_CASE("an update is the optimizer's step with the mean, and skips what has no gradient") {
  const auto a = at::randn({300, 200});
  const auto b = at::randn({7});
  auto store = make_store({{"a", a.clone()}, {"b", b.clone()}, {"c", at::ones({3})}}, 0.9);
  const auto one = at::randn({300, 200});
  const auto two = at::randn({300, 200});
  REQUIRE(store.update(std::vector{whole(0, one), whole(0, two)}));
  REQUIRE(store.update(std::vector{whole(0, one), whole(1, b)}));
  auto expected = a - rate * ((one + two) / 2);
  expected -= rate * (0.9 * ((one + two) / 2) + one / 2);
  const auto now = all_of(store);
  CHECK(at::allclose(now.at("a"), expected));
  CHECK(at::equal(now.at("b"), b - rate * (b / 2)));
  CHECK(at::equal(now.at("c"), at::ones({3})));
}

TEST_CASE("what was handed out does not change under its reader") {
  auto store = make_store({{"large", at::zeros({300, 300})}, {"small", at::zeros({3})}});
  const auto before = store.read({}, std::nullopt).value();
  auto both = whole(0, at::ones({300, 300}));
  both.packed = {1};
  both.values = at::ones({3});
  REQUIRE(store.update(std::vector{both}));
  CHECK(at::equal(before.entries.front().values, at::zeros({300, 300})));
  CHECK(at::equal(before.values, at::zeros({3})));
  CHECK(at::equal(all_of(store).at("large"), at::full({300, 300}, -rate)));
}

TEST_CASE("an update has the same bits whoever reads the old values, and lendable ones stay so") {
  const auto first = at::randn({300, 300});
  const auto memory = messages::shared_memory::make();
  REQUIRE(memory);
  auto alone = make_store({{"a", first}}, 0.9);
  auto shared = [&] {
    const actors::lendable_tensors lendable(*memory);
    return make_store({{"a", first}}, 0.9);
  }();
  std::vector<tensor_batch> held;
  for (int update = 0; update < 4; ++update) {
    const std::vector pushes{whole(0, at::randn({300, 300})), whole(0, at::randn({300, 300}))};
    REQUIRE(alone.update(pushes));
    held.push_back(*shared.read({}, std::nullopt));
    if (update == 2) held.clear();  // this one is in place
    {
      const actors::lendable_tensors lendable(*memory);
      REQUIRE(shared.update(pushes));
    }
    const auto values = shared.read({}, std::nullopt)->entries.front().values;
    CHECK(at::equal(values, all_of(alone).at("a")));
    CHECK((*memory)->offset_of(actors::to_wire(values).bytes));
  }
}

TEST_CASE("a pull brings only what has changed, and of rows only those") {
  auto store = make_store({{"table", at::zeros({100, 4}), true}, {"bias", at::zeros({3})}});
  REQUIRE(store.update(std::vector{rows_of(0, at::tensor({3L, 50L}), at::ones({2, 4}))}));
  REQUIRE(store.update(std::vector{whole(1, at::ones({3}))}));
  REQUIRE(store.update(std::vector{rows_of(0, at::tensor({3L, 7L}), at::ones({2, 4}))}));
  const auto since = [&](std::uint64_t version) {
    const auto batch = store.read({}, param_version{version});
    REQUIRE(batch);
    return *batch;
  };
  CHECK(since(3).packed.empty());
  CHECK(since(3).entries.empty());
  CHECK(since(2).packed.empty());
  REQUIRE(since(2).entries.size() == 1);
  CHECK(at::equal(since(2).entries[0].rows, at::tensor({3L, 7L})));
  CHECK(at::equal(since(2).entries[0].values.select(1, 0),
                  at::tensor({-2 * rate, -rate}).to(at::kFloat)));
  CHECK(since(1).packed == std::vector<std::uint32_t>{1});
  CHECK(at::equal(since(0).entries[0].rows, at::tensor({3L, 7L, 50L})));
  // So many rows that the whole is as good.
  REQUIRE(store.update(std::vector{rows_of(0, at::arange(60), at::ones({60, 4}))}));
  CHECK(since(0).entries.empty());
  CHECK(since(0).packed == std::vector<std::uint32_t>{0, 1});
  CHECK(store.read({9}, std::nullopt).error().code == errc::bad_data);
}

TEST_CASE("each row is updated as a parameter of its own") {
  const auto momentum = GENERATE(0.0, 0.9);
  const auto start = at::randn({6, 2});
  auto store = make_store({{"table", start.clone(), true}}, momentum);
  std::vector<owned_parameter> single;
  for (std::int64_t row = 0; row < 6; ++row)
    single.push_back({std::to_string(row), start[row].clone()});
  auto apart = make_store(std::move(single), momentum);
  const std::vector<std::vector<std::int64_t>> touched{{0, 2}, {2, 5}, {0, 1, 2}, {}};
  for (const auto& rows : touched) {
    const auto values = at::randn({static_cast<std::int64_t>(rows.size()), 2});
    REQUIRE(store.update(std::vector{rows_of(0, at::tensor(rows, at::kLong), values)}));
    batch_builder each(at::kFloat);
    for (std::size_t i = 0; i < rows.size(); ++i)
      each.add(static_cast<std::uint32_t>(rows[i]), {}, values[static_cast<std::int64_t>(i)]);
    REQUIRE(apart.update(std::vector{each.take()}));
  }
  const auto table = all_of(store).at("table");
  for (std::int64_t row = 0; row < 6; ++row)
    CHECK(at::equal(table[row], all_of(apart).at(std::to_string(row))));
}

TEST_CASE("rows of several pushes are added up in order, repeated ones too") {
  auto store = make_store({{"table", at::zeros({5, 1}), true}});
  REQUIRE(store.update(std::vector{rows_of(0, at::tensor({1L, 1L, 4L}), at::ones({3, 1})),
                                   rows_of(0, at::tensor({4L}), at::full({1, 1}, 3.0))}));
  CHECK(at::equal(all_of(store).at("table").view(-1),
                  at::tensor({0.0, -rate, 0.0, 0.0, -rate * 2}).to(at::kFloat)));
  // One push by rows, one whole.
  REQUIRE(store.update(std::vector{rows_of(0, at::tensor({0L}), at::full({1, 1}, 2.0)),
                                   whole(0, at::full({5, 1}, 4.0))}));
  CHECK(all_of(store).at("table")[0].item<double>() == -rate * 3);
}

TEST_CASE("gradients that do not fit are refused by name") {
  const auto store =
      make_store({{"weight", at::zeros({200, 200})}, {"table", at::zeros({5, 2}), true}});
  const auto refused = [&](const tensor_batch& batch, const std::string& words) {
    const auto good = store.check(batch);
    REQUIRE(!good);
    CHECK(good.error().code == errc::bad_data);
    CHECK_THAT(good.error().text, ContainsSubstring(words));
  };
  CHECK(store.check(whole(0, at::zeros({200, 200}, at::kBFloat16))));
  CHECK(store.check(rows_of(1, at::tensor({4L}), at::ones({1, 2}))));
  refused(whole(7, at::zeros({3})), "no parameter 7");
  refused(whole(0, at::zeros({200, 300})),
          "'weight' has shape [200, 300], and the parameter [200, 200]");
  refused(whole(0, at::zeros({200, 200}, at::kDouble)), "'weight' has dtype Double");
  refused(rows_of(0, at::tensor({0L}), at::ones({1, 200})), "'weight' comes by rows");
  refused(rows_of(1, at::tensor({5L}), at::ones({1, 2})), "row 5");
  refused(rows_of(1, at::tensor({-1L}), at::ones({1, 2})), "row -1");
  refused(rows_of(1, at::tensor({1L, 2L}), at::ones({1, 2})), "not one index for each");
  refused(rows_of(1, at::tensor({1L}), at::ones({1, 3})), "shape [1, 3]");
  refused(rows_of(1, {}, {}), "no values");
  auto twice = whole(0, at::zeros({200, 200}));
  twice.entries.push_back(twice.entries.front());
  refused(twice, "given twice");
  refused({{1}, at::zeros({9}), {}}, "packed values are 9");
  refused({{1}, {}, {}}, "packed values are 0");
  refused({{}, at::zeros({4}), {}}, "packed values are 4");
}

TEST_CASE("the learning rate follows the number of the update") {
  const auto sgd = *optimizers::built_in().find("sgd");
  parameter_store store({{"a", at::zeros({1})}}, sgd, *optimizers::complete(sgd, {}),
                        [](std::uint64_t update) { return update == 1 ? 1.0 : 0.25; });
  REQUIRE(store.update(std::vector{whole(0, at::ones({1}))}));
  REQUIRE(store.update(std::vector{whole(0, at::ones({1}))}));
  CHECK(all_of(store).at("a").item<double>() == -1.25);
}

TEST_CASE("a store that is restored goes on to the same bits, its rows too") {
  const auto begin = [] {
    return std::vector<owned_parameter>{{"table", at::ones({6, 2}), true, 3},
                                        {"dense", at::full({4}, 2.0)}};
  };
  const auto update = [](parameter_store& store, std::vector<std::int64_t> rows) {
    const auto count = static_cast<std::int64_t>(rows.size());
    REQUIRE(store.update(std::vector{
        rows_of(0, at::tensor(rows, at::kLong), at::full({count, 2}, 0.25, at::kFloat))}));
    REQUIRE(store.update(std::vector{whole(1, at::full({4}, 0.5, at::kFloat))}));
  };
  auto store = make_store(begin(), 0.9);
  update(store, {1, 4});
  // A copy of what it is, as a checkpoint has it.
  auto parameters = begin();
  for (auto& each : parameters) each.values = all_of(store).at(each.name);
  auto other = make_store(std::move(parameters), 0.9);
  std::vector<engine::named_tensor> state;
  for (const auto& [name, tensor] : store.state()) state.push_back({name, tensor.clone()});
  std::vector<std::string> names;
  for (const auto& each : state) names.push_back(each.name);
  CHECK(names == std::vector<std::string>{"optimizer.momentum_buffer.table@3",
                                          "optimizer.seen_rows.table@3",
                                          "optimizer.momentum_buffer.dense"});
  REQUIRE(other.restore(store.version(), state));
  CHECK(other.version() == store.version());
  CHECK(other.read({}, other.version())->entries.empty());  // nothing has changed since
  update(store, {0, 1, 5});
  update(other, {0, 1, 5});
  for (const auto& [name, values] : all_of(store)) CHECK(at::equal(values, all_of(other).at(name)));
  for (std::size_t i = 0; i < state.size(); ++i)
    CHECK(at::equal(store.state()[i].tensor, other.state()[i].tensor));
}

TEST_CASE("state that belongs to no parameter of a store, or fits none, is refused by name") {
  auto store = make_store({{"table", at::ones({6, 2}), true, 3}, {"dense", at::ones({4})}});
  const auto refuses = [&](const std::string& name, const at::Tensor& tensor) {
    check_refused(store.restore({1}, {{name, tensor}}), errc::bad_data, name);
  };
  refuses("optimizer.momentum_buffer.table", at::ones({6, 2}));  // of other rows
  refuses("dense", at::ones({4}));
  refuses("optimizer.seen_rows.table@3", at::ones({5}, at::kBool));
  refuses("optimizer.seen_rows.dense", at::ones({4}, at::kBool));
}
