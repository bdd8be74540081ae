// A version that is computed from the one before has the bits of the stage's.

#include "actors/recovery/repeated_update.hpp"

#include <ATen/ops/_neg_view.h>
#include <ATen/ops/full.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "optimizers/groups.hpp"
#include "optimizers/training/gradients.hpp"
#include "optimizers/training/saved_state.hpp"
#include "tests/unit/optimizers/optimizer_cases.hpp"

namespace {

using namespace troupe;
using Catch::Matchers::ContainsSubstring;
using engine::named_tensor;
using named_tensors = std::vector<named_tensor>;

/// A parameter group, and one factor for gradients that are too long.
const std::string biases = "*.bias weight_decay=0 lr_scale=0.5";
constexpr double shortened = 0.75;

/// A stage's parameters, of which the last one is frozen, in the layouts that they have there, with
/// the optimizer that updates them in place, and a buffer.
class small_stage {
 public:
  explicit small_stage(const testing::optimizer_case& of, bool has_groups)
      : entry_(testing::find(of.name)),
        terms_{.optimizer = of.name,
               .options = optimizers::complete(entry_, of.chosen).value(),
               .scale = shortened} {
    if (has_groups) terms_.groups = {biases};
    for (const at::IntArrayRef shape : shapes)
      parameters_.push_back(draws_.tensor(shape, at::kFloat));
    parameters_[0] = parameters_[0].contiguous(at::MemoryFormat::ChannelsLast);
  }

  named_tensors version() const {
    named_tensors all;
    const auto slots = optimizers::to_named(slots_, names);
    for (std::size_t i = 0; i < names.size(); ++i) {
      all.push_back({names[i], parameters_[i].clone()});
      for (const auto& [name, tensor] : slots)
        if (optimizers::parameter_of(name) == names[i]) all.push_back({name, tensor.clone()});
    }
    all.push_back({"norm.mean", buffer_});
    return all;
  }

  /// What a keeper is sent of the update that this makes.
  named_tensors update(std::uint64_t step) {
    terms_.number = step;
    terms_.learning_rate = 0.1 / static_cast<double>(step);
    optimizers::gradient_list gradients;
    named_tensors sent;
    for (std::size_t i = 0; i + 1 < names.size(); ++i) {
      gradients.emplace_back(draws_.tensor(shapes[i], at::kFloat, true));
      sent.push_back({actors::gradient_name(names[i]), *gradients.back()});
    }
    gradients.emplace_back();
    const auto groups =
        optimizers::make_groups(entry_, terms_.options, terms_.groups, names).value();
    REQUIRE(optimizers::step_groups(entry_, groups, parameters_,
                                    optimizers::scaled(gradients, shortened), slots_,
                                    terms_.learning_rate, step, names));
    buffer_ = draws_.tensor({4}, at::kFloat);
    sent.push_back({"norm.mean", buffer_});
    return sent;
  }

  const actors::update_terms& terms() const { return terms_; }

 private:
  static inline const std::vector<std::vector<std::int64_t>> shapes{
      {4, 3, 3, 3}, {4}, {5, 7}, {5}, {6}};
  static inline const std::vector<std::string> names{"conv.weight", "conv.bias", "fc.weight",
                                                     "fc.bias", "frozen"};
  testing::numbers draws_{7};
  optimizers::optimizer entry_;
  actors::update_terms terms_;
  std::vector<at::Tensor> parameters_;
  optimizers::state slots_;
  at::Tensor buffer_ = at::full({4}, 0.5);
};

void check_same_version(const named_tensors& one, const named_tensors& other) {
  REQUIRE(one.size() == other.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    CAPTURE(one[i].name);
    CHECK(one[i].name == other[i].name);
    CHECK(testing::same_bits(one[i].tensor, other[i].tensor));
    CHECK(one[i].tensor.strides() == other[i].tensor.strides());
  }
  CHECK(actors::digest_of(one) == actors::digest_of(other));
}

}  // namespace

TEST_CASE("Every optimizer that is the same on every CPU is repeated to the same bits") {
  const auto known = optimizers::built_in();
  for (const auto& each : testing::optimizer_cases()) {
    if (!testing::find(each.name).same_on_every_cpu) continue;
    const bool decays = testing::find(each.name).defaults.contains("weight_decay");
    CAPTURE(each.name);
    small_stage stage(each, decays);
    auto kept = stage.version();
    for (std::uint64_t step = 1; step <= 3; ++step) {
      CAPTURE(step);
      const auto sent = stage.update(step);
      const auto before = actors::digest_of(kept);
      auto made = actors::repeat_update(kept, sent, stage.terms(), known);
      REQUIRE(made);
      check_same_version(*made, stage.version());
      CHECK(actors::digest_of(kept) == before);
      kept = std::move(*made);
    }
  }
}

TEST_CASE("All optimizers but muon are the same on every CPU") {
  const auto known = optimizers::built_in();
  for (const auto& name : known.names()) {
    CAPTURE(name);
    CHECK(known.find(name)->same_on_every_cpu == (name != "muon"));
  }
}

TEST_CASE("A step that was left out changes buffers alone, and copies nothing") {
  small_stage stage({"adam", {}}, false);
  static_cast<void>(stage.update(1));
  const auto before = stage.version();
  const auto made = actors::repeat_update(before, {{"norm.mean", at::full({4}, 3.0)}},
                                          stage.terms(), optimizers::built_in());
  REQUIRE(made);
  REQUIRE(made->size() == before.size());
  for (std::size_t i = 0; i + 1 < before.size(); ++i)
    CHECK(made->at(i).tensor.is_same(before[i].tensor));
  CHECK(made->back().tensor.equal(at::full({4}, 3.0)));
}

TEST_CASE("A parameter that another replica has updated is taken as it came") {
  small_stage stage({"adam", {}}, false);
  const auto before = stage.version();
  auto sent = stage.update(1);
  sent.push_back({"frozen", at::full({6}, 2.0)});
  const auto made = actors::repeat_update(before, sent, stage.terms(), optimizers::built_in());
  REQUIRE(made);
  auto expected = stage.version();
  expected[expected.size() - 2].tensor = at::full({6}, 2.0);
  check_same_version(*made, expected);
}

TEST_CASE("An update that does not fit the version before it is refused") {
  small_stage stage({"adam", {}}, false);
  const auto before = stage.version();
  const auto sent = stage.update(1);
  const auto known = optimizers::built_in();

  auto terms = stage.terms();
  terms.optimizer = "other";
  CHECK(actors::repeat_update(before, sent, terms, known).error().code == errc::bad_config);

  auto more = sent;
  more.push_back({actors::gradient_name("absent"), at::full({2}, 1.0)});
  const auto refused = actors::repeat_update(before, more, stage.terms(), known);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == errc::bad_data);
  CHECK_THAT(refused.error().text,
             ContainsSubstring("gradients of 5 parameters, of which the version before it has 4"));

  more.back().name = "absent";
  CHECK(actors::repeat_update(before, more, stage.terms(), known).error().code == errc::bad_data);
}

TEST_CASE("A digest tells values, names and places apart, and not the order of tensors") {
  const named_tensors one{{"a", at::full({9}, 1.0)}, {"b", at::full({3}, 2.0)}};
  const auto digest = actors::digest_of(one);
  CHECK(actors::digest_of({one[1], one[0]}) == digest);
  CHECK(actors::digest_of({one[0]}) + actors::digest_of({one[1]}) == digest);
  CHECK(actors::digest_of({{"a", at::_neg_view(at::full({9}, -1.0))}, one[1]}) == digest);

  CHECK(actors::digest_of({{"a", one[1].tensor}, {"b", one[0].tensor}}) != digest);
  for (const std::int64_t at : {0, 4, 8}) {
    named_tensors other{{"a", one[0].tensor.clone()}, one[1]};
    other[0].tensor.narrow(0, at, 1).fill_(-1.0);
    CHECK(actors::digest_of(other) != digest);
  }
  const auto first = at::full({9}, 1.0), second = at::full({9}, 1.0);
  first.narrow(0, 2, 1).fill_(5.0);
  second.narrow(0, 6, 1).fill_(5.0);
  CHECK(actors::digest_of({{"a", first}}) != actors::digest_of({{"a", second}}));
}
