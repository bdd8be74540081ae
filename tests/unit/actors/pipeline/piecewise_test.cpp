// Weights and optimizer state between nodes whose link takes far less than all of it at once: the
// same bits as in one piece.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/base/errors.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/transfer.hpp"
#include "actors/pipeline/local_stages.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "actors/transfer/pieces.hpp"
#include "engine/model/blocks.hpp"
#include "engine/model/model.hpp"
#include "engine/state/safetensors.hpp"
#include "engine/state/tensor_reader.hpp"
#include "optimizers/training/saved_state.hpp"
#include "tests/refusal.hpp"
#include "tests/unit/actors/remote_pipeline.hpp"
#include "tests/unit/scratch_folder.hpp"

namespace {

using namespace troupe;
using namespace troupe::actors;
using Catch::Matchers::ContainsSubstring;
using tests::patience;
using tests::remote_pipeline;
using tensors = std::vector<engine::named_tensor>;

bool same_values(const tensors& left, const tensors& right) {
  if (left.size() != right.size()) return false;
  for (std::size_t i = 0; i < left.size(); ++i)
    if (left[i].name != right[i].name || !at::equal(left[i].tensor, right[i].tensor)) return false;
  return true;
}

engine::model layers(std::uint64_t seed) {
  const auto random = at::detail::createCPUGenerator(seed);
  engine::model made;
  made.push_back(std::make_unique<engine::linear>("one", 3, 50, random));
  made.push_back(std::make_unique<engine::relu>("relu"));
  made.push_back(std::make_unique<engine::linear>("two", 50, 40, random));
  made.push_back(std::make_unique<engine::linear>("three", 40, 4, random));
  return made;
}

engine::batch batch_of(int step) {
  const auto random = at::detail::createCPUGenerator(static_cast<std::uint64_t>(100 + step));
  return {at::randn({6, 3}, random), at::randint(4, {6}, random, at::kLong)};
}

void train(pipeline& stages, int from, int to) {
  for (int step = from; step <= to; ++step) {
    const auto outcome = stages.train(batch_of(step), 2, 0.05);
    REQUIRE(outcome);
  }
}

/// What belongs to the stage with these layers.
tensors part_of(const tensors& all, const std::vector<std::string>& of) {
  tensors part;
  for (const auto& each : all) {
    const auto parameter = optimizers::parameter_of(each.name);
    const auto& name = parameter.empty() ? each.name : parameter;
    for (const auto& layer : of)
      if (name.starts_with(layer + ".")) part.push_back(each);
  }
  return part;
}

}  // namespace

TEST_CASE("a pipeline saves, loads and resumes in pieces to the bits of one piece") {
  const messages::limits bounds{.tensors = 8, .tensor_bytes = 2000};
  const piece_limits most{GENERATE(100U, 1500U), GENERATE(1U, 6U)};
  const messages::limits wide;
  remote_pipeline whole(layers(1), 2, wide, {});
  remote_pipeline pieces(layers(1), 2, bounds, most);
  train(*whole.stages, 1, 3);
  train(*pieces.stages, 1, 3);
  const auto weights = pieces.stages->read_weights();
  const auto state = pieces.stages->read_state();
  REQUIRE(weights);
  REQUIRE(state);
  CHECK(same_values(*weights, *whole.stages->read_weights()));
  CHECK(same_values(*state, *whole.stages->read_state()));

  remote_pipeline resumed(layers(2), 2, bounds, most);
  REQUIRE(resumed.stages->load_weights(0, part_of(*weights, {"one"})));
  REQUIRE(resumed.stages->load_weights(1, part_of(*weights, {"two", "three"})));
  REQUIRE(resumed.stages->load_state(0, part_of(*state, {"one"})));
  REQUIRE(resumed.stages->load_state(1, part_of(*state, {"two", "three"})));
  CHECK(same_values(*resumed.stages->read_weights(), *weights));
  CHECK(same_values(*resumed.stages->read_state(), *state));
  // A dry run's gradients travel in pieces as well.
  const auto one = whole.stages->dry_run(batch_of(9), 2);
  const auto other = resumed.stages->dry_run(batch_of(9), 2);
  REQUIRE(one);
  REQUIRE(other);
  CHECK(same_values(one->gradients, other->gradients));
}

/// What a visit hands over, put together.
template <class Visit>
tensors visited(Visit visit) {
  tensor_assembly all;
  const auto done = visit(
      [&](const tensor_part& part) { return all.add({.begin = all.next(), .parts = {part}}); });
  REQUIRE(done);
  return all.take();
}

TEST_CASE("a pipeline's weights, state and gradients are visited part by part") {
  remote_pipeline run(layers(1), 2, {}, {GENERATE(100U, 100000U), GENERATE(1U, 100U)});
  auto& stages = *run.stages;
  train(stages, 1, 3);
  const auto weights = stages.read_weights(), state = stages.read_state();
  REQUIRE(weights);
  REQUIRE(state);
  tensors all;
  for (const std::uint32_t at : {0U, 1U})
    for (auto& each : visited([&](const auto& take) { return stages.visit_weights(at, take); }))
      all.push_back(std::move(each));
  CHECK(same_values(all, *weights));
  CHECK(same_values(visited([&](const auto& take) { return stages.visit_state(take); }), *state));
  const auto forms = stages.list_state();
  REQUIRE(forms);
  REQUIRE(forms->size() == state->size());
  for (std::size_t i = 0; i < forms->size(); ++i) {
    CHECK(forms->at(i).name == state->at(i).name);
    CHECK(forms->at(i).type == state->at(i).tensor.scalar_type());
    CHECK(at::IntArrayRef(forms->at(i).shape) == state->at(i).tensor.sizes());
  }
  const auto step = stages.dry_run(batch_of(9), 2);
  REQUIRE(step);
  const auto some =
      visited([&](const auto& take) { return stages.visit_dry_run(1, false, 1, 2, take); });
  CHECK(same_values(some, {step->gradients.begin() + 3, step->gradients.begin() + 5}));
  // Who takes them may stop at any part.
  const auto stopped =
      stages.visit_weights(0, [](const tensor_part&) { return fail(errc::io_failed, "no place"); });
  REQUIRE(!stopped);
  CHECK(stopped.error().text == "no place");
}

TEST_CASE("a pipeline gives what its model gives for inputs without labels") {
  at::set_num_threads(1);  // as the stages have
  remote_pipeline run(layers(1), 2, {}, {.bytes = 64});
  const auto whole = layers(1);
  for (const std::int64_t samples : {1, 6}) {
    const auto inputs = at::randn({samples, 3});
    at::Tensor x = inputs;
    for (const auto& each : whole) x = each->forward(x, false);
    CHECK(at::equal(run.stages->predict(inputs).value(), x));
  }
  REQUIRE(run.stages->evaluate(batch_of(1), 2));
  caf::scoped_actor self(run.second.system);
  std::string refusal;
  self->request(run.published[1], patience, read_outputs{})
      .receive([](const outputs_piece&) {},
               [&](const caf::error& why) { refusal = from_caf(why).text; });
  CHECK_THAT(refusal, ContainsSubstring("no evaluation without labels"));
}

TEST_CASE("a stage takes its part out of a file that it sees, and not out of another") {
  const testing::scratch_folder folder;
  remote_pipeline trained(layers(1), 2, {}, {}), other(layers(2), 2, {}, {});
  train(*trained.stages, 1, 2);
  const auto weights = *trained.stages->read_weights(), state = *trained.stages->read_state();
  auto both = weights;
  both.insert(both.end(), state.begin(), state.end());
  REQUIRE(engine::save_safetensors(folder / "w", both));
  const auto known = [&](const char* name) {
    return known_file{(folder / name).string(),
                      engine::tensor_reader::open(folder / name).value()->identity()};
  };
  load_files order{.files = {known("w")}};
  auto elsewhere = order;
  ++elsewhere.files[0].identity.modified_ns;
  CHECK(other.stages->load_files(0, elsewhere) == false);
  elsewhere.files[0].name = (folder / "none").string();
  CHECK(other.stages->load_files(0, elsewhere) == false);
  CHECK(same_values(*other.stages->read_weights(), engine::collect_weights(layers(2))));

  order.except = {"three.weight"};
  for (const std::size_t stage : {0U, 1U}) {
    order.state = false;
    CHECK(other.stages->load_files(stage, order) == true);
    order.state = true;
    CHECK(other.stages->load_files(stage, order) == true);
  }
  auto expected = weights, kept = state;
  const auto fresh = engine::collect_weights(layers(2));
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (expected[i].name == "three.weight") expected[i] = fresh[i];
  std::erase_if(kept, [](const auto& each) { return each.name.ends_with(".three.weight"); });
  CHECK(same_values(*other.stages->read_weights(), expected));
  CHECK(same_values(*other.stages->read_state(), kept));

  REQUIRE(engine::save_safetensors(folder / "lacks", {{"one.weight", weights[0].tensor}}));
  CHECK_THAT(
      error_of(other.stages->load_files(0, {.files = {known("lacks")}}), errc::bad_config).text,
      ContainsSubstring("stage-0: ") && ContainsSubstring("'one.bias' of the model"));
}

TEST_CASE("a stage that is sent some of its weights keeps the others") {
  remote_pipeline run(layers(2), 2, {}, {});
  const auto weights = engine::collect_weights(layers(1)), before = *run.stages->read_weights();
  bool sent = false;
  REQUIRE(run.stages->load_weights(1, [&]() -> result<tensor_piece> {
    CHECK(!std::exchange(sent, true));
    return tensor_piece{.begin = {}, .parts = {{"two.bias", weights[3].tensor}}, .last = true};
  }));
  auto expected = before;
  expected[3] = weights[3];
  CHECK(same_values(*run.stages->read_weights(), expected));
}

TEST_CASE("a stage that cannot send its weights says so at once") {
  remote_pipeline run(layers(1), 2, {.tensor_bytes = 2000}, {});
  const auto weights = error_of(run.stages->read_weights());
  CHECK(weights.code == errc::bad_frame);
  CHECK_THAT(weights.text, ContainsSubstring("the answer 'weights_piece' to actor ") &&
                               ContainsSubstring("limit tensor_bytes is 2000"));
}

TEST_CASE("a stage that was loaded in part runs nothing before it is loaded whole") {
  remote_pipeline run(layers(1), 2, {}, {.bytes = 100});
  const auto weights = *run.stages->read_weights();
  auto wrong = part_of(weights, {"one"});
  wrong.back().tensor = at::ones({51});
  const auto loaded = run.stages->load_weights(0, wrong);
  REQUIRE(!loaded);
  CHECK(loaded.error().code == errc::bad_data);
  CHECK(loaded.error().text ==
        "stage-0: weight 'one.bias' has shape [51], but the model expects [50]");

  // Pieces that are not due, straight at the stage.
  caf::scoped_actor self(run.first.system);
  const auto refusal = [&](const tensor_piece& piece) {
    std::optional<error> why;
    self->request(run.published[0], patience, load_weights{0, piece})
        .receive([](const acknowledged&) {}, [&](const caf::error& what) { why = from_caf(what); });
    return why;
  };
  std::vector<tensor_piece> pieces;
  REQUIRE(give_pieces(part_of(weights, {"one"}), {.bytes = 100}, [&](tensor_piece piece) {
    pieces.push_back(std::move(piece));
    return result<void>();
  }));
  CHECK(!refusal(pieces[0]));
  CHECK_THAT(refusal(pieces[2])->text, ContainsSubstring("stage-0: a piece from tensor 0"));
  engine::batch batch = batch_of(1);
  const auto refused = error_of(run.stages->train(batch, 2, 0.05));
  CHECK_THAT(refused.text, ContainsSubstring("before all of its weights were loaded"));
  for (const auto& piece : pieces) CHECK(!refusal(piece));
  CHECK(same_values(*run.stages->read_weights(), weights));
}

TEST_CASE("a stage of more tensors than a frame takes is saved and loaded") {
  const auto make = [](std::uint64_t seed) {
    const auto random = at::detail::createCPUGenerator(seed);
    engine::model made;
    for (int i = 0; i < 2101; ++i)
      made.push_back(std::make_unique<engine::linear>("layer" + std::to_string(i), 1, 1, random));
    return made;
  };
  remote_pipeline one(make(1), 1, {}, {}), other(make(2), 1, {}, {});
  const auto weights = one.stages->read_weights();
  REQUIRE(weights);
  REQUIRE(weights->size() == 4202);  // 4,200 of them on one stage
  CHECK(same_values(*weights, engine::collect_weights(make(1))));
  REQUIRE(other.stages->load_weights(1, {weights->begin() + 2, weights->end()}));
  REQUIRE(other.stages->load_weights(0, {weights->begin(), weights->begin() + 2}));
  CHECK(same_values(*other.stages->read_weights(), *weights));
}

TEST_CASE("more than 5 GiB of weights and state travel from and to a stage") {
  const char* const wish = std::getenv("TROUPE_LONG");
  if (wish == nullptr || std::string(wish) != "1")
    SKIP("12 GiB of memory and a minute; TROUPE_LONG=1 runs it");
  constexpr std::int64_t side = 21'500;  // 1.7 GiB of weights, twice that of state
  const auto random = at::detail::createCPUGenerator(1);
  engine::model made;
  made.push_back(std::make_unique<engine::linear>("small", 1, side, random));
  made.push_back(std::make_unique<engine::linear>("large", side, side, random));
  const auto expected = engine::parameters(made).at(2).tensor.detach();
  remote_pipeline run(std::move(made), 1, {}, {}, "adam");
  const auto slots = run.stages->read_state();
  REQUIRE(slots);
  {
    // The state is that of a step, made here, so that no step of this size need be computed.
    tensors state;
    for (const std::string slot : {"exp_avg", "exp_avg_sq"})
      state.push_back({"optimizer." + slot + ".large.weight",
                       at::arange(side, at::kFloat).expand({side, side}).contiguous()});
    REQUIRE(run.stages->load_state(1, state));
  }
  std::uint64_t bytes = 0;
  {
    const auto weights = run.stages->read_weights();
    REQUIRE(weights);
    for (const auto& each : *weights) bytes += each.tensor.nbytes();
    CHECK(at::equal(weights->at(2).tensor, expected));
  }
  const auto state = run.stages->read_state();
  REQUIRE(state);
  const auto row = at::arange(side, at::kFloat);
  for (const auto& each : *state) {
    bytes += each.tensor.nbytes();
    for (const std::int64_t at : {std::int64_t{0}, side / 3, side - 1})
      CHECK(at::equal(each.tensor[at], row));
    CHECK(each.tensor.sum(0, false, at::kDouble).equal(row.to(at::kDouble).mul(double(side))));
  }
  CHECK(bytes > std::uint64_t{5} << 30);
}
